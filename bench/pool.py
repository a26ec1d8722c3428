"""What the pool itself costs with thousands of workers: 3,200 simulated ones, some of which die, and no Ray.

    python -m bench pool

The pool is the one every stage runs on; only the calls of Ray are replaced. The simulated workers could return 6,400
results a second, each of them after half a second, so the rate that is found is the pool's own. It fails unless every
item comes back once, at 2,000 results a second or more.
"""

import heapq
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from ray.exceptions import RayActorError

from bench.goals import Goal, judge
from tasks.runtime.on_ray.pool import Pool, WorkerDied
from tasks.runtime.stage import Resources

WORKERS = 3_200
RESULTS = 60_000
SECONDS = 0.5  # that a chunk takes, on average
START_S = 2.0  # within which all workers have started
DEATHS = 1 / 5_000  # of a worker, with each chunk
AT_LEAST = 2_000.0  # results a second


@dataclass(eq=False)
class SimulatedWorker:
    """Does one chunk after another."""

    starts_s: float
    free_s: float = 0.0
    is_dead: bool = False


@dataclass
class SimulatedRay:
    """Results that are there when their time has come, by the real clock."""

    workers: int = WORKERS
    seconds: float = SECONDS
    deaths: float = DEATHS
    start_s: float = START_S
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    killed: int = 0
    _next: int = 0
    _due: list[tuple[float, int]] = field(default_factory=list)
    _starting: dict[int, SimulatedWorker] = field(default_factory=dict)
    _results: dict[int, Any] = field(default_factory=dict)

    def _reference(self) -> int:
        self._next += 1
        return self._next

    def fitting(self) -> int:
        return self.workers

    def put(self, value: Any) -> Any:
        return value

    def new_worker(self, reuse: bool = True) -> SimulatedWorker:
        return SimulatedWorker(time.monotonic() + self.start_s * self.chance.random())

    def ready(self, worker: SimulatedWorker) -> int:
        self._starting[reference := self._reference()] = worker
        return reference

    def submit(self, worker: SimulatedWorker, job: str, make: Any, chunk: pl.DataFrame) -> int:
        reference = self._reference()
        begin_s = max(time.monotonic(), worker.free_s, worker.starts_s)
        worker.free_s = begin_s + self.seconds * (0.5 + self.chance.random())
        worker.is_dead = worker.is_dead or self.chance.random() < self.deaths
        self._results[reference] = RayActorError() if worker.is_dead else chunk
        heapq.heappush(self._due, (worker.free_s, reference))
        return reference

    def wait(self, references: Sequence[int], timeout_s: float) -> list[int]:
        now_s = time.monotonic()
        if not timeout_s:
            return [one for one in references if self._starting[one].starts_s <= now_s]
        if self._due and self._due[0][0] > now_s:
            time.sleep(min(timeout_s, self._due[0][0] - now_s))
        found, wanted, now_s = [], set(references), time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            reference = heapq.heappop(self._due)[1]
            if reference in wanted:  # else its worker was given up
                found.append(reference)
        return found

    def get(self, references: Sequence[int]) -> list[Any]:
        return [self._results.pop(reference) for reference in references]

    def kill(self, worker: SimulatedWorker) -> None:
        self.killed += 1

    def keep(self, worker: SimulatedWorker) -> None: ...

    def check(self, has_worker: bool) -> None: ...

    def check_servers(self) -> None: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True)
class Found:
    """What a run through the pool came to."""

    seconds: float
    items: list[str]
    died: int

    @property
    def rate(self) -> float:
        return len(self.items) / self.seconds


def measure(backend: SimulatedRay, results: int) -> Found:
    """Send chunks of one item each through a pool."""
    items = pl.DataFrame({"id": [f"n{k}" for k in range(results)]})
    began_s = time.monotonic()
    pool = Pool(items, lambda: lambda chunk: chunk, backend, backend.workers, Resources(chunk=1), is_async=True)
    found: list[str] = []
    died = 0
    for result in pool.results():
        died += isinstance(result, WorkerDied)
        found.append((result.chunk if isinstance(result, WorkerDied) else result)["id"][0])
    pool.stop()
    return Found(time.monotonic() - began_s, found, died)


def main() -> int:
    backend = SimulatedRay()
    found = measure(backend, RESULTS)
    once = len(set(found.items)) == len(found.items) == RESULTS
    print(f"   {WORKERS:,} workers, {RESULTS:,} results in {found.seconds:.1f} s: {found.rate:,.0f} a second")
    print(f"   {backend.killed} workers ended and replaced; every item came back {'once' if once else 'NOT ONCE'}")
    return judge([Goal("results a second", found.rate, at_least=AT_LEAST), Goal("items that came back", once, 1)])
