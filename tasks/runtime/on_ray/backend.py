"""Ray's workers: what runs in one, those that are kept for the next job, and the calls of Ray that a pool makes.

The calls are one class, so that a benchmark can run the pool without Ray.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import ray
from ray.exceptions import RayError

from schemas.settings.spread import SpreadSettings
from tasks.runtime.items.chunk import freeze_gc
from tasks.runtime.on_ray.start import drop_ray
from tasks.runtime.on_ray.watch import Placement, RayLost, Watch, fitting, nodes
from tasks.runtime.stage import Resources

GET_AT_ONCE = 64  # results fetched by one call of Ray
Make = Callable[[], Callable[[pl.DataFrame], Any]]


class SyncWorker:
    """Opened by the first chunk of a job, not when made: an error in `make` then comes back as itself."""

    def __init__(self) -> None:
        self._job = ""
        self._call: Callable[[pl.DataFrame], Any] | None = None

    def run(self, job: str, make: Make, chunk: pl.DataFrame) -> Any:
        return self._opened(job, make)(chunk)

    def _opened(self, job: str, make: Make) -> Callable[[pl.DataFrame], Any]:
        if job == self._job and self._call is not None:
            return self._call
        self._call = None  # the last job's context goes before the next one's is made
        call = make()
        freeze_gc()  # else collections took half of the time of a stage that does little to an item
        self._job, self._call = job, call
        return call


class AsyncWorker(SyncWorker):
    async def run(self, job: str, make: Make, chunk: pl.DataFrame) -> Any:
        return await self._opened(job, make)(chunk)


@dataclass(frozen=True)
class _Kind:
    """Workers that can stand in for each other: what they are, and what they take of Ray's resources."""

    is_async: bool
    cpus: float
    gpus: float
    memory_mb: int | None
    is_guest: bool  # takes nothing that others may wait for, and waits for nothing that they have


class _IdleWorkers:
    """Workers whose job is over, kept for the next one: a new process would import everything again."""

    def __init__(self) -> None:
        self._cluster = ""
        self._actors: dict[_Kind, list[Any]] = {}

    def pop(self, kind: _Kind) -> Any | None:
        self._make_room(kind)
        mine = self._actors.get(kind)
        return mine.pop() if mine else None

    def put(self, kind: _Kind, actor: Any) -> None:
        self._make_room(kind)
        self._actors.setdefault(kind, []).append(actor)

    def _make_room(self, kind: _Kind) -> None:
        """End those that hold what workers of this kind may wait for, and those of a cluster we have left."""
        cluster = _cluster()
        if cluster != self._cluster:
            self.forget()  # they ended with it
        self._cluster = cluster
        for other in [other for other in self._actors if other != kind and not (other.is_guest or kind.is_guest)]:
            self._end(other)

    def _end(self, kind: _Kind) -> None:
        for actor in self._actors.pop(kind):
            ray.kill(actor, no_restart=True)

    def forget(self) -> None:
        self._actors.clear()

    def clear(self) -> None:
        if _cluster() == self._cluster:
            for kind in list(self._actors):
                self._end(kind)
        self.forget()


idle_workers = _IdleWorkers()


def release_workers() -> None:
    """End the workers kept for a next job: while they live they hold CPUs that others in Ray may wait for."""
    if ray.is_initialized():
        idle_workers.clear()


def _cluster() -> str:
    # Every private Ray calls its first job 01000000, and every job on a cluster may have the same node.
    here = ray.get_runtime_context()
    return f"{here.get_node_id()} {here.get_job_id()}"


@contextlib.contextmanager
def raising_as_handlers_do() -> Iterator[None]:
    """Let an exception of a signal handler pass through a call of Ray.

    Ray's compiled code knows KeyboardInterrupt only. Any other exception, such as that of Prefect's handler for
    SIGTERM, becomes the cause of a SystemError.
    """
    try:
        yield
    except SystemError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise


class RayBackend:
    """Workers of one kind on the Ray of this process."""

    def __init__(self, settings: SpreadSettings, resources: Resources, is_async: bool) -> None:
        self._resources = resources
        # Nothing works on this machine beside the one worker of a step: it takes no CPUs, so that it and those of the
        # steps around it are kept for the steps after them. One that takes none itself waits for others that do.
        is_own = settings.address is None and not resources.gpus and resources.memory_mb is None
        is_guest = is_own and resources.workers == 1 and resources.cpus > 0
        cpus = 0.0 if is_guest else resources.cpus
        self._kind = _Kind(is_async, cpus, resources.gpus, resources.memory_mb, is_guest)
        self._watch = Watch()
        self._placement = Placement(resources.cpus, resources.gpus, settings.wait_s, resources.memory_mb)

    def fitting(self) -> int:
        """How many workers the nodes can hold."""
        return fitting(nodes(), self._resources.cpus, self._resources.gpus, self._resources.memory_mb)

    def put(self, value: Make) -> Any:
        """A reference to a value that every worker can fetch once."""
        return ray.put(value)

    def new_worker(self, reuse: bool = True) -> Any:
        kept = idle_workers.pop(self._kind) if reuse else None
        if kept is not None:
            return kept
        options: dict[str, Any] = {"num_cpus": self._kind.cpus, "num_gpus": self._kind.gpus}
        if self._kind.memory_mb is not None:
            options["memory"] = self._kind.memory_mb * 2**20
        if self._kind.is_async:
            options["max_concurrency"] = 64  # of calls; the stage itself limits how many items run at once
        worker = AsyncWorker if self._kind.is_async else SyncWorker
        return ray.remote(worker).options(max_restarts=0, **options).remote()

    def ready(self, worker: Any) -> Any:
        """A reference that is there as soon as the worker is."""
        return worker.__ray_ready__.remote()

    def submit(self, worker: Any, job: str, make: Any, chunk: pl.DataFrame) -> Any:
        return worker.run.remote(job, make, chunk)

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """All references that are there, after the first one is or the time is over."""
        every = list(references)
        try:
            with raising_as_handlers_do():
                ready, _ = ray.wait(every, num_returns=1, timeout=timeout_s) if timeout_s else ([], every)
                if len(every) > len(ready) and (ready or not timeout_s):
                    ready, _ = ray.wait(every, num_returns=len(every), timeout=0)
        except ConnectionError as error:  # of ray:// only
            raise RayLost(
                f"the connection to the Ray cluster (spread.address) is lost ({error}): what was finished is saved; "
                "run the same command again when the cluster is back"
            ) from error
        return list(ready)

    def get(self, references: Sequence[Any]) -> list[Any]:
        """The results; where there is none, the exception that says why."""
        values: list[Any] = []
        for first in range(0, len(references), GET_AT_ONCE):
            part = list(references[first : first + GET_AT_ONCE])
            with raising_as_handlers_do():
                try:
                    values += ray.get(part)
                except RayError:  # of one of them: which one is found one by one
                    values += [self._get_one(reference) for reference in part]
        return values

    def _get_one(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayError as error:
            return error

    def kill(self, worker: Any) -> None:
        ray.kill(worker, no_restart=True)

    def keep(self, worker: Any) -> None:
        """The worker is done, and may serve the next job."""
        idle_workers.put(self._kind, worker)

    def check(self, has_worker: bool) -> None:
        """RayLost if Ray is gone; GeofixError if no worker came for too long."""
        self._watch.check()
        self._placement.check(has_worker)

    def check_servers(self) -> None:
        self._watch.check(at_once=True)

    def abandon(self) -> None:
        """Ray is gone, and its workers with it."""
        idle_workers.forget()
        drop_ray()
