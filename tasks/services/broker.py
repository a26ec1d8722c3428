"""A process that outlives a killed run: it sends requests to models and of tools, and writes their answers down.

    python -P tasks/services/broker.py LAKE/.state/calls.sqlite

A run hands it each request over a Unix socket beside the file, under the id of its call. It sends the request, writes a
good answer to the table `answers` of the file, and only then passes it on. When the run is killed meanwhile, the answer
is written all the same; the next run asks under the same id and gets it, also while it is still under way. An answer
that is no success is passed on and forgotten, unless its status is among those the run wants kept (`also_keep`).

One broker serves a file; a lock tells. It ends by itself when nothing was asked of it for a while. What it is given,
keys included, comes over the socket, which is its user's alone; nothing of it stands on a command line or in the file.

Protocol: a line of JSON and a body of `length` bytes, in either direction; then the connection closes.
It imports nothing of geofix, so that it starts quickly.
"""

import asyncio
import fcntl
import functools
import json
import os
import socket
import sqlite3
import ssl
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import h11
import httpx

IDLE_S = 10.0
KEEP_IDLE_S = 4.0  # many servers close an idle connection after 5 s; to send on one they are closing is an outage
LONGEST_LINE, LONGEST_HEAD, MOST_UNREAD = 1_000_000, 100_000, 256_000  # bytes
BUSY_S = 60.0
RUNS_ALREADY = 3  # exit code

Way = httpx.AsyncBaseTransport | httpx.AsyncClient  # to hosts; a client where there is a proxy
Answer = tuple[dict[str, Any], bytes]  # what the line holds, and the body


url_of = functools.lru_cache(maxsize=64)(httpx.URL)  # most requests go to the same few addresses


@functools.cache
def socket_path(file: str) -> str:
    """Where the broker of a file listens. Sockets have paths of at most 107 bytes: a longer one goes by its folder."""
    path = f"{file}.broker"
    if len(os.fsencode(path)) < 100:
        return path
    folder = os.open(Path(file).parent, os.O_RDONLY | os.O_DIRECTORY)  # kept open as long as the process
    return f"/proc/self/fd/{folder}/{Path(path).name}"


