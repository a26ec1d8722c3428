"""Steps of several requests in one transaction do what they do one after the other."""

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tasks.services.call_store import COLUMNS, Begin, CallStore, End, process_owner
from tasks.services.response_store import BatchedWriter, Find, Forget, Keep, Response

TABLES = ("responses", "reservations", "facts")


def row(call_id: str, cost: float | None, role: str) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"call_id": call_id, "cost_usd": cost, "role": role, "requests": 1}


def content(path: Path) -> dict[str, list[Any]]:
    with sqlite3.connect(path) as file:
        return {name: sorted(file.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in TABLES}


def some_steps(rng: random.Random, ids: list[str]) -> list[Begin | End]:
    """Of ids that differ, with a budget or without; those that end come first, as they do in a batch."""
    ends, begins = list[End](), list[Begin]()
    budget = rng.choice((None, 6.0))
    for call_id in ids:
        token, role = f"t{call_id}", rng.choice(("agent", "judge"))
        if rng.random() < 0.4:
            # A cost that is exact in binary: sums are equal in any order.
            cost = rng.choice((None, 0.25, 0.5))
            given_up = rng.random() < 0.3
            name = call_id if rng.random() < 0.8 else f"{call_id}-failed"
            ends.append(End(call_id, rng.choice((token, token, "other")), None if given_up else row(name, cost, role)))
        else:
            most = 0.0 if budget is None else 0.25
            begins.append(Begin(call_id, role, process_owner(), token, most, budget, rng.random() < 0.9))
    return [*ends, *begins]


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_does_what_its_steps_do(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    together = CallStore(tmp_path / "together.sqlite", clock=lambda: 1000.0)
    apart = CallStore(tmp_path / "apart.sqlite", clock=lambda: 1000.0)
    names = [f"call {number}" for number in range(90)]
    for _ in range(25):
        steps = some_steps(rng, rng.sample(names, rng.choice((1, 2, 7, 33, 70))))
        assert together.apply(steps) == [apart.apply([step])[0] for step in steps]
        assert content(tmp_path / "together.sqlite") == content(tmp_path / "apart.sqlite")
    found = content(tmp_path / "apart.sqlite")
    assert all(found.values())


def test_a_batch_may_be_of_any_size(tmp_path: Path) -> None:
    """SQLite takes 999 or 32,766 values a statement."""
    file, names = CallStore(tmp_path / "calls.sqlite"), [str(number) for number in range(20_000)]
    begun = file.apply([Begin(name, "agent", process_owner(), name) for name in names])
    assert {one and one.what for one in begun} == {"go"} and len(begun) == len(names)
    file.apply([End(name, name, row(name, None, "agent")) for name in names])
    found = content(tmp_path / "calls.sqlite")
    assert len(found["responses"]) == len(names) and not found["reservations"]


def test_steps_about_one_request_are_done_in_order(tmp_path: Path) -> None:
    file = CallStore(tmp_path / "calls.sqlite")
    begin = Begin("a", "agent", process_owner(), "first")
    again = Begin("a", "agent", process_owner(), "second")
    begun = file.apply([begin, again, End("a", "first", row("a", None, "agent")), again])
    assert [one and one.what for one in begun] == ["go", "wait", None, "found"]


def test_what_comes_in_a_moment_is_one_transaction(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Counting(CallStore):
        def apply(self, steps: Any) -> Any:
            sizes.append(len(steps))
            return super().apply(steps)

    writer = BatchedWriter(Counting(tmp_path / "calls.sqlite").apply)

    async def ask(count: int) -> list[Any]:
        return await asyncio.gather(
            *(
                writer.write(Begin(f"{len(sizes)} {n}", "agent", process_owner(), f"{len(sizes)} {n}"))
                for n in range(count)
            )
        )

    assert {one.what for one in asyncio.run(ask(50))} == {"go"}
    assert sizes == [50]
    assert [one.what for one in asyncio.run(ask(1))] == ["go"]


def test_a_loop_that_ends_before_its_answer_holds_up_no_other(tmp_path: Path) -> None:
    writer = BatchedWriter(CallStore(tmp_path / "calls.sqlite").apply)

    async def left() -> None:
        asking = asyncio.ensure_future(writer.write(Begin("left", "agent", process_owner(), "t")))
        await asyncio.sleep(0)
        asking.cancel()

    async def next_one() -> Any:
        return await asyncio.wait_for(writer.write(Begin("next", "agent", process_owner(), "t2")), 30)

    asyncio.run(left())
    assert asyncio.run(next_one()).what == "go"
    assert [one[1] for one in content(tmp_path / "calls.sqlite")["reservations"]] == ["left", "next"]


def test_answers_of_tools_and_of_models_go_in_one_transaction(tmp_path: Path) -> None:
    file, begin = CallStore(tmp_path / "calls.sqlite"), Begin("a", "agent", process_owner(), "t")
    keep, find = Keep("tool", "a", b"x", 5.0), Find("tool", "a")
    found = file.apply([find, begin, keep, find, Forget("tool", "a"), find, End("a", "t", row("a", None, "agent"))])
    assert [one if not hasattr(one, "what") else one.what for one in found] == [
        *(None, "go", None, Response(b"x", 5.0), None, None, None)
    ]
    assert file.apply([begin])[0].what == "found" and file.find("chat", "missing") is None
