"""The search by a picture over sockets: what Cloud Vision answers, what goes wrong, and the offline world's pages."""

import base64
import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from infra.offline.faults import Faults, parse
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.settings.services import OFFLINE_VISION_KEY, ServicesSettings
from tasks.agent.service_tools import asked_services, tool_services
from tasks.services import connect
from tasks.services.errors import ServiceError
from tasks.services.image_search import ImageSearch


def search_at(url: str, **changes: Any) -> ImageSearch:
    fields = {"base_url": url, "public_key": OFFLINE_VISION_KEY, "max_attempts": 2, "backoff_s": 0.01, **changes}
    return ImageSearch(connect(ServicesSettings.model_validate({"image_search": fields}), {}).image_search)


def picture(words: str = "") -> bytes:
    image = Image.new("RGB", (640, 200), "white")
    if words:
        ImageDraw.Draw(image).text((20, 60), words, fill="black", font=ImageFont.load_default(48))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=92)
    return data.getvalue()


@pytest.fixture
def vendor() -> Iterator[tuple[str, list[Any], list[Any]]]:
    """A server that says what it is told to, and what it was asked: (url, answers to give, requests made)."""
    answers: list[Any] = []
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, dict(self.headers), body))
            status, value = answers[min(len(asked), len(answers)) - 1]
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers, asked
    server.shutdown()


async def test_pages_are_read_as_the_vendor_writes_them(vendor: tuple[str, list[Any], list[Any]]) -> None:
    url, answers, asked = vendor
    pages = [
        {"url": "https://a.example/1", "pageTitle": "The <b>Old</b> Mill &amp; Bridge", "fullMatchingImages": [{}]},
        {"url": "https://b.example/2"},
        {"partialMatchingImages": [{"url": "https://c.example/3.jpg"}]},
    ]
    answers.append((200, {"responses": [{"webDetection": {"pagesWithMatchingImages": pages}}]}))
    client = search_at(url)
    found = await client.look_alikes(b"jpeg", 7, "0" * 64)
    assert [(page.title, page.url) for page in found] == [
        ("The Old Mill & Bridge", "https://a.example/1"),
        ("", "https://b.example/2"),
    ]
    [(path, headers, body)] = asked
    assert path == "/v1/images:annotate" and headers["X-Goog-Api-Key"] == OFFLINE_VISION_KEY
    [request] = body["requests"]
    assert "0" * 64 not in json.dumps(body), "a vendor is not told whose picture it is"
    assert base64.b64decode(request["image"]["content"]) == b"jpeg"
    assert request["features"] == [{"type": "WEB_DETECTION", "maxResults": 7}]
    await client.close()


NOTHING = ({"responses": [{}]}, {"responses": [{"webDetection": {}}]})
INVALID = {"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}], "message": "API key not valid."}}


@pytest.mark.parametrize("value", NOTHING)
async def test_nothing_found_is_an_empty_list(vendor: Any, value: Any) -> None:
    url, answers, _ = vendor
    answers.append((200, value))
    assert await search_at(url).look_alikes(b"jpeg") == []


@pytest.mark.parametrize(
    ("status", "value", "kind"),
    [
        (200, {"responses": [{"error": {"code": 3, "message": "Bad image data."}}]}, "rejected"),
        (200, {"responses": [{"error": {"code": 8, "message": "quota"}}]}, "quota"),
        (200, {"responses": [{"error": {"code": 14, "message": "unavailable"}}]}, "outage"),
        (200, {"responses": [{"error": "odd"}]}, "outage"),
        (200, {"responses": []}, "bad_response"),
        (200, {"responses": [{"webDetection": {"pagesWithMatchingImages": "x"}}]}, "bad_response"),
        (200, [], "bad_response"),
        (200, b"{", "bad_response"),
        (400, INVALID, "auth"),
        (403, {"error": {"code": 403, "message": "no"}}, "auth"),
        (429, {"error": {"code": 429, "message": "slow down"}}, "rate_limit"),
        (503, {"error": {"code": 503, "message": "down"}}, "outage"),
    ],
)
async def test_trouble_is_one_error_without_the_key(vendor: Any, status: int, value: Any, kind: str) -> None:
    url, answers, _ = vendor
    answers.append((status, value))
    with pytest.raises(ServiceError) as caught:
        await search_at(url, limit_patience_s=0, outage_patience_s=0).look_alikes(b"jpeg")
    assert (caught.value.service, caught.value.kind) == ("image_search", kind)
    assert OFFLINE_VISION_KEY not in str(caught.value)


def test_its_answers_are_not_taken_for_those_of_another_service_and_leave_kept_ones_alone() -> None:
    lines = [
        asked_services(connect(ServicesSettings.model_validate({"image_search": {"base_url": url}}), {}), of_pictures)
        for of_pictures in (False, True)
        for url in ("http://127.0.0.1:1/a", "http://127.0.0.1:2/b")
    ]
    assert lines[0] == lines[1] == "loopback /tavily loopback /nominatim loopback /maps"
    assert len(set(lines)) == 3 and tool_services(["image_search"]) == ("image_search",)


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[World, str]]:
    made = World(seed=7, size=400, pano_width=512)
    with serving(create_app(made, Faults(), warm=False)) as url:
        yield made, f"{url}/vision"


async def test_the_offline_world_finds_pages_by_what_can_be_read_and_mixes_in_others(world: tuple[World, str]) -> None:
    made, url = world
    place = made.place(3)
    words = place.shops[0].lines[0] if place.shops else place.street
    found = await search_at(url, timeout_s=60).look_alikes(picture(words), 10)
    towns = [place.city.name in page.title for page in found]
    assert any(towns) and not all(towns), [page.title for page in found]
    alone = await search_at(url, timeout_s=60).look_alikes(picture(), 10)
    assert 2 <= len(alone) <= 6 and all(" in " in page.title for page in alone), "nothing to read, so only look-alikes"
    again = await search_at(url, timeout_s=60).look_alikes(picture(words), 10)
    assert again == found


async def test_a_panorama_says_nothing_of_its_place_but_what_is_written_in_it(world: tuple[World, str]) -> None:
    """The service is sent pixels: a picture without writing leads nowhere near its place."""
    _, url = world
    titles = [
        page.title
        for shade in ("red", "green", "blue")
        for page in await search_at(url, timeout_s=60).look_alikes(_plain(shade))
    ]
    assert titles and all("directory.example" not in title for title in titles)


def _plain(shade: str) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (320, 200), shade).save(data, "JPEG")
    return data.getvalue()


async def test_faults_of_the_offline_world_strike_it_too(world: tuple[World, str]) -> None:
    made, _ = world
    faults = Faults(*parse({"rules": [{"service": "vision", "kind": "status", "rate": 1.0, "status": 503}]}))
    with serving(create_app(made, faults, warm=False)) as url, pytest.raises(ServiceError) as caught:
        await search_at(f"{url}/vision", outage_patience_s=0).look_alikes(picture())
    assert caught.value.kind == "outage"
    client = search_at(world[1], public_key="not-google")
    with pytest.raises(ServiceError) as refused:
        await client.look_alikes(picture())
    assert refused.value.kind == "auth"
