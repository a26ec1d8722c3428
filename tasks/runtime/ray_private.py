"""Everything here that Ray does not document: private modules, attributes and behaviour of the version named below.

No other file imports `ray._private`. `missing_attributes` says what a new version of Ray breaks.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import ray
from ray._private import node as ray_node
from ray._private import ray_constants, services, worker
from ray.job_config import JobConfig

VERSION = "2.60.0"  # against which every use below was run
SERVERS = {"gcs_server": "its control server", "raylet": "its scheduler"}
REAL_HOME = "GEOFIX_HOME_OF_USER"  # workers get the user's HOME back from here
# Environment of Ray's servers.
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_gcs_server_port_wait_time_s": "60",  # half a minute is too short for a machine under heavy load
}


def missing_attributes() -> list[str]:
    """What this version of Ray lacks of what is used here, each with its use; empty if all is there."""
    wanted: list[tuple[Any, str, str]] = [
        (worker, "print_to_stdstream", "reports of Ray's servers are kept off standard output"),
        (worker, "global_worker", "the node of this process is found"),
        (worker.global_worker, "node", "the node of this process is found"),
        (ray_constants, "ENABLE_RAY_CLUSTER", "Ray's servers listen on loopback only"),
        (ray_constants, "ENABLE_RAY_CLUSTERS_ENV_VAR", "Ray's servers listen on loopback only"),
        (services, "resolve_ip_for_localhost", "a cluster on loopback is recognized"),
        (ray_node.Node, "dead_processes", "a lost Ray is noticed"),
        *((ray_node.Node, name, "a private Ray starts without servers it does not need") for name in SPARED),
        (ray_node.Node, "get_logs_dir_path", "the logs of a lost Ray are named"),
        (ray_node.Node, "gcs_address", "the head of a cluster is asked whether it is alive"),
        (ray_node.Node, "node_ip_address", "the node on this machine is asked whether it is alive"),
        (ray_node.Node, "node_manager_port", "the node on this machine is asked whether it is alive"),
        (JobConfig, "_runtime_env_has_working_dir", "workers do not import from the working directory"),
        (JobConfig(), "_py_driver_sys_path", "workers import from the folders the driver imports from"),
    ]
    return [
        f"ray {ray.__version__} has no {getattr(holder, '__name__', type(holder).__name__)}.{name}, by which {use}"
        for holder, name, use in wanted
        if not hasattr(holder, name)
    ]


class DriverJobConfig(JobConfig):
    """Workers import from the folders this process imports from.

    Ray itself puts the working directory first in a worker's sys.path, even if it is not in the driver's: a user's file
    tasks.py in it would hide our package of that name.
    """

    def __init__(self) -> None:
        super().__init__()
        known = {Path(path).resolve() for path in sys.path}
        found = [path for path in (Path(sys.argv[0]).resolve().parent, Path.cwd()) if path.resolve() in known]
        self._py_driver_sys_path = list(dict.fromkeys(map(str, found)))

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # Ray asks this only to decide whether to add the working directory


def listen_on_loopback() -> None:
    """Keep Ray's servers on loopback. By default they listen on every interface, and run the code they are sent.

    Ray has a loopback mode, meant for desktops. Its variable is read when ray is imported.
    """
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for the processes Ray starts
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one


def replaced_loopback(host: str) -> str:
    """The address Ray uses instead of a loopback one, unless it listens on loopback."""
    return str(services.resolve_ip_for_localhost(host))


def report_to(report: Callable[[str], None]) -> None:
    """Hand on what Ray prints on standard output of its servers' reports: our own result goes there."""

    def note(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        report("\n".join(data.get("lines", ())))

    worker.print_to_stdstream = note


def cluster_id_error(host: str, port: int, timeout_s: float) -> grpc.StatusCode | None:
    """Ask for a cluster's id as Ray's own client does first, but with a deadline; why there is none, or None."""
    with grpc.insecure_channel(f"{host}:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            # A head with authentication wants the token that Ray sends by itself.
            return None if code == grpc.StatusCode.UNAUTHENTICATED else code
    return None


@dataclass(frozen=True)
class LocalNode:
    """The node of Ray on this machine, as this process knows it."""

    is_private: bool  # this process started its servers
    dead_servers: list[str]
    head: str  # host:port
    scheduler: str  # host:port
    logs: str


def local_node() -> LocalNode | None:
    """The node this process is connected to; None with ray://, whose client notices a lost cluster by itself."""
    node = worker.global_worker.node
    if node is None:
        return None
    return LocalNode(
        is_private=bool(node.all_processes),
        dead_servers=[name for name, _ in node.dead_processes() if name in SERVERS],
        head=str(node.gcs_address),
        scheduler=f"{node.node_ip_address}:{node.node_manager_port}",
        logs=str(node.get_logs_dir_path()),
    )


# Servers that a Ray of one machine and one process does not need: the autoscaler, the process that passes workers'
# output on, and the dashboard. Without them a start takes 3 of 8 seconds less CPU, and 170 of 490 MB less memory.
SPARED = ("start_monitor", "start_log_monitor", "start_api_server")


@contextlib.contextmanager
def without_spared_servers() -> Iterator[None]:
    """Start a private Ray without the servers named above; `ray.init` has no argument for it."""
    before = {name: getattr(ray_node.Node, name) for name in SPARED}
    for name in SPARED:
        setattr(ray_node.Node, name, lambda self, **options: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(ray_node.Node, name, method)


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


@contextlib.contextmanager
def private_home(folder: Path) -> Iterator[None]:
    """A HOME for Ray's servers in which its dashboard finds that it need not ask cloud metadata addresses."""
    (folder / "ray_bootstrap_config.yaml").write_text("{}\n")
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(folder)
    if before is not None:
        os.environ[REAL_HOME] = before
    try:
        yield
    finally:
        os.environ.pop(REAL_HOME, None)
        if before is None:
            os.environ.pop("HOME", None)
        else:
            os.environ["HOME"] = before


def restore_home() -> None:
    """In a worker: give libraries the user's own HOME back."""
    if REAL_HOME in os.environ:
        os.environ["HOME"] = os.environ[REAL_HOME]
