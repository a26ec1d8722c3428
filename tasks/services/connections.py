"""Connections to hosts: a free list of them, a request and its answer on each, then the next.

httpx's own way goes through two further libraries and looks at all connections for every request: 2 ms of CPU a
request, with a hundred under way 15 ms. Plain answers, of HTTP/1.1 with a length, are read here; every other one, such
as in chunks, is given to a parser that knows the whole protocol (h11) from its first byte on.

It imports nothing of geofix, for the broker starts with it alone.
"""

import asyncio
import functools
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import h11
import httpx

LONGEST_HEAD, MOST_UNREAD = 100_000, 256_000  # bytes

Headers = Sequence[tuple[bytes, bytes]]
Limits = dict[str, float | None]  # seconds to connect and to read, as httpx has them in a request's extensions

url_of = functools.lru_cache(maxsize=64)(httpx.URL)  # most requests go to the same few addresses

# What h11 takes for a request, and what is plain enough of an answer to be read without it.
_REQUEST = re.compile(
    rb"[A-Z]+ [\x21-\x7e]+ HTTP/1\.1\r\n(?:[-!#$%&'*+.^_`|~\w]+: [^\x00-\x08\n-\x1f\x7f]*\r\n)+\r\n", re.A
)
_PLAIN = re.compile(
    rb"HTTP/1\.1 ([2-5]\d\d) [^\x00-\x08\n-\x1f\x7f]*\r\n((?:[-!#$%&'*+.^_`|~\w]+:[^\x00-\x08\n-\x1f\x7f]*\r\n)+)\r\n",
    re.A,
)
_BODILESS = (204, 304)


@functools.cache
def certificates() -> ssl.SSLContext:
    """Of all connections: it takes 20 ms."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def framed(method: str, url: httpx.URL, headers: Iterable[tuple[str, str]], body: bytes) -> Headers:
    """All headers of a request: the host's name before those given, the length of its body after them."""
    try:
        given = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
    except UnicodeEncodeError:
        raise httpx.LocalProtocolError("a header that is not ASCII") from None
    if body or method in ("POST", "PUT", "PATCH"):
        given.append((b"Content-Length", b"%d" % len(body)))
    return [(b"Host", url.netloc), *given]


class Reply:
    """The answer to a request: its head, and its body as it comes; named as httpx names them."""

    def __init__(
        self, connection: "_Connection", status: int, headers: Headers, limit_s: float | None, free: "list[_Connection]"
    ) -> None:
        self.status_code, self.raw_headers = status, headers
        self.headers = _merged(headers)  # names in lower case
        self.num_bytes_downloaded = 0
        self._connection, self._limit_s = connection, limit_s
        self._free: list[_Connection] | None = free

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body, not unpacked."""
        while piece := await self._connection.next_piece(self._limit_s):
            self.num_bytes_downloaded += len(piece)
            yield piece

    async def aclose(self) -> None:
        free, self._free = self._free, None  # closed twice, it must not be free twice
        if free is not None:
            self._connection.answered(free)


class SingleConnections(httpx.AsyncBaseTransport):
    """A way to hosts with a free list of connections."""

    def __init__(self, keep_idle_s: float) -> None:
        self._keep_idle_s = keep_idle_s
        self._free: dict[tuple[str, str, int], list[_Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx asks a transport."""
        assert isinstance(request.stream, httpx.AsyncByteStream)
        body = b"".join([piece async for piece in request.stream])
        limits: Limits = request.extensions.get("timeout", {})
        reply = await self.ask(request.method, request.url, request.headers.raw, body, limits)
        return httpx.Response(reply.status_code, headers=list(reply.raw_headers), stream=_Stream(reply))

    async def ask(self, method: str, url: httpx.URL, headers: Headers, body: bytes, limits: Limits) -> Reply:
        """The answer without its body, or an exception of httpx. The headers are all that are sent."""
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"no way to {url.scheme!r}")
        host, port = url.raw_host.decode(), url.port or (443 if url.scheme == "https" else 80)
        free = self._free.setdefault((url.scheme, host, port), [])
        while free and not free[-1].is_usable(self._keep_idle_s):
            free.pop().close()
        connection = free.pop() if free else await _connect(host, port, url.scheme == "https", limits.get("connect"))
        try:
            return await connection.ask(method, url.raw_path, headers, body, limits.get("read"), free)
        except BaseException:
            connection.close()
            raise

    async def aclose(self) -> None:
        for connection in [one for free in self._free.values() for one in free]:
            connection.close()
        self._free.clear()


