"""A request is answered once and paid once: written down before it is used, found again, within the money budget."""

import asyncio
import hashlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import StageRefused
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.services import BudgetExhausted, Chat, ServiceError, connect
from tasks.services.call_store import Begin, CallStore, End, process_owner
from tasks.services.calls import CallLog, identify, spending_of
from tasks.services.rate_budget import PROCESS_BUDGET

HELLO = [{"role": "user", "content": "hi"}]
PRICE = {"prompt": 10, "completion": 100}  # 1,000 + 100 tokens: 2 cents


def completion(text: str = "x", finish: str = "stop") -> dict[str, Any]:
    return {
        "choices": [{"message": {"content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
    }


def chat_of(server: Any, file: Path, price: Any = PRICE, **log: Any) -> Chat:
    settings = ModelsSettings.model_validate(
        {
            "endpoints": {"own": {"base_url": server.url, "timeout_s": 2, "total_timeout_s": 2, "max_attempts": 1}},
            "roles": {"m": {"endpoint": "own", "price": price, "max_tokens": 100}},
        }
    )
    calls = CallLog(CallStore(file), "stage", "run", **log)
    connections = connect(ServicesSettings(), {}, models=settings).sharing(PROCESS_BUDGET, calls)
    return Chat(connections.chat, sleep=server.sleep)


async def test_what_was_answered_is_not_asked_again_by_another_process(server, tmp_path):
    server.says_json(completion("hello", "length"))
    first = await chat_of(server, tmp_path / "calls").complete("m", HELLO, seed=1, temperature=1)
    again = await chat_of(server, tmp_path / "calls").complete("m", HELLO, seed=1, temperature=1)
    assert len(server.asked) == 1 and (first.usage.requests, again.usage.requests) == (1, 0)
    assert (again.text, again.is_cut, again.call_id) == (first.text, True, first.call_id)
    assert again.cost_usd == first.cost_usd == pytest.approx(0.02)
    (row,) = CallStore(tmp_path / "calls").take_batch()[2]
    assert (row["verdict"], row["role"], row["stage"], row["run_id"]) == ("cut_by_length", "m", "stage", "run")
    assert row["cost_usd"] == pytest.approx(0.02) and json.loads(row["sampling_json"])["seed"] == 1
    assert json.loads(row["reply_json"])["text"] == "hello"


def test_a_request_is_known_by_the_same_hash_in_every_version():
    tools = [{"type": "function", "function": {"name": "z", "description": "é <b>", "a": [1.5, None, True]}}]
    fields = {"tools": tools, "temperature": 0.5, "max_tokens": 9, "extra": {"b": 1, "a": "ü"}}
    found = identify("r", "own", "http://127.0.0.1:9/v1", "m", b'[{"x":1}]', fields, 3, 7)
    sampling = {"temperature": 0.5, "max_tokens": 9, "extra": {"a": "ü", "b": 1}, "seed": 7, "trial": 3}
    whole = json.dumps(["loopback", "own", "m", tools, sampling], sort_keys=True, separators=(",", ":"))
    # Replies of earlier runs are found by it: a hash that changes has them all paid for again.
    assert found.request_hash == hashlib.sha256(whole.encode() + b'\n[{"x":1}]').hexdigest()
    assert found.is_repeatable and json.loads(found.sampling_json) == sampling


async def test_seeds_trials_and_questions_are_different_requests(server, tmp_path):
    server.says_json(completion())
    chat = chat_of(server, tmp_path / "calls")
    for _ in range(2):
        for seed in (1, 2):
            await chat.complete("m", HELLO, temperature=1, seed=seed)
        for trial in (0, 1):
            await chat.complete("m", HELLO, temperature=1, trial=trial)
        await chat.complete("m", HELLO, temperature=0)
        await chat.complete("m", [{"role": "user", "content": "other"}])
        await chat.complete("m", HELLO, max_tokens=5)
    assert len(server.asked) == 7
    for _ in range(2):
        await chat.complete("m", HELLO, temperature=1)
    assert len(server.asked) == 9, "a sampled answer without seed and trial is meant to differ"


async def test_equal_requests_at_once_are_one(server, tmp_path, reply):
    server.says(reply(body=json.dumps(completion()).encode(), delay_s=0.2))
    chats = [chat_of(server, tmp_path / "calls") for _ in range(3)]
    replies = await asyncio.gather(*(chat.complete("m", HELLO) for chat in chats for _ in range(5)))
    assert len(server.asked) == 1 and len({one.text for one in replies}) == 1


async def test_a_failure_is_in_the_books_and_asked_again(server, tmp_path, reply):
    server.says(
        reply(500),
        reply(body=b'{"choices": [], "usage": {"prompt_tokens": 7}}'),
        reply(body=json.dumps(completion()).encode()),
    )
    chat = chat_of(server, tmp_path / "calls")
    with spending_of("item") as spent:
        for _ in range(2):
            with pytest.raises(ServiceError):
                await chat.complete("m", HELLO)
        assert (await chat.complete("m", HELLO)).text == "x"
    rows = CallStore(tmp_path / "calls").take_batch()[2]
    assert sorted(row["verdict"] for row in rows) == ["answered", "failed_bad_response", "failed_outage"]
    assert {row["item_id"] for row in rows} == {"item"} and len({row["request_hash"] for row in rows}) == 1
    assert spent.paid.prompt_tokens == 1007 and spent.paid.requests == 3 and spent.calls == 3


async def test_the_budget_is_never_passed_and_more_money_goes_on(server, tmp_path, reply):
    server.says(reply(body=json.dumps(completion()).encode(), delay_s=0.01))
    file = tmp_path / "calls"

    async def ask(budget: float, first: int) -> int:
        chat = chat_of(server, file, budget_usd=budget)
        asks = (chat.complete("m", HELLO, seed=first + n, temperature=1) for n in range(50))
        done = await asyncio.gather(*asks, return_exceptions=True)
        refused = [one for one in done if isinstance(one, BaseException)]
        assert all(isinstance(one, BudgetExhausted) for one in refused), refused
        assert not refused or "raise models.budget_usd (--budget)" in str(refused[0])
        return len(done) - len(refused)

    # Not even the question's own estimate fits: it is asked of the price of 100 tokens of answer.
    assert await ask(0.005, 0) == 0 and not server.asked
    got = await ask(0.30, 0)
    spent, lost = CallStore(file).totals()
    assert 0.2 < spent <= 0.30 and lost == 0 and got == len(server.asked) == round(spent / 0.02)
    assert await ask(0.50, 0) > got, "earlier replies are found, then new ones are paid for"
    assert CallStore(file).totals()[0] <= 0.50 and len(server.asked) == round(CallStore(file).totals()[0] / 0.02)


async def test_a_budget_without_a_price_is_refused(server, tmp_path):
    with pytest.raises(StageRefused, match=r"role 'm' .* is not known: give models.roles.m.price"):
        await chat_of(server, tmp_path / "calls", price=None, budget_usd=1).complete("m", HELLO)
    assert not server.asked


async def test_an_abandoned_request_does_not_block_the_next(server, tmp_path, reply):
    server.says(reply(body=json.dumps(completion()).encode(), delay_s=0.3))
    chat = chat_of(server, tmp_path / "calls")
    task = asyncio.create_task(chat.complete("m", HELLO))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await asyncio.wait_for(chat.complete("m", HELLO), 120)).text == "x"


def test_what_a_killed_process_had_under_way_counts_as_its_usual_price(tmp_path: Path) -> None:
    file = CallStore(tmp_path / "calls")
    code = textwrap.dedent(
        f"""
        import os, signal
        from tasks.services.call_store import Begin, CallStore, process_owner
        CallStore({file.path!r}).apply([Begin("a", "m", process_owner(), "t", 0.5, 10.0)])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    (begun,) = file.apply([Begin("a", "m", process_owner(), "t2", 0.5, 10.0)])
    assert begun is not None and begun.what == "go" and file.totals() == (0.0, 0.5)
    assert file.close_abandoned() == 1
    assert file.apply([Begin("a", "m", process_owner(), "t3")])[0].what == "wait", "this process has it under way"  # type: ignore[union-attr]
    file.apply([End("a", "t2")])
    assert file.apply([Begin("a", "m", process_owner(), "t4")])[0].what == "go"  # type: ignore[union-attr]


def test_rows_reach_a_table_once(tmp_path: Path) -> None:
    file = CallStore(tmp_path / "calls")
    row = dict.fromkeys(
        ("stage", "item_id", "run_id", "role", "endpoint", "model", "served_model", "sampling_json", "verdict")
    ) | dict.fromkeys(("finish_reason", "prompt_tokens", "completion_tokens", "requests", "seconds", "cost_usd"))
    row |= {"reply_json": None, "asked_at": 0.0}
    file.apply([End("a", "", {**row, "call_id": "a", "request_hash": "a"})])
    first = file.take_batch()
    file.apply([End("b", "", {**row, "call_id": "b", "request_hash": "b"})])
    assert first is not None and file.take_batch() == first, "until it is stored"
    file.mark_stored(first[1])
    second = file.take_batch()
    assert second is not None and (second[0], second[1]) == (first[0], first[1] + 1)
    assert [one["call_id"] for one in second[2]] == ["b"]
    file.mark_stored(second[1])
    assert file.take_batch() is None
    other = CallStore(tmp_path / "other")
    assert other.load([*first[2], *second[2]], 3) == 2 and other.load(first[2], 3) == 0 and other.table_version() == 3
    assert other.take_batch() is None
    assert file.table_version() == -1
    file.set_table_version(0)
    assert file.table_version() == 0
