"""Work spread over Ray: chunks in, results out as they finish, never more in memory than is in flight.

A worker is an actor that is opened once and then given chunk after chunk. When its process dies it is replaced and
its chunks run again; a chunk that keeps killing workers is cut into single items, and an item that does so alone is
handed back as dead. Closing the stream (or Ctrl-C) stops the workers; what was yielded before is the caller's. When
Ray itself is lost, or gives no worker, the stream ends with an error that says so.
"""

import inspect
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import ray
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
from tasks.runtime.ray_start import drop_ray, start_ray
from tasks.runtime.ray_watch import Placement, RayLost, Watch, fitting, nodes
from tasks.runtime.ray_workers import AsyncWorker, Make, SyncWorker, idle

MAX_DEATHS = 3  # of a worker on one chunk, before the chunk is held to be the cause
QUICK_CHUNK_S = 0.3  # a chunk done faster than this is worth doubling
LARGEST_CHUNK = 8192
STARTING_S = 30.0  # a worker that has not come by then gives its chunks to those that have


@dataclass(frozen=True)
class Resources:
    """What a stage needs of a worker."""

    cpus: float = 1.0
    gpus: float = 0.0
    workers: int | None = None  # none: as many as fit
    concurrency: int = 1  # items in flight in a worker, for async work
    chunk: int = 16  # items a call, to begin with; grows while calls are quick


@dataclass
class _Task:
    chunk: pl.DataFrame
    deaths: int = 0
    sent_at: float = 0.0


@dataclass
class _Seat:
    """A worker's place in the pool; the actor in it may be replaced."""

    actor: Any
    ready: Any  # a reference that is there as soon as the actor is
    has_come: bool = False  # Ray has started it somewhere
    since_s: float = field(default_factory=time.monotonic)
    tasks: dict[Any, _Task] = field(default_factory=dict)


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
) -> Generator[Any, None, None]:
    """Yield `make()(chunk)` for chunks that together are `items`, in the order they finish.

    `make` runs once in each worker process. For a chunk that cannot be survived a `WorkerDied` is yielded instead.
    `meanwhile` is called about every second while results are waited for.
    """
    if items.is_empty():
        return
    start_ray(settings)
    try:
        pool = _Pool(items, make, settings, resources, is_async, meanwhile)
        try:
            yield from pool.results()
        except RayLost:
            pool.abandon()
            raise
        finally:
            pool.stop()
    except RayTaskError:  # a bug in the work, which tells where
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


