"""Against a real stac-fastapi over pgstac: what the stand-in claims, and odc-stac beside our reading of its items."""

from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import odc.stac
import pystac_client
import pytest
from affine import Affine
from odc.geo.geobox import GeoBox

from schemas.errors import StageRefused
from schemas.settings.satellite import SatelliteSettings
from schemas.settings.services import StacEndpoint
from tasks.collect.satellite.choice import choose
from tasks.collect.satellite.mosaic import Reading, put_together, read_layers
from tasks.services.sentinel.grid import grid_around
from tasks.services.sentinel.scenes import read_scene
from tasks.services.sentinel.tone import from_bands
from tasks.services.stac import Stac
from tasks.services.transport import Connection

pytestmark = pytest.mark.real
BERLIN = [13.2, 52.4, 13.5, 52.6]
TIMES = "2023-06-01T00:00:00Z/2023-07-31T23:59:59Z"
LYON = (45.7578, 4.8320)
BANDS = ("B04", "B03", "B02", "SCL")
NAMES = ("red", "green", "blue", "scl")
SIZE = 600


def opened(archive: Any) -> Stac:
    return Stac(Connection("stac", StacEndpoint(base_url=archive.server.url, sas_url=None)))


@pytest.fixture(scope="module")
def berlin(archive: Any) -> list[str]:
    """Ids of the stand-in's items, loaded as they are."""
    items = archive.stand_in_items(BERLIN, *TIMES.split("/"))
    archive.load(items)
    return [item["id"] for item in items]


async def test_every_page_is_read_and_a_misspelt_collection_is_refused(archive: Any, berlin: list[str]) -> None:
    stac = opened(archive)
    start, end = (datetime.fromisoformat(time) for time in TIMES.split("/"))
    items = await stac.search("sentinel-2-l2a", tuple(BERLIN), start, end)
    assert [item["id"] for item in items] == berlin
    with pytest.raises(StageRefused, match="has no collection 'sentinel-2-l2b'"):
        await stac.search("sentinel-2-l2b", tuple(BERLIN), start, end)
    await stac.close()


# What the stand-in has from the Planetary Computer, whose software is the same in an older version with a gateway
# before it: no count of the page's items; refusals in plain text; at most 1000 items a page.
DIALECT = {"numberReturned", "numberMatched"}


def described(answer: httpx.Response) -> Any:
    """What of an answer a client depends on, without addresses and the tokens that only the server reads."""
    status, kind = answer.status_code, answer.headers["content-type"].partition(";")[0]
    if status == 400:
        return status
    if "json" not in kind:
        return status, kind, answer.text
    body = answer.json()
    if body.get("type") == "FeatureCollection":
        following = [link for link in body["links"] if link["rel"] == "next"]
        links = [(link["method"], link["type"], {**link["body"], "token": "…"}) for link in following]
        return status, kind, set(body) - DIALECT, [item_fields(item) for item in body["features"]], links
    if body.get("type") == "Feature":
        return status, kind, item_fields(body)
    if body.get("type") in ("Collection", "Catalog"):
        return status, kind, body["type"], {key: body[key] for key in ("license", "extent") if key in body}
    return status, kind, body


def item_fields(item: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in item.items() if name not in ("links", "bbox")}  # pgstac asks for the box
    return {**kept, "links": sorted((link["rel"], link["type"]) for link in item["links"])}


