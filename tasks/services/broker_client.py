"""Sends a request by the broker of a file (`broker.py`), which is started where none listens.

The file is on this machine, or a relay on the machine of the file passes questions on.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from schemas.errors import StageRefused
from tasks.services import broker

START_S = 60.0
TRIES = 3
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

    async def ask(self, line: bytes, body: bytes) -> Answered: ...


Broker = str | Relay  # the path of its file, or a way there


async def send(way: Broker, call_id: str, attempt: int, request: httpx.Request, limits: Limits) -> httpx.Response:
    """The answer to a request, asked at most once for each try at a call; an exception of httpx if there is none."""
    body = request.content
    asked = {
        "call_id": call_id,
        "attempt": attempt,
        "method": request.method,
        "url": str(request.url),
        "headers": [one for one in request.headers.multi_items() if one[0] not in ("connection", "content-length")],
        "length": len(body),
        **limits.__dict__,
    }
    line = json.dumps(asked).encode() + b"\n"
    head, answer = await (ask(way, line, body) if isinstance(way, str) else way.ask(line, body))
    if "failed" in head:
        raise _as_httpx(head["failed"], request)
    return httpx.Response(head["status"], headers=head["headers"], stream=_Whole(answer), request=request)


async def ask(file: str, line: bytes, body: bytes) -> Answered:
    """What the broker of a file on this machine answers; without one, a failure by the name of httpx's exception."""
    broken = 0
    while True:
        try:
            head, answer = await _ask(file, line, body)
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.to_thread(start, file, only_if_none=True)
            continue
        except (ConnectionError, asyncio.IncompleteReadError):
            # It ended, or was killed, in this moment; another one finds what it has written.
            broken += 1
            if broken < TRIES:
                continue
            return {"failed": httpx.ReadError.__name__}, b""
        if "refused" in head:
            raise StageRefused(f"answers of services in '{file}' cannot be kept: {head['refused']}")
        return head, answer


async def _ask(file: str, line: bytes, body: bytes) -> Answered:
    reader, writer = await asyncio.open_unix_connection(broker.socket_path(file), limit=broker.LONGEST_LINE)
    try:
        writer.write(line)
        writer.write(body)
        await writer.drain()
        told = await reader.readline()
        if not told.endswith(b"\n"):
            raise asyncio.IncompleteReadError(told, None)
        head = json.loads(told)
        return head, await reader.readexactly(head["length"])
    finally:
        writer.close()


class _Whole(httpx.AsyncByteStream):
    """A body that is there already."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> Any:
        yield self._body


def _as_httpx(name: str, request: httpx.Request) -> Exception:
    """The exception that the broker met, by its name."""
    kind = getattr(httpx, name, None)
    if isinstance(kind, type) and issubclass(kind, httpx.RequestError):
        return kind(name, request=request)
    return TimeoutError(name) if name == "TimeoutError" else httpx.ConnectError(name, request=request)


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
