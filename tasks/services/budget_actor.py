"""The budgets of a cluster: one actor on the driver's node holds the file, workers on any node ask it.

SQLite's locks cannot be trusted over a network file system, so on a cluster only one process opens the file.
"""

from typing import Any

from schemas.settings.allowance import Allowance
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.ray_home import start_ray
from tasks.services.budget import BudgetFile
from tasks.services.limit import Lease, Standing, Till

ANSWER_S = 120.0


class ActorTill:
    """The till of a run, reached through Ray."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def lease(self, bucket: str, allowance: Allowance, want: int) -> Lease:
        import ray

        found: Lease = ray.get(self._actor.lease.remote(bucket, allowance, want), timeout=ANSWER_S)
        return found

    def give_back(self, bucket: str, day: int, count: int) -> None:
        self._actor.give_back.remote(bucket, day, count)

    def standing(self, bucket: str) -> Standing:
        import ray

        found: Standing = ray.get(self._actor.standing.remote(bucket), timeout=ANSWER_S)
        return found


_actors: dict[tuple[str, str], ActorTill] = {}


def shared_till(lake: Lake, spread: SpreadSettings) -> Till:
    """The budgets of a lake, for the workers of one run: by file on this machine, by actor on a cluster."""
    path = lake.root / ".state" / "budgets.sqlite"
    if spread.address is None:
        return BudgetFile(path)
    start_ray(spread)
    return actor_till(str(path))


def actor_till(path: str) -> ActorTill:
    """A till whose file is open in an actor on this node; one a path and cluster, ended with this process."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    if (node, path) not in _actors:
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(BudgetFile).options(num_cpus=0, scheduling_strategy=here, max_restarts=3).remote(path)
        _actors[node, path] = ActorTill(actor)
    return _actors[node, path]