def test_the_stand_in_answers_alike(archive: Any, berlin: list[str]) -> None:
    search = {"collections": ["sentinel-2-l2a"], "bbox": BERLIN, "datetime": TIMES, "limit": 7}
    changes: list[dict[str, Any]] = [
        *({}, {"limit": 1}, {"limit": 1000}, {"limit": 0}, {"limit": "x"}, {"nonsense": 1}, {"token": "nonsense"}),
        *({"collections": ["nothing"]}, {"bbox": [1, 2, 3]}, {"bbox": [13.5, 52.6, 13.2, 52.4]}),
        *({"bbox": [13.2, 52.4, 13.5, 91]}, {"bbox": [0.0, -10.0, 0.1, -9.9]}, {"datetime": "nonsense"}),
        *({"datetime": "2023-07-01T00:00:00Z/2023-06-01T00:00:00Z"}, {"datetime": "2023-06-01"}),
        {"datetime": "2023-06-03T00:00:00Z/2023-06-05T00:00:00Z"},
        *({"query": {"eo:cloud_cover": {kind: 10}}} for kind in ("lt", "lte", "gt", "gte", "eq", "ne", "neq", "about")),
        *({"query": {"s2:mgrs_tile": {"eq": "33UUU"}}}, {"query": {"nonsense": {"lte": 10}}}),
    ]
    requests: list[tuple[str, str, Any]] = [("POST", "/search", {**search, **change}) for change in changes]
    collection = "/collections/sentinel-2-l2a"
    paths = ("/", collection, "/collections/nothing", f"{collection}/items/{berlin[0]}", f"{collection}/items/nothing")
    requests += [("GET", path, None) for path in (*paths, "/nothing")]
    requests += [("POST", "/search", None), ("PUT", "/search", {})]
    for method, path, body in requests:
        # A connection each: after its error (a wrong token) the real server closes the one that asked.
        real, stand_in = (
            described(httpx.request(method, f"{base}{path}", json=body, timeout=60))
            for base in (archive.server.url, archive.stand_in)
        )
        assert stand_in == real, (method, path, body)
    assert len(requests) == 34


async def test_odc_stac_reads_the_same(archive: Any) -> None:
    """Every value of the chosen scenes' bands, and the picture made of them."""
    archive.load_like_earth_search([LYON], "2023-07-01T00:00:00Z", "2023-07-31T00:00:00Z")
    settings = SatelliteSettings(size_px=SIZE, max_scenes=3, max_cloud_percent=60)
    stac, grid = opened(archive), grid_around(*LYON, 10.0, SIZE)
    box = (LYON[1] - 0.05, LYON[0] - 0.05, LYON[1] + 0.05, LYON[0] + 0.05)
    times = datetime(2023, 7, 1, tzinfo=UTC), datetime(2023, 7, 31, tzinfo=UTC)
    items = await stac.search("sentinel-2-l2a", box, *times, settings.max_cloud_percent)
    choice = await choose(stac, [read_scene(item, BANDS) for item in items], grid, settings)
    reading = await read_layers(stac, choice.layers, grid, settings.assets)
    await stac.close()

    client = pystac_client.Client.open(archive.server.url)
    chosen = [layer.scene.id for layer in reading.layers]
    found = {item.id: item for item in client.search(ids=chosen, collections=["sentinel-2-l2a"]).items()}
    kinds = {"*": {"data_type": "uint16", "nodata": 0}, "scl": {"data_type": "uint8", "nodata": 0}}
    loaded = odc.stac.load(
        [found[name] for name in chosen],
        bands=list(NAMES),
        geobox=GeoBox((SIZE, SIZE), Affine(*grid.transform), f"EPSG:{grid.epsg}"),
        groupby="id",
        resampling="nearest",
        stac_cfg={"sentinel-2-l2a": {"assets": kinds}},
    )
    by_time = sorted(chosen, key=lambda name: (found[name].datetime, name))
    by_id = {name: loaded.isel(time=number) for number, name in enumerate(by_time)}
    values, different, total = [], 0, 0
    for layer, rect, ours in zip(reading.layers, reading.rects, reading.values, strict=True):
        planes = by_id[layer.scene.id]
        theirs = from_bands([planes[name].values for name in NAMES[:3]], layer.scene.offset)[rect]
        theirs[~ours.any(axis=2)] = 0  # tiles that the picture does not need are not read
        different += int(np.sum(theirs != ours))
        total += int(np.count_nonzero(ours))
        values.append(theirs)
    other = Reading(reading.layers, reading.numbers, reading.rects, values, reading.owner, reading.clear)
    pictures = [put_together(item, settings.max_gain).pixels for item in (reading, other)]
    assert (different, total >= 3 * SIZE * SIZE) == (0, True)
    assert np.array_equal(*pictures, equal_nan=True)
