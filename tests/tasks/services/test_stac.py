"""The STAC client against a scripted server: paging, signing, ranges, and every refusal."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from schemas.errors import StageRefused
from schemas.settings.services import ServicesSettings, StacEndpoint
from tasks.services import ServiceError, connect
from tasks.services.limits import host_limits
from tasks.services.meter import Tally, counted_in
from tasks.services.stac import Stac
from tasks.services.transport import Connection

START, END = datetime(2023, 5, 1, tzinfo=UTC), datetime(2023, 9, 30, 23, 59, 59, tzinfo=UTC)
BOX = (13.1, 52.3, 13.6, 52.7)
KEY = "subscription-key-4242"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def client(server: Any, clock: Clock | None = None, key: str | None = None, **settings: Any) -> Stac:
    endpoint = StacEndpoint(
        **{
            "base_url": f"{server.url}/api",
            "sas_url": f"{server.url}/sas",
            "asset_url": f"{server.url}/blob/{{account}}/{{container}}/",
            "timeout_s": 5,
            "total_timeout_s": 5,
            **settings,
        }
    )
    connection = Connection("stac", endpoint, SecretStr(key) if key else None)
    return Stac(connection, clock=clock or Clock(), sleep=server.sleep, uniform=lambda _, high: high)


def page(
    reply: Any,
    ids: list[str],
    token: str | None = None,
    link: dict[str, Any] | None = None,
    delay: float = 0,
    **more: Any,
) -> Any:
    links: list[dict[str, Any]] = [{"rel": "root", "href": "https://elsewhere.example/"}]
    if token is not None:
        links.append({"rel": "next", "method": "POST", "href": "https://evil.example/", "body": {"token": token}})
    links += [link] if link else []
    body = {"type": "FeatureCollection", "features": [{"id": one} for one in ids], "links": links, **more}
    return reply(body=json.dumps(body).encode(), content_type="application/geo+json", delay_s=delay)


def token_reply(reply: Any, token: str = "se=2030&sig=ABC%2B", lifetime_s: float = 2700, skew_s: float = 0) -> Any:
    """A signature, dated by a clock that may be ahead of ours."""
    now = datetime.now(UTC) + timedelta(seconds=skew_s)
    end = now + timedelta(seconds=lifetime_s)
    body = json.dumps({"msft:expiry": f"{end:%Y-%m-%dT%H:%M:%SZ}", "token": token}).encode()
    return reply(body=body, headers={"Date": f"{now:%a, %d %b %Y %H:%M:%S GMT}"})


def part(reply: Any, data: bytes, start: int, total: int, **more: Any) -> Any:
    headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{total}"}
    return reply(**{"status": 206, "body": data, "content_type": "image/tiff", "headers": headers, **more})


async def test_pages_are_followed_by_token_and_items_come_once(server: Any, reply: Any) -> None:
    server.says(page(reply, ["a", "b"], "t1"), page(reply, ["b", "c"], "t2"), page(reply, ["d"]))
    found = await client(server).search("sentinel-2-l2a", BOX, START, END, 20)
    assert [item["id"] for item in found] == ["a", "b", "c", "d"]
    first, second, third = server.asked
    assert {asked.target for asked in server.asked} == {"/api/search"}  # never where a link says
    assert first.json() == {
        "collections": ["sentinel-2-l2a"],
        "bbox": [13.1, 52.3, 13.6, 52.7],
        "datetime": "2023-05-01T00:00:00Z/2023-09-30T23:59:59Z",
        "query": {"eo:cloud_cover": {"lte": 20}},
        "limit": 100,
    }
    assert second.json() == {**first.json(), "token": "t1"}
    assert third.json() == {**first.json(), "token": "t2"}


@pytest.mark.parametrize("field", ["next", "page"])
async def test_a_next_link_of_another_archive_is_followed_by_its_whole_body(
    server: Any, reply: Any, field: str
) -> None:
    """Earth Search names the next page `next` or `page`, not `token`."""
    link = {"rel": "next", "method": "POST", "merge": False, "href": "https://evil.example/search",
            "body": {"collections": ["sentinel-2-l2a"], "limit": 100, field: "2023-07-01,S2A_33UVU"}}  # fmt: skip
    server.says(page(reply, ["a"], link=link), page(reply, ["b"]))
    found = await client(server).search("sentinel-2-l2a", BOX, START, END, 20)
    assert [item["id"] for item in found] == ["a", "b"]
    assert {asked.target for asked in server.asked} == {"/api/search"}
    assert server.asked[1].json() == {**server.asked[0].json(), field: "2023-07-01,S2A_33UVU"}


async def test_a_next_link_may_be_a_get_and_an_empty_page_is_the_last(server: Any, reply: Any) -> None:
    link = {"rel": "next", "href": "https://evil.example/v1/search?collections=c&limit=100&next=two"}
    again = {"rel": "next", "href": "https://evil.example/v1/search?collections=c&limit=100&next=three"}
    server.says(page(reply, ["a"], link=link), page(reply, ["b"], link=again), page(reply, [], link=again))
    assert [item["id"] for item in await client(server).search("c", BOX, START, END)] == ["a", "b"]
    assert [asked.method for asked in server.asked] == ["POST", "GET", "GET"]
    assert server.asked[1].target.startswith("/api/search?") and "next=two" in server.asked[1].target


async def test_a_misspelt_collection_is_an_error_and_an_empty_search_is_not(server: Any, reply: Any) -> None:
    server.says(page(reply, []), reply(404, b'{"code": "NotFoundError"}'))
    with pytest.raises(StageRefused, match="has no collection 'sentinel-2-l2q'"):
        await client(server).search("sentinel-2-l2q", BOX, START, END)
    server.says(page(reply, []), reply(body=b'{"type": "Collection"}'), page(reply, []))
    stac = client(server)
    assert await stac.search("sentinel-2-l2a", BOX, START, END) == []
    assert await stac.search("sentinel-2-l2a", BOX, START, END) == []
    assert sum("/collections/" in asked.target for asked in server.asked) == 2  # asked for once a client


def test_an_archive_may_be_named() -> None:
    earth_search = StacEndpoint(base_url="earth-search", sas_url="https://planetarycomputer.microsoft.com/api/sas/v1")
    assert earth_search.base_url == "https://earth-search.aws.element84.com/v1" and earth_search.sas_url is None
    assert StacEndpoint(base_url="planetary-computer").sas_url == "https://planetarycomputer.microsoft.com/api/sas/v1"


@pytest.mark.parametrize("status", [429, 504])
async def test_plain_text_refusals_are_waited_out(server: Any, reply: Any, status: int) -> None:
    server.says(reply(status, b"Too Many Requests", "text/plain"), page(reply, ["a"]))
    assert [item["id"] for item in await client(server).search("c", BOX, START, END)] == ["a"]
    assert len(server.slept_s) == 1


async def test_a_refused_search_says_why(server: Any, reply: Any) -> None:
    server.says(reply(400, b"bbox: 4 or 6 numbers are needed", "text/plain"))
    with pytest.raises(ServiceError, match="4 or 6 numbers") as caught:
        await client(server).search("c", BOX, START, END)
    assert caught.value.kind == "rejected" and len(server.asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "FeatureCollection"}',
        b"[]",
        b'{"features": [7], "links": []}',
        b'{"features": ["x"], "links": []}',
        b'{"features": [{"id": "a"}], "links": [{"rel": "next", "href": "https://x.example"}]}',
        b'{"features": [{"id": "a"}], "links": [{"rel": "next", "method": "POST", "body": {}}]}',
    ],
)
async def test_answers_that_break_the_protocol(server: Any, reply: Any, body: bytes) -> None:
    server.says(reply(body=body))
    with pytest.raises(ServiceError) as caught:
        await client(server, max_attempts=2).search("c", BOX, START, END)
    assert caught.value.kind == "bad_response"


async def test_half_a_body_and_strange_links_pass(server: Any, reply: Any) -> None:
    server.says(reply(body=b'{"features": ['), page(reply, ["a"], link={"rel": None}))
    assert [item["id"] for item in await client(server).search("c", BOX, START, END)] == ["a"]
    server.says(reply(body=b'{"features": [{"id": "z"}]}'))
    assert [item["id"] for item in await client(server).search("c", BOX, START, END)] == ["z"]


async def test_a_search_is_counted_for_the_work_that_causes_it(server: Any, reply: Any) -> None:
    """It runs in a thread of pystac-client's, and is sent by the event loop."""
    server.says(page(reply, ["a"], "t1"), page(reply, ["b"]))
    with counted_in(Tally()) as tally:
        await client(server).search("c", BOX, START, END)
    assert tally.requests == {"stac search": 2} and tally.bytes["stac search"] > 0


