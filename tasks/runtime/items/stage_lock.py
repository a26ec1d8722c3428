"""One run of a stage at a time on a lake: a second one waits, then finds most of the work done.

Commits are safe without this lock, but the work would be done twice. On this machine it is a file lock of the
operating system, which ends with its process; on an object store a lease is held besides, against other machines.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator

from schemas.errors import LakeError
from tasks.lake import Lake

LOOK_EVERY_S = 0.5

logger = logging.getLogger("geofix.stage")


@contextlib.contextmanager
def stage_lock(lake: Lake, stage: str, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Hold the lock of a stage of the lake, waiting until it is free."""
    path = lake.state / f"{stage}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        file = path.open("a+")
    except OSError as error:
        raise LakeError(
            f"lake '{lake.uri}' cannot be written: {error.strerror or error}; choose another with --lake"
        ) from error
    with file:
        told = False
        while not _taken(file.fileno()):
            if not told:
                file.seek(0)
                who = file.read(20).strip()
                logger.warning(
                    "%s: another run%s is at work on it in this lake; waiting for its end",
                    stage,
                    f" (process {who})" if who.isdigit() else "",
                )
                told = True
            sleep(LOOK_EVERY_S)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        with contextlib.nullcontext() if lake.blobs.is_local else _lease(lake, stage, sleep):
            yield


def _lease(lake: Lake, stage: str, sleep: Callable[[float], None]) -> contextlib.AbstractContextManager[None]:
    from tasks.lake.lease import lease
    from tasks.lake.object_blobs import ObjectBlobs

    assert isinstance(lake.blobs, ObjectBlobs)
    return lease(lake.blobs, stage, lake.state, sleep)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: as it was without them
    return True
