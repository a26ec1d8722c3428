"""Beside the official client, unchanged, on the same socket: the same images near a place, the same picture."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.collect.boxes import boxes_around
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.collect.providers.mapillary.streets import FIELDS, MapillaryStreets
from tasks.collect.search import Search
from tasks.collect.tile_cache import TileCache
from tasks.services import connect
from tests.mapillary_client import official_client

official = official_client()

TOKEN = "MLY|1000000000000001|0ff11e0ff11e0ff11e0ff11e0ff11e00"
HALF_SIZE_M = 400.0


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=300, pano_width=2048)


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with serving(create_app(world, warm=False)) as address:
        yield address


@pytest.fixture
def sdk(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The official client, its two host names led to the offline world as a hosts file would do."""
    hosts = {
        "https://graph.mapillary.com": f"{url}/mapillary",
        "https://tiles.mapillary.com": f"{url}/mapillary-tiles",
    }
    send = requests.adapters.HTTPAdapter.send

    def redirected(adapter: Any, request: Any, **options: Any) -> Any:
        for host, here in hosts.items():
            request.url = request.url.replace(host, here, 1)
        assert request.url.startswith(url), "the client went astray"
        return send(adapter, request, **options)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", redirected)
    monkeypatch.chdir(tmp_path)  # whatever it may leave in the working directory
    for name in ("mapillary.utils.client", "mapillary.utils.verify"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    official.set_access_token(TOKEN)
    return official


def client(url: str) -> Mapillary:
    services = ServicesSettings(mapillary=MapillaryEndpoint(base_url=f"{url}/mapillary"))
    return Mapillary(connect(services, {}).street_view["mapillary"])


@pytest.mark.parametrize("find", ["auto", "tiles"])
async def test_the_same_images_lie_around_a_place(sdk: Any, url: str, world: World, find: Any) -> None:
    mapillary = client(url)
    provider = MapillaryStreets(mapillary)
    settings = CollectSettings(find=find, crowded_rows=20, panorama_min_pixels=1, photo_min_pixels=1)
    seen = 0
    for index in (3, 8, 11):
        place = world.place(index)
        (box,) = boxes_around(place.lat, place.lon, HALF_SIZE_M, 0.01)
        sides = {"west": box.west, "south": box.south, "east": box.east, "north": box.north}
        # Its "all" gives the flat ones only (1.0.16): each kind is asked for by name.
        theirs = [
            feature
            for kind in ("pano", "flat")
            for feature in json.loads(sdk.images_in_bbox(sides, image_type=kind))["features"]
        ]
        search = Search(provider, TileCache(provider, 10_000), settings, place.lat, place.lon, HALF_SIZE_M)
        ours = {}
        for kind in ("panorama", "photo"):
            while (one := await search.next(kind)) is not None:
                ours[one.source_id] = one
        assert set(ours) == {str(feature["properties"]["id"]) for feature in theirs}
        for feature in theirs:
            one, said = ours[str(feature["properties"]["id"])], feature["properties"]
            assert (one.kind == "panorama") == said["is_pano"] and one.sequence_id == said["sequence_id"]
            lon, lat = feature["geometry"]["coordinates"]
            assert one.found_at == pytest.approx((lat, lon), abs=1e-5)
        seen += len(ours)
    assert seen > 8


async def test_the_same_picture_at_the_same_address(sdk: Any, url: str, world: World) -> None:
    record = next(r for index in range(30) for r in world.images(index) if r.is_pano)
    mapillary = client(url)
    ours = (await mapillary.images_by_id([record.image_id], FIELDS))[record.image_id]
    theirs = json.loads(sdk.image_from_key(record.image_id, fields=["thumb_original_url", "captured_at"]))
    said = theirs["features"]["properties"]
    assert said["captured_at"] == ours["captured_at"]
    # The signature's time of expiry differs from second to second; the picture behind it does not.
    assert said["thumb_original_url"].partition("?")[0] == ours["thumb_original_url"].partition("?")[0]
    got = requests.get(said["thumb_original_url"], timeout=60).content
    assert got == await mapillary.fetch(ours["thumb_original_url"]) and len(got) > 10_000
