"""Connections to hosts: a free list of them, a request and its answer on each, then the next.

httpx's own way goes through two further libraries and looks at all connections for every request: 2 ms of CPU a
request, with a hundred under way 15 ms. Plain answers, of HTTP/1.1 with a length, are read here; every other one, such
as in chunks, is given to a parser that knows the whole protocol (h11) from its first byte on.
"""

import asyncio
import functools
import re
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import h11
import httpx

LONGEST_HEAD, MOST_UNREAD = 100_000, 256_000  # bytes
KEEP_IDLE_S = 4.0  # many servers close an idle connection after 5 s; to send on one they are closing is an outage

Headers = Sequence[tuple[bytes, bytes]]  # as they came
# Seconds to connect and to read, as httpx has them in a request's extensions; and "total", from the request to the end
# of the answer.
Limits = Mapping[str, float | None]


def by_proxy() -> bool:
    """Whether the environment names a proxy, which only httpx's own pool goes by."""
    return bool(urllib.request.getproxies())


class Address(NamedTuple):
    """The parts of an address that a request needs."""

    scheme: str
    host: str
    port: int
    netloc: bytes
    path: bytes  # with the query

    @classmethod
    def of(cls, url: httpx.URL) -> "Address":
        port = url.port or (443 if url.scheme == "https" else 80)
        return cls(url.scheme, url.raw_host.decode(), port, url.netloc, url.raw_path)


@functools.lru_cache(maxsize=64)  # most requests go to the same few
def address_of(url: str) -> Address:
    """The address that a text is, or httpx's exception."""
    return Address.of(httpx.URL(url))


def with_query(address: Address, url: str, params: Mapping[str, str | int | float | bool]) -> tuple[Address, str]:
    """An address, and its text, with these parameters for its query, as httpx writes them."""
    written = {name: str(value).lower() if isinstance(value, bool) else value for name, value in params.items()}
    query = urlencode(written)
    path = address.path.partition(b"?")[0]
    return address._replace(path=path + b"?" + query.encode()), f"{url.partition('#')[0].partition('?')[0]}?{query}"


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


