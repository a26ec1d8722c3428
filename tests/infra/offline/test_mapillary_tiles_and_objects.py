"""Vector tiles, detections and map features over a real socket."""

import base64
import io
import math

import mapbox_vector_tile
import pytest
from PIL import Image

from infra.offline.services.mapillary import TOKEN
from infra.offline.services.mapillary_tiles import tile_box

IMAGE_KEYS = {"id", "sequence_id", "captured_at", "compass_angle", "is_pano"}
SEQUENCE_KEYS = {"id", "image_id", "captured_at", "is_pano"}
OVERVIEW_KEYS = {"id", "sequence_id", "captured_at", "is_pano"}


def tile_of(lat, lon, z):
    side = 2**z
    down = (1 - math.asinh(math.tan(math.radians(lat))) / math.pi) / 2
    return int((lon + 180) / 360 * side), int(down * side)


def fetch(served, z, x, y, name="mly1_public", token=TOKEN):
    path = f"/mapillary-tiles/maps/vtp/{name}/2/{z}/{x}/{y}"
    return served.http.get(path, params={"access_token": token})


def layers(served, lat, lon, z, name="mly1_public"):
    response = fetch(served, z, *tile_of(lat, lon, z), name)
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-protobuf"
    found = mapbox_vector_tile.decode(response.content, default_options={"y_coord_down": True})
    assert all((layer["extent"], layer["version"]) == (4096, 2) for layer in found.values())
    return found


def test_layers_by_zoom_and_their_fields(served):
    record = served.world.images(0)[0]
    for z in range(15):
        found = layers(served, record.lat, record.lon, z)
        wanted = {"overview"} if z < 6 else {"sequence"} if z < 14 else {"sequence", "image"}
        assert found.keys() == wanted, z
        for name, keys, types in (
            ("overview", OVERVIEW_KEYS, {"Point"}),
            ("sequence", SEQUENCE_KEYS, {"LineString", "MultiLineString"}),
            ("image", IMAGE_KEYS, {"Point"}),
        ):
            for row in found.get(name, {"features": []})["features"]:
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
        rows = layers(served, record.lat, record.lon, 14)["image"]["features"]
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
        kinds |= {row["geometry"]["type"] for row in layers(served, record.lat, record.lon, 14)["sequence"]["features"]}
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
    x, y = tile_of(record.lat, record.lon, 10)
    assert fetch(served, 10, x, y).content == fetch(served, 10, x, y).content


def test_detections_lie_where_the_things_are_painted(served):
    seen = looked = 0
    for index in range(60):
        place, records = served.world.place(index), served.world.images(index)
        record = next((r for r in records if r.is_pano and r.condition == "clear"), None)
        if not place.towns_ahead or record is None or place.facts.direction_sign != "green":
            continue
        rows = served.graph(f"/{record.image_id}/detections", fields="value,geometry,image,created_at").json()["data"]
        url = served.graph(f"/{record.image_id}", fields="thumb_original_url").json()["thumb_original_url"]
        picture = Image.open(io.BytesIO(served.http.get(url).content))
        for row in rows:
            assert row["image"]["id"] == record.image_id
            outline = mapbox_vector_tile.decode(
                base64.b64decode(row["geometry"]), default_options={"y_coord_down": True}
            )
            (ring,) = outline["mpy-or"]["features"][0]["geometry"]["coordinates"]
            assert all(0 <= part <= 4096 for point in ring for part in point)
            if row["value"] != "object--traffic-sign--direction-front":
                continue
            left, right = (f(x for x, _ in ring) * picture.width / 4096 for f in (min, max))
            top, bottom = (f(y for _, y in ring) * picture.height / 4096 for f in (min, max))
            if right - left < 14:  # too far to see its colour
                continue
            looked += 1
            cut = picture.crop((round(left), round(top), round(right), round(bottom)))
            colours = [pixel for _, pixel in cut.getcolors(cut.width * cut.height)]
            seen += any(g > r + 25 and g > b + 5 for r, g, b in colours)
    assert looked >= 3 and seen >= 0.8 * looked


def test_map_features_by_box_and_by_id(served):
    record = served.world.images(4)[0]
    bbox = f"{record.lon - 0.003},{record.lat - 0.003},{record.lon + 0.003},{record.lat + 0.003}"
    fields = "id,object_value,object_type,geometry,first_seen_at,last_seen_at,images"
    rows = served.graph("/map_features", bbox=bbox, fields=fields).json()["data"]
    assert rows and all(row.keys() == set(fields.split(",")) for row in rows)
    one = rows[0]
    assert served.graph(f"/{one['id']}", fields=fields).json() == one
    assert served.graph(f"/{one['id']}/", fields="object_value").json()["object_value"] == one["object_value"]
    chosen = served.graph("/map_features", bbox=bbox, object_values=one["object_value"], fields="object_value").json()
    assert {row["object_value"] for row in chosen["data"]} == {one["object_value"]}
    assert served.graph("/map_features").status_code == 400
    assert served.graph("/map_features", bbox="0,0,1,1").status_code == 500
    points = layers(served, record.lat, record.lon, 14, "mly_map_feature_point")
    assert {row["properties"].keys() == {"id", "value", "first_seen_at", "last_seen_at"}
            for row in points["point"]["features"]} == {True}  # fmt: skip


def test_radius_is_a_circle_in_metres(served):
    record = next(r for p in range(80) for r in served.world.images(p) if r.slot == 0 and abs(r.lat) > 45)
    near = served.graph("/images", lat=str(record.lat), lng=str(record.lon), radius="20", fields="geometry").json()
    assert record.image_id in {row["id"] for row in near["data"]}
    for row in near["data"]:
        lon, lat = row["geometry"]["coordinates"]
        east = (lon - record.lon) * math.cos(math.radians(lat))
        assert 111_195 * math.hypot(lat - record.lat, east) <= 20.01
    assert served.graph("/images", lat="1", lng="1", radius="51").status_code == 400


def test_creator_and_organization_filters(served):
    record = served.world.images(6)[0]
    bbox = f"{record.lon - 0.003},{record.lat - 0.003},{record.lon + 0.003},{record.lat + 0.003}"
    rows = served.graph("/images", bbox=bbox, creator_username=record.creator, fields="creator").json()["data"]
    assert rows and {row["creator"]["username"] for row in rows} == {record.creator}
    assert served.graph("/images", bbox=bbox, creator_username="nobody").json() == {"data": []}
    assert served.graph("/images", bbox=bbox, organization_id="1").json() == {"data": []}
