"""A process that outlives a killed run: it sends requests to models and of tools, and writes their answers down.

    python -P tasks/services/broker.py LAKE/.state/calls.sqlite

A run hands it each request over a Unix socket beside the file, under the id of its call. It sends the request, writes a
good answer to the table `answers` of the file, and only then passes it on. When the run is killed meanwhile, the answer
is written all the same; the next run asks under the same id and gets it, also while it is still under way. An answer
that is no success is passed on and forgotten, unless its status is among those the run wants kept (`also_keep`).

One broker serves a file; a lock tells. It ends by itself when nothing was asked of it for a while. What it is given,
keys included, comes over the socket, which is its user's alone; nothing of it stands on a command line or in the file.

Protocol: messages in either direction, any number of questions at a time over one connection, answered as they are
ready. A message is the number of its question and two lengths (`FRAME`), then JSON and a body of these lengths.
It imports nothing of geofix but `connections.py`, so that it starts quickly.
"""

import asyncio
import fcntl
import functools
import gc
import importlib.util
import json
import os
import socket
import sqlite3
import struct
import sys
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson

IDLE_S = 10.0
KEEP_IDLE_S = 4.0  # many servers close an idle connection after 5 s; to send on one they are closing is an outage
BACKLOG = 1024  # connections of one burst that wait to be taken
FRAME = struct.Struct(">QII")  # of a message: number of its question, bytes of JSON, bytes of the body
LONGEST_JSON = 1_000_000  # bytes
BUSY_S = 60.0
RUNS_ALREADY = 3  # exit code

if TYPE_CHECKING or __package__:
    from tasks.services.connections import Reply, SingleConnections, address_of, framed
else:  # as a process of its own: the package around it would import all services
    _spec = importlib.util.spec_from_file_location("connections", Path(__file__).with_name("connections.py"))
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
    Reply, SingleConnections, address_of, framed = (
        _module.Reply,
        _module.SingleConnections,
        _module.address_of,
        _module.framed,
    )

Way = SingleConnections | httpx.AsyncClient  # to hosts; a client where there is a proxy
Answer = tuple[dict[str, Any], bytes]  # what the line holds, and the body


@functools.cache
def socket_path(file: str) -> str:
    """Where the broker of a file listens. Sockets have paths of at most 107 bytes: a longer one goes by its folder."""
    path = f"{file}.broker"
    if len(os.fsencode(path)) < 100:
        return path
    folder = os.open(Path(file).parent, os.O_RDONLY | os.O_DIRECTORY)  # kept open as long as the process
    return f"/proc/self/fd/{folder}/{Path(path).name}"


def by_proxy() -> bool:
    """Whether the environment names a proxy, which only httpx's own pool goes by."""
    return bool(urllib.request.getproxies())


class Messages(asyncio.Protocol):
    """One end of a connection between a run and its broker."""

    def __init__(self) -> None:
        self._held, self.is_over = bytearray(), False
        self._unsent, self._is_full = deque[tuple[bytes, bytes, bytes]](), False

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        held = self._held
        held += data
        while len(held) >= FRAME.size and not self.is_over:
            number, told, size = FRAME.unpack_from(held)
            begin, end = FRAME.size + told, FRAME.size + told + size
            if told > LONGEST_JSON:
                self.close()
                return
            if len(held) < end:
                return
            with memoryview(held) as view:
                said, body = bytes(view[FRAME.size : begin]), bytes(view[begin:end])
            del held[:end]
            self.received(number, said, body)

    def received(self, number: int, said: bytes, body: bytes) -> None:
        """A message came."""
        raise NotImplementedError

    def tell(self, number: int, said: bytes, body: bytes) -> None:
        """Send a message, if anyone is there; it waits in memory until it is taken."""
        self._unsent.append((FRAME.pack(number, len(said), len(body)), said, body))
        self._send()

    def _send(self) -> None:
        # No more than the socket takes: what waits in the transport's own buffer is copied there.
        while self._unsent and not self._is_full and not self.is_over:
            self._transport.write(b"".join(self._unsent.popleft()))

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True
        self._transport.close()


class _Questions(Messages):
    """The broker's end of a connection."""

    def __init__(self, broker: "Broker") -> None:
        super().__init__()
        self._broker = broker

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._broker.open(1)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._broker.open(-1)

    def received(self, number: int, said: bytes, body: bytes) -> None:
        try:
            # A run that is gone does not end the request it has sent: nothing of the task hangs on this connection.
            task = self._broker.answer(orjson.loads(said), body)
        except (ValueError, KeyError):
            self.close()
            return
        task.add_done_callback(lambda done: self._answered(number, done))

    def _answered(self, number: int, done: "asyncio.Task[Answer]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        head, answer = done.result() if error is None else ({"failed": type(error).__name__}, b"")
        self.tell(number, orjson.dumps(head), answer)


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

    def open(self, more: int) -> None:
        """So many connections more."""
        self._open += more
        self._last_s = time.monotonic()

    def answer(self, asked: dict[str, Any], body: bytes) -> "asyncio.Task[Answer]":
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
        way, method = self._way(asked["by_proxy"]), asked["method"]
        response: Reply | httpx.Response
        if isinstance(way, SingleConnections):
            limits = {"connect": asked["connect_timeout_s"], "read": asked["timeout_s"]}
            address = address_of(asked["url"])
            response = await way.ask(method, address, framed(method, address, asked["headers"], body), body, limits)
        else:
            timeout = httpx.Timeout(asked["timeout_s"], connect=asked["connect_timeout_s"], pool=None)
            extensions = {"timeout": timeout.as_dict()}
            request = httpx.Request(method, asked["url"], headers=asked["headers"], content=body, extensions=extensions)
            response = await way.send(request, stream=True)
        try:
            answer = response.whole() if isinstance(response, Reply) else None
            if answer is None:
                answer = await _all_of(response, asked["most_bytes"])
        finally:
            await response.aclose()
        return {"status": response.status_code, "headers": list(response.headers.items())}, answer

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
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Questions(self), sock=listening, backlog=BACKLOG
        )
        async with server:
            while self._open or self._under_way or time.monotonic() - self._last_s < idle_s:
                await asyncio.sleep(min(0.2, idle_s))


async def _all_of(response: "Reply | httpx.Response", most_bytes: int) -> bytes:
    answer = bytearray()
    async for piece in response.aiter_raw():
        answer.extend(piece)
        if len(answer) > most_bytes:
            break  # the client counts as well, and says that it is too much
    return bytes(answer)


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
    listening.listen(BACKLOG)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.chdir("/")
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # as workers have it (`tasks/runtime/garbage.py`)
    asyncio.run(Broker(file).serve(listening, idle_s))
    Path(path).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve()), *map(float, sys.argv[2:])))
