"""The STAC API over a real socket: the shapes of facts, paging, filters, refusals, the official client."""

import re

import pystac_client
import pytest
import shapely.geometry

from infra.offline.scenes.orbit import FIRST_DAY, scene_with_id
from infra.offline.scenes.tiles import tile_named, tiles_in

BERLIN = [13.2, 52.4, 13.5, 52.6]
ROOT = "/stac/api/stac/v1"


def post(served, **body):
    return served.http.post(f"{ROOT}/search", json={"collections": ["sentinel-2-l2a"], **body})


def features(served, **body):
    response = post(served, **body)
    assert response.status_code == 200, response.text
    return response.json()["features"]


def test_answer_has_exactly_three_keys_and_pages_by_token(served):
    asked = {"bbox": BERLIN, "datetime": "2023-06-01T00:00:00Z/2023-07-31T23:59:59Z", "limit": 7}
    page = post(served, **asked).json()
    assert set(page) == {"type", "features", "links"}
    link = next(link for link in page["links"] if link["rel"] == "next")
    assert link["method"] == "POST"
    assert {**link["body"], "token": None} == {"collections": ["sentinel-2-l2a"], **asked, "token": None}
    found = [f["id"] for f in page["features"]]
    while link is not None:
        page = served.http.post(link["href"], json=link["body"]).json()
        found += [f["id"] for f in page["features"]]
        link = next((link for link in page["links"] if link["rel"] == "next"), None)
    whole = features(served, **{**asked, "limit": 1000})
    assert found == [f["id"] for f in whole]
    assert len(set(found)) == len(found) > 30
    times = [f["properties"]["datetime"] for f in whole]
    assert times == sorted(times, reverse=True)


def test_item_has_the_fields_of_the_wild(served):
    items = features(served, bbox=BERLIN, limit=300)
    for item in items:
        properties = item["properties"]
        assert 0 <= properties["eo:cloud_cover"] <= 100
        assert re.fullmatch(r"\d\d[A-Z]{3}", properties["s2:mgrs_tile"])
        assert 0 <= properties["s2:nodata_pixel_percentage"] < 100
        assert ("proj:epsg" in properties) != ("proj:code" in properties)
        epsg = properties.get("proj:epsg") or int(properties["proj:code"].removeprefix("EPSG:"))
        assert epsg == 32600 + int(properties["s2:mgrs_tile"][:2])
        for name, size in (("B02", 10980), ("B03", 10980), ("B04", 10980), ("visual", 10980), ("SCL", 5490)):
            asset = item["assets"][name]
            assert asset["href"].startswith(f"{served.url}/blob/")
            assert asset["proj:shape"] == [size, size]
            assert asset["proj:transform"][0] * size == 109_800
    assert {"proj:epsg", "proj:code"} <= {key for item in items for key in item["properties"]}
    without = sum("bbox" not in item for item in items)
    assert 0 < without < len(items) / 4
    clear = sum(item["properties"]["eo:cloud_cover"] < 20 for item in items)
    assert 0.15 < clear / len(items) < 0.8


def test_baselines_on_both_sides_of_the_offset(served):
    old, new = (
        features(served, bbox=BERLIN, datetime=when)[0]["properties"]["s2:processing_baseline"]
        for when in ("2021-08-01T00:00:00Z/2021-08-20T00:00:00Z", "2022-03-01T00:00:00Z/2022-03-20T00:00:00Z")
    )
    assert old < "04.00" <= new


def test_place_time_and_query_choose(served):
    box = shapely.box(*BERLIN)
    month = "2023-05-01T00:00:00Z/2023-05-31T23:59:59Z"
    items = features(served, bbox=BERLIN, datetime=month)
    assert all(shapely.geometry.shape(item["geometry"]).intersects(box) for item in items)
    assert all(item["properties"]["datetime"].startswith("2023-05") for item in items)
    clear = [i["id"] for i in items if i["properties"]["eo:cloud_cover"] < 30]
    assert 0 < len(clear) < len(items)
    assert [
        i["id"] for i in features(served, bbox=BERLIN, datetime=month, query={"eo:cloud_cover": {"lt": 30}})
    ] == clear
    exact = items[3]["properties"]["datetime"]
    assert items[3]["id"] in [i["id"] for i in features(served, bbox=BERLIN, datetime=exact)]
    assert served.http.post(f"{ROOT}/search", json={"collections": ["landsat-c2-l2"]}).json()["features"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "many"},
        {"bbox": [1, 2, 3]},
        {"bbox": [13, 53, 14, 52]},
        {"datetime": "yesterday"},
        {"datetime": "2023-02-31T00:00:00Z"},
        {"datetime": "2023-05-02T00:00:00Z/2023-05-01T00:00:00Z"},
        {"query": {"eo:cloud_cover": {"about": 3}}},
        {"filter": "eo:cloud_cover < 10", "filter-lang": "cql2-text"},
        {"fields": {"include": ["id"]}},
        [],
    ],
)
def test_what_is_wrong_or_unsupported_is_refused_in_plain_text(served, body):
    response = served.http.post(f"{ROOT}/search", json=body)
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("text/plain")
    assert response.text


