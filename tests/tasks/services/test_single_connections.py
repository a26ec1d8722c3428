"""A free list of connections: used again one after the other, as many as are under way at once, never by two."""

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.services.connections import Address, Reply, SingleConnections, address_of, framed, with_query


class Transport(httpx.AsyncBaseTransport):
    """Our connections, as httpx asks a transport: so that answers can be compared."""

    def __init__(self) -> None:
        self.connections = SingleConnections(60)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        address = Address.of(request.url)
        given = [(name.decode(), value.decode()) for name, value in request.headers.raw if name.lower() != b"host"]
        body = await request.aread()
        given = [(name, value) for name, value in given if name.lower() != "content-length"]
        limits = request.extensions.get("timeout", {})
        reply = await self.connections.ask(
            request.method, address, framed(request.method, address, given, body), body, limits
        )
        headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        return httpx.Response(reply.status_code, headers=headers, stream=Stream(reply))

    async def aclose(self) -> None:
        await self.connections.aclose()


class Stream(httpx.AsyncByteStream):
    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._reply.aiter_raw():
            yield piece

    async def aclose(self) -> None:
        await self._reply.aclose()


class Counting:
    """A server that keeps connections open, and counts them."""

    def __init__(self) -> None:
        self.url, self.connections, self.requests = "", 0, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            self.requests += 1
            number = str(self.requests).encode()
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(number), number))
            await writer.drain()
        writer.close()


@pytest.fixture
async def counting() -> AsyncIterator[Counting]:
    server = Counting()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield server
    listener.close()


async def test_connections_are_used_again_and_never_by_two(counting: Counting) -> None:
    async with httpx.AsyncClient(transport=Transport()) as client:
        for _ in range(3):
            assert (await client.get(counting.url)).status_code == 200
        assert counting.connections == 1
        for _ in range(2):
            answers = await asyncio.gather(*(client.get(counting.url) for _ in range(20)))
            assert len({one.text for one in answers}) == 20, "each has its own answer"
        assert counting.connections == 20 and counting.requests == 43


async def test_an_answer_closed_twice_frees_its_connection_once(counting: Counting) -> None:
    transport = Transport()
    answer = await transport.handle_async_request(httpx.Request("GET", counting.url))
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    await answer.aread()
    await answer.stream.aclose()
    await answer.stream.aclose()
    assert [len(free) for free in transport.connections._free.values()] == [1]
    await transport.aclose()


async def test_a_host_that_refuses_leaves_nothing_behind() -> None:
    transport = Transport()
    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(httpx.Request("GET", "http://127.0.0.1:9"))
    assert not any(transport.connections._free.values())


ANSWERS = {
    "plain": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello",
    "no body": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
    "both lengths": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\no\r\n0\r\n\r\n",
    "to the end": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello",
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "to be closed": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close\r\n\r\nhello",
    "after a notice": b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "without a reason": b"HTTP/1.1 404\r\nContent-Length: 2\r\n\r\nno",
    "unchanged": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    "Latin-1": b"HTTP/1.1 200 OK\r\nX-A: caf\xe9\r\nContent-Length: 1\r\n\r\na",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "no number": b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
    "a header without a name": b"HTTP/1.1 200 OK\r\n: 1\r\nContent-Length: 5\r\n\r\nhello",
    "a space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
    "a folded header": b"HTTP/1.1 200 OK\r\nX-A: 1\r\n  2\r\nContent-Length: 5\r\n\r\nhello",
    "only line feeds": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "broken off": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
    "broken off in its head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "nothing": b"",
    "something else": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: 1\r\n" * 30_000,
}


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_answers_are_read_as_httpx_reads_them(method: str, at_once: bool) -> None:
    answer = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        pieces = [answer] if at_once or len(answer) > 1000 else [answer[at : at + 7] for at in range(0, len(answer), 7)]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def read(transport: httpx.AsyncBaseTransport) -> object:
        async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=120) as client:
            try:
                got = await client.request(method, url)
            except httpx.HTTPError as error:
                return type(error)
            return got.status_code, sorted(got.headers.items()), got.content

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    for name, answer in ANSWERS.items():  # noqa: B007 - read by the server
        assert await read(Transport()) == await read(httpx.AsyncHTTPTransport()), name
    listener.close()


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"x"])
@pytest.mark.parametrize("kind", ["plain", "in chunks"])
async def test_what_comes_after_an_answer_is_not_taken_for_the_next(kind: str, more: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWERS[kind] + more)
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    transport = Transport()
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        for _ in range(2):
            assert (await client.get(url)).text == "hello"
            assert not any(transport.connections._free.values())
    listener.close()


@pytest.mark.parametrize("headers", [{"X-A": "1\r\nX-B: 2"}, {"X A": "1"}, {"X-A": "1\x00"}])
async def test_headers_that_would_be_others_are_not_sent(counting: Counting, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(transport=Transport(), trust_env=False) as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.get(counting.url, headers=headers)
    assert counting.requests == 0


_VALUES = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.booleans(), st.floats())


@given(
    st.sampled_from(["http://a.example", "https://b.example:8443/x/y", "http://127.0.0.1:80/v1?old=1#part"]),
    st.dictionaries(st.text("abc[]&= é", min_size=1), _VALUES, min_size=1, max_size=5),
)
def test_a_query_is_written_as_httpx_writes_it(url: str, params: dict[str, str | int | float | bool]) -> None:
    address, text = with_query(address_of(url), url, params)
    assert address == Address.of(httpx.URL(url, params=params))
    assert Address.of(httpx.URL(text)) == address


TRICKLE_S, PIECES = 0.05, 100


async def _asked(url: str, limits: dict[str, float], transport: SingleConnections) -> bytes:
    address = address_of(url)
    head = framed("GET", address, [], b"")
    reply = await transport.ask("GET", address, head, b"", limits)
    try:
        return b"".join([piece async for piece in reply.aiter_raw()])
    finally:
        await reply.aclose()


async def test_an_answer_that_trickles_ends_at_the_total_limit_and_one_in_time_does_not() -> None:
    pieces = PIECES

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readline()
            await reader.readline()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % pieces)
            for _ in range(pieces):
                writer.write(b"x")
                await asyncio.sleep(TRICKLE_S)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    transport, began_s = SingleConnections(60), time.monotonic()
    with pytest.raises(httpx.ReadTimeout):
        await _asked(url, {"read": 60.0, "total": 0.3}, transport)
    assert time.monotonic() - began_s < PIECES * TRICKLE_S
    pieces = 5
    # On one connection: its timer is of the first request, and looks again when that one's time is over.
    for limits in ({"read": 60.0, "total": 60.0}, {"read": 10.0}, {"read": 30.0, "total": 45.0}):
        assert await _asked(url, limits, transport) == b"x" * pieces
    assert [len(free) for free in transport._free.values()] == [1]
    pieces = PIECES
    with pytest.raises(httpx.ReadTimeout):  # a shorter limit than the timer's
        await _asked(url, {"read": 60.0, "total": 0.2}, transport)
    await transport.aclose()
    listener.close()


async def test_a_timer_of_an_earlier_request_does_not_end_a_later_one(counting: Counting) -> None:
    transport, began_s = SingleConnections(60), time.monotonic()
    while time.monotonic() - began_s < 0.6:  # beyond the first request's limit, each within its own
        assert await _asked(counting.url, {"read": 0.4}, transport)
    assert counting.connections == 1
    await transport.aclose()
