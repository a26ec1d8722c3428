"""The least that a client can do: bytes that are ready are written to sockets, and answers are counted.

No library of HTTP, nothing is parsed but a length, nothing is kept. What it brings a second is what a server sustains,
as far as one process can tell.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

Sent = tuple[str, str, dict[str, str], bytes | None]  # method, address, headers, body


def as_bytes(sent: Sent) -> bytes:
    """A request as it goes over the wire."""
    method, url, headers, body = sent
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    given = {"Host": parts.netloc, **headers}
    if body is not None:
        given |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + (body or b"")


class _Sends(asyncio.Protocol):
    """One connection: the next request of those that are left, as soon as the last one is answered."""

    def __init__(self, left: "deque[bytes]", over: "asyncio.Future[None]", answered: list[float]) -> None:
        self._left, self._over, self._answered = left, over, answered
        self._held, self._size = bytearray(), -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        if self._left:
            self._transport.write(self._left.popleft())
        elif not self._over.done():
            self._over.set_result(None)
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self._size < 0:
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._held[:end])
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(ValueError(f"the server said {head[:60]!r}"))
                return
            self._size = end + 4 + int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(self._held) >= self._size:
            self._held, self._size = bytearray(), -1
            self._answered.append(time.perf_counter())
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


async def send_all(sent: Sequence[Sent], at_once: int) -> list[float]:
    """When each was answered, in order; an answer other than 200, or a connection that ends, raises."""
    answered: list[float] = []
    left = deque(as_bytes(one) for one in sent)
    parts = urlsplit(sent[0][1])
    assert parts.hostname is not None and parts.port is not None
    loop = asyncio.get_running_loop()
    every: list[asyncio.Future[None]] = [loop.create_future() for _ in range(min(at_once, len(left)))]
    for over in every:
        await loop.create_connection(lambda over=over: _Sends(left, over, answered), parts.hostname, parts.port)  # type: ignore[misc]
    await asyncio.gather(*every)
    return answered