def framed(method: str, address: Address, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """The head of a request: the host's name before the headers given, the length of its body after them."""
    given = [f"{name}: {value}" for name, value in headers]
    if body or method in ("POST", "PUT", "PATCH"):
        given.append(f"Content-Length: {len(body)}")
    return _head(method, address.path, [f"Host: {address.netloc.decode()}", *given])


def _head(method: str, path: bytes, headers: list[str]) -> bytes:
    try:
        head = "\r\n".join([f"{method} {path.decode()} HTTP/1.1", *headers, "\r\n"]).encode("ascii")
    except UnicodeError:
        raise httpx.LocalProtocolError("a header that is not ASCII") from None
    # A line for each header and none more: an end of line within one would make two of it.
    if not _REQUEST.fullmatch(head) or head.count(b"\r\n") != len(headers) + 2:
        raise httpx.LocalProtocolError("a request that cannot be sent")
    return head


class Reply:
    """The answer to a request: its head, and its body as it comes; named as httpx names them."""

    def __init__(
        self,
        connection: "_Connection",
        status: int,
        headers: dict[str, str],
        limit_s: float | None,
        free: "list[_Connection]",
    ) -> None:
        self.status_code, self.headers = status, headers  # names in lower case
        self.num_bytes_downloaded = 0
        self._connection, self._limit_s = connection, limit_s
        self._free: list[_Connection] | None = free

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body, not unpacked."""
        while piece := await self._connection.next_piece(self._limit_s):
            self.num_bytes_downloaded += len(piece)
            yield piece

    def whole(self) -> bytes | None:
        """The body, if all of it has come already; it is read then."""
        body = self._connection.whole()
        if body is not None:
            self.num_bytes_downloaded = len(body)
        return body

    async def aclose(self) -> None:
        free, self._free = self._free, None  # closed twice, it must not be free twice
        if free is not None:
            self._connection.answered(free)


class SingleConnections:
    """A way to hosts with a free list of connections."""

    def __init__(self, keep_idle_s: float) -> None:
        self._keep_idle_s = keep_idle_s
        self._free: dict[tuple[str, str, int], list[_Connection]] = {}

    async def ask(self, method: str, address: Address, head: bytes, body: bytes, limits: Limits) -> Reply:
        """The answer without its body, or an exception of httpx. The head is sent as it is."""
        scheme, host, port, *_ = address
        if scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"no way to {scheme!r}")
        free = self._free.setdefault((scheme, host, port), [])
        while free and not free[-1].is_usable(self._keep_idle_s):
            free.pop().close()
        began_s, total_s = asyncio.get_running_loop().time(), limits.get("total") or float("inf")
        connect_s = min(limits.get("connect") or float("inf"), total_s)
        connection = free.pop() if free else await _connect(host, port, scheme == "https", connect_s)
        connection.answer_until_s = began_s + total_s
        try:
            return await connection.ask(method, head, body, limits.get("read"), free)
        except BaseException:
            connection.close()
            raise

    async def aclose(self) -> None:
        for connection in [one for free in self._free.values() for one in free]:
            connection.close()
        self._free.clear()


async def _connect(host: str, port: int, is_secure: bool, limit_s: float) -> "_Connection":
    secure = certificates() if is_secure else None
    # An address needs no race between addresses of a name.
    delay_s = None if re.fullmatch(r"[0-9.]+", host) else 0.25
    try:
        async with asyncio.timeout(None if limit_s == float("inf") else limit_s):
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
        self.answer_until_s = float("inf")  # all of it, by the loop's clock
        # Until when; the timer may be of an earlier time, and looks again then: most answers come long before.
        self._until_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _wake(self._awaited)

    async def ask(
        self, method: str, head: bytes, body: bytes, limit_s: float | None, free: "list[_Connection]"
    ) -> Reply:
        """The answer without its body, which is read by who wants it; then the connection goes to the free list."""
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
        self._http = _replayed(head, body)
        try:
            self._http.receive_data(came)
            while isinstance(answer := await self._next_event(limit_s), h11.InformationalResponse):
                pass
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from None
        if not isinstance(answer, h11.Response):
            raise httpx.RemoteProtocolError("no head of an answer")
        return Reply(self, answer.status_code, _merged(answer.headers.raw_items()), limit_s, free)

    def whole(self) -> bytes | None:
        """A plain body that came with its head."""
        if self._http is not None or len(self._held) != self._left:
            return None
        body, self._held, self._left = self._held, b"", 0
        return body

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
            self._until_s = min(self.answer_until_s, float("inf") if limit_s is None else loop.time() + limit_s)
            if self._until_s < (float("inf") if self._timer is None else self._timer.when()):
                self._watch(loop)
            try:
                await self._awaited
            finally:
                self._awaited = None
        if not self._came and self._error is not None:
            raise httpx.ReadError(type(self._error).__name__) from self._error
        data = self._came[0] if len(self._came) == 1 else b"".join(self._came)
        self._came = []
        if self._size > MOST_UNREAD:
            self._transport.resume_reading()
        self._size = 0
        return data

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._until_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Whether what is awaited is late."""
        self._timer = None
        if self._awaited is None or self._awaited.done() or self._until_s == float("inf"):
            return
        if loop.time() < self._until_s:
            self._watch(loop)
        else:
            self._awaited.set_exception(httpx.ReadTimeout("nothing came in time"))

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


def _plain(came: bytes, method: str) -> tuple[int, dict[str, str], int, bool, int] | None:
    """(status, headers, length of the body, whether the connection stays open, where the body begins), or None."""
    end = came.find(b"\r\n\r\n") + 4
    found = _PLAIN.fullmatch(came, 0, end) if 4 <= end <= LONGEST_HEAD and method != "HEAD" else None
    if found is None or (status := int(found[1])) in _BODILESS:
        return None
    headers = _read_headers(found[2])
    length = headers.get("content-length", "")  # several are joined, and are no number then
    if not (length.isascii() and length.isdigit()) or len(length) > 15:
        return None
    if "transfer-encoding" in headers or "upgrade" in headers:
        return None
    return status, headers, int(length), "close" not in headers.get("connection", "").lower(), end


def _read_headers(lines: bytes) -> dict[str, str]:
    try:
        text = lines.decode()
    except UnicodeDecodeError:  # one of them is in another encoding
        split = [line.partition(b":") for line in lines.split(b"\r\n")[:-1]]
        return _merged([(name, value.strip(b" \t")) for name, _, value in split])
    headers: dict[str, str] = {}
    for line in text.split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _replayed(head: bytes, body: bytes) -> h11.Connection:
    """The parser, as if it had sent the request."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
    first, *lines = head.split(b"\r\n")[:-2]
    method, path, _ = first.split(b" ")
    headers = [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]
    try:
        http.send(h11.Request(method=method, target=path, headers=headers))
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