async def _connect(host: str, port: int, is_secure: bool, limit_s: float | None) -> "_Connection":
    secure = certificates() if is_secure else None
    # An address needs no race between addresses of a name.
    delay_s = None if re.fullmatch(r"[0-9.]+", host) else 0.25
    try:
        async with asyncio.timeout(limit_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, host, port, ssl=secure, happy_eyeballs_delay=delay_s
            )
    except TimeoutError:
        raise httpx.ConnectTimeout("not connected in time") from None
    except (OSError, UnicodeError) as error:  # no such host, refused, or a certificate that does not hold
        raise httpx.ConnectError(type(error).__name__) from error
    return connection


class _Connection(asyncio.Protocol):
    """One connection: a request and its answer, then the next."""

    def __init__(self) -> None:
        self._came, self._size = list[bytes](), 0  # bytes that are not looked at yet
        self._held = b""  # of a plain body, what came with its head
        self._left = 0  # bytes of a plain body that are to come
        self._keeps_open = False
        self._http: h11.Connection | None = None  # of an answer that is not plain
        self._awaited: asyncio.Future[None] | None = None  # bytes, or the end
        self._is_over, self._idle_since_s = False, 0.0
        self._error: Exception | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        self._came.append(data)
        self._size += len(data)
        if self._size > MOST_UNREAD:
            self._transport.pause_reading()
        _wake(self._awaited)

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over, self._error = True, self._error or error
        _wake(self._awaited)

    async def ask(
        self, method: str, path: bytes, headers: Headers, body: bytes, limit_s: float | None, free: "list[_Connection]"
    ) -> Reply:
        """The answer without its body, which is read by who wants it; then the connection goes to the free list."""
        lines = [b"%s %s HTTP/1.1" % (method.encode(), path), *(b"%s: %s" % one for one in headers), b"\r\n"]
        head = b"\r\n".join(lines)
        # A line for each header and none more: an end of line within one would make two of it.
        if not _REQUEST.fullmatch(head) or head.count(b"\r\n") != len(headers) + 2:
            raise httpx.LocalProtocolError("a request that cannot be sent")
        # All at once: it is in memory already. A host that does not take it is one that does not answer in time.
        self._transport.write(head + body)
        came = await self._read(limit_s)
        if not came:
            raise httpx.RemoteProtocolError("closed without an answer")
        while b"\r\n\r\n" not in came and len(came) <= LONGEST_HEAD and (more := await self._read(limit_s)):
            came += more
        plain = _plain(came, method)
        if plain is not None:
            status, given, length, self._keeps_open, end = plain
            self._held, self._left = came[end:], length
            return Reply(self, status, given, limit_s, free)
        self._http = _replayed(method, path, headers, body)
        try:
            self._http.receive_data(came)
            while isinstance(answer := await self._next_event(limit_s), h11.InformationalResponse):
                pass
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from None
        if not isinstance(answer, h11.Response):
            raise httpx.RemoteProtocolError("no head of an answer")
        return Reply(self, answer.status_code, answer.headers.raw_items(), limit_s, free)

    async def next_piece(self, limit_s: float | None) -> bytes:
        """The next part of the body; nothing at its end."""
        if self._http is not None:
            event = await self._next_event(limit_s)
            while isinstance(event, h11.Data) and not event.data:
                event = await self._next_event(limit_s)
            return bytes(event.data) if isinstance(event, h11.Data) else b""
        if not self._left:
            return b""
        piece, self._held = self._held or await self._read(limit_s), b""
        if not piece:
            raise httpx.RemoteProtocolError("closed before the end of the answer")
        if len(piece) > self._left:
            self._keeps_open, piece = False, piece[: self._left]  # more than an answer: nothing of it can be trusted
        self._left -= len(piece)
        return piece

    async def _next_event(self, limit_s: float | None) -> Any:
        assert self._http is not None
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._read(limit_s)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("closed without an answer")
                self._http.receive_data(data)
            return event
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from None

    async def _read(self, limit_s: float | None) -> bytes:
        """What came, or nothing at the end."""
        if not self._came and not self._is_over:
            loop = asyncio.get_running_loop()
            self._awaited = loop.create_future()
            timer = None if limit_s is None else loop.call_later(limit_s, _expire, self._awaited)
            try:
                await self._awaited
            finally:
                self._awaited = None
                if timer is not None:
                    timer.cancel()
        if not self._came and self._error is not None:
            raise httpx.ReadError(type(self._error).__name__) from self._error
        data = self._came[0] if len(self._came) == 1 else b"".join(self._came)
        self._came = []
        if self._size > MOST_UNREAD:
            self._transport.resume_reading()
        self._size = 0
        return data

    def answered(self, free: "list[_Connection]") -> None:
        """Free again, if the answer was read to its end and nothing came after it."""
        if self._http is not None:
            done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
            done, self._http = done and not self._http.trailing_data[0], None
        else:
            done = self._keeps_open and not self._left and not self._held
        if done and not self._size:
            self._idle_since_s = time.monotonic()
            free.append(self)
        else:
            self.close()

    def is_usable(self, keep_idle_s: float) -> bool:
        """Whether it can be sent on: not idle for too long, not closed, and nothing came that was not asked for."""
        return not self._is_over and not self._size and time.monotonic() - self._idle_since_s <= keep_idle_s

    def close(self) -> None:
        self._transport.close()


