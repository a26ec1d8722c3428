"""Ray for this process: the cluster the settings name, or a private one on loopback that ends with this process."""

import atexit
import contextlib
import errno
import importlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import GeofixError
from schemas.settings.endpoint import is_loopback_host
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray.last_words import LastWords
from tasks.runtime.on_ray.watchdog import Watchdog

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_COLOR_PREFIX": "0",  # its lines go into logs as well
    "RAY_prestart_worker_first_driver": "0",  # workers without the setup hook below could not be used
    "RAY_gcs_server_port_wait_time_s": "60",  # half a minute is too short for a machine under heavy load
}
STARTS = 2  # of a private Ray: a start that was too slow finds its files in the page cache the second time
SOCKET_BYTES = 107  # of the name of a Unix socket, on Linux
LONGEST_SOCKET = "ray/session_2026-01-01_00-00-00_000000_{pid}/sockets/plasma_store"  # of a private Ray, in its folder
CONNECT_S = 10.0
ANSWER_S = 30.0
CLIENT = "ray://"
PACKAGES = ("schemas", "tasks", "flows", "infra")

logger = logging.getLogger("geofix.ray")


@dataclass(frozen=True)
class RaySession:
    """The Ray that this process is connected to."""

    settings: SpreadSettings
    address_info: dict[str, Any]  # as `ray.init` returns it; empty behind ray://

    @property
    def is_private(self) -> bool:
        return self.settings.address is None


_session: RaySession | None = None  # none: Ray was not started by `start_ray`
_watchdog: Watchdog | None = None
_last_words: LastWords | None = None


def current_session() -> RaySession | None:
    """What `start_ray` started or joined in this process, if it did."""
    return _session


def start_ray(settings: SpreadSettings) -> None:
    """Make Ray ready: join the cluster the settings name, or start a private one here. Repeated calls do nothing."""
    global _session
    import ray  # takes a second; commands with nothing to do go without

    if ray.is_initialized():
        if _session is not None and _session.settings.address != settings.address:
            raise GeofixError(
                f"spread.address: this process works on {_named(_session.settings.address)} already, and cannot on "
                f"{_named(settings.address)} as well; use another process for it"
            )
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    if settings.address:
        _session = RaySession(settings, join_cluster(settings.address))
    else:
        _session = RaySession(settings, _start_private(settings))
        atexit.register(stop_ray)


def _named(address: str | None) -> str:
    return f"the cluster at '{address}'" if address else "this machine"


def _init(**options: Any) -> dict[str, Any]:
    # In the main thread Ray would take SIGTERM for itself and exit at once, even during a commit. Our handler and the
    # flow's commit what is finished first, and Prefect calls a cancelled run crashed while its handler is away.
    import ray

    started: Future[Any] = Future()

    def start() -> None:
        try:
            started.set_result(ray.init(log_to_driver=False, logging_level=logging.ERROR, **options))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            started.set_exception(error)
        else:
            threading.Event().wait()  # the system ends Ray's servers with the thread that started them

    threading.Thread(target=start, name="ray-init", daemon=True).start()
    context = started.result()
    return dict(getattr(context, "address_info", None) or {})


def _worker_setup() -> Callable[[], None]:
    """What every worker process does first: import our packages, and take the user's HOME back.

    Ray puts the working directory of the driver first in a worker's sys.path, but only after this. A user's file
    tasks.py in it would hide our package of that name. The function is nested, so that Ray sends it by value.
    """
    home, packages = os.environ.get("HOME"), PACKAGES

    def set_up_worker() -> None:
        for name in packages:
            with contextlib.suppress(ModuleNotFoundError):  # it may be importable from the working directory only
                importlib.import_module(name)
        if home is not None:
            os.environ["HOME"] = home

    return set_up_worker


# A private Ray --------------------------------------------------------------------------------------------