async def test_a_cancelled_search_ends_its_request(server: Any, reply: Any) -> None:
    server.says(page(reply, ["a"], delay=30))
    stac = client(server)
    search = asyncio.create_task(stac.search("c", BOX, START, END))
    while not server.asked:
        await asyncio.sleep(0.01)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    host = host_limits("stac", stac._http.endpoint, "search", f"{server.url}/api/search")
    for _ in range(500):
        if host.concurrency.inside == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the request goes on")


async def test_many_searches_run_at_once(server: Any, reply: Any) -> None:
    server.says(page(reply, ["a"], delay=0.3))
    stac = client(server)
    await asyncio.gather(*(stac.search("c", BOX, START, END) for _ in range(16)))
    assert server.most_at_once > 8


async def test_pages_that_go_round_in_a_circle_end(server: Any, reply: Any) -> None:
    server.says(page(reply, ["a"], "t1"), page(reply, ["b"], "t1"))
    with pytest.raises(ServiceError, match="read before"):
        await client(server).search("c", BOX, START, END)


async def test_one_signature_serves_a_container_until_shortly_before_its_end(server: Any, reply: Any) -> None:
    clock = Clock()
    stac = client(server, clock)
    href = f"{server.url}/blob/acc/box/a/b.tif"
    server.says(token_reply(reply), part(reply, b"abcd", 0, 100))
    assert await stac.read(href, 0, 4) == b"abcd"
    assert [asked.target for asked in server.asked] == [
        "/sas/token/acc/box",
        "/blob/acc/box/a/b.tif?se=2030&sig=ABC%2B",
    ]
    assert server.asked[1].headers["range"] == "bytes=0-3"
    clock.now += 2300
    server.says(part(reply, b"ef", 4, 100))
    assert await stac.read(href, 4, 6) == b"ef"
    clock.now += 200  # 2500 of 2700 seconds are over
    server.asked.clear()
    server.says(token_reply(reply, "sig=NEW"), part(reply, b"gh", 6, 100))
    assert await stac.read(href, 6, 8) == b"gh"
    assert [asked.target for asked in server.asked] == ["/sas/token/acc/box", "/blob/acc/box/a/b.tif?sig=NEW"]
    assert stac.bytes_read == 8


