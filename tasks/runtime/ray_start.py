"""Ray for this process: the cluster the settings name, or a private one on loopback that ends with this process."""

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

import ray

from schemas.errors import GeofixError
from schemas.settings.spread import SpreadSettings
from tasks.runtime.ray_cluster import join_cluster
from tasks.runtime.ray_private import (
    ENVIRONMENT,
    DriverJobConfig,
    listen_on_loopback,
    private_home,
    report_to,
    without_spared_servers,
)
from tasks.runtime.ray_watchdog import Watchdog

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", **ENVIRONMENT}
STARTS = 2  # of a private Ray: a start that was too slow finds its files in the page cache the second time

logger = logging.getLogger("geofix.ray")
_ours: SpreadSettings | None = None  # what the Ray of this process was started with; none: not by `start_ray`
_watchdog: Watchdog | None = None


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
    report_to(lambda text: logger.debug("%s", text))
    with _own_sigterm():
        if settings.address:
            join_cluster(settings.address)
        else:
            _start_private(settings)
            atexit.register(stop_ray)
    _ours = settings


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    # Ray's handler exits at once, even during a commit; ours and the flow's commit what is finished first.
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def _named(address: str | None) -> str:
    return f"the cluster at '{address}'" if address else "this machine"


def _start_private(settings: SpreadSettings) -> None:
    # It listens on loopback and ends with this process: a token file in the user's home would only outlive it.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    listen_on_loopback()
    for number in range(1, STARTS + 1):
        begin_s = time.monotonic()
        folder = _own_folder()
        try:
            _init_private(settings, folder)
            return
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


def _init_private(settings: SpreadSettings, folder: Path) -> None:
    global _watchdog
    _watchdog = Watchdog(folder)
    with private_home(folder), without_spared_servers():
        ray.init(
            # At least two: training asks for two, and would wait forever on a machine of one core.
            num_cpus=max(settings.workers or 0, os.cpu_count() or 1, 2),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=settings.object_store_mb * 2**20,
            job_config=DriverJobConfig(),
            _temp_dir=str(folder),
        )


def _end_processes() -> None:
    """Disconnect, and end the processes of a private Ray that are left."""
    global _watchdog
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
    global _ours
    _ours = None
    _end_processes()
    shutil.rmtree(_folder_of(os.getpid()), ignore_errors=True)


def drop_ray() -> None:
    """Disconnect from a Ray that is lost; a later stage in this process may start or join another.

    The folder of a private one stays until the next start: the logs of its servers are in it.
    """
    global _ours
    _ours = None
    atexit.unregister(stop_ray)
    _end_processes()


def _folder_of(pid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"geofix-ray-{os.getuid()}" / str(pid)


def _own_folder() -> Path:
    """A folder with a short name (Ray's socket paths are limited to 107 bytes). Removes those of ended processes."""
    own = _folder_of(os.getpid())
    own.parent.mkdir(mode=0o700, exist_ok=True)
    for other in own.parent.iterdir():
        if other.name.isdigit() and not Path(f"/proc/{other.name}").exists():
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(exist_ok=True)
    return own
