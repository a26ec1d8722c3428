"""Pictures behind addresses of a user's table, over a real socket: any host on the open net, and no other."""

from typing import Any

import pytest

from schemas.settings.ingest import WebRules
from tasks.services.errors import ServiceError
from tasks.services.web import NotPublic, Pictures

PICTURE = b"\xff\xd8\xff\xe0 as good as a picture"


def client(**rules: Any) -> Pictures:
    quick = {"allow_private": True, "attempts": 2, "backoff_s": 0, "timeout_s": 5, "limit_patience_s": 0}
    return Pictures(WebRules(**{**quick, **rules}), 0.001)


async def failure(awaitable: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await awaitable
    return caught.value


@pytest.mark.parametrize(
    "media", ["image/jpeg", "application/octet-stream", "binary/octet-stream", "image/x-odd", None]
)
async def test_a_picture_comes_under_any_media_type(server: Any, reply: Any, media: str | None) -> None:
    server.says(reply(body=PICTURE, content_type=media))
    answer = await client().fetch(f"{server.url}/a.jpg?sig=secret")
    assert answer.body == PICTURE and "secret" not in answer.url
    assert server.asked[0].target == "/a.jpg?sig=secret"
    assert not {"authorization", "cookie"} & server.asked[0].headers.keys()


@pytest.mark.parametrize(
    ("status", "kind", "retryable", "asked"),
    [
        (404, "not_found", False, 1),
        (410, "not_found", False, 1),
        (403, "auth", False, 1),
        (301, "blocked", False, 1),
        (400, "rejected", False, 1),
        (429, "rate_limit", True, 2),
        (500, "outage", True, 2),
        (504, "timeout", True, 2),
    ],
)
async def test_statuses(server: Any, reply: Any, status: int, kind: str, retryable: bool, asked: int) -> None:
    server.says(reply(status=status, body=b"no", headers={"Location": "http://127.0.0.1:1/private"}))
    error = await failure(client().fetch(f"{server.url}/a.jpg"))
    assert (error.kind, error.retryable, len(server.asked)) == (kind, retryable, asked)


async def test_a_page_instead_of_a_picture_is_final_only_if_it_stays(server: Any, reply: Any) -> None:
    page = reply(body=b"<html>busy</html>", content_type="text/html; charset=utf-8")
    server.says(page, reply(body=PICTURE, content_type="image/jpeg"))
    assert (await client().fetch(f"{server.url}/a.jpg")).body == PICTURE
    server.says(page)
    error = await failure(client().fetch(f"{server.url}/a.jpg"))
    assert not error.retryable and error.status == 200 and "no picture" in error.message
    server.says(page, reply(hang_up=True))
    assert (await failure(client().fetch(f"{server.url}/a.jpg"))).retryable, "the last word was no page"


async def test_broken_transfers_are_worth_another_run(server: Any, reply: Any) -> None:
    server.says(reply(body=PICTURE, content_type="image/jpeg", length=len(PICTURE) + 100))
    assert (await failure(client().fetch(f"{server.url}/a.jpg"))).retryable
    server.says(reply(body=b"x" * 1500, content_type="image/jpeg"))
    error = await failure(client().fetch(f"{server.url}/a.jpg"))
    assert not error.retryable and "more than" in error.message


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.1.2.3", "[::1]", "169.254.169.254", "intranet", "printer.local", "0.0.0.0"]
)
async def test_private_hosts_are_not_asked(server: Any, reply: Any, host: str) -> None:
    server.says(reply(body=PICTURE, content_type="image/jpeg"))
    error = await failure(client(allow_private=False).fetch(f"http://{host}:{server.port}/a.jpg"))
    assert isinstance(error, NotPublic) and not error.retryable
    assert server.asked == []


@pytest.mark.parametrize("url", ["https://[::1/x", "https://host:99999/x", "https://\u2100.com/x", "ftp://x.org/", ""])
async def test_what_is_no_address_is_refused_in_one_line(url: str) -> None:
    error = await failure(client(allow_private=False).fetch(url))
    assert (error.kind, error.retryable) == ("rejected", False) and "not a valid address" in error.message


async def test_a_name_nobody_knows_may_be_known_later(names: Any) -> None:
    names()
    error = await failure(client(allow_private=False).fetch("http://gone.example.org/a.jpg"))
    assert (error.kind, error.retryable) == ("outage", True)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("93.184.215.14", "127.0.0.1"), ("169.254.169.254",)])
async def test_a_public_name_of_a_private_address(
    server: Any, reply: Any, names: Any, addresses: tuple[str, ...]
) -> None:
    server.says(reply(body=PICTURE, content_type="image/jpeg"))
    names(addresses)
    error = await failure(client(allow_private=False).fetch(f"http://rebound.example.org:{server.port}/a.jpg"))
    assert isinstance(error, NotPublic) and server.asked == []
