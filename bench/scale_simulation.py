"""10 million simulated items without pixels through the runner and the lake: seconds and memory by millions.

    python -m bench scale_simulation [--items 10000000]

A column step plans the places, an item step reads them from the lake and writes a picture's row for each (9 of 100 are
rejected, 1 of 1,000 fails), and a refresh with one place more of every hundred finds the rest finished and tries the
failed ones again. Runner, Ray, ledger and tables are those of every stage; only the work does nothing. Goals: a commit
costs per row at most 1.5 times as much in the last million as in the first, all processes together stay under 4 GB,
and every item is accounted for.
"""

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import polars as pl
import psutil

from bench.goals import Goal, judge
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from tasks.lake import Lake
from tasks.runtime.chunk import ChunkResult
from tasks.runtime.ledger import Ledger
from tasks.runtime.ray_start import stop_ray
from tasks.runtime.runner import (
    ColumnStage,
    Context,
    Inputs,
    Kept,
    Outcome,
    Rejected,
    Row,
    Stage,
    StageResult,
    Tick,
    WorkerSetup,
    run,
)
from tasks.services import connect

ITEMS = 10_000_000
PARTS = 10  # of the items, told one by one
MORE = 100  # one place in 100 is new in the refresh
MOST_GB = 4.0
MOST_GROWTH = 1.5
SAMPLE_S = 1.0


class Simulated(Settings):
    """How many places there are."""

    places: int = ITEMS


