"""Health checks of Ray while work is under way: whether its servers run, and whether it can start a worker.

Ray itself ends the whole process some seconds after its servers are gone, with no usable message, and waits forever for
a worker that no node can hold. Both are noticed here first.
"""

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from schemas.errors import GeofixError, Outage
from tasks.runtime.on_ray.start import RaySession, current_session, schedulers_here

LOOK_EVERY_S = 3.0
GONE_S = 30.0  # a head that restarts is back sooner
SAY_EVERY_S = 30.0

logger = logging.getLogger("geofix.ray")
T = TypeVar("T")


class RayLost(Outage):
    """Ray's servers are gone: no further call to Ray is possible."""


class Watch:
    """Checks Ray's servers every few seconds, however often it is called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = clock() + LOOK_EVERY_S
        self._answered_s: dict[str, float] = {}
        self._session = current_session()
        self._servers = _servers(self._session)
        self._lost_nodes = set(_lost_nodes(self._session))

    def check(self, at_once: bool = False) -> None:
        """RayLost if its servers do not answer. `at_once`, after a worker died: a lost node is said in the log, too."""
        if self._clock() < self._next_s and not at_once:
            return
        self._next_s = self._clock() + LOOK_EVERY_S
        for server in self._servers:
            self._ask(server)
        for node, host in _lost_nodes(self._session).items() if at_once else ():
            if node not in self._lost_nodes:
                self._lost_nodes.add(node)
                logger.warning("node %s left the Ray cluster: what its workers had in hand runs again elsewhere", host)

    def _ask(self, server: "_Server") -> None:
        host, _, port = server.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 2.0).close()
        except OSError as error:
            since_s = self._clock() - self._answered_s.setdefault(server.name, self._clock())
            if since_s >= server.patience_s:
                raise RayLost(self._lost(server, error.strerror or "no answer in time")) from error
        else:
            self._answered_s[server.name] = self._clock()

    def _lost(self, server: "_Server", reason: str) -> str:
        assert self._session is not None
        if self._session.is_private:
            return (
                f"Ray's {server.name} ended while work was under way, which happens when memory runs out: what was "
                "finished is saved; run the same command again to go on, with fewer workers (spread.workers) if "
                f"memory was short; what it said last is in {self._session.address_info.get('session_dir')}/logs"
            )
        return (
            f"the {server.name} of the Ray cluster (spread.address) no longer answers at {server.address} ({reason}): "
            "what was finished is saved; run the same command again when the cluster is back"
        )


@dataclass(frozen=True)
class _Server:
    name: str
    address: str  # host:port
    patience_s: float


def _servers(session: RaySession | None) -> list[_Server]:
    """The servers this process depends on; none with ray://, whose client notices a lost cluster by itself."""
    if session is None or not session.address_info:
        return []
    schedulers = schedulers_here(session.address_info)
    head = session.address_info["gcs_address"]
    if session.is_private:
        return [
            _Server("control server", head, 0.0),
            *(_Server("scheduler", scheduler, 0.0) for scheduler in schedulers),
        ]
    # Ray ends this process when it has missed the node's scheduler for about 15 s.
    return [
        _Server("head", head, GONE_S),
        *(_Server("node on this machine", scheduler, LOOK_EVERY_S) for scheduler in schedulers),
    ]


def _lost_nodes(session: RaySession | None) -> dict[str, str]:
    """NodeID -> host of nodes that a cluster has lost."""
    if session is None or session.is_private:
        return {}
    return {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if not node["Alive"]}


class Placement:
    """Whether Ray has started a worker; logs what is missing while it has not, and ends the wait after too long."""

    def __init__(
        self,
        cpus: float,
        gpus: float,
        patience_s: float,
        memory_mb: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpus, self._gpus, self._memory_mb = cpus, gpus, memory_mb
        self._patience_s, self._clock = patience_s, clock
        self._without_s = self._said_s = clock()  # since when there is no worker
        if _is_private() and not fitting(nodes(), cpus, gpus, memory_mb):
            raise GeofixError(
                f"{self._wants()}, and Ray on this machine has {_have(nodes())}: name a cluster that has "
                "them in spread.address"
            )

    def check(self, has_worker: bool) -> None:
        """Say what is waited for while there is no worker at all; GeofixError after too long."""
        now_s = self._clock()
        if has_worker:
            self._without_s = self._said_s = now_s
        if has_worker or now_s - self._said_s < min(SAY_EVERY_S, self._patience_s):
            return
        self._said_s = now_s
        waited = f"no worker for {now_s - self._without_s:.0f} s: {self._wants()}; Ray has {_have(nodes())}, of which "
        free = ray.available_resources()
        waited += f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
        if now_s - self._without_s >= self._patience_s:
            raise GeofixError(
                f"Ray gave {waited}; end what holds them, add a node that has them, or wait longer (spread.wait_s)"
            )
        logger.warning("Ray gives %s (waiting up to spread.wait_s=%g)", waited, self._patience_s)

    def _wants(self) -> str:
        gpus = f" and {self._gpus:g} GPUs" if self._gpus else ""
        memory = f" and {self._memory_mb} MB of memory" if self._memory_mb else ""
        return f"a worker of this step needs {self._cpus:g} CPUs{gpus}{memory} on one node"


def nodes() -> list[dict[str, float]]:
    """The resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def named_nodes() -> dict[str, dict[str, float]]:
    """The resources of each living node, by its address; nodes of one machine are told apart by their ids."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    addresses = [node["NodeManagerAddress"] for node in alive]
    return {
        address if addresses.count(address) == 1 else f"{address}/{node['NodeID'][:6]}": node["Resources"]
        for node, address in zip(alive, addresses, strict=True)
    }


def on_gpu_nodes(ask: Callable[[], list[T]], patience_s: float = 60.0) -> list[T]:
    """What a function says on each living node that has a GPU; nothing of nodes that do not answer in time."""
    tasks = [
        ray.remote(ask)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU", 0)
    ]
    done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=patience_s) if tasks else ([], [])
    return [row for rows in ray.get(done) for row in rows]


def fitting(nodes: list[dict[str, float]], cpus: float, gpus: float, memory_mb: int | None = None) -> int:
    """How many such workers the nodes hold at once; a worker lies on one node."""
    wanted = {"CPU": max(cpus, 0.01), "GPU": gpus, "memory": (memory_mb or 0) * 2**20}
    return sum(int(min(node.get(name, 0.0) / amount for name, amount in wanted.items() if amount)) for node in nodes)


def _have(nodes: list[dict[str, float]]) -> str:
    each = sorted({(node.get("CPU", 0.0), node.get("GPU", 0.0), node.get("memory", 0.0) // 2**20) for node in nodes})
    shown = ", ".join(f"{cpus:g} CPUs, {gpus:g} GPUs and {memory:g} MB of memory" for cpus, gpus, memory in each)
    return f"{len(nodes)} nodes of {shown}" if len(nodes) > 1 else shown or "no node"


def _is_private() -> bool:
    session = current_session()
    return session is not None and session.is_private
