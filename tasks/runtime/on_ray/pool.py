"""Work spread over Ray: chunks in, results out as they finish, never more in memory than is in flight.

A worker is an actor that is opened once and then given chunk after chunk. When its process dies it is replaced and
its chunks run again; a chunk that keeps killing workers is split into single items, and an item that does so alone is
returned as dead. Closing the stream (or Ctrl-C) stops the workers; what was yielded before is the caller's. When
Ray itself is lost, or starts no worker, the stream ends with an error that says so.
"""

import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from ray.exceptions import (
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from schemas.errors import GeofixError
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray.backend import Make, RayBackend
from tasks.runtime.on_ray.start import start_ray
from tasks.runtime.on_ray.watch import RayLost, nodes
from tasks.runtime.stage import Resources, placed_resources

MAX_DEATHS = 3  # of a worker on one chunk, before the chunk is taken for the cause
QUICK_CHUNK_S = 0.3  # a chunk done faster than this is worth doubling
LARGEST_CHUNK = 8192
STARTING_S = 30.0  # after this time the chunks of a worker that has not started go to those that have
WAIT_S = 1.0  # for a result, so that Ctrl-C is handled and Ray is checked
ARRIVALS_S = 0.1  # between two looks at which workers have started


@dataclass
class _Task:
    chunk: pl.DataFrame
    deaths: int = 0
    sent_at: float = 0.0


@dataclass(eq=False)
class WorkerSlot:
    """A place in the pool for one worker, which may be replaced."""

    worker: Any
    ready: Any  # a reference that is there as soon as the worker is
    started: bool = False  # Ray has started it somewhere
    since_s: float = field(default_factory=time.monotonic)
    tasks: dict[Any, _Task] = field(default_factory=dict)


class _Loads:
    """Slots by the number of chunks they have, so that the one with the fewest is found without a search."""

    def __init__(self, depth: int) -> None:
        self._by_load: list[dict[WorkerSlot, None]] = [{} for _ in range(depth)]  # fuller ones are not listed

    def put(self, slot: WorkerSlot) -> None:
        if len(slot.tasks) < len(self._by_load):
            self._by_load[len(slot.tasks)][slot] = None

    def take_least(self) -> WorkerSlot | None:
        """A slot with the fewest chunks, taken off the list; None if all are full."""
        for slots in self._by_load:
            if slots:
                slot = next(iter(slots))
                del slots[slot]
                return slot
        return None

    def discard(self, slot: WorkerSlot) -> None:
        if len(slot.tasks) < len(self._by_load):
            self._by_load[len(slot.tasks)].pop(slot, None)

    def has_idle(self) -> bool:
        return bool(self._by_load[0])


@dataclass(frozen=True)
class WorkerDied:
    """The items of a chunk that killed its worker each time it was tried."""

    chunk: pl.DataFrame
    message: str


def spread(
    items: pl.DataFrame,
    make: Make,
    settings: SpreadSettings,
    resources: Resources,
    is_async: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
    most_workers: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Generator[Any, None, None]:
    """Yield `make()(chunk)` for chunks that together are `items`, in the order they finish.

    `make` runs once in each worker process. For a chunk whose worker dies each time a `WorkerDied` is yielded instead.
    `meanwhile` is called at least every second while results are waited for, and `tell` with what is waited for until
    the first one. More than `most_workers` are started only
    if the resources ask for a number.
    """
    if items.is_empty():
        return
    tell("starting Ray")
    start_ray(settings)
    resources = placed_resources(resources, nodes())
    try:
        backend = RayBackend(settings, resources, is_async)
        wanted = resources.workers or settings.workers or backend.fitting()
        if most_workers is not None and resources.workers is None:
            wanted = min(wanted, most_workers)
        pool = Pool(items, make, backend, wanted, resources, is_async, meanwhile, tell)
        try:
            yield from pool.results()
        except RayLost:
            pool.abandon()
            raise
        finally:
            pool.stop()
    except RayTaskError:  # a bug in the work; its traceback tells where
        raise
    except RayError as error:
        raise GeofixError(_in_words(error, settings)) from error


def _in_words(error: RayError, settings: SpreadSettings) -> str:
    saved = "what was finished is saved; run the same command again to go on"
    if isinstance(error, ObjectStoreFullError):
        return f"Ray's memory for objects is full: raise spread.object_store_mb={settings.object_store_mb}; {saved}"
    if isinstance(error, OutOfDiskError):
        return f"Ray has no space left on the disk that holds {tempfile.gettempdir()} (TMPDIR): free some; {saved}"
    return f"Ray failed ({type(error).__name__}: {' '.join(str(error).split())[:200]}): {saved}"


class Pool:
    """The workers of one job and the chunks they have. A result costs the same however many workers there are."""

    def __init__(
        self,
        items: pl.DataFrame,
        make: Make,
        backend: RayBackend,
        workers: int,
        resources: Resources,
        is_async: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._backend, self._meanwhile, self._tell = backend, meanwhile, tell
        self._items, self._next, self._chunk = items, 0, max(1, resources.chunk)
        self._again: deque[_Task] = deque()
        self._job = uuid.uuid4().hex
        self._make = backend.put(make)  # once into the object store, not with every chunk
        self._may_grow = resources.may_grow and not is_async
        # Chunks at a worker: enough to keep it busy, and one more, so that it never waits for the next.
        self._depth = max(2, -(-resources.concurrency // self._chunk) + 1) if is_async else 2
        self._waiting: dict[Any, WorkerSlot] = {}  # result -> where it is made
        self._pending: dict[Any, WorkerSlot] = {}  # by `ready`, those that Ray has not started yet
        self._started: set[WorkerSlot] = set()
        self._loads_pending, self._loads_started = _Loads(self._depth), _Loads(self._depth)
        self._next_arrivals_s = 0.0
        chunks = -(-items.height // self._chunk)
        for _ in range(max(1, min(workers, chunks))):
            self._add_slot(backend.new_worker())
        tell(f"starting {len(self._pending)} worker{'s' if len(self._pending) > 1 else ''}")

    @property
    def slots(self) -> list[WorkerSlot]:
        return [*self._started, *self._pending.values()]

    def _add_slot(self, worker: Any) -> None:
        slot = WorkerSlot(worker, self._backend.ready(worker))
        self._pending[slot.ready] = slot
        self._loads_pending.put(slot)

    def _drop_slot(self, slot: WorkerSlot) -> list[_Task]:
        """End a worker; the chunks it had."""
        self._backend.kill(slot.worker)  # where only its result was lost it still holds CPUs
        (self._loads_started if slot.started else self._loads_pending).discard(slot)
        self._started.discard(slot)
        self._pending.pop(slot.ready, None)
        for reference in slot.tasks:
            del self._waiting[reference]
        return list(slot.tasks.values())

    def _mark_started(self, slot: WorkerSlot) -> None:
        if not slot.started:
            del self._pending[slot.ready]
            self._loads_pending.discard(slot)
            slot.started = True
            if not self._started:
                self._tell("loading what the step needs, and the first items")
            self._started.add(slot)
            self._loads_started.put(slot)

    def results(self) -> Iterator[Any]:
        self._fill()
        while self._waiting:
            ready = self._wait()
            outputs: list[Any] = []
            try:
                for reference, result in zip(ready, self._backend.get(ready), strict=True):
                    if reference in self._waiting:  # else its worker was replaced meanwhile
                        outputs += self._finish_chunk(reference, result)
                # Before the results are yielded: the workers go on while the caller stores them.
                self._reassign_late()
                self._fill()
            except Exception:
                yield from outputs
                raise
            yield from outputs

    def _wait(self) -> list[Any]:
        ready = self._backend.wait(list(self._waiting), WAIT_S)
        self._meanwhile()
        for reference in ready:
            self._mark_started(self._waiting[reference])
        if time.monotonic() >= self._next_arrivals_s:
            for reference in self._backend.wait(list(self._pending), 0) if self._pending else ():
                self._mark_started(self._pending[reference])
            self._next_arrivals_s = time.monotonic() + ARRIVALS_S
        self._backend.check(bool(self._started))
        return ready

    def abandon(self) -> None:
        """Ray is lost, and its workers with it; a further call of Ray could end this process."""
        self._started.clear()
        self._pending.clear()
        self._backend.abandon()

    def stop(self) -> None:
        for slot in self.slots:
            if slot.tasks or not slot.started:
                self._backend.kill(slot.worker)
            else:
                self._backend.keep(slot.worker)

    def _reassign_late(self) -> None:
        """Chunks at workers that Ray does not start, because no node has room, go to one that is idle."""
        nothing_new = not self._again and self._next >= self._items.height
        if not nothing_new or not self._pending or not self._loads_started.has_idle():
            return
        late_s = time.monotonic() - STARTING_S
        for slot in [busy for busy in self._pending.values() if busy.tasks and busy.since_s <= late_s]:
            self._again.extend(self._drop_slot(slot))

    def _fill(self) -> None:
        # Until the first worker has started all are given chunks; afterwards only those that have.
        loads = self._loads_started if self._started else self._loads_pending
        # To the one with the fewest: one that is filled up first would take all of a short list.
        while self._again or self._next < self._items.height:
            slot = loads.take_least()
            if slot is None:
                return
            task = self._next_task()
            task.sent_at = time.monotonic()
            reference = self._backend.submit(slot.worker, self._job, self._make, task.chunk)
            slot.tasks[reference] = task
            self._waiting[reference] = slot
            loads.put(slot)

    def _next_task(self) -> _Task:
        if self._again:
            return self._again.popleft()
        chunk = self._items.slice(self._next, self._chunk)
        self._next += chunk.height
        return _Task(chunk)

    def _finish_chunk(self, reference: Any, result: Any) -> list[Any]:
        """Take a finished chunk off its worker; what is to be yielded of it."""
        slot = self._waiting[reference]
        if isinstance(result, RayTaskError):
            # The worker lives: its opening was refused, or there is a bug outside the per-item guard.
            raise (result.cause if isinstance(result.cause, GeofixError) else result.as_instanceof_cause()) from None
        if isinstance(result, RayActorError | ObjectLostError | OutOfMemoryError):  # its process or its result is lost
            if isinstance(result, RayActorError) and result.actor_init_failed:
                reason = str(result).strip().splitlines()[-1]
                raise GeofixError(
                    f"Ray's workers cannot start: {reason[:300]}; every node needs geofix and its dependencies"
                )
            return self._replace(slot)
        if isinstance(result, RayError):
            raise result
        self._loads_started.discard(slot)
        del self._waiting[reference]
        task = slot.tasks.pop(reference)
        self._loads_started.put(slot)
        if self._may_grow and time.monotonic() - task.sent_at < QUICK_CHUNK_S:
            self._chunk = min(LARGEST_CHUNK, self._chunk * 2)
        return [result]

    def _replace(self, slot: WorkerSlot) -> list[Any]:
        self._backend.check_servers()  # a worker dies with its Ray, too
        lost = self._drop_slot(slot)
        self._add_slot(self._backend.new_worker(reuse=False))
        dead: list[Any] = []
        for place, task in enumerate(lost):
            # The first of them was at work when the worker died, the others only waited.
            task.deaths += 1 if place == 0 else 0
            if task.deaths < MAX_DEATHS:
                self._again.append(task)
            elif task.chunk.height > 1:
                self._again.extend(_Task(part) for part in task.chunk.iter_slices(1))
            else:
                dead.append(WorkerDied(task.chunk, f"its worker process died {MAX_DEATHS} times"))
        return dead