def planned(inputs: Inputs, settings: Simulated) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Places with names as long as real ones, in no order."""
    number = pl.int_range(settings.places, eager=True).alias("number")
    # A product with an odd number modulo 2^64 repeats nothing, and leaves neither range nor order to the keys.
    mixed = (number.cast(pl.UInt64) * 11_400_714_819_323_198_485).cast(pl.String).str.pad_start(20, "0")
    kept = pl.DataFrame({"id": "pl" + mixed, "place_id": "pl" + mixed}).with_columns(
        country=pl.lit("FR"),
        cell=pl.lit("N48E002"),
        lat=number % 9_000 / 100,
        lon=number % 18_000 / 100,
        split=pl.lit("train"),
    )
    return kept, pl.DataFrame(schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String})


def places(inputs: Inputs, settings: Simulated) -> pl.DataFrame:
    return inputs.frame("places", "place_id", "lat", "lon", "split").rename({"place_id": "id"})


def open_nothing(settings: Simulated, setup: WorkerSetup) -> None:
    return None


def pretend(item: Row, context: None) -> Outcome:
    """What collecting a picture leaves in the tables."""
    last = int(item["id"][-3:])
    if last == 0:
        raise TimeoutError("the simulated service did not answer")
    if last % 100 < 9:
        return Rejected("no_picture", {"searched_m": 500, "seen": 0})
    name = item["id"]
    return Kept(
        {
            "images": [
                {
                    "image_id": "im" + name,
                    "place_id": name,
                    "kind": "panorama",
                    "lat": item["lat"],
                    "lon": item["lon"],
                    "source": "mapillary",
                    "source_id": name[2:],
                    "licence": "CC BY-SA 4.0",
                    "attribution": f"somebody, {name[2:]} on mapillary.com, CC BY-SA 4.0",
                    "request_url": f"https://images.example/{name}",
                    "sha256": name * 3,
                    "extension": "jpg",
                    "bytes": 500_000,
                }
            ]
        }
    )


PLAN = ColumnStage("simulated.plan", (), ("places",), planned, identity=lambda settings: 1)
COLLECT = Stage(
    "simulated.collect", ("places",), ("images",), places, pretend, open_nothing, identity=lambda settings: 1
)


@dataclass
class Memory:
    """What this process and all below it hold, shared pages counted once."""

    most_gb: float = 0.0
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Memory":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def now_gb(self) -> float:
        held = 0
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                held += process.memory_full_info().pss
        self.most_gb = max(self.most_gb, held / 1e9)
        return held / 1e9

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.now_gb()


@dataclass(frozen=True)
class CommitCost:
    """One commit of a step."""

    before: int  # items that the step had committed
    rows: int
    seconds: float


@contextlib.contextmanager
def commits_timed() -> Iterator[dict[str, list[CommitCost]]]:
    """What each commit of a ledger takes, by step."""
    found: dict[str, list[CommitCost]] = {}
    commit = Ledger.commit

    def timed(self: Ledger, results: Iterable[ChunkResult]) -> None:
        results = list(results)
        done = found.setdefault(self.run_id, [])
        start = time.perf_counter()
        commit(self, results)
        rows, before = sum(result.items for result in results), done[-1].before + done[-1].rows if done else 0
        done.append(CommitCost(before, rows, time.perf_counter() - start))

    with patch.object(Ledger, "commit", timed):
        yield found


class Told:
    """Prints seconds and memory after each part of a run."""

    def __init__(self, memory: Memory, part: int) -> None:
        self._memory, self._part, self._next, self._since_s = memory, part, part, 0.0

    def __call__(self, tick: Tick) -> None:
        if tick.done >= self._next:
            gb, seconds = self._memory.now_gb(), tick.seconds - self._since_s
            rate = self._part / max(seconds, 1e-9)
            print(f"     {tick.done:>11,} items: {seconds:6.1f} s, {rate:>7,.0f}/s, {gb:.2f} GB", flush=True)
            self._next, self._since_s = self._next + self._part, tick.seconds


def growth(costs: Sequence[CommitCost], part: int) -> float:
    """What a row costs in the commits of the last part, in times of the first."""

    def cost(some: Sequence[CommitCost]) -> float:
        return median(one.seconds / one.rows for one in some)

    last = max(one.before for one in costs)
    return cost([one for one in costs if one.before > last - part]) / cost([one for one in costs if one.before < part])


def simulate(folder: Path, items: int, memory: Memory) -> list[Goal]:
    """Plan, collect and refresh; what is to be judged."""
    part, more = max(1, items // PARTS), items // MORE
    context = Context(Lake(folder), connect(ServicesSettings(), {}))
    goals: list[Goal] = []
    with commits_timed() as costs:

        def told(what: str, stage: Stage | ColumnStage, count: int) -> StageResult:
            print(f"   {what}", flush=True)
            memory.most_gb, start = 0.0, time.perf_counter()
            result = run(stage, Simulated(places=count), replace(context, progress=Told(memory, part)))
            made = costs[result.run_id]
            print(
                f"     {time.perf_counter() - start:.1f} s in all, {memory.most_gb:.2f} GB at most; "
                f"{len(made)} commits, {1e6 * median(one.seconds / one.rows for one in made):.1f} µs a row",
                flush=True,
            )
            goals.append(Goal(f"GB at most, {what}", memory.most_gb, at_most=MOST_GB))
            if result.items_in == items:
                much = growth(made, part)
                goals.append(Goal(f"growth of a commit's cost by row, {what}", much, at_most=MOST_GROWTH))
                print(f"     a row of the last commits costs {much:.2f} times one of the first", flush=True)
            return result

        told(f"{items:,} places planned", PLAN, items)
        first = told(f"{items:,} places collected", COLLECT, items)
        told(f"{more:,} places more planned", PLAN, items + more)
        again = told(f"refresh of {items + more:,} places", COLLECT, items + more)
    lost = first.items_in - first.kept - first.rejected - first.failed
    goals.append(Goal("items that got lost", lost, at_most=0))
    goals.append(Goal("items in", first.items_in, at_least=items, at_most=items))
    goals.append(Goal("items of the refresh", again.items_in, more + first.failed, more + first.failed))
    return goals


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench scale_simulation")
    parser.add_argument("--items", type=int, default=ITEMS)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, Memory() as memory:
        goals = simulate(Path(folder) / "lake", given.items, memory)
        stop_ray()
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
