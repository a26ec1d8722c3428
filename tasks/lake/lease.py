"""A lease object on an object store: one machine at a time works on a stage of a remote lake.

The lease is an object that is written with conditional requests and renewed while it is held. A waiting machine
takes it over once it has not changed for `EXPIRY_S` by the waiter's own clock: clocks of machines are not compared.
It saves duplicate work; the correctness of commits does not depend on it.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from schemas.errors import LakeError
from tasks.lake.object_blobs import ObjectBlobs

RENEW_S = 5.0
EXPIRY_S = 30.0
LOOK_EVERY_S = 1.0

logger = logging.getLogger("geofix.stage")


@contextlib.contextmanager
def lease(blobs: ObjectBlobs, stage: str, state: Path, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Hold the lease of a stage. The caller holds the local lock: a lease of this machine has no living holder."""
    held = _Lease(blobs, f"locks/{stage}.json", _machine(state))
    held.acquire(stage, sleep)
    renewing = threading.Thread(target=held.renew, args=(stage,), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        held.ended.set()
        renewing.join()
        held.release()


class _Lease:
    def __init__(self, blobs: ObjectBlobs, key: str, machine: str) -> None:
        self._blobs, self._key, self._machine = blobs, key, machine
        self._count = 0
        self._written = b""
        self.ended = threading.Event()

    def acquire(self, stage: str, sleep: Callable[[float], None]) -> None:
        seen, since_s, told = "", time.monotonic(), False
        while True:
            tagged = self._blobs.get_tagged(self._key)
            if tagged is None:
                if self._blobs.create(self._key, self._next()):
                    return
                continue
            content, tag = tagged
            if tag != seen:
                seen, since_s = tag, time.monotonic()
            machine, who = _holder(content)
            if machine in ("", self._machine) or time.monotonic() - since_s > EXPIRY_S:
                if self._blobs.replace(self._key, self._next(), tag):
                    return
                continue
            if not told:
                logger.warning(
                    "%s: another machine (%s) is at work on it in this lake; waiting for its end", stage, who
                )
                told = True
            sleep(LOOK_EVERY_S)

    def renew(self, stage: str) -> None:
        while not self.ended.wait(RENEW_S):
            try:
                tagged = self._blobs.get_tagged(self._key)
                if (
                    tagged is None
                    or tagged[0] != self._written
                    or not self._blobs.replace(self._key, self._next(), tagged[1])
                ):
                    logger.warning("%s: another machine took the stage over; some items may be done twice", stage)
                    return
            except LakeError as error:
                logger.info("lease of %s not renewed: %s", stage, error)  # the next renewal may succeed

    def release(self) -> None:
        with contextlib.suppress(LakeError):  # then it expires
            tagged = self._blobs.get_tagged(self._key)
            if tagged is not None and tagged[0] == self._written:
                self._blobs.replace(self._key, b"{}", tagged[1])

    def _next(self) -> bytes:
        """What is written next. It counts, so that the entity tag changes with each renewal."""
        self._count += 1
        record = {"machine": self._machine, "who": f"{socket.gethostname()}, process {os.getpid()}", "n": self._count}
        self._written = json.dumps({**record, "id": uuid.uuid4().hex}).encode()
        return self._written


def _holder(content: bytes) -> tuple[str, str]:
    """Machine and description of the holder; empty: the lease is free."""
    try:
        record = json.loads(content)
        return str(record.get("machine", "")), str(record.get("who", ""))[:100]
    except (ValueError, AttributeError):
        return "", ""


def _machine(state: Path) -> str:
    """A name of this machine's state folder, made once."""
    path = state / "machine"
    with contextlib.suppress(FileExistsError), path.open("x") as file:
        file.write(uuid.uuid4().hex)
    return path.read_text().strip()