async def test_the_signing_clock_need_not_agree_with_ours(server: Any, reply: Any) -> None:
    clock = Clock()
    stac = client(server, clock)
    server.says(token_reply(reply, skew_s=-86_400), part(reply, b"ab", 0, 9))
    await stac.read(f"{server.url}/blob/acc/box/x", 0, 2)
    server.asked.clear()
    server.says(part(reply, b"ab", 0, 9))
    await stac.read(f"{server.url}/blob/acc/box/x", 0, 2)
    assert len(server.asked) == 1  # by our clock it ended yesterday


async def test_each_container_has_its_own_signature_and_others_get_none(server: Any, reply: Any) -> None:
    stac = client(server)
    server.says(
        token_reply(reply, "sig=1"), part(reply, b"a", 0, 9), token_reply(reply, "sig=2"), part(reply, b"a", 0, 9)
    )
    await stac.read(f"{server.url}/blob/acc/one/x", 0, 1)
    await stac.read(f"{server.url}/blob/acc/two/x", 0, 1)
    server.says(part(reply, b"a", 0, 9))
    await stac.read(f"{server.url}/public/x?v=1", 0, 1)
    assert [asked.target for asked in server.asked] == [
        "/sas/token/acc/one", "/blob/acc/one/x?sig=1", "/sas/token/acc/two", "/blob/acc/two/x?sig=2", "/public/x?v=1",
    ]  # fmt: skip


