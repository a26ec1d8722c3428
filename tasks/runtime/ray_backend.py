"""The calls of Ray that a pool of workers makes, in one class, so that a benchmark can run the pool without Ray."""

from collections.abc import Sequence
from typing import Any, Protocol

import polars as pl
import ray
from ray.exceptions import RayError

from schemas.settings.spread import SpreadSettings
from tasks.runtime.ray_private import raising_as_handlers_do
from tasks.runtime.ray_start import drop_ray
from tasks.runtime.ray_watch import Placement, RayLost, Watch, fitting, nodes
from tasks.runtime.ray_workers import AsyncWorker, Make, SyncWorker, idle
from tasks.runtime.resources import Resources

GET_AT_ONCE = 64  # results fetched by one call of Ray


class Backend(Protocol):
    """What a pool asks of Ray."""

    def fitting(self) -> int:
        """How many workers the nodes can hold."""

    def put(self, value: Any) -> Any:
        """A reference to a value that every worker can fetch once."""

    def new_worker(self, reuse: bool = True) -> Any: ...

    def ready(self, worker: Any) -> Any:
        """A reference that is there as soon as the worker is."""

    def submit(self, worker: Any, job: str, make: Any, chunk: pl.DataFrame) -> Any:
        """A reference to the result of a chunk."""

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """All references that are there, after the first one is or the time is over."""

    def get(self, references: Sequence[Any]) -> list[Any]:
        """The results; where there is none, the exception that says why."""

    def kill(self, worker: Any) -> None: ...

    def keep(self, worker: Any) -> None:
        """The worker is done, and may serve the next job."""

    def check(self, has_worker: bool) -> None:
        """RayLost if Ray is gone; GeofixError if no worker came for too long."""

    def check_servers(self) -> None:
        """RayLost if Ray is gone."""

    def abandon(self) -> None:
        """Ray is gone, and its workers with it."""


class RayBackend:
    """Workers of one kind on the Ray of this process."""

    def __init__(self, settings: SpreadSettings, resources: Resources, is_async: bool) -> None:
        self._resources, self._is_async = resources, is_async
        self._kind = (is_async, resources.cpus, resources.gpus, resources.memory_mb)
        self._watch = Watch()
        self._placement = Placement(resources.cpus, resources.gpus, settings.wait_s, resources.memory_mb)

    def fitting(self) -> int:
        return fitting(nodes(), self._resources.cpus, self._resources.gpus, self._resources.memory_mb)

    def put(self, value: Make) -> Any:
        return ray.put(value)

    def new_worker(self, reuse: bool = True) -> Any:
        kept = idle.take(self._kind) if reuse else None
        if kept is not None:
            return kept
        options: dict[str, Any] = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus}
        if self._resources.memory_mb is not None:
            options["memory"] = self._resources.memory_mb * 2**20
        if self._is_async:
            options["max_concurrency"] = 64  # of calls; the stage itself limits how many items run at once
        worker = AsyncWorker if self._is_async else SyncWorker
        return ray.remote(worker).options(max_restarts=0, **options).remote()

    def ready(self, worker: Any) -> Any:
        return worker.__ray_ready__.remote()

    def submit(self, worker: Any, job: str, make: Any, chunk: pl.DataFrame) -> Any:
        return worker.run.remote(job, make, chunk)

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
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
        found: list[Any] = []
        for first in range(0, len(references), GET_AT_ONCE):
            part = list(references[first : first + GET_AT_ONCE])
            with raising_as_handlers_do():
                try:
                    found += ray.get(part)
                except RayError:  # of one of them: which one is found one by one
                    found += [self._get_one(reference) for reference in part]
        return found

    def _get_one(self, reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayError as error:
            return error

    def kill(self, worker: Any) -> None:
        ray.kill(worker, no_restart=True)

    def keep(self, worker: Any) -> None:
        idle.give(self._kind, worker)

    def check(self, has_worker: bool) -> None:
        self._watch.look()
        self._placement.look(has_worker)

    def check_servers(self) -> None:
        self._watch.look(at_once=True)

    def abandon(self) -> None:
        idle.forget()
        drop_ray()
