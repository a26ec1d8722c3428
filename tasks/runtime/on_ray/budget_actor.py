"""The budgets and the calls of a cluster: an actor on the driver's node holds the file, workers on any node ask it.

SQLite's locks cannot be trusted over a network file system, so on a cluster only one process opens the file.
"""

from collections.abc import Sequence
from typing import Any, cast

from schemas.errors import GeofixError, StageRefused
from schemas.settings.endpoint import Allowance
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.runtime.on_ray.start import start_ray
from tasks.services.call_store import CallStore
from tasks.services.rate_budget import BudgetFile, BudgetState, Lease, Paused, RateBudget

ANSWER_S = 120.0


class ActorRateBudget:
    """The rate budget of a run behind a Ray actor. An unreachable actor stops the stage."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease:
        return cast("Lease", _answer(self._actor.lease.remote(bucket, allowance, want)))

    def give_back(self, bucket: str, day: int, count: int) -> None:
        self._actor.give_back.remote(bucket, day, count)

    def state(self, bucket: str) -> BudgetState:
        return cast("BudgetState", _answer(self._actor.state.remote(bucket)))

    def pause(self, name: str, seconds: float) -> None:
        self._actor.pause.remote(name, seconds)

    def paused_s(self, name: str) -> float:
        return float(_answer(self._actor.paused_s.remote(name)))

    def pauses(self) -> dict[str, Paused]:
        return dict(_answer(self._actor.pauses.remote()))


def _answer(reference: Any) -> Any:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    try:
        return ray.get(reference, timeout=ANSWER_S)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, GeofixError) else error.as_instanceof_cause()) from None
    except (RayActorError, GetTimeoutError) as error:
        raise StageRefused(
            "budgets and calls cannot be kept: the actor that writes them down, on the node this command runs "
            f"on, does not answer ({type(error).__name__}): if the Ray cluster was restarted, wait until it is back; "
            "then run the same command again"
        ) from error


class ActorResponseStore:
    """The response store of a lake behind a Ray actor on the node of its file."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @classmethod
    def of(cls, path: str) -> "ActorResponseStore":
        """One whose file is open in an actor on this node, which ends with this process."""
        import ray

        return cls(ray.remote(CallStore).options(**_here()).remote(path))

    def apply(self, steps: Sequence[Any]) -> list[Any]:
        return list(_answer(self._actor.apply.remote(list(steps))))


def _here() -> dict[str, Any]:
    """Options of an actor on this node that is begun again as often as its process dies."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1, "max_task_retries": -1}


_actors: dict[tuple[str, str, str], ActorRateBudget] = {}


def shared_rate_budget(lake: Lake, spread: SpreadSettings) -> RateBudget:
    """The budgets of a lake, for the workers of one run: by file on this machine, by actor on a cluster."""
    path = lake.state / "budgets.sqlite"
    if spread.address is None:
        return BudgetFile(path)
    start_ray(spread)
    return actor_rate_budget(str(path))


def actor_rate_budget(path: str) -> ActorRateBudget:
    """A rate_budget whose file is open in an actor on this node; one a path and cluster, ended with this process."""
    import ray

    context = ray.get_runtime_context()
    node, job = context.get_node_id(), context.get_job_id()  # a private Ray always calls its first job the same
    for gone in [key for key in _actors if key[:2] != (node, job)]:
        del _actors[gone]  # of a Ray this process has left
    known = _actors.get((node, job, path))
    if known is not None and _lives(known):
        return known
    # Begun again as often as its process dies: what it knows is in the file. A question that was under way then is
    # sent again; if it was answered already, a few permits are counted but not used.
    _actors[node, job, path] = ActorRateBudget(ray.remote(BudgetFile).options(**_here()).remote(path))
    return _actors[node, job, path]


def _lives(rate_budget: ActorRateBudget) -> bool:
    try:
        rate_budget.pauses()
    except StageRefused:
        return False
    return True