def test_a_box_over_the_date_line(served):
    items = features(served, bbox=[178.0, -18.5, -179.0, -16.5], limit=40)
    zones = {item["properties"]["s2:mgrs_tile"][:2] for item in items}
    assert zones == {"01", "60"}
    both = [item for item in items if item["geometry"]["type"] == "MultiPolygon"]
    assert both
    for item in items:
        west, _, east, _ = shapely.geometry.shape(item["geometry"]).bounds
        assert -180 <= west <= east <= 180


@pytest.mark.whole
def test_the_world_without_an_area_answers_a_page(served):
    items = features(served, limit=20, datetime="2024-06-01T00:00:00Z/2024-06-01T02:00:00Z")
    assert len(items) == 20


def test_ids_round_trip_and_tiles_lie_on_the_real_grid():
    # Published corners of real tiles.
    for name, left, top in (
        ("33UUU", 300_000, 5_900_040),
        ("31TCJ", 300_000, 4_900_020),
        ("56HLH", 300_000, 6_300_000),
    ):
        tile = tile_named(name)
        assert (tile.left_m, tile.top_m) == (left, top)
    # Bergen lies in zone 32, not 31: southern Norway is divided otherwise.
    assert {tile.zone for tile in tiles_in(5.3, 60.3, 5.4, 60.4)} == {32}
    assert tile_named("33XXX9") is None and tile_named("99UUU") is None
    assert tile_named("30NAA") is None  # open sea
    assert scene_with_id("S2A_MSIL2A_20230911T104428_R036_T33UUU_20230911T000000") is None
    assert FIRST_DAY.year == 2021


def test_plain_text_faults_with_and_without_retry_after(breakable):
    rule = {"service": "stac", "kind": "status", "status": 429, "rate": 1.0}
    for extra, header in (({}, None), ({"retry_after": 3}, "3")):
        breakable.http.post("/control/faults", json={"rules": [{**rule, **extra}]})
        response = post(breakable, bbox=BERLIN)
        assert (response.status_code, response.text) == (429, "Too Many Requests")
        assert response.headers.get("retry-after") == header
    breakable.http.post("/control/faults", json={"rules": [{**rule, "status": 504}]})
    response = post(breakable, bbox=BERLIN)
    assert response.status_code == 504
    assert response.headers["content-type"].startswith("text/plain")


def test_pystac_client_searches_and_pages(served):
    catalog = pystac_client.Client.open(f"{served.url}{ROOT}/")
    search = catalog.search(
        collections=["sentinel-2-l2a"],
        bbox=BERLIN,
        datetime="2023-05-01/2023-06-30",
        query={"eo:cloud_cover": {"lt": 40}},
        limit=5,
    )
    pages = list(search.pages())
    items = [item for page in pages for item in page]
    assert len(pages) > 2
    assert len({item.id for item in items}) == len(items)
    assert all(item.properties["eo:cloud_cover"] < 40 for item in items)


def test_pystac_client_gives_up_on_faults_with_the_status(breakable):
    breakable.http.post(
        "/control/faults", json={"rules": [{"service": "stac", "kind": "status", "status": 504, "at": [1]}]}
    )
    catalog = pystac_client.Client.open(f"{breakable.url}{ROOT}/")
    search = catalog.search(collections=["sentinel-2-l2a"], bbox=BERLIN, max_items=1)
    with pytest.raises(pystac_client.exceptions.APIError):
        list(search.items())
    assert len(list(search.items())) == 1
