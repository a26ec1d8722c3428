"""Ray for this process: the cluster the settings name, or a private one, quiet, on loopback, gone with this process."""

import atexit
import contextlib
import errno
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, worker

from schemas.errors import GeofixError
from schemas.settings.spread import SpreadSettings
from tasks.runtime.ray_cluster import join_cluster

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_gcs_server_port_wait_time_s": "60",  # half a minute is too short for a machine with many times its load
}
REAL_HOME = "GEOFIX_HOME_OF_USER"  # workers get the user's HOME back from here
STARTS = 2  # of a private Ray: what came too late the first time is in the page cache the second time

logger = logging.getLogger("geofix.ray")
_ours: SpreadSettings | None = None  # what the Ray of this process was started with, unless somebody else did


def start_ray(settings: SpreadSettings) -> None:
    """Make Ray ready: join the cluster the settings name, or start a private one here. Repeated calls do nothing."""
    global _ours
    if ray.is_initialized():
        if _ours is not None and _ours.address != settings.address:
            raise GeofixError(
                f"spread.address: this process works on {_named(_ours.address)} already, and cannot on "
                f"{_named(settings.address)} as well; use another process for it"
            )
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    # Ray prints what its servers report on standard output, where our own result goes.
    worker.print_to_stdstream = _note_report
    with _own_sigterm():
        if settings.address:
            join_cluster(settings.address, _stay_on_loopback)
        else:
            _start_private(settings)
            atexit.register(stop_ray)
    _ours = settings


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    # Ray's handler leaves at once, in the middle of a commit; ours and the flow's let what is finished be saved.
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def _named(address: str | None) -> str:
    return f"the cluster at '{address}'" if address else "this machine"


def _start_private(settings: SpreadSettings) -> None:
    # Loopback only and gone with us: a token file in the user's home would outlive it for nothing.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    _stay_on_loopback()
    for number in range(1, STARTS + 1):
        begin_s = time.monotonic()
        folder = _own_folder()
        try:
            _init_private(settings, folder)
            return
        except OSError as error:
            _end_children(folder)
            raise GeofixError(_why_not_here(error, folder)) from error
        except ValueError as error:
            _end_children(folder)
            raise GeofixError(
                f"Ray cannot be started with spread.object_store_mb={settings.object_store_mb}: {_one_line(error)}"
            ) from error
        except Exception as error:
            # Ray raises plain exceptions for servers that died and servers that came too late alike.
            _end_children(folder)
            took_s = time.monotonic() - begin_s
            if number < STARTS:
                logger.warning("Ray did not come up within %.0f s (%s): trying once more", took_s, _load())
                continue
            raise GeofixError(
                f"Ray did not come up, {STARTS} times, the last after {took_s:.0f} s ({_load()}; {_one_line(error)}): "
                "run again when the machine is less busy, or name a running cluster in spread.address; "
                f"what Ray's servers said is in {folder}, until the next start"
            ) from error


def _init_private(settings: SpreadSettings, folder: Path) -> None:
    with _private_home(folder):
        ray.init(
            # Two at the least: training asks for two, and would wait for ever on a machine of one core.
            num_cpus=max(settings.workers or 0, os.cpu_count() or 1, 2),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=settings.object_store_mb * 2**20,
            _temp_dir=str(folder),
        )


def _end_children(folder: Path) -> None:
    """End what a start that failed left running: our own children that work in our own folder, and only those."""
    with contextlib.suppress(Exception):  # there may be nothing to shut down, or only half of it
        ray.shutdown()
    for child in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ChildProcessError):
            parent = int((child / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and str(folder).encode() in (child / "cmdline").read_bytes():
                os.kill(int(child.name), signal.SIGKILL)
                os.waitpid(int(child.name), 0)


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


def _note_report(data: dict[str, Any], ignore_prefix: bool = False) -> None:
    logger.debug("%s", "\n".join(data.get("lines", ())))


def _stay_on_loopback() -> None:
    # By default Ray's servers listen on every interface, and whoever reaches them may run code here. Ray has a
    # loopback mode, meant for desktops; its name is that of an environment variable read when ray is imported.
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for the processes Ray starts
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one


def stop_ray() -> None:
    """Stop the private Ray and remove its folder."""
    global _ours
    _ours = None
    if ray.is_initialized():
        ray.shutdown()
    shutil.rmtree(_folder_of(os.getpid()), ignore_errors=True)


def drop_ray() -> None:
    """Part with a Ray that is lost; a later stage in this process may start or join another.

    Its folder stays until the next start: what its servers said last is in there.
    """
    global _ours
    _ours = None
    atexit.unregister(stop_ray)
    with contextlib.suppress(Exception):  # it is half gone, and says so in many ways
        ray.shutdown()


def restore_home() -> None:
    """In a worker: give libraries the user's own HOME back."""
    if REAL_HOME in os.environ:
        os.environ["HOME"] = os.environ[REAL_HOME]


@contextlib.contextmanager
def _private_home(folder: Path) -> Iterator[None]:
    # Ray's dashboard process asks cloud metadata addresses who they are unless it finds this file in HOME.
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


def _folder_of(pid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"geofix-ray-{os.getuid()}" / str(pid)


def _own_folder() -> Path:
    """A folder with a short name (Ray's socket paths are limited to 107 bytes); those of dead processes go."""
    own = _folder_of(os.getpid())
    own.parent.mkdir(mode=0o700, exist_ok=True)
    for other in own.parent.iterdir():
        if other.name.isdigit() and not Path(f"/proc/{other.name}").exists():
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(exist_ok=True)
    return own
