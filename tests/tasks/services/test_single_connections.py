"""A free list of connections: used again one after the other, as many as are under way at once, never by two."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tasks.services.broker import SingleConnections


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
    async with httpx.AsyncClient(transport=SingleConnections(60)) as client:
        for _ in range(3):
            assert (await client.get(counting.url)).status_code == 200
        assert counting.connections == 1
        for _ in range(2):
            answers = await asyncio.gather(*(client.get(counting.url) for _ in range(20)))
            assert len({one.text for one in answers}) == 20, "each has its own answer"
        assert counting.connections == 20 and counting.requests == 43


async def test_an_answer_closed_twice_frees_its_connection_once(counting: Counting) -> None:
    transport = SingleConnections(60)
    answer = await transport.handle_async_request(httpx.Request("GET", counting.url))
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    await answer.aread()
    await answer.stream.aclose()
    await answer.stream.aclose()
    assert [len(free) for free in transport._free.values()] == [1]
    await transport.aclose()


async def test_a_host_that_refuses_leaves_nothing_behind() -> None:
    transport = SingleConnections(60)
    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(httpx.Request("GET", "http://127.0.0.1:9"))
    assert not any(transport._free.values())
