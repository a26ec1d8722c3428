"""The offline Panoramax answers as geovisio 2.15.1 was seen to answer."""

import json
import uuid
from typing import Any

import httpx
import pytest
from mapbox_vector_tile import decode

from infra.offline.services.panoramax import PICTURE_ZOOM, licence_of, picture_id, sequence_id
from infra.offline.world import World
from tasks.collect.boxes import Box
from tasks.collect.tiles import tiles_of

API = "/panoramax/api"


@pytest.fixture
def http(served: Any) -> httpx.Client:
    return served.http  # type: ignore[no-any-return]


@pytest.fixture
def world(small_world: World) -> World:
    return small_world


def ask(http: httpx.Client, **params: Any) -> httpx.Response:
    return http.get(f"{API}/search", params=params)


def around(world: World, index: int, reach: float = 0.01) -> str:
    place = world.place(index)
    return f"{place.lon - reach},{place.lat - reach},{place.lon + reach},{place.lat + reach}"


def test_ids_are_uuids_that_lead_back(world: World) -> None:
    names = [picture_id(record) for index in range(40) for record in world.images(index)]
    assert len(set(names)) == len(names) and all(uuid.UUID(name).version == 4 for name in names)


def test_a_box_is_one_page_nearest_to_its_middle_first(http: httpx.Client, world: World) -> None:
    answer = ask(http, bbox=around(world, 0), limit=1000)
    assert answer.headers["content-type"] == "application/geo+json"
    found = answer.json()
    place = world.place(0)
    apart = [
        (lat - place.lat) ** 2 + (lon - place.lon) ** 2
        for lon, lat in (one["geometry"]["coordinates"] for one in found["features"])
    ]
    assert len(apart) >= 3 and apart == sorted(apart)
    assert [link["rel"] for link in found["links"]] == ["root"], "there is no next page"
    assert len(ask(http, bbox=around(world, 0), limit=2).json()["features"]) == 2


def test_ids_come_with_commas_ten_without_a_limit_and_one_of_an_array(http: httpx.Client, world: World) -> None:
    names = [picture_id(record) for index in range(5) for record in world.images(index)][:12]
    assert len(names) == 12
    assert len(ask(http, ids=",".join(names)).json()["features"]) == 10
    every = ask(http, ids=",".join([*names, str(uuid.uuid4())]), limit=50).json()["features"]
    assert {one["id"] for one in every} == set(names)
    assert len(ask(http, ids=json.dumps(names[:3]), limit=50).json()["features"]) == 1
    assert len(http.post(f"{API}/search", json={"ids": names[:3], "limit": 50}).json()["features"]) == 1


def test_an_item_says_what_the_record_is(http: httpx.Client, world: World) -> None:
    record = world.images(0)[0]
    (found,) = ask(http, ids=picture_id(record)).json()["features"]
    said = found["properties"]
    assert said["pers:interior_orientation"]["sensor_array_dimensions"] == [record.width, record.height]
    assert (said["pers:interior_orientation"].get("field_of_view") == 360) == record.is_pano
    assert said["view:azimuth"] == round(record.compass_deg) % 360 and said["datetime"].endswith("+00:00")
    assert (said["license"], found["collection"]) == (licence_of(record), sequence_id(record))
    alone = http.get(f"{API}/collections/{found['collection']}/items/{found['id']}").json()
    assert alone["properties"]["geovisio:visibility"] == "anyone"


def test_tiles_show_single_pictures_at_one_zoom(http: httpx.Client, world: World) -> None:
    record = world.images(0)[0]
    name = tiles_of(Box(record.lat, record.lon, record.lat, record.lon), PICTURE_ZOOM)[0]
    answer = http.get(f"{API}/map/{name.z}/{name.x}/{name.y}.mvt")
    assert answer.headers["content-type"] == "application/vnd.mapbox-vector-tile"
    shown = {one["properties"]["id"]: one["properties"] for one in decode(answer.content)["pictures"]["features"]}
    seen = shown[picture_id(record)]
    assert seen["type"] == ("equirectangular" if record.is_pano else "flat") and seen["ts"].endswith("+00")
    wider = http.get(f"{API}/map/14/{name.x // 2}/{name.y // 2}.mvt").content
    assert set(decode(wider)) == {"sequences"}
    empty = http.get(f"{API}/map/15/0/0.mvt")
    assert (empty.status_code, empty.content) == (200, b"")
    assert http.get(f"{API}/map/16/0/0.mvt").json()["status_code"] == 404