@functools.cache
def certificates() -> ssl.SSLContext:
    """Of all connections: it takes 20 ms."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class SingleConnections(httpx.AsyncBaseTransport):
    """A way to hosts with a free list of connections.

    httpx's own goes through two further libraries and looks at all connections for every request: 2 ms of CPU a
    request, with a hundred under way 15 ms. What is read is parsed by the same parser (h11).
    """

    def __init__(self, keep_idle_s: float) -> None:
        self._keep_idle_s = keep_idle_s
        self._free: dict[tuple[str, str, int], list[_Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"no way to {url.scheme!r}", request=request)
        port = url.port or (443 if url.scheme == "https" else 80)
        free = self._free.setdefault((url.scheme, url.host, port), [])
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        while free and not free[-1].is_usable(self._keep_idle_s):
            free.pop().close()
        connection = free.pop() if free else await self._connect(request, port, limits.get("connect"))
        try:
            return await connection.ask(request, limits.get("read"), free)
        except BaseException:
            connection.close()
            raise

    async def _connect(self, request: httpx.Request, port: int, limit_s: float | None) -> "_Connection":
        host, secure = request.url.raw_host.decode(), certificates() if request.url.scheme == "https" else None
        try:
            async with asyncio.timeout(limit_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, host, port, ssl=secure, happy_eyeballs_delay=0.25
                )
        except TimeoutError:
            raise httpx.ConnectTimeout("not connected in time", request=request) from None
        except (OSError, UnicodeError) as error:  # no such host, refused, or a certificate that does not hold
            raise httpx.ConnectError(type(error).__name__, request=request) from error
        return connection

    async def aclose(self) -> None:
        for connection in [one for free in self._free.values() for one in free]:
            connection.close()
        self._free.clear()


class _Connection(asyncio.Protocol):
    """One connection: a request and its answer, then the next."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._came, self._size = list[bytes](), 0  # bytes that are not parsed yet
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

    async def ask(self, request: httpx.Request, limit_s: float | None, free: "list[_Connection]") -> httpx.Response:
        """The answer without its body, which is read by who wants it; then the connection goes to the free list."""
        try:
            await self._send(request)
            while isinstance(head := await self.next_event(request, limit_s), h11.InformationalResponse):
                pass
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from None
        if not isinstance(head, h11.Response):
            raise httpx.RemoteProtocolError("no head of an answer", request=request)
        body = _Body(self, request, limit_s, free)
        return httpx.Response(head.status_code, headers=list(head.headers.raw_items()), stream=body)

    async def _send(self, request: httpx.Request) -> None:
        start = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        pieces = [self._http.send(start) or b""]
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for piece in request.stream:
            pieces.append(self._http.send(h11.Data(data=piece)) or b"")
        pieces.append(self._http.send(h11.EndOfMessage()) or b"")
        # All at once: it is in memory already. A host that does not take it is one that does not answer in time.
        self._transport.writelines(pieces)

    async def next_event(self, request: httpx.Request, limit_s: float | None) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._read(limit_s)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("closed without an answer", request=request)
                self._http.receive_data(data)
            return event
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from None
        except TimeoutError:
            raise httpx.ReadTimeout("nothing came in time", request=request) from None
        except OSError as error:
            raise httpx.ReadError(type(error).__name__, request=request) from error

    async def _read(self, limit_s: float | None) -> bytes:
        """What came, or nothing at the end."""
        if not self._came and not self._is_over:
            self._awaited = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(limit_s):
                    await self._awaited
            finally:
                self._awaited = None
        if not self._came and self._error is not None:
            raise self._error
        data, self._came = b"".join(self._came), []
        if self._size > MOST_UNREAD:
            self._transport.resume_reading()
        self._size = 0
        return data

    def answered(self, free: "list[_Connection]") -> None:
        """Free again, if the answer was read to its end and nothing came after it."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self._size:
            self._http.start_next_cycle()
            self._idle_since_s = time.monotonic()
            free.append(self)
        else:
            self.close()

    def is_usable(self, keep_idle_s: float) -> bool:
        """Whether it can be sent on: not idle for too long, not closed, and nothing came that was not asked for."""
        return not self._is_over and not self._size and time.monotonic() - self._idle_since_s <= keep_idle_s

    def close(self) -> None:
        self._transport.close()


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, connection: _Connection, request: httpx.Request, limit_s: float | None, free: Any) -> None:
        self._connection, self._request, self._limit_s = connection, request, limit_s
        self._free: list[_Connection] | None = free

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._connection.next_event(self._request, self._limit_s), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        free, self._free = self._free, None  # closed twice, it must not be free twice
        if free is not None:
            self._connection.answered(free)


async def send(way: Way, request: httpx.Request) -> httpx.Response:
    """By a transport alone where there is no proxy: a client around it takes 0.5 ms of CPU a request."""
    if isinstance(way, httpx.AsyncClient):
        return await way.send(request, stream=True)
    return await way.handle_async_request(request)


def by_proxy() -> bool:
    """Whether the environment names a proxy, which only httpx's own pool goes by."""
    return bool(urllib.request.getproxies())


