"""An eye on Ray while work is out: is it still there, and can a worker be had at all?

Ray itself ends the whole process some seconds after its servers are gone, without a word that helps, and waits for ever
for a worker that no node can hold. Both are seen here first.
"""

import logging
import socket
import time
from collections.abc import Callable

import ray
from ray._private import worker

from schemas.errors import GeofixError, Outage

LOOK_EVERY_S = 3.0
GONE_S = 30.0  # a head that restarts is back sooner
SAY_EVERY_S = 30.0
SERVERS = {"gcs_server": "its control server", "raylet": "its scheduler"}

logger = logging.getLogger("geofix.ray")


class RayLost(Outage):
    """Ray is no longer there: nothing may be asked of it any more."""


class Watch:
    """Looks every few seconds, however often it is asked to."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = clock() + LOOK_EVERY_S
        self._answered_s: dict[str, float] = {}

    def look(self, at_once: bool = False) -> None:
        """RayLost if Ray is no longer there."""
        if self._clock() < self._next_s and not at_once:
            return
        self._next_s = self._clock() + LOOK_EVERY_S
        node = worker.global_worker.node
        if node is None:  # ray:// has no node here; its client notices by itself
            return
        own = [name for name, _ in node.dead_processes() if name in SERVERS]
        if own:
            raise RayLost(
                f"Ray's {own[0]} ({SERVERS[own[0]]}) ended while work was under way, which happens when memory runs "
                "out: what was finished is saved; run the same command again to go on, with fewer workers "
                f"(spread.workers) if memory was short; what it said last is in {node.get_logs_dir_path()}"
            )
        if not node.all_processes:  # a cluster that others run
            self._ask("head", node.gcs_address, GONE_S)
            # Ray ends this process when it has missed the node's scheduler for about 15 s.
            self._ask("node on this machine", f"{node.node_ip_address}:{node.node_manager_port}", LOOK_EVERY_S)

    def _ask(self, what: str, address: str, patience_s: float) -> None:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 2.0).close()
        except OSError as error:
            since_s = self._clock() - self._answered_s.setdefault(what, self._clock())
            if since_s >= patience_s:
                raise RayLost(
                    f"the {what} of the Ray cluster (spread.address) no longer answers at {address} "
                    f"({error.strerror or 'no answer in time'}): what was finished is saved; run the same command "
                    "again when the cluster is back"
                ) from error
        else:
            self._answered_s[what] = self._clock()


class Placement:
    """Whether the workers asked for have come; says so while none has, and ends the wait when it is too long."""

    def __init__(
        self,
        cpus: float,
        gpus: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpus, self._gpus, self._patience_s, self._clock = cpus, gpus, patience_s, clock
        self._without_s = self._said_s = clock()  # since when there is no worker
        if _is_private() and not fitting(nodes(), cpus, gpus):
            raise GeofixError(
                f"{self._wants()}, and Ray on this machine has {_have(nodes())}: name a cluster that has "
                "them in spread.address"
            )

    def look(self, has_worker: bool) -> None:
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
        return f"a worker of this stage needs {self._cpus:g} CPUs{gpus} on one node"


def nodes() -> list[dict[str, float]]:
    """The resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def fitting(found: list[dict[str, float]], cpus: float, gpus: float) -> int:
    """How many such workers the nodes hold at once; a worker lies on one node."""
    total = 0
    for node in found:
        fits = node.get("CPU", 0.0) / max(cpus, 0.01)
        total += int(min(fits, node.get("GPU", 0.0) / gpus) if gpus else fits)
    return total


def _have(found: list[dict[str, float]]) -> str:
    each = sorted({(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in found})
    shown = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in each)
    return f"{len(found)} nodes of {shown}" if len(found) > 1 else shown or "no node"


def _is_private() -> bool:
    node = worker.global_worker.node
    return node is not None and bool(node.all_processes)
