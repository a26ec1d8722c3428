"""Map tools over a real socket: tips, keyword search, detail, static pictures."""

import io

import numpy as np
import pytest
from PIL import Image

from infra.offline.maps.drawing import draw_map
from infra.offline.maps.view import View
from infra.offline.services.maps import KEY
from infra.offline.words import fold, telling_words

POI_KEYS = {"id", "name", "type", "typecode", "address", "location", "tel", "pname", "cityname", "adname", "country",
            "distance"}  # fmt: skip


def ask(served, path, **params):
    response = served.http.get(f"/maps/v3/{path}", params={"key": KEY, **params})
    assert response.status_code == 200
    return response.json()


def picture(served, **params):
    response = served.http.get("/maps/v3/staticmap", params={"key": KEY, **params})
    assert response.headers["content-type"] == "image/png", response.text
    return Image.open(io.BytesIO(response.content)).convert("RGB")


def test_input_tips_field_by_field(served):
    body = ask(served, "assistant/inputtips", keywords="Lyon")
    assert body.keys() == {"status", "info", "infocode", "count", "tips"}
    assert (body["status"], body["info"], body["infocode"], body["count"]) == (
        "1",
        "OK",
        "10000",
        str(len(body["tips"])),
    )
    tip = body["tips"][0]
    assert tip.keys() == {"id", "name", "district", "adcode", "location", "address", "typecode", "city"}
    lon, lat = map(float, tip["location"].split(","))
    assert (lat, lon) == (pytest.approx(45.75, abs=0.1), pytest.approx(4.85, abs=0.1))
    assert "France" in tip["district"] and tip["address"] == []


def test_a_shop_is_found_by_its_sign_and_known_by_its_id(served):
    found = 0
    for index in range(0, 100, 10):
        place = served.world.place(index)
        sign = place.shops[0]
        body = ask(served, "place/text", keywords=sign.lines[0], city=place.city.name)
        rows = [row for row in body["pois"] if row["name"] == sign.lines[0] and row["cityname"] == place.city.name]
        if not rows:
            continue
        found += 1
        row = rows[0]
        assert row.keys() == POI_KEYS
        assert type(row["id"]) is str
        lon, lat = map(float, row["location"].split(","))
        assert abs(lat - place.lat) < 0.004 and abs(lon - place.lon) < 0.02
        detail = ask(served, "place/detail", id=row["id"])
        assert detail["count"] == "1"
        assert detail["pois"][0].items() >= row.items()
        assert detail["pois"][0].keys() == POI_KEYS | {"biz_ext", "photos"}
    assert found >= 8


def test_the_beginning_of_a_shops_name_is_completed(served):
    found = asked = 0
    for index in range(0, 100, 10):
        name = served.world.place(index).shops[0].lines[0]
        word = max(telling_words(name), key=len, default="")
        if len(word) >= 6 and name.isascii():
            asked += 1
            tips = ask(served, "assistant/inputtips", keywords=word[:-1])["tips"]
            found += any(word in fold(tip["name"]) for tip in tips)
    assert asked >= 3 and found == asked


def test_few_rows_and_nothing(served):
    rows = ask(served, "place/text", keywords="San Jose", offset="2")["pois"]
    assert len(rows) == 2
    assert ask(served, "place/text", keywords="Xyzzyville")["count"] == "0"
    assert ask(served, "place/detail", id="B0FF")["pois"] == []
    assert ask(served, "place/detail", id=ask(served, "place/text", keywords="Lyon")["pois"][0]["id"])["count"] == "1"


def test_refusals_are_told_in_the_body(served):
    assert ask(served, "place/text", keywords="x", key="")["infocode"] == "10001"
    assert ask(served, "place/text")["infocode"] == "20001"
    assert ask(served, "place/text", keywords="x", offset="99")["infocode"] == "20000"
    for params in ({"location": "1"}, {"location": "1,95"}, {"location": "1,2", "zoom": "30"},
                   {"location": "1,2", "size": "9000*2"}, {"location": "1,2", "maptype": "moon"}):  # fmt: skip
        assert ask(served, "staticmap", **params)["infocode"] == "20000"


def test_pictures_have_their_size_and_show_the_place(served):
    place = served.world.place(5)
    at = f"{place.lon},{place.lat}"
    road = picture(served, location=at, zoom="16", size="300*200")
    assert road.size == (300, 200)
    assert len(set(road.getdata())) > 20
    above = picture(served, location=at, zoom="16", size="300*200", maptype="satellite")
    assert np.asarray(above).mean() < np.asarray(road).mean() - 40  # maps are light, the ground is dark
    far = picture(served, location=at, zoom="4", size="300*200")
    assert (170, 211, 223) in set(far.getdata())


def test_same_view_same_bytes(small_world):
    view = View.around(48.85, 2.35, 14, 120, 100)
    for style in ("roadmap", "satellite"):
        assert draw_map(small_world, view, style).tobytes() == draw_map(small_world, view, style).tobytes()


def test_a_view_knows_where_its_pixels_lie():
    view = View.around(-36.85, 174.76, 11, 300, 200)
    lat, lon = view.degrees(np.array(40.0), np.array(160.0))
    across, down = view.pixel(lat, lon)
    assert (float(across), float(down)) == (pytest.approx(40), pytest.approx(160))
    assert view.middle == (pytest.approx(-36.85, abs=1e-3), pytest.approx(174.76, abs=1e-3))
    edge = View.around(-17.0, 179.9, 8, 400, 200)
    assert 0 < float(edge.pixel(np.array(-17.0), np.array(-179.9))[0]) < 400