def _start_private(settings: SpreadSettings) -> dict[str, Any]:
    # It listens on loopback and ends with this process: a token file in the user's home would only outlive it.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    for number in range(1, STARTS + 1):
        begin_s = time.monotonic()
        folder = _own_folder()
        try:
            return _init_private(settings, folder)
        except GeofixError:
            _end_processes()
            raise
        except OSError as error:
            _end_processes()
            raise GeofixError(_why_not_here(error, folder)) from error
        except ValueError as error:
            _end_processes()
            raise GeofixError(
                f"Ray cannot be started with spread.object_store_mb={settings.object_store_mb}: {_one_line(error)}"
            ) from error
        except Exception as error:
            # Ray raises plain exceptions for servers that died and servers that came too late alike.
            _end_processes()
            took_s = time.monotonic() - begin_s
            if number < STARTS:
                logger.warning("Ray did not come up within %.0f s (%s): trying once more", took_s, _load())
                continue
            raise GeofixError(
                f"Ray did not come up, {STARTS} times, the last after {took_s:.0f} s ({_load()}; {_one_line(error)}): "
                "run again when the machine is less busy, or name a running cluster in spread.address; "
                f"what Ray's servers said is in {folder}, until the next start"
            ) from error
    raise AssertionError("the last start returns or raises")


def _init_private(settings: SpreadSettings, folder: Path) -> dict[str, Any]:
    global _watchdog
    _watchdog = Watchdog(folder)
    setup = _worker_setup()
    with _environment_of_servers(folder):
        context = _init(
            # At least two: training asks for two, and would wait forever on a machine of one core.
            num_cpus=max(settings.workers or 0, os.cpu_count() or 1, 2),
            include_dashboard=False,
            object_store_memory=settings.object_store_mb * 2**20,
            runtime_env={"worker_process_setup_hook": setup},
        )
    host = str(context.get("node_ip_address", ""))
    if host and not is_loopback_host(host):
        raise GeofixError(
            f"Ray would listen on {host}, not on loopback only, because it was imported before tasks.runtime: "
            "import tasks.runtime first, or set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 in the environment"
        )
    return context


@contextlib.contextmanager
def _environment_of_servers(folder: Path) -> Iterator[None]:
    """Ray's files in our folder, and a HOME in which its server finds that it need not ask cloud metadata addresses."""
    (folder / "ray_bootstrap_config.yaml").write_text("{}\n")
    ours = {"RAY_TMPDIR": str(folder), "HOME": str(folder)}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_processes() -> None:
    """Disconnect, and end the processes of a private Ray that are left."""
    global _watchdog
    import ray

    with contextlib.suppress(Exception):  # a Ray that started or ended halfway raises in many ways
        ray.shutdown()
    if _watchdog is not None:
        _watchdog.end()
        _watchdog = None


def _why_not_here(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"Ray cannot be started: no space is left in {folder.parent}; free some, or set TMPDIR to another folder"
    return (
        f"Ray cannot be started in {folder.parent}: {_one_line(error)}; "
        "if the folder's name is too long or it cannot be written, set TMPDIR to another, short one"
    )


def _load() -> str:
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count() or 1} cores"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def stop_ray() -> None:
    """Stop the private Ray and remove its folder."""
    global _session
    _session = None
    _end_processes()
    shutil.rmtree(folder_of(os.getpid()), ignore_errors=True)


def drop_ray() -> None:
    """Disconnect from a Ray that is lost; a later stage in this process may start or join another.

    The folder of a private one stays until the next start: the logs of its servers are in it.
    """
    global _session
    _session = None
    atexit.unregister(stop_ray)
    _end_processes()


def folder_of(pid: int) -> Path:
    """Where the private Ray of a process keeps its files."""
    return Path(tempfile.gettempdir()) / f"geofix-ray-{os.getuid()}" / str(pid)