class Broker:
    """Requests under way by the id of their call, and the file of answers."""

    def __init__(self, file: str) -> None:
        self._read = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
        # Written to by threads, one at a time.
        self._file = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._under_way: dict[str, tuple[int, asyncio.Task[Answer]]] = {}
        self._ways: dict[bool, Way] = {}
        self._unwritten: list[tuple[tuple[Any, ...], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._open, self._last_s = 0, time.monotonic()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a question and its answer."""
        self._open += 1
        try:
            asked = json.loads(await reader.readline())
            body = await reader.readexactly(asked["length"])
            # Shielded: a run that is gone does not end the request it has sent.
            head, answer = await asyncio.shield(self._answer(asked, body))
            writer.write(json.dumps({**head, "length": len(answer)}).encode() + b"\n" + answer)
            await writer.drain()
        except (OSError, ValueError, KeyError, asyncio.IncompleteReadError):
            pass  # the run is gone, or was killed in the middle of its question
        finally:
            self._open -= 1
            self._last_s = time.monotonic()
            writer.close()

    def _answer(self, asked: dict[str, Any], body: bytes) -> "asyncio.Task[Answer]":
        """The task that answers; the one that is under way for this call, if it is this try at it or a later one."""
        call_id = asked["call_id"]
        attempt, task = self._under_way.get(call_id, (-1, None))
        if task is None or attempt < asked["attempt"]:
            task = asyncio.create_task(self._find_or_send(asked, body))
            self._under_way[call_id] = (asked["attempt"], task)
            task.add_done_callback(lambda done: self._over(call_id, done))
        return task

    def _over(self, call_id: str, done: "asyncio.Task[Answer]") -> None:
        self._last_s = time.monotonic()
        if self._under_way.get(call_id, (0, None))[1] is done:
            del self._under_way[call_id]

    async def _find_or_send(self, asked: dict[str, Any], body: bytes) -> Answer:
        key = (asked["call_id"], asked["attempt"])
        found = self._read.execute(
            "SELECT status, headers, body FROM answers WHERE call_id = ? AND attempt >= ? ORDER BY attempt LIMIT 1", key
        ).fetchone()
        if found:
            return {"status": found[0], "headers": json.loads(found[1])}, found[2]
        sent_s = time.time()
        try:
            async with asyncio.timeout(asked["total_s"]):
                head, answer = await self._send(asked, body)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return {"failed": type(error).__name__}, b""
        if 200 <= head["status"] < 300 or head["status"] in asked.get("also_keep", ()):
            try:
                await self._write((*key, sent_s, head["status"], json.dumps(head["headers"]), answer))
            except sqlite3.Error as error:
                return {"refused": str(error)}, b""  # what is not written down is not used
        return head, answer

    async def _send(self, asked: dict[str, Any], body: bytes) -> Answer:
        timeout = httpx.Timeout(asked["timeout_s"], connect=asked["connect_timeout_s"], pool=None).as_dict()
        request = httpx.Request(
            asked["method"],
            url_of(asked["url"]),
            headers=asked["headers"],
            content=body,
            extensions={"timeout": timeout},
        )
        response = await send(self._way(asked["by_proxy"]), request)
        try:
            answer = bytearray()
            async for piece in response.aiter_raw():
                answer.extend(piece)
                if len(answer) > asked["most_bytes"]:
                    break  # the client counts as well, and says that it is too much
        finally:
            await response.aclose()
        return {"status": response.status_code, "headers": response.headers.multi_items()}, bytes(answer)

    def _way(self, by_proxy: bool) -> Way:
        if by_proxy not in self._ways:
            client = httpx.AsyncClient(follow_redirects=False) if by_proxy else None
            self._ways[by_proxy] = client or SingleConnections(KEEP_IDLE_S)
        return self._ways[by_proxy]

    async def _write(self, row: tuple[Any, ...]) -> None:
        """Returns when the answer is in the file; those that come meanwhile go there together."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((row, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await written

    async def _write_all(self) -> None:
        while self._unwritten:
            taken, self._unwritten = self._unwritten, []
            failed: sqlite3.Error | None = None
            try:
                await asyncio.to_thread(self._insert, [row for row, _ in taken])
            except sqlite3.Error as error:
                failed = error
            for _, written in taken:
                written.set_exception(failed) if failed else written.set_result(None)
        self._writing = None

    def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            self._file.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    async def serve(self, listening: socket.socket, idle_s: float) -> None:
        """Until nothing was asked for a while."""
        server = await asyncio.start_unix_server(self.handle, sock=listening, limit=LONGEST_LINE)
        async with server:
            while self._open or self._under_way or time.monotonic() - self._last_s < idle_s:
                await asyncio.sleep(min(0.2, idle_s))


def main(file: str, idle_s: float = IDLE_S) -> int:
    """Listen, then go on in a process of its own: who started it sees it end, and can connect."""
    os.umask(0o177)
    lock = os.open(f"{file}.broker.lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return RUNS_ALREADY
    path = socket_path(file)
    Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(1024)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.chdir("/")
    asyncio.run(Broker(file).serve(listening, idle_s))
    Path(path).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve()), *map(float, sys.argv[2:])))
