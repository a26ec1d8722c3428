"""A private Ray on this machine: started once, quiet, and gone with the process that started it."""

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray
from ray._private import ray_constants

from schemas.settings.spread import SpreadSettings
from tasks.errors import GeofixError

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
REAL_HOME = "GEOFIX_HOME_OF_USER"  # workers get the user's HOME back from here


def start_ray(settings: SpreadSettings) -> None:
    """Make Ray ready: join the cluster the settings name, or start a private one here. Repeated calls do nothing."""
    if ray.is_initialized():
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    if settings.address:
        try:
            ray.init(address=settings.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise GeofixError(f"spread.address: no Ray cluster answers at '{settings.address}': {error}") from error
        return
    # Loopback only and gone with us: a token file in the user's home would outlive it for nothing.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    _stay_on_loopback()
    folder = _own_folder()
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
    atexit.register(stop_ray)


def _stay_on_loopback() -> None:
    # By default Ray's servers listen on every interface, and whoever reaches them may run code here. Ray has a
    # loopback mode, meant for desktops; its name is that of an environment variable read when ray is imported.
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for the processes Ray starts
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one


def stop_ray() -> None:
    """Stop the private Ray and remove its folder."""
    if ray.is_initialized():
        ray.shutdown()
    shutil.rmtree(_folder_of(os.getpid()), ignore_errors=True)


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
