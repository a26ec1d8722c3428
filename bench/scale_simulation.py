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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from unittest.mock import patch

import polars as pl
import psutil

from bench.goals import Goal, judge
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from tasks.lake import Lake
from tasks.runtime.items.chunk import ChunkResult
from tasks.runtime.items.ledger import Ledger
from tasks.runtime.on_ray.start import stop_ray
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


STAGES: dict[str, Stage | ColumnStage] = {"plan": PLAN, "collect": COLLECT}


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


@dataclass(frozen=True)
class Step:
    """One step of one process, as a command of a user is."""

    what: str
    stage: str
    count: int


@dataclass(frozen=True)
class Done:
    """What a step took, and what became of its items."""

    result: StageResult
    most_gb: float
    growth: float | None


def take_step(folder: Path, items: int, step: Step) -> Done:
    """Run a step in this process, with a Ray of its own."""
    print(f"   {step.what}", flush=True)
    part, start = max(1, items // PARTS), time.perf_counter()
    with commits_timed() as costs, Memory() as memory:
        context = Context(Lake(folder), connect(ServicesSettings(), {}), progress=Told(memory, part))
        result = run(STAGES[step.stage], Simulated(places=step.count), context)
        stop_ray()
    made = costs[result.run_id]
    print(
        f"     {time.perf_counter() - start:.1f} s in all, {memory.most_gb:.2f} GB at most; "
        f"{len(made)} commits, {1e6 * median(one.seconds / one.rows for one in made):.1f} µs a row",
        flush=True,
    )
    much = growth(made, part) if result.items_in == items else None
    if much is not None:
        print(f"     a row of the last commits costs {much:.2f} times one of the first", flush=True)
    return Done(result, memory.most_gb, much)


def simulate(folder: Path, items: int) -> list[Goal]:
    """Plan, collect and refresh; what is to be judged."""
    more = items // MORE
    steps = [
        Step(f"{items:,} places planned", "plan", items),
        Step(f"{items:,} places collected", "collect", items),
        Step(f"{more:,} places more planned", "plan", items + more),
        Step(f"refresh of {items + more:,} places", "collect", items + more),
    ]
    # A process each, as commands are: what one had allocated is not counted to the next.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        done = [pool.submit(take_step, folder, items, step).result() for step in steps]
    goals: list[Goal] = []
    for step, one in zip(steps, done, strict=True):
        goals.append(Goal(f"GB at most, {step.what}", one.most_gb, at_most=MOST_GB))
        if one.growth is not None:
            goals.append(Goal(f"growth of a commit's cost by row, {step.what}", one.growth, at_most=MOST_GROWTH))
    first, again = done[1].result, done[3].result
    lost = first.items_in - first.kept - first.rejected - first.failed
    goals.append(Goal("items that got lost", lost, at_most=0))
    goals.append(Goal("items in", first.items_in, at_least=items, at_most=items))
    goals.append(Goal("items of the refresh", again.items_in, more + first.failed, more + first.failed))
    return goals


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench scale_simulation")
    parser.add_argument("--items", type=int, default=ITEMS)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return judge(simulate(Path(folder) / "lake", given.items))


if __name__ == "__main__":
    from bench.scale_simulation import main as imported  # its processes find what they are sent under this name

    raise SystemExit(imported(sys.argv[1:]))
