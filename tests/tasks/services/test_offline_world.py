"""The clients and the agent against the offline world, whole and then with every fault it can make."""

import asyncio
import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import mapbox_vector_tile
import pytest

from schemas.messages import image_references
from schemas.settings.services import ServicesSettings
from tasks.agent.attempt import Sampling
from tasks.agent.environment import Environment, run_agent
from tasks.agent.picture import open_picture
from tasks.agent.render import training_messages
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import ToolContext
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.recipes.spotagent import RECIPE
from tasks.recipes.spotagent.observer_pair import ObserverPair
from tasks.reward.answer import ParsedAnswer, parse_answer
from tasks.services import Chat, Connections, Geocoder, Search, ServiceError, connect

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# What each service may do at once; together about every second request meets something.
FAULTS = [
    *({"service": "*", "kind": kind, "rate": 0.08} for kind in ("reset", "truncate", "content_type")),
    *({"service": s, "kind": "invalid_json", "rate": 0.08} for s in ("mapillary", "nominatim", "tavily", "openai")),
    *({"service": "mapillary", "kind": "status", "status": status, "rate": 0.06} for status in (403, 500, 504)),
    *({"service": "*", "kind": "status", "status": status, "rate": 0.06} for status in (429, 502)),
    {"service": "*", "kind": "slow_drip", "rate": 0.05, "seconds": 0.1},
]