async def test_a_refused_signature_is_renewed_and_no_text_holds_one(server: Any, reply: Any) -> None:
    stac = client(server)
    href = f"{server.url}/blob/acc/box/x"
    refused = reply(403, b"Signature did not match: sig=OLD", "application/xml")
    server.says(token_reply(reply, "sig=OLD"), refused, token_reply(reply, "sig=NEW"), part(reply, b"a", 0, 9))
    assert await stac.read(href, 0, 1) == b"a"
    server.says(refused, token_reply(reply, "sig=X"), refused, token_reply(reply, "sig=Y"), refused)
    with pytest.raises(ServiceError) as caught:
        await stac.read(href, 0, 1)
    assert caught.value.kind == "expired"  # not auth, which would stop the whole stage
    assert "sig=" not in str(caught.value) and "did not match" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"), [(409, "expired"), (404, "not_found"), (410, "not_found"), (416, "rejected")]
)
async def test_refusals_of_the_file_host(server: Any, reply: Any, status: int, kind: str) -> None:
    server.says(token_reply(reply), reply(status, b"<Error/>", "application/xml"))
    with pytest.raises(ServiceError) as caught:
        await client(server).read(f"{server.url}/blob/acc/box/x", 0, 4)
    assert (caught.value.kind, caught.value.retryable, len(server.asked)) == (kind, False, 2)


async def test_a_file_may_end_inside_the_range(server: Any, reply: Any) -> None:
    server.says(token_reply(reply), part(reply, b"end", 96, 99))
    assert await client(server).read(f"{server.url}/blob/acc/box/x", 96, 200) == b"end"


async def test_broken_transfers_are_tried_again(server: Any, reply: Any) -> None:
    bad = [
        part(reply, b"ab", 0, 9, length=4),  # cut
        part(reply, b"abc", 0, 9),  # fewer than asked for
        part(reply, b"abcd", 4, 9),  # from elsewhere
        part(reply, b"abcd", 0, 9, content_type="text/html"),
    ]
    for one in bad:
        server.says(token_reply(reply), one, part(reply, b"abcd", 0, 9))
        assert await client(server).read(f"{server.url}/blob/acc/box/x", 0, 4) == b"abcd"


async def test_a_host_that_ignores_ranges_is_not_asked_again(server: Any, reply: Any) -> None:
    server.says(token_reply(reply), reply(200, b"the whole file", "image/tiff"))
    with pytest.raises(ServiceError, match="no byte ranges") as caught:
        await client(server).read(f"{server.url}/blob/acc/box/x", 0, 4)
    assert not caught.value.retryable and len(server.asked) == 2


@pytest.mark.parametrize(
    "href",
    [
        "http://10.0.0.8/blob/acc/box/x", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd",
        "https://internal/x", "ftp://x.example/y", "", "s3://bucket/key",
    ],
)  # fmt: skip
async def test_addresses_that_lead_elsewhere_are_not_read(server: Any, href: str) -> None:
    with pytest.raises(ServiceError, match="will not read") as caught:
        await client(server).read(href, 0, 4)
    assert caught.value.kind == "blocked" and not server.asked


async def test_from_the_open_net_no_address_leads_into_a_private_one() -> None:
    endpoint = StacEndpoint(base_url="https://stac.example/v1")
    assert endpoint.sas_url is None and endpoint.asset_url.startswith("https://{account}.blob.core.windows.net/")
    stac = Stac(Connection("stac", endpoint))
    for href in ("http://127.0.0.1:9/x", "https://192.168.1.1/x", "http://files.example/x", "https://localhost/x"):
        with pytest.raises(ServiceError, match="will not read"):
            await stac.read(href, 0, 4)
    with pytest.raises(ServiceError, match="not a range"):
        await stac.read("https://files.example/x", 5, 5)