class _Pool:
    def __init__(
        self,
        items: pl.DataFrame,
        make: Make,
        settings: SpreadSettings,
        resources: Resources,
        is_async: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        self._meanwhile = meanwhile
        self._items, self._next, self._chunk = items, 0, max(1, resources.chunk)
        self._again: deque[_Task] = deque()
        self._job = uuid.uuid4().hex
        self._make = ray.put(make)  # once into the object store, not with every chunk
        self._may_grow = not is_async
        self._is_async, self._resources = is_async, resources
        self._kind = (is_async, resources.cpus, resources.gpus)
        wanted = resources.workers or settings.workers or fitting(nodes(), resources.cpus, resources.gpus)
        chunks = -(-items.height // self._chunk)
        self._watch = Watch()
        self._placement = Placement(resources.cpus, resources.gpus, settings.wait_s)
        self._seats = [self._new_seat(idle.take(self._kind)) for _ in range(max(1, min(wanted, chunks)))]
        # Chunks at a worker: enough to keep it busy, and one waiting, so that it never idles.
        self._depth = max(2, -(-resources.concurrency // self._chunk) + 1) if is_async else 2

    def _new_seat(self, actor: Any | None) -> _Seat:
        actor = actor or self._new_actor()
        return _Seat(actor, actor.__ray_ready__.remote())

    def _new_actor(self) -> Any:
        options: dict[str, Any] = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus}
        if self._is_async:
            options["max_concurrency"] = 64  # of calls; how many items run at once is the stage's own gate
        worker = AsyncWorker if self._is_async else SyncWorker
        return ray.remote(worker).options(max_restarts=0, **options).remote()

    def results(self) -> Iterator[Any]:
        while True:
            self._recall()
            self._fill()
            waiting = {ref: seat for seat in self._seats for ref in seat.tasks}
            if not waiting:
                return
            ready = self._wait(list(waiting))
            for ref in ready:
                seat = waiting[ref]
                if ref in seat.tasks:
                    yield from self._collect(ref, seat)

    def _wait(self, refs: list[Any]) -> list[Any]:
        try:
            # Woken every second so that Ctrl-C is seen, and whether Ray is there.
            ready, _ = ray.wait(refs, num_returns=1, timeout=1.0)
            self._meanwhile()
            self._watch.look()
            self._note_arrivals()
        except ConnectionError as error:  # of ray:// only
            raise RayLost(
                f"the connection to the Ray cluster (spread.address) is lost ({error}): what was finished is saved; "
                "run the same command again when the cluster is back"
            ) from error
        return list(ready)

    def _note_arrivals(self) -> None:
        absent = {seat.ready: seat for seat in self._seats if not seat.has_come}
        if absent:
            come, _ = ray.wait(list(absent), num_returns=len(absent), timeout=0)
            for ref in come:
                absent[ref].has_come = True
        self._placement.look(any(seat.has_come for seat in self._seats))

    def abandon(self) -> None:
        """Ray is lost: its workers with it, and whatever is asked of it now could end this process."""
        self._seats = []
        idle.forget()
        drop_ray()

    def stop(self) -> None:
        for seat in self._seats:
            if seat.tasks or not seat.has_come:
                ray.kill(seat.actor, no_restart=True)
            else:
                idle.give(self._kind, seat.actor)

    def _recall(self) -> None:
        """Chunks at workers that Ray does not start, for want of a node, go to one that has nothing else to do."""
        nothing_new = not self._again and self._next >= self._items.height
        if not nothing_new or not any(seat.has_come and not seat.tasks for seat in self._seats):
            return
        late_s = time.monotonic() - STARTING_S
        for seat in [one for one in self._seats if not one.has_come and one.tasks and one.since_s <= late_s]:
            ray.kill(seat.actor, no_restart=True)
            self._seats.remove(seat)
            self._again.extend(seat.tasks.values())

    def _fill(self) -> None:
        # While none has come all are given something; afterwards those that have.
        seats = [seat for seat in self._seats if seat.has_come] or self._seats
        # To the worker with the least: a deep one filled first would take all of a short list and leave the rest idle.
        while len((seat := min(seats, key=lambda one: len(one.tasks))).tasks) < self._depth:
            task = self._take()
            if task is None:
                return
            task.sent_at = time.monotonic()
            seat.tasks[seat.actor.run.remote(self._job, self._make, task.chunk)] = task

    def _take(self) -> _Task | None:
        if self._again:
            return self._again.popleft()
        if self._next >= self._items.height:
            return None
        chunk = self._items.slice(self._next, self._chunk)
        self._next += chunk.height
        return _Task(chunk)

    def _collect(self, ref: Any, seat: _Seat) -> Iterator[Any]:
        try:
            result = ray.get(ref)
        except RayTaskError as error:
            # The worker lives: its opening was refused, or there is a bug outside the per-item guard.
            raise (error.cause if isinstance(error.cause, GeofixError) else error.as_instanceof_cause()) from None
        except (RayActorError, ObjectLostError, OutOfMemoryError) as error:  # its process died, or its result is lost
            if isinstance(error, RayActorError) and error.actor_init_failed:
                reason = str(error).strip().splitlines()[-1]
                raise GeofixError(
                    f"Ray's workers cannot start: {reason[:300]}; every node needs geofix and what it stands on"
                ) from None
            yield from self._replace(seat)
            return
        task = seat.tasks.pop(ref)
        if self._may_grow and time.monotonic() - task.sent_at < QUICK_CHUNK_S:
            self._chunk = min(LARGEST_CHUNK, self._chunk * 2)
        yield result

    def _replace(self, seat: _Seat) -> Iterator[WorkerDied]:
        self._watch.look(at_once=True)  # a worker dies with its Ray, too
        lost = list(seat.tasks.values())
        ray.kill(seat.actor, no_restart=True)  # where only its result was lost it still holds CPUs
        self._seats[self._seats.index(seat)] = self._new_seat(None)
        for place, task in enumerate(lost):
            # The first of them was at work when the worker died, the others only waited.
            task.deaths += 1 if place == 0 else 0
            if task.deaths < MAX_DEATHS:
                self._again.append(task)
            elif task.chunk.height > 1:
                self._again.extend(_Task(one) for one in task.chunk.iter_slices(1))
            else:
                yield WorkerDied(task.chunk, f"its worker process died {MAX_DEATHS} times")


def is_async_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(function)