def check_temporary_folder(settings: SpreadSettings) -> None:
    """GeofixError where the names of a private Ray's sockets would be longer than the system allows.

    Ray says so too, but only when it starts, which is long after the command did.
    """
    longest = folder_of(os.getpid()) / LONGEST_SOCKET.format(pid=os.getpid())
    if settings.address is None and len(os.fsencode(longest)) > SOCKET_BYTES:
        raise GeofixError(
            f"the name of the temporary folder {tempfile.gettempdir()} is too long for the sockets of Ray: set TMPDIR "
            "to another one, such as TMPDIR=/tmp"
        )


def _own_folder() -> Path:
    """A folder with a short name, for Ray's sockets. Removes those of ended processes."""
    own = folder_of(os.getpid())
    own.parent.mkdir(mode=0o700, exist_ok=True)
    for other in own.parent.iterdir():
        if other.name.isdigit() and not Path(f"/proc/{other.name}").exists():
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(exist_ok=True)
    return own


# A cluster ------------------------------------------------------------------------------------------------


def join_cluster(address: str) -> dict[str, Any]:
    """Make this process a driver of the cluster at host:port (a node must run here) or ray://host:port.

    The address is checked first: Ray itself would wait for minutes at a wrong one.
    """
    host, port = split_address(address)
    _check_reachable(address, host, port)
    is_client = address.startswith(CLIENT)
    if not is_client:
        _check_head(address, host, port)
    # Behind ray:// the driver is a process of the cluster, with a working directory of its own.
    options = {} if is_client else {"runtime_env": {"worker_process_setup_hook": _worker_setup()}}
    try:
        with warnings.catch_warnings(action="ignore"):  # of a connection that times out: the error says it too
            context = _init(address=address, **options)
    except Exception as error:  # of every kind, plain ones too
        how = (
            "the port must be that of its client server (10001), and the versions of Ray and Python the same"
            if is_client
            else f"this machine must be one of its nodes (ray start --address={host}:{port}), "
            "with the same versions of Ray and Python; from outside it is ray://HOST:10001"
        )
        raise GeofixError(
            f"spread.address: cannot join the Ray cluster at '{address}': {_one_line(error)}; {how}"
        ) from error
    if not is_client:  # behind ray:// no server of this machine can be gone
        _speak_for_ray(address, context)
    return context


def _speak_for_ray(address: str, joined: dict[str, Any]) -> None:
    global _last_words
    if _last_words is not None:
        _last_words.end()
    _last_words = LastWords(address, [address, *schedulers_here(joined)])


def schedulers_here(joined: dict[str, Any]) -> list[str]:
    """host:port of the scheduler of the node that this process has joined (`RaySession.address_info`)."""
    import ray

    here = [node for node in ray.nodes() if node["NodeID"] == joined.get("node_id")]
    return [f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in here]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that the settings have accepted."""
    parts = urlsplit(address if address.startswith(CLIENT) else f"{CLIENT}{address}")
    assert parts.hostname is not None and parts.port is not None, "the settings check that both are there"
    return parts.hostname, parts.port


def _check_reachable(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except socket.gaierror as error:
        raise GeofixError(f"spread.address: no machine is known as '{host}' ({error.strerror})") from error
    except OSError as error:
        reason = error.strerror or "no answer in time"
        raise GeofixError(
            f"spread.address: nothing answers at '{address}' ({reason}): start the cluster there "
            "(ray start --head), give its right address, or set spread.address=null to use this machine"
        ) from error


def _check_head(address: str, host: str, port: int) -> None:
    """GeofixError unless a head of a Ray cluster answers there within a deadline, by gRPC's own health protocol."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # only Ray itself knows which certificates to use
    import grpc

    with grpc.insecure_channel(f"{host}:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            ask(b"", timeout=ANSWER_S, wait_for_ready=True)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            if code == grpc.StatusCode.UNAUTHENTICATED:
                return  # a head with authentication wants the token that Ray sends by itself
            raise GeofixError(
                f"spread.address: what listens at '{address}' is not the head of a Ray cluster ({code.name.lower()}): "
                "give the port that `ray start --head` names (6379), or for its client server ray://HOST:10001"
            ) from None
