"""Vector tiles over a real socket."""

import math

import mapbox_vector_tile
import pytest

from infra.offline.services.mapillary import TOKEN, tile_box

IMAGE_KEYS = {"id", "sequence_id", "captured_at", "compass_angle", "is_pano"}
SEQUENCE_KEYS = {"id", "image_id", "captured_at", "is_pano"}


def tile_of(lat, lon, z):
    side = 2**z
    down = (1 - math.asinh(math.tan(math.radians(lat))) / math.pi) / 2
    return int((lon + 180) / 360 * side), int(down * side)


def fetch(served, z, x, y, name="mly1_public", token=TOKEN):
    path = f"/mapillary-tiles/maps/vtp/{name}/2/{z}/{x}/{y}"
    return served.http.get(path, params={"access_token": token})


def layers(served, lat, lon):
    response = fetch(served, 14, *tile_of(lat, lon, 14))
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-protobuf"
    found = mapbox_vector_tile.decode(response.content, default_options={"y_coord_down": True})
    assert all((layer["extent"], layer["version"]) == (4096, 2) for layer in found.values())
    return found


def test_layers_and_their_fields(served):
    record = served.world.images(0)[0]
    found = layers(served, record.lat, record.lon)
    assert found.keys() == {"sequence", "image"}
    for name, keys, types in (
        ("sequence", SEQUENCE_KEYS, {"LineString", "MultiLineString"}),
        ("image", IMAGE_KEYS, {"Point"}),
    ):
        for row in found[name]["features"]:
            shown = row["properties"]
            assert keys <= shown.keys() <= keys | {"organization_id"}
            assert row["geometry"]["type"] in types
            assert type(shown["captured_at"]) is int and type(shown["is_pano"]) is bool
            assert type(shown["id"]) is (str if name == "sequence" else int)


def test_a_tile_holds_exactly_its_images(served):
    for index in range(0, 60, 6):
        record = served.world.images(index)[0]
        x, y = tile_of(record.lat, record.lon, 14)
        inside = {r.image_id for r in served.world.images_in(*tile_box(14, x, y))}
        rows = layers(served, record.lat, record.lon)["image"]["features"]
        assert {str(row["properties"]["id"]) for row in rows} == inside
        box = tile_box(14, x, y)
        for row in rows:
            true = served.world.image(str(row["properties"]["id"]))
            across, down = row["geometry"]["coordinates"]
            lon = box[0] + (across + 0.5) / 4096 * (box[2] - box[0])
            assert lon == pytest.approx(true.lon, abs=1e-5)
            assert box[1] < true.lat < box[3] and 0 <= down < 4096


def test_paused_sequences_are_several_lines(served):
    kinds = set()
    for index in range(120):
        record = served.world.images(index)[0]
        kinds |= {row["geometry"]["type"] for row in layers(served, record.lat, record.lon)["sequence"]["features"]}
        if len(kinds) == 2:
            break
    assert kinds == {"LineString", "MultiLineString"}


def test_tiles_need_a_token_and_a_place_on_the_map(served):
    assert fetch(served, 3, 1, 1, token="").status_code == 500
    assert fetch(served, 3, 1, 1, token="MLY|42|" + "a" * 32).status_code == 400
    assert fetch(served, 15, 1, 1).status_code == 400
    assert fetch(served, 3, 8, 1).status_code == 400
    assert fetch(served, 3, 1, 1, name="other").status_code == 404
    assert fetch(served, 14, 0, 0).content == b""


def test_the_same_tile_twice_is_the_same_bytes(served):
    record = served.world.images(2)[0]
    x, y = tile_of(record.lat, record.lon, 14)
    assert fetch(served, 14, x, y).content == fetch(served, 14, x, y).content
