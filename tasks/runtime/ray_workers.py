"""The processes in which work is done: what runs in one, and those that are kept for the next job."""

from collections.abc import Callable
from typing import Any

import polars as pl
import ray

from tasks.runtime.ray_private import restore_home

Make = Callable[[], Callable[[pl.DataFrame], Any]]


class SyncWorker:
    """Opened by the first chunk of a job, not when made: an error in `make` then comes back as itself."""

    def __init__(self) -> None:
        restore_home()
        self._job = ""
        self._call: Callable[[pl.DataFrame], Any] | None = None

    def run(self, job: str, make: Make, chunk: pl.DataFrame) -> Any:
        return self._opened(job, make)(chunk)

    def _opened(self, job: str, make: Make) -> Callable[[pl.DataFrame], Any]:
        if job == self._job and self._call is not None:
            return self._call
        self._call = None  # the last job's context goes before the next one's is made
        call = make()
        self._job, self._call = job, call
        return call


class AsyncWorker(SyncWorker):
    async def run(self, job: str, make: Make, chunk: pl.DataFrame) -> Any:
        return await self._opened(job, make)(chunk)


class _Idle:
    """Workers whose job is over, kept for the next one: a new process would import everything again."""

    def __init__(self) -> None:
        self._kind: Any = None
        self._cluster = ""
        self._actors: list[Any] = []

    def take(self, kind: Any) -> Any | None:
        if kind != self._kind or self._cluster != _cluster():
            self.clear()  # they hold CPUs that workers of another kind may wait for
        return self._actors.pop() if self._actors else None

    def give(self, kind: Any, actor: Any) -> None:
        if kind != self._kind:
            self.clear()
        self._kind, self._cluster = kind, _cluster()
        self._actors.append(actor)

    def forget(self) -> None:
        self._actors.clear()

    def clear(self) -> None:
        cluster = _cluster()
        while self._actors:
            actor = self._actors.pop()
            if cluster == self._cluster:  # those of a cluster we have left ended with it
                ray.kill(actor, no_restart=True)


idle = _Idle()


def release_workers() -> None:
    """End the workers kept for a next job: while they live they hold CPUs that others in Ray may wait for."""
    if ray.is_initialized():
        idle.clear()


def _cluster() -> str:
    # Every private Ray calls its first job 01000000, and every job on a cluster may have the same node.
    here = ray.get_runtime_context()
    return f"{here.get_node_id()} {here.get_job_id()}"
