"""Compressed bodies: what they hold, and not more of it than is wanted."""

import gzip
import tracemalloc
import zlib

import pytest

from tasks.services.errors import ServiceError
from tasks.services.http import HttpClient

BOMB = gzip.compress(bytes(200 << 20), 9)


class TestCompressedBodies:
    async def refusal(self, server, reply, body: bytes, encoding: str) -> ServiceError:
        server.says(reply(200, body, headers={"Content-Encoding": encoding}))
        with pytest.raises(ServiceError) as caught:
            await server.client(HttpClient, max_body_mb=2, max_attempts=2, backoff_s=0).get("/x")
        return caught.value

    async def test_we_ask_for_gzip_and_read_it(self, server, reply):
        server.says(reply(200, gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"}))
        value, _ = await server.client(HttpClient).request_json("GET", "/x")
        assert value == {"a": 1} and server.asked[0].headers["accept-encoding"] == "gzip"

    async def test_a_body_of_several_members_is_read_whole(self, server, reply):
        body = gzip.compress(b'{"a": ') + gzip.compress(b"[" + b"1," * 50_000) + gzip.compress(b"2]}")
        server.says(reply(200, body, headers={"Content-Encoding": "x-gzip"}))
        value, _ = await server.client(HttpClient).request_json("GET", "/x")
        assert len(value["a"]) == 50_001

    @pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "deflate", "zstd"])
    async def test_what_was_not_asked_for_is_refused(self, server, reply, encoding):
        error = await self.refusal(server, reply, b"{}", encoding)
        assert error.kind == "bad_response" and "not asked for" in error.message

    @pytest.mark.parametrize("times", [1, 2])
    async def test_a_bomb_is_refused_before_it_is_unpacked(self, server, reply, times):
        body = BOMB if times == 1 else gzip.compress(BOMB, 9)
        tracemalloc.start()
        error = await self.refusal(server, reply, body, ", ".join(["gzip"] * times))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert error.kind == "bad_response" and (
            "more than 2 MB (max_body_mb)" in str(error) or "not asked for" in str(error)
        )
        assert most < 20_000_000

    @pytest.mark.parametrize(
        "body",
        [b"no gzip at all", gzip.compress(b"{}" * 5000)[:-9], zlib.compress(b"{}")],
        ids=["none", "cut", "of another kind"],
    )
    async def test_a_damaged_one_is_tried_again(self, server, reply, body):
        error = await self.refusal(server, reply, body, "gzip")
        assert error.kind == "bad_response" and error.retryable and len(server.asked) == 2