def _plain(came: bytes, method: str) -> tuple[int, Headers, int, bool, int] | None:
    """(status, headers, length of the body, whether the connection stays open, where the body begins), or None."""
    end = came.find(b"\r\n\r\n") + 4
    found = _PLAIN.fullmatch(came, 0, end) if 4 <= end <= LONGEST_HEAD and method != "HEAD" else None
    if found is None or int(found[1]) in _BODILESS:
        return None
    headers = [
        (name.lower(), value.strip(b" \t"))
        for name, _, value in (line.partition(b":") for line in found[2].split(b"\r\n")[:-1])
    ]
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > 15:
        return None
    if any(name in (b"transfer-encoding", b"upgrade") for name, _ in headers):
        return None
    options = b",".join(value for name, value in headers if name == b"connection").lower()
    return int(found[1]), headers, int(lengths[0]), b"close" not in options, end


def _replayed(method: str, path: bytes, headers: Headers, body: bytes) -> h11.Connection:
    """The parser, as if it had sent the request."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
    try:
        http.send(h11.Request(method=method, target=path, headers=list(headers)))
        if body:
            http.send(h11.Data(data=body))
        http.send(h11.EndOfMessage())
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error)) from None
    return http


def _merged(headers: Headers) -> dict[str, str]:
    merged: dict[str, str] = {}
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1").lower()
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            value = raw.decode("latin-1")
        merged[name] = f"{merged[name]}, {value}" if name in merged else value
    return merged


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _expire(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_exception(httpx.ReadTimeout("nothing came in time"))


class _Stream(httpx.AsyncByteStream):
    """The body of an answer, for httpx."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._reply.aiter_raw():
            yield piece

    async def aclose(self) -> None:
        await self._reply.aclose()
