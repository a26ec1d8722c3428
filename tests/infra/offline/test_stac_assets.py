"""Scenes' files over a real socket: signatures, ranges, and the official reader unchanged."""

import numpy as np
import pytest
import rasterio
from rasterio.windows import Window as Box

from infra.offline.scenes.projection import to_utm

ROOT = "/stac/api/stac/v1"
TOKEN = "/sas/api/sas/v1/token/sentinel2l2a01/sentinel2-l2"
ROME = [12.40, 41.84, 12.56, 41.95]
GDAL = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_HTTP_MAX_RETRY": "0"}


@pytest.fixture(scope="module")
def item(served):
    body = {"collections": ["sentinel-2-l2a"], "bbox": ROME, "datetime": "2023-05-01T00:00:00Z/2023-12-31T00:00:00Z",
            "query": {"eo:cloud_cover": {"lt": 1}, "s2:mgrs_tile": {"eq": "33TTG"}}}  # fmt: skip
    return served.http.post(f"{ROOT}/search", json=body).json()["features"][0]


@pytest.fixture(scope="module")
def token(served):
    return served.http.get(TOKEN).json()["token"]


def test_signature_ranges_and_errors(served, item, token):
    href = item["assets"]["B02"]["href"]
    unsigned = served.http.get(href)
    assert unsigned.status_code == 409
    assert "<Code>PublicAccessNotPermitted</Code>" in unsigned.text
    url = f"{href}?{token}"
    assert served.http.get(url.replace("sig=", "sig=A")).status_code == 403
    assert served.http.get(url.replace("se=2", "se=3")).status_code == 403
    assert served.http.get(f"{href.replace('B02_10m', 'B99_10m')}?{token}").status_code == 404
    head = served.http.head(url)
    assert (head.status_code, head.headers["accept-ranges"]) == (200, "bytes")
    length = int(head.headers["content-length"])
    part = served.http.get(url, headers={"range": "bytes=0-15"})
    assert (part.status_code, part.content[:4], len(part.content)) == (206, b"II*\0", 16)
    assert part.headers["content-range"] == f"bytes 0-15/{length}"
    assert served.http.get(url, headers={"range": f"bytes={length}-{length + 9}"}).status_code == 416
    tail = served.http.get(url, headers={"range": f"bytes={length - 8}-{length + 100}"})
    assert (tail.status_code, len(tail.content)) == (206, 8)
    assert served.http.get(TOKEN.replace("sentinel2l2a01", "other")).status_code == 404


def test_expired_and_skewed(breakable, item, token):
    url = f"{item['assets']['B02']['href']}?{token}"
    first = {"range": "bytes=0-3"}
    rules = [{"service": "blob", "kind": "clock_skew", "seconds": 3600, "rate": 1.0}]
    breakable.http.post("/control/faults", json={"rules": rules})
    assert breakable.http.get(url, headers=first).status_code == 403
    breakable.http.post("/control/faults", json={"rules": [{"service": "sas", "kind": "expired_url", "rate": 1.0}]})
    stale = breakable.http.get(TOKEN).json()["token"]
    breakable.http.delete("/control/faults")
    assert breakable.http.get(f"{item['assets']['B02']['href']}?{stale}", headers=first).status_code == 403
    assert breakable.http.get(url, headers=first).status_code == 206


def test_rasterio_reads_windows_and_overviews_where_they_belong(item, token):
    asset = item["assets"]["B04"]
    with rasterio.Env(**GDAL), rasterio.open(f"/vsicurl/{asset['href']}?{token}") as file:
        assert file.crs.to_epsg() == item["properties"].get("proj:epsg", 32633)
        assert (file.height, file.width) == tuple(asset["proj:shape"])
        assert list(file.transform)[:6] == asset["proj:transform"]
        assert list(file.bounds) == asset["proj:bbox"]
        assert file.overviews(1) == [2, 4, 8, 16, 32, 64]
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.nodata == 0
        whole = file.read(1, window=Box(8600, 7100, 200, 160))  # over tile borders
        part = file.read(1, window=Box(8690, 7160, 50, 60))
        assert np.array_equal(whole[60:120, 90:140], part)
        assert whole.std() > 50 and whole.min() >= 1001
        small = file.read(1, out_shape=(344, 344))
        # The overview shows the same place: sea in the south-west is darker than land in the north-east.
        assert small[-40:, :40].mean() + 200 < small[150:200, 250:300].mean()


def test_corners_are_exact_to_half_a_pixel(item, token):
    """The coast in the file lies where the world has it: SCL water and the item's grid agree with lat, lon."""
    asset = item["assets"]["SCL"]
    for lat, lon, water in ((41.60, 12.20, True), (41.93, 12.60, False)):
        x, y = (float(v[0]) for v in to_utm(np.array([lat]), np.array([lon]), 33, False))
        with rasterio.Env(**GDAL), rasterio.open(f"/vsicurl/{asset['href']}?{token}") as file:
            row, column = file.index(x, y)
            left, top = file.xy(row, column)
            assert abs(left - x) <= 10 and abs(top - y) <= 10
            kinds = file.read(1, window=Box(column - 20, row - 20, 40, 40))
        assert bool((kinds == 6).mean() > 0.9) is water