async def test_the_key_goes_to_the_api_and_nowhere_else(server: Any, reply: Any) -> None:
    stac = client(server, key=KEY)
    server.says(page(reply, ["a"]))
    await stac.search("c", BOX, START, END)
    server.says(token_reply(reply), part(reply, b"a", 0, 9))
    await stac.read(f"{server.url}/blob/acc/box/x", 0, 1)
    api, signing, file = server.asked
    assert KEY in api.headers.values() and KEY in signing.headers.values()  # one host has both
    assert KEY not in str(file.headers) and KEY not in file.target
    server.asked.clear()
    elsewhere = client(server, key=KEY, base_url="http://127.0.0.1:1/api")
    server.says(token_reply(reply), part(reply, b"a", 0, 9))
    await elsewhere.read(f"{server.url}/blob/acc/box/x", 0, 1)
    assert KEY not in str([asked.headers for asked in server.asked])


@pytest.mark.parametrize("value", [{}, {"token": 5}, {"token": "a b\r\nX: y"}, [], {"token": ""}])
async def test_a_signature_that_is_none(server: Any, reply: Any, value: Any) -> None:
    server.says(reply(body=json.dumps(value).encode()))
    with pytest.raises(ServiceError, match="no usable token"):
        await client(server, max_attempts=1).read(f"{server.url}/blob/acc/box/x", 0, 1)


@pytest.mark.parametrize(
    ("lifetime_s", "renewed_after_s"),
    [(2700, 2400), (600, 300), (240, 120), (20, 10), (1, 1), (0, 1), (-60, 1), (None, 300), ("soon", 300)],
)
async def test_one_signature_serves_many_reads_however_short_it_lives(
    server: Any, reply: Any, lifetime_s: Any, renewed_after_s: float
) -> None:
    clock = Clock()
    told = token_reply(reply, lifetime_s=lifetime_s) if isinstance(lifetime_s, int) else None
    unsaid = {"token": "sig=1"} if lifetime_s is None else {"token": "sig=1", "msft:expiry": lifetime_s}
    stac = client(server, clock)
    server.says(told or reply(body=json.dumps(unsaid).encode()), part(reply, b"a", 0, 9))
    await asyncio.gather(*(stac.read(f"{server.url}/blob/acc/box/x", 0, 1) for _ in range(20)))
    assert sum("/token/" in asked.target for asked in server.asked) == 1
    clock.now += renewed_after_s * 0.99
    await stac.read(f"{server.url}/blob/acc/box/x", 0, 1)
    assert sum("/token/" in asked.target for asked in server.asked) == 1
    clock.now += renewed_after_s * 0.02
    server.says(token_reply(reply), part(reply, b"a", 0, 9))
    await stac.read(f"{server.url}/blob/acc/box/x", 0, 1)
    assert sum("/token/" in asked.target for asked in server.asked) == 2


def test_the_settings_explain_themselves() -> None:
    with pytest.raises(ValueError, match="account"):
        StacEndpoint(asset_url="https://files.example/")
    with pytest.raises(ValueError, match="slash"):
        StacEndpoint(asset_url="https://{account}.example/{container}")
    moved = StacEndpoint(base_url="http://127.0.0.1:9999/stac/api/stac/v1")
    assert moved.sas_url == "http://127.0.0.1:9999/sas/api/sas/v1"
    assert moved.asset_url == "http://127.0.0.1:9999/blob/{account}/{container}/"
    assert StacEndpoint(files_per_minute=60).allowances("file")[0].per_minute == 60
    assert StacEndpoint(requests_per_minute=60).allowances("file")[0].is_open
    assert connect(ServicesSettings(), {}).stac.key is None
