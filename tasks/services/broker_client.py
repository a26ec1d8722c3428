"""Sends a request by the broker of a file (`broker.py`), which is started where none listens.

The file is on this machine, or a relay on the machine of the file passes questions on.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import orjson

from schemas.errors import StageRefused
from tasks.services import broker

START_S = 60.0
TRIES = 3
LINES = 8  # connections of an event loop: one takes six requests with pictures, then the loop has to come round again
LATE_S = 5.0  # the broker ends a request that takes too long; it is waited for a little longer than that


@dataclass(frozen=True)
class Limits:
    """Of one request, in seconds and bytes."""

    timeout_s: float
    connect_timeout_s: float
    total_s: float
    most_bytes: int
    by_proxy: bool
    also_keep: tuple[int, ...] = ()  # statuses, besides those of success, whose answers are written down


Answered = tuple[dict[str, Any], bytes]  # what a broker says of an answer, and its body


class Relay(Protocol):
    """Reaches the broker of a file that another machine holds."""

    async def ask(self, said: bytes, body: bytes) -> Answered: ...


Broker = str | Relay  # the path of its file, or a way there


class Whole:
    """An answer that is there already; named as httpx names them."""

    def __init__(self, head: dict[str, Any], body: bytes) -> None:
        self.status_code: int = head["status"]
        self.headers: dict[str, str] = dict(head["headers"])  # names in lower case
        self.num_bytes_downloaded = 0
        self._body = body

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        self.num_bytes_downloaded = len(self._body)
        yield self._body

    def whole(self) -> bytes:
        self.num_bytes_downloaded = len(self._body)
        return self._body

    async def aclose(self) -> None:
        pass


async def send(
    way: Broker,
    call_id: str,
    attempt: int,
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]],
    body: bytes,
    limits: Limits,
) -> Whole:
    """The answer to a request, asked at most once for each try at a call; an exception of httpx if there is none."""
    asked = {"call_id": call_id, "attempt": attempt, "method": method, "url": url, "headers": list(headers)}
    said = orjson.dumps(asked | limits.__dict__)
    head, answer = await (ask(way, said, body) if isinstance(way, str) else way.ask(said, body))
    if "failed" in head:
        raise _as_httpx(head["failed"])
    return Whole(head, answer)


async def ask(file: str, said: bytes, body: bytes) -> Answered:
    """What the broker of a file on this machine answers; without one, a failure by the name of httpx's exception."""
    broken = 0
    while True:
        try:
            head, answer = await (await _line_to(file, said)).ask(said, body)
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.to_thread(start, file, only_if_none=True)
            continue
        except ConnectionError:
            # It ended, or was killed, in this moment; another one finds what it has written.
            broken += 1
            if broken < TRIES:
                continue
            return {"failed": httpx.ReadError.__name__}, b""
        if "refused" in head:
            raise StageRefused(f"answers of services in '{file}' cannot be kept: {head['refused']}")
        return head, answer


class _Line(broker.Messages):
    """A connection to a broker, of many questions of an event loop at a time; without any it closes."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._asked = 0

    async def ask(self, said: bytes, body: bytes) -> Answered:
        if self.is_over:
            raise ConnectionError("closed")
        self._asked += 1
        number = self._asked
        answered: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self.tell(number, said, body)
            return await answered
        finally:
            del self._waiting[number]
            if not self._waiting:
                self.close()

    def received(self, number: int, said: bytes, body: bytes) -> None:
        answered = self._waiting.get(number)  # none: its asker was cancelled
        if answered is not None and not answered.done():
            answered.set_result((orjson.loads(said), body))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionError("lost"))


class _Lines(threading.local):
    """The connections of a thread's event loop by file; a worker may run each batch in a loop of its own."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, int], asyncio.Task[_Line]] = {}


_lines = _Lines()


async def _line_to(file: str, said: bytes) -> _Line:
    """A connection of this loop to the broker of a file; those who ask while it is made wait for the same one."""
    key = file, zlib.crc32(said[:64]) % LINES  # by the id of the call, which comes first: tries at it keep their order
    opening = _lines.of.get(key)
    if opening is None or opening.get_loop() is not asyncio.get_running_loop() or _is_over(opening):
        opening = _lines.of[key] = asyncio.create_task(_open(file))
    return await asyncio.shield(opening)


def _is_over(opening: asyncio.Task[_Line]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None or opening.result().is_over)


async def _open(file: str) -> _Line:
    return (await asyncio.get_running_loop().create_unix_connection(_Line, broker.socket_path(file)))[1]


def _as_httpx(name: str) -> Exception:
    """The exception that the broker met, by its name."""
    kind = getattr(httpx, name, None)
    if isinstance(kind, type) and issubclass(kind, httpx.RequestError):
        return kind(name)
    return TimeoutError(name) if name == "TimeoutError" else httpx.ConnectError(name)


def _listens(file: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(broker.socket_path(file))
        except OSError:
            return False
        return True


# Keys of services are sent with each request; what the broker's own process is given holds none.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_starting = threading.Lock()


def start(file: str, idle_s: float = broker.IDLE_S, only_if_none: bool = False) -> None:
    """Start the broker of a file, unless one runs; returns when one listens, or is about to."""
    command = [sys.executable, "-P", broker.__file__, file, str(idle_s)]
    given = {name: os.environ[name] for name in os.environ if name in _ENVIRONMENT or name.lower() in _PROXIES}
    with _starting:
        if only_if_none and _listens(file):  # as another of the requests that found none has started it
            return
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S, check=False, text=True, env=given
        )
    if done.returncode == broker.RUNS_ALREADY:
        time.sleep(0.05)  # it begins to listen, or ends
    elif done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StageRefused(f"the process that keeps answers of services in '{file}' does not start: {last[:300]}")
