"""Transfers that break off: what came is kept where the host can promise it is still the same file, and only then."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.collect.providers.mapillary.client import Mapillary
from tasks.services import ServiceError
from tasks.services.transport import Download

FILE = bytes(range(256)) * 40
OTHER = FILE[::-1]


def tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:16]}"'


async def fetched(server, **settings) -> bytes:
    return await server.client(Mapillary, **settings).fetch(f"{server.url}/p.jpg?oh=1")


@pytest.fixture
def part(reply):
    """A reply with a part of a file."""

    def make(data: bytes, start: int, stop: int | None = None, **options):
        named = options.pop("named", f"bytes {start}-{len(data) - 1}/{len(data)}")
        headers = {"ETag": options.pop("etag", tag(data)), "Content-Range": named}
        body = data[start:stop]
        return reply(206, body, "image/jpeg", headers, length=len(data) - start, **options)

    return make


@pytest.fixture
def cut(reply):
    """A reply that breaks off after so many bytes."""

    def make(data: bytes, at: int, etag: str | None = None, **headers: str):
        named = {"ETag": tag(data) if etag is None else etag, **headers}
        return reply(200, data[:at], "image/jpeg", {k: v for k, v in named.items() if v}, length=len(data))

    return make


async def test_the_rest_is_asked_for_and_put_behind_what_came(server, cut, part):
    server.says(cut(FILE, 4000), part(FILE, 4000, 7000), part(FILE, 7000))
    assert await fetched(server) == FILE
    assert "range" not in server.asked[0].headers
    assert [asked.headers.get("range") for asked in server.asked[1:]] == ["bytes=4000-", "bytes=7000-"]
    assert {asked.headers["if-range"] for asked in server.asked[1:]} == {tag(FILE)}
    assert all(asked.headers["accept-encoding"] == "identity" for asked in server.asked)


async def test_errors_on_the_way_lose_nothing(server, reply, cut, part):
    server.says(cut(FILE, 4000), reply(503), reply(hang_up=True), part(FILE, 4000))
    assert await fetched(server) == FILE and server.asked[-1].headers["range"] == "bytes=4000-"


async def test_another_file_by_now_comes_whole(server, reply, cut):
    server.says(cut(FILE, 4000), reply(200, OTHER, "image/jpeg", {"ETag": tag(OTHER)}))
    assert await fetched(server) == OTHER


@pytest.mark.parametrize("etag", ["", 'W/"weak"', "bare", '"a" "b"'])
async def test_without_a_strong_validator_it_starts_anew(server, reply, cut, etag):
    server.says(cut(FILE, 4000, etag=etag), reply(200, FILE, "image/jpeg"))
    assert await fetched(server) == FILE and "range" not in server.asked[1].headers


@pytest.mark.parametrize(
    "wrong",
    [
        {"named": "bytes 0-10239/10240"},  # from the start
        {"named": "bytes 4000-10238/10240"},  # ends early
        {"named": "bytes 4000-10239/99999"},  # of another file
        {"named": "bytes 4000-10239/*"},
        {"named": "nonsense"},
        {"etag": '"other"'},
    ],
)
async def test_a_wrong_part_is_never_put_behind_what_came(server, reply, cut, part, wrong):
    server.says(cut(FILE, 4000), part(FILE, 4000, **wrong), reply(200, FILE, "image/jpeg"))
    assert await fetched(server) == FILE
    assert "range" in server.asked[1].headers and "range" not in server.asked[2].headers


async def test_a_part_nobody_asked_for_is_no_picture(server, reply, part):
    server.says(part(FILE, 0))
    with pytest.raises(ServiceError) as caught:
        await fetched(server, max_attempts=2)
    assert caught.value.kind == "bad_response" and len(server.asked) == 2


async def test_past_the_end_means_a_shorter_file_by_now(server, reply, cut):
    server.says(cut(FILE, 4000), reply(416, b"", None), reply(200, FILE[:100], "image/jpeg"))
    assert await fetched(server) == FILE[:100] and "range" not in server.asked[2].headers


async def test_a_transfer_that_stalls_goes_on_too(server, cut, part):
    stalled = cut(FILE, 4000)
    stalled.stall_s = 30.0
    server.says(stalled, part(FILE, 4000))
    assert await fetched(server, timeout_s=0.3) == FILE


async def test_the_limit_holds_for_the_parts_together(server, cut, part):
    server.says(cut(FILE, 4000), part(FILE, 4000))
    with pytest.raises(ServiceError, match="more than"):
        await fetched(server, max_body_mb=0.009)


@given(st.binary(min_size=2, max_size=400), st.data())
def test_any_breaks_give_the_file_or_nothing(data, draw):
    """A host with ranges, broken at any places, and lying at times about what it sends."""
    download, got, tries = Download(), b"", 0
    while tries < 40:
        tries += 1
        asked = re.fullmatch(r"bytes=(\d+)-", download.headers().get("Range", ""))
        start = int(asked[1]) if asked else 0
        shift = draw.draw(st.sampled_from([0, 0, 0, 1, -1]), "shift") if asked else 0
        status = 206 if asked else 200
        first = max(0, start + shift)
        headers = {"etag": tag(data), "content-length": str(len(data) - first)}
        if asked:
            headers["content-range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        try:
            download.begin(status, headers)
        except ValueError:
            assert shift != 0 and download.data == b""
            continue
        end = draw.draw(st.integers(first, len(data)), "end")
        if end < len(data):
            download.keep(status, headers, data[first:end])
            continue
        got = download.join(data[first:]) if status == 206 else data[first:]
        assert got == data
        return


def test_parts_that_do_not_add_up_are_refused():
    download = Download(b"abc", '"x"', 10)
    with pytest.raises(ValueError, match="do not add up"):
        download.join(b"12345678")
    assert download.data == b""


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (404, {}),
        (200, {"content-encoding": "gzip"}),
        (200, {"content-length": ""}),
        (200, {"content-length": "3"}),
    ],
)
def test_what_cannot_be_continued_is_not_kept(status, headers):
    download = Download()
    download.keep(status, {"etag": '"x"', "content-length": "10", **headers}, b"abc")
    assert download.data == b"" and "Range" not in download.headers()
