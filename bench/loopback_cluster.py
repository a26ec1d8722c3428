"""A Ray cluster of several nodes on this machine, on loopback only, for what has to hold between nodes.

The nodes belong to a process of their own, which ends with the one that asked for them, however that ends.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class LoopbackCluster:
    """Its address, and a way to take a node from it."""

    process: subprocess.Popen[str]
    address: str
    dashboard: str = ""  # http://host:port, if it was asked for

    def kill(self, node: int | str) -> None:
        """Kill the processes of the node with this id or number; 0 is the first of those beside the head."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{node}\n")
        self.process.stdin.flush()
        if self.process.stdout.readline().strip() != f"killed {node}":
            raise RuntimeError("the node was not killed")


@contextlib.contextmanager
def loopback_cluster(
    nodes: int, log: Path, head_cpus: int = 0, dashboard: bool = False, cpus: int = 1
) -> Iterator[LoopbackCluster]:
    """A head, on which the driver is, and nodes of `cpus` CPUs each."""
    options = ["--nodes", str(nodes), "--head-cpus", str(head_cpus), "--cpus", str(cpus)]
    options += ["--dashboard"] if dashboard else []
    command = [sys.executable, "-m", "bench.loopback_cluster", *options]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        address, _, dashboard_address = process.stdout.readline().strip().partition(" ")
        if not address:
            raise RuntimeError(f"the cluster did not start: {log.read_text()[-2000:]}")
        yield LoopbackCluster(process, address, dashboard_address)
    finally:
        process.stdin.close()
        process.wait(120)


def _serve(nodes: int, head_cpus: int, cpus: int, dashboard: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="gfc"))  # short: sockets lie in it
    (folder / "ray").mkdir()
    # No cloud is asked who we are, no token is left behind, no other process finds these nodes.
    (folder / "ray_bootstrap_config.yaml").write_text("{}\n")
    os.environ |= {
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's name for staying on loopback
    }
    from ray.cluster_utils import Cluster

    try:
        head = {"num_cpus": head_cpus, "include_dashboard": dashboard}
        if dashboard:
            # A fixed port of the agent would be that of any other Ray on this machine.
            head |= {"dashboard_host": "127.0.0.1", "dashboard_port": 0, "dashboard_agent_listen_port": 0}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        others = [cluster.add_node(num_cpus=cpus, wait=False) for _ in range(nodes)]
        cluster.wait_for_nodes(120)
        print(cluster.address, f"http://{cluster.webui_url}" if dashboard else "", flush=True)
        for line in sys.stdin:
            by_id = {one.node_id: one for one in others}
            cluster.remove_node(by_id.get(line.strip()) or others[int(line)], allow_graceful=False)
            print(f"killed {line.strip()}", flush=True)
        cluster.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--head-cpus", type=int, default=0)
    parser.add_argument("--cpus", type=int, default=1, help="of each node beside the head")
    parser.add_argument("--dashboard", action="store_true")
    chosen = parser.parse_args()
    _serve(chosen.nodes, chosen.head_cpus, chosen.cpus, chosen.dashboard)