class OfflineWorld:
    """A server in a process of its own."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def connections(self) -> Connections:
        patient = {"max_attempts": 15, "backoff_s": 0.0}
        return connect(
            ServicesSettings.model_validate(
                {
                    "mapillary": {"base_url": f"{self.url}/mapillary", **patient},
                    "geocoder": {"base_url": f"{self.url}/nominatim", **patient},
                    "search": {"base_url": f"{self.url}/tavily", **patient},
                    "chat": {"base_url": f"{self.url}/openai/v1", **patient},
                }
            ),
            {},
        )

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with _direct.open(request, timeout=300) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def offline() -> Iterator[OfflineWorld]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "infra.offline", "--port", str(port), "--size", "200", "--pano-width", "2048"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    offline = OfflineWorld(port)
    try:
        for _ in range(300):
            try:
                assert offline.ask("/health")["service"] == "geofix-offline"
                break
            except urllib.error.URLError:
                assert process.poll() is None, "the offline world did not start"
                time.sleep(0.1)
        yield offline
    finally:
        process.terminate()
        process.wait(300)


async def no_sleep(_: float) -> None: ...


async def answers(connections: Connections) -> dict[str, Any]:
    """One of everything, without what changes from second to second (signatures, times)."""
    mapillary = Mapillary(connections.street_view["mapillary"], sleep=no_sleep)
    geocoder = Geocoder(connections.geocoder, sleep=no_sleep)
    search, chat = Search(connections.search, sleep=no_sleep), Chat(connections.chat, sleep=no_sleep)
    capital = (await geocoder.search("Tokyo, Japan"))[0]
    found: dict[str, Any] = {"capital": capital, "reverse": await geocoder.reverse(capital.lat, capital.lon)}
    rows = []
    for east in range(-4, 4):
        for north in range(-4, 4):
            west, south = capital.lon + east * 0.09, capital.lat + north * 0.09
            rows += await mapillary.images_in_box(west, south, west + 0.09, south + 0.09, ("id", "is_pano"))
    found["images"] = sorted(row["id"] for row in rows)
    first = await mapillary.image(found["images"][0])
    found["first"] = {name: value for name, value in first.items() if not name.startswith("thumb")}
    found["picture"] = hashlib.sha256(await mapillary.fetch(first["thumb_1024_url"])).hexdigest()
    found["pages"] = await search.search("pharmacy in Tokyo")
    found["models"] = await chat.models()
    question = [{"role": "user", "content": '## Text\n- "Tokyo" bbox_2d [1, 2, 3, 4] confidence 0.99 height 30 px'}]
    reply = await chat.complete("planner", question)
    found["reply"] = (reply.text, reply.usage.prompt_tokens)
    return found


@pytest.fixture(scope="module")
def whole(offline: OfflineWorld) -> dict[str, Any]:
    return asyncio.run(answers(offline.connections()))


@pytest.mark.whole
async def test_clients_give_the_same_answers_through_every_fault(offline, whole):
    assert whole["capital"].country_code == whole["reverse"].country_code == "JP"
    assert whole["images"] and all(isinstance(i, str) and i.isdigit() for i in whole["images"])
    assert {"observer", "planner", "judge", "answerer-base"} <= set(whole["models"])
    offline.ask("/control/faults", "POST", {"seed": 1, "rules": FAULTS})
    offline.ask("/control/log", "DELETE")
    try:
        assert await answers(offline.connections()) == whole
        log = offline.ask("/control/log")
        assert sum(log["faults"].values()) > 50, "the faults did not strike"
    finally:
        offline.ask("/control/faults", "DELETE")


async def test_what_is_known_unchanged_or_gone_is_told_apart(offline, whole):
    mapillary = Mapillary(offline.connections().street_view["mapillary"], sleep=no_sleep)
    first, second = whole["images"][:2]
    rows = await mapillary.images_by_id([first, "1", second], ("id", "thumb_256_url"))
    assert set(rows) == {first, second}
    fetched = await mapillary.fetch_if_changed(rows[first]["thumb_256_url"], None)
    assert fetched is not None and fetched.etag
    assert await mapillary.fetch_if_changed(rows[first]["thumb_256_url"], fetched.etag) is None
    other = await mapillary.fetch_if_changed(rows[second]["thumb_256_url"], fetched.etag)
    assert other is not None and other.data != fetched.data


async def test_a_picture_that_breaks_off_is_continued(offline, whole):
    mapillary = Mapillary(offline.connections().street_view["mapillary"], sleep=no_sleep)
    url = (await mapillary.image(whole["images"][0]))["thumb_1024_url"]
    picture = await mapillary.fetch(url)
    cuts = {"service": "mapillary-cdn", "kind": "truncate", "at": [0, 1, 2]}
    offline.ask("/control/faults", "POST", {"rules": [cuts]})
    offline.ask("/control/log", "DELETE")
    try:
        assert await mapillary.fetch(url) == picture
        assert offline.ask("/control/log")["statuses"]["mapillary-cdn"] == {"200": 1, "206": 3}
    finally:
        offline.ask("/control/faults", "DELETE")


async def test_a_limit_without_a_named_time_is_waited_for(offline, whole):
    patient = {"base_url": f"{offline.url}/mapillary", "max_attempts": 3, "backoff_s": 0.0, "limit_pause_s": 0.1}
    services = ServicesSettings.model_validate({"mapillary": patient})
    mapillary = Mapillary(connect(services, {}).street_view["mapillary"])
    rule = {"service": "mapillary", "kind": "status", "status": 403, "at": list(range(8))}
    offline.ask("/control/faults", "POST", {"rules": [rule]})
    offline.ask("/control/log", "DELETE")
    try:
        ids = whole["images"][:6]
        rows = await asyncio.gather(*(mapillary.image(one, ("id",)) for one in ids))
        assert [row["id"] for row in rows] == ids
        assert offline.ask("/control/log")["statuses"]["mapillary"] == {"403": 8, "200": 6}
    finally:
        offline.ask("/control/faults", "DELETE")


async def test_a_tile_names_the_images_of_its_area(offline, whole):
    mapillary = Mapillary(offline.connections().street_view["mapillary"], sleep=no_sleep)
    lon, lat = (await mapillary.image(whole["images"][0], ("geometry",)))["geometry"]["coordinates"]
    side = 1 << 14
    x, y = int((lon + 180) / 360 * side), int((1 - math.asinh(math.tan(math.radians(lat))) / math.pi) / 2 * side)
    layers = mapbox_vector_tile.decode(await mapillary.tile(14, x, y))
    assert whole["images"][0] in {str(feature["properties"]["id"]) for feature in layers["image"]["features"]}
    assert await mapillary.tile(14, 0, 0) == b""


async def test_an_expired_address_is_known_as_such(offline, whole):
    mapillary = Mapillary(offline.connections().street_view["mapillary"], sleep=no_sleep)
    url = (await mapillary.image(whole["images"][0]))["thumb_1024_url"]
    offline.ask("/control/faults", "POST", {"rules": [{"service": "*", "kind": "expired_url", "rate": 1.0}]})
    try:
        with pytest.raises(ServiceError) as caught:
            await mapillary.fetch(url)
    finally:
        offline.ask("/control/faults", "DELETE")
    assert caught.value.kind == "expired" and "oh=" not in str(caught.value)


@pytest.mark.whole
async def test_the_agent_locates_a_picture_with_real_models(offline, whole):
    connections = offline.connections()
    mapillary, chat = Mapillary(connections.street_view["mapillary"]), Chat(connections.chat)
    row = await mapillary.image(whole["images"][0])
    picture = open_picture(await mapillary.fetch(row["thumb_original_url"]), 2_000_000, 40_000)
    kept: dict[str, bytes] = {}

    def keep(jpeg: bytes) -> str:
        sha256 = hashlib.sha256(jpeg).hexdigest()
        kept[sha256] = jpeg
        return sha256

    services = ToolContext(search=Search(connections.search), geocoder=Geocoder(connections.geocoder))

    async def locate():
        pair = ObserverPair(chat, RECIPE.prompt.helpers, "observer", "planner", Sampling(seed=1))
        return await run_agent(Environment(picture, Toolbox(services), RECIPE.prompt, keep_picture=keep), pair)

    trajectory = await locate()
    assert 1 <= len(trajectory.calls) <= 6 and trajectory.end_reason == "answered"
    assert isinstance(parse_answer(trajectory.final_text), ParsedAnswer)
    assert {sha256 for sha256, _ in image_references(list(trajectory.messages))} == set(kept)
    assert trajectory.usage.prompt_tokens > 0 and trajectory.usage.requests >= len(trajectory.calls)
    assert training_messages(trajectory.messages, trajectory.tools)
    assert (await locate()).messages == trajectory.messages  # the same picture and seed give the same row
