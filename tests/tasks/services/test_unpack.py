"""Compressed bodies: what they hold, and not more of it than is wanted."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.services.errors import ServiceError
from tasks.services.http import Http
from tasks.services.unpack import PIECE, CannotUnpack, Unpacker

BOMB = gzip.compress(bytes(200 << 20), 9)


def unpacked(encoding: str, *pieces: bytes) -> bytes:
    unpacker = Unpacker(encoding)
    return b"".join([*(part for piece in pieces for part in unpacker.unpack(piece)), *unpacker.end()])


@given(st.lists(st.binary(max_size=500), min_size=1, max_size=4), st.integers(1, 40))
def test_any_cut_gives_the_same(members: list[bytes], step: int) -> None:
    data = b"".join(gzip.compress(member) for member in members)
    cut = [data[k : k + step] for k in range(0, len(data), step)]
    assert unpacked("gzip", *cut) == unpacked("X-GZIP, identity", data) == b"".join(members)
    assert unpacked("", *cut) == unpacked("identity", data) == data


def test_a_bomb_comes_in_pieces() -> None:
    assert max(map(len, Unpacker("gzip").unpack(BOMB))) <= PIECE


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "deflate", "zstd"])
def test_what_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(CannotUnpack, match="not asked for"):
        Unpacker(encoding)


class TestOverASocket:
    async def refusal(self, server, reply, body: bytes, encoding: str) -> ServiceError:
        server.says(reply(200, body, headers={"Content-Encoding": encoding}))
        with pytest.raises(ServiceError) as caught:
            await server.client(Http, max_body_mb=2, max_attempts=2, backoff_s=0).request("GET", "/x")
        return caught.value

    async def test_we_ask_for_gzip_and_read_it(self, server, reply):
        server.says(reply(200, gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"}))
        value, _ = await server.client(Http).request_json("GET", "/x")
        assert value == {"a": 1} and server.asked[0].headers["accept-encoding"] == "gzip"

    @pytest.mark.parametrize("times", [1, 2])
    async def test_a_bomb_is_refused_before_it_is_unpacked(self, server, reply, times):
        body = BOMB if times == 1 else gzip.compress(BOMB, 9)
        tracemalloc.start()
        error = await self.refusal(server, reply, body, ", ".join(["gzip"] * times))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert error.kind == "bad_response" and ("more than 2 MB" in str(error) or "not asked for" in str(error))
        assert most < 20_000_000

    @pytest.mark.parametrize(
        "body",
        [b"no gzip at all", gzip.compress(b"{}" * 5000)[:-9], zlib.compress(b"{}")],
        ids=["none", "cut", "of another kind"],
    )
    async def test_a_damaged_one_is_tried_again(self, server, reply, body):
        error = await self.refusal(server, reply, body, "gzip")
        assert error.kind == "bad_response" and error.retryable and len(server.asked) == 2
