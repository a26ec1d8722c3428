"""The STAC API of the scene archive, at `/stac/api/stac/v1`: landing page, and searches by POST with paging.

Items and refusals are worded as the Planetary Computer words them. A search takes `collections`, `bbox`, `datetime`,
`query`, `limit` and `token`; as pgstac does, it passes over unknown members and finds nothing by an unknown property.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

import anyio
import numpy as np
import shapely
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError
from shapely.affinity import translate
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from infra.offline.scenes.clouds import sun
from infra.offline.scenes.cog import ASSETS
from infra.offline.scenes.orbit import (
    CYCLE_DAYS,
    FIRST_DAY,
    LAST_DAY,
    LEAST_SHARE,
    Scene,
    footprint,
    orbits_near,
    pass_time,
    scene_with_id,
    swath_share,
)
from infra.offline.scenes.paint import cloud_percent
from infra.offline.scenes.tiles import SIZE_M, Tile, tiles_in
from infra.offline.seeded_random import fraction
from infra.offline.services.blobs import ACCOUNT, CONTAINER, blob_path
from infra.offline.world import World

COLLECTION = "sentinel-2-l2a"
GEOJSON = "application/geo+json"
_ROOT = "/api/stac/v1"
_CONFORMS = [
    "https://api.stacspec.org/v1.0.0/core",
    "https://api.stacspec.org/v1.0.0/item-search",
    "https://api.stacspec.org/v1.0.0/item-search#query",
]
_COG = "image/tiff; application=geotiff; profile=cloud-optimized"
_TITLES = {
    "B02": "Band 2 - Blue - 10m", "B03": "Band 3 - Green - 10m", "B04": "Band 4 - Red - 10m",
    "visual": "True color image", "SCL": "Scene classification map (SCL)",
}  # fmt: skip
_BANDS = {
    "B02": {"name": "B02", "common_name": "blue", "description": "Band 2 - Blue", "center_wavelength": 0.49},
    "B03": {"name": "B03", "common_name": "green", "description": "Band 3 - Green", "center_wavelength": 0.56},
    "B04": {"name": "B04", "common_name": "red", "description": "Band 4 - Red", "center_wavelength": 0.665},
}
_SCHEMAS = "https://stac-extensions.github.io"
_PROPERTIES = frozenset(
    ("datetime", "platform", "constellation", "eo:cloud_cover", "sat:orbit_state", "sat:relative_orbit",
     "s2:mgrs_tile", "s2:nodata_pixel_percentage", "s2:processing_baseline", "s2:product_type", "s2:product_uri",
     "s2:mean_solar_zenith", "s2:mean_solar_azimuth", "proj:epsg", "proj:code")
)  # fmt: skip
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "neq": operator.ne,
}  # fmt: skip
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def _checked_box(numbers: list[float]) -> list[float]:
    west, south, east, north = numbers
    if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south <= north <= 90):
        raise ValueError("west, south, east, north in degrees are needed, south not above north")
    return numbers


def _times(value: Any) -> tuple[datetime, datetime]:
    start, slash, end = str(value).partition("/")
    times = _instant(start, FIRST_DAY), _instant(end if slash else start, LAST_DAY)
    if times[0] > times[1]:
        raise ValueError("the start lies after the end")
    return times


def _instant(text: str, unbounded: datetime) -> datetime:
    if text in ("", ".."):
        return unbounded
    if not _INSTANT.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not an RFC 3339 time")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text[:40]!r} is not a time") from error


class UnknownToken(Exception):
    """A page that was never linked to; the real server ends in an error of its own."""


def _last_scene(token: Any) -> Scene:
    head, _, item_id = str(token).rpartition(":")
    scene = scene_with_id(item_id) if head == f"next:{COLLECTION}" else None
    if scene is None:
        raise UnknownToken
    return scene


class Search(BaseModel):
    """A checked search; `after` is the last scene of the page before."""

    model_config = ConfigDict(extra="ignore", strict=True)

    collections: list[str] = [COLLECTION]
    bbox: Annotated[list[float], Field(min_length=4, max_length=4), AfterValidator(_checked_box)] | None = None
    times: Annotated[InstanceOf[tuple[datetime, datetime]], BeforeValidator(_times)] = Field(
        (FIRST_DAY, LAST_DAY), alias="datetime"
    )
    query: dict[str, dict[Literal["lt", "lte", "gt", "gte", "eq", "ne", "neq"], float | str]] = {}
    # Had by the real servers, and not here: passing over them would give items that were not searched for.
    filter: None = None
    fields: None = None
    intersects: None = None
    sortby: None = None
    limit: int = Field(250, ge=1, le=1000)
    after: Annotated[InstanceOf[Scene], BeforeValidator(_last_scene)] | None = Field(None, alias="token")

    def matches(self, seed: int, scene: Scene) -> bool:
        """Whether a scene's properties are as requested; as in SQL, nothing is known of a missing value."""
        for name, wanted in self.query.items():
            # Clouds are what most searches ask for; the other properties come all at once.
            found = cloud_percent(seed, scene) if name == "eo:cloud_cover" else properties(seed, scene).get(name)
            for kind, value in wanted.items():
                if isinstance(found, str) is not isinstance(value, str) or found is None:
                    return False
                if not _ORDER[kind](found, value):
                    return False
        return True


def find_scenes(seed: int, search: Search) -> tuple[list[Scene], bool]:
    """(one page of scenes, whether more follow)."""
    page: list[Scene] = []
    is_known = COLLECTION in search.collections and search.query.keys() <= _PROPERTIES
    for scene in _ordered(search) if is_known else ():
        if search.matches(seed, scene):
            if len(page) == search.limit:
                return page, True
            page.append(scene)
    return page, False


def _ordered(search: Search) -> Iterator[Scene]:
    """Scenes that match in place and time, the newest first, then by id; after the page before."""
    area, last = None, search.after
    if search.bbox is not None:
        west, south, east, north = search.bbox
        area = shapely.box(west, south, east if west <= east else east + 360, north)  # or over the date line

    @cache
    def is_seen(tile: Tile, orbit: int) -> bool:
        seen = swath_share(tile, orbit) > LEAST_SHARE
        return seen and (area is None or _intersects(footprint(tile, orbit), area))

    tiles = tiles_in(*(area.bounds if area is not None else (-180.0, -90.0, 180.0, 90.0)))
    for at, orbit, number, near in _passes(tiles, *search.times):
        if last is not None and at > last.at:
            continue
        scenes = [Scene(tile, orbit, number) for tile in near if is_seen(tile, orbit)]
        for scene in sorted(scenes, key=lambda scene: scene.id, reverse=True):
            if last is None or at != last.at or scene.id < last.id:
                yield scene


def _passes(tiles: list[Tile], start: datetime, end: datetime) -> Iterator[tuple[datetime, int, int, list[Tile]]]:
    """(time, orbit, number, tiles that may be seen) of every pass over tiles, the newest first."""
    if not tiles:
        return
    lat, lon = (np.array([tile.centre[k] for tile in tiles]) for k in (0, 1))
    start, end = max(start, FIRST_DAY), min(end, LAST_DAY - timedelta(seconds=1))
    half = timedelta(days=CYCLE_DAYS / 2)
    passes = []
    near = orbits_near(lat, lon)
    for orbit in near:
        zero = pass_time(orbit, 0)
        # Pass times are cut to whole seconds, so look one further on either side.
        for number in range(math.floor((start - zero) / half) - 1, math.ceil((end - zero) / half) + 2):
            at = pass_time(orbit, number)
            # Items carry fractions of a second; a search to the second must find them.
            if start <= at + timedelta(milliseconds=24) and at <= end:
                passes.append((at, orbit, number))
    for at, orbit, number in sorted(passes, reverse=True):
        yield at, orbit, number, [tiles[int(k)] for k in near[orbit]]


def _intersects(shape: Any, area: Any) -> bool:
    west, _, east, _ = shape.bounds
    return any(
        west + turn <= area.bounds[2]
        and east + turn >= area.bounds[0]
        and shapely.intersects(translate(shape, turn), area)
        for turn in (-360.0, 0.0, 360.0)
    )


def properties(seed: int, scene: Scene) -> dict[str, Any]:
    """An item's properties. Half of the items name their projection by `proj:epsg`, half by the newer `proj:code`."""
    tile = scene.tile
    height, azimuth = sun(*tile.centre, scene.at)
    at = f"{scene.at:%Y-%m-%dT%H:%M:%S}.024000Z"
    product = next(part for part in blob_path(scene, "B02").split("/") if part.endswith(".SAFE"))
    projection = {"proj:code": f"EPSG:{tile.epsg}"} if _says_code(seed, scene) else {"proj:epsg": tile.epsg}
    return {
        "datetime": at,
        "platform": f"Sentinel-2{scene.satellite[-1]}",
        "constellation": "Sentinel 2",
        "instruments": ["msi"],
        **projection,
        "eo:cloud_cover": cloud_percent(seed, scene),
        "sat:orbit_state": "descending",
        "sat:relative_orbit": scene.orbit,
        "s2:mgrs_tile": tile.name,
        "s2:nodata_pixel_percentage": round(100.0 * (1.0 - scene.coverage), 6),
        "s2:processing_baseline": scene.baseline,
        "s2:product_type": "S2MSI2A",
        "s2:product_uri": product,
        "s2:datatake_type": "INS-NOBS",
        "s2:mean_solar_zenith": round(90.0 - height, 9),
        "s2:mean_solar_azimuth": round(azimuth, 9),
    }


def _says_code(seed: int, scene: Scene) -> bool:
    return fraction(seed, "code", scene.id) < 0.5


@lru_cache(maxsize=4_096)
def geometry(tile: Tile, orbit: int) -> tuple[dict[str, Any], list[float]]:
    """(GeoJSON geometry, bbox) of the part of a tile that an orbit sees; cut in two at the date line."""
    seen = footprint(tile, orbit)
    west, south, east, north = seen.bounds
    if west >= -180 and east <= 180:
        return _geojson(seen), _rounded([west, south, east, north])
    turn = 360.0 if west < -180 else 0.0  # the whole east of the line, its far part past 180
    moved = translate(seen, turn)
    near = shapely.clip_by_rect(moved, -180, -90, 180, 90)
    far = translate(shapely.clip_by_rect(moved, 180, -90, 540, 90), -360.0)
    bounds = [moved.bounds[0], south, moved.bounds[2] - 360.0, north]
    return _geojson(shapely.MultiPolygon([near, far])), _rounded(bounds)


def _geojson(shape: Any) -> dict[str, Any]:
    parts = [
        [np.round(np.asarray(part.exterior.coords), 7).tolist()]
        for part in shapely.get_parts(shapely.orient_polygons(shape))
    ]
    if len(parts) == 1:
        return {"type": "Polygon", "coordinates": parts[0]}
    return {"type": "MultiPolygon", "coordinates": parts}


def _rounded(numbers: list[float]) -> list[float]:
    return [round(float(number), 7) for number in numbers]


def item(seed: int, scene: Scene, origin: str) -> dict[str, Any]:
    """One item; about one in ten has no bbox, as happens in the wild."""
    shape, box = geometry(scene.tile, scene.orbit)
    version = "v2.0.0" if _says_code(seed, scene) else "v1.0.0"
    here = f"{origin}/stac{_ROOT}"
    fields: dict[str, Any] = {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": scene.id,
        "collection": COLLECTION,
        "geometry": shape,
        "bbox": box,
        "properties": properties(seed, scene),
        "assets": {name: _asset(scene, name, origin) for name in ASSETS},
        "links": [
            _link("collection", f"{here}/collections/{COLLECTION}"),
            _link("parent", f"{here}/collections/{COLLECTION}"),
            _link("root", f"{here}/"),
            _link("self", f"{here}/collections/{COLLECTION}/items/{scene.id}", GEOJSON),
        ],
        "stac_extensions": [
            f"{_SCHEMAS}/eo/v1.0.0/schema.json",
            f"{_SCHEMAS}/sat/v1.0.0/schema.json",
            f"{_SCHEMAS}/projection/{version}/schema.json",
        ],
    }
    if fraction(seed, "bbox", scene.id) < 0.1:
        del fields["bbox"]
    return fields


def _asset(scene: Scene, name: str, origin: str) -> dict[str, Any]:
    step, tile = ASSETS[name], scene.tile
    size = SIZE_M // step
    shown = ("B04", "B03", "B02") if name == "visual" else (name,)
    bands = [_BANDS[band] for band in shown if band in _BANDS]
    fields: dict[str, Any] = {
        "href": f"{origin}/blob/{ACCOUNT}/{CONTAINER}/{blob_path(scene, name)}",
        "type": _COG,
        "title": _TITLES[name],
        "roles": ["data"],
        "gsd": float(step),
        "proj:bbox": [float(tile.left_m), float(tile.top_m - SIZE_M), float(tile.left_m + SIZE_M), float(tile.top_m)],
        "proj:shape": [size, size],
        "proj:transform": [float(step), 0.0, float(tile.left_m), 0.0, -float(step), float(tile.top_m)],
    }
    if bands:
        fields["eo:bands"] = bands
    return fields


def _link(rel: str, href: str, kind: str = "application/json", **more: Any) -> dict[str, Any]:
    return {"rel": rel, "type": kind, "href": href, **more}


def _origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"


def stac_application(world: World) -> Starlette:
    """What is mounted at `/stac`."""

    async def landing(request: Request) -> Response:
        here = f"{_origin(request)}/stac{_ROOT}"
        links = [
            _link("self", f"{here}/"),
            _link("root", f"{here}/"),
            _link("search", f"{here}/search", GEOJSON, method="POST"),
        ]
        return JSONResponse(
            {
                "type": "Catalog",
                "id": "geofix-offline",
                "title": "Scenes of the offline world",
                "description": "A STAC API over painted Sentinel-2 scenes.",
                "stac_version": "1.0.0",
                "conformsTo": _CONFORMS,
                "links": links,
            }
        )

    async def search(request: Request) -> Response:
        body = await request.body()
        try:
            query = Search.model_validate_json(body)
        except UnknownToken:
            return PlainTextResponse("Internal Server Error", 500)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return PlainTextResponse(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}", 400)
        # A search computes: in a thread, so that other requests are answered meanwhile.
        text = await anyio.to_thread.run_sync(page, _origin(request), query, body)
        return Response(text, media_type=GEOJSON)

    async def collection(request: Request) -> Response:
        here = f"{_origin(request)}/stac{_ROOT}"
        name = request.path_params["name"]
        if name != COLLECTION:
            return JSONResponse({"code": "NotFoundError", "description": f"Collection {name} does not exist."}, 404)
        extent = {
            "spatial": {"bbox": [[-180, -90, 180, 90]]},
            "temporal": {"interval": [["2015-06-27T10:25:31Z", None]]},
        }
        links = [_link("root", f"{here}/"), _link("self", f"{here}/collections/{name}")]
        facts = {"type": "Collection", "id": name, "stac_version": "1.0.0", "license": "proprietary"}
        return JSONResponse({**facts, "description": "Painted Sentinel-2 scenes.", "extent": extent, "links": links})

    async def one_item(request: Request) -> Response:
        name, item_id = request.path_params["name"], request.path_params["item"]
        scene = scene_with_id(item_id) if name == COLLECTION else None
        if scene is None:
            words = f"Item {item_id} in Collection {name} does not exist."
            return JSONResponse({"code": "NotFoundError", "description": words}, 404)
        return JSONResponse(item(world.seed, scene, _origin(request)), media_type=GEOJSON)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"detail": error.detail}, error.status_code)

    def page(origin: str, query: Search, body: bytes) -> str:
        scenes, more = find_scenes(world.seed, query)
        here = f"{origin}/stac{_ROOT}"
        links = [_link("root", f"{here}/"), _link("self", f"{here}/search", GEOJSON)]
        if more:
            following = {**json.loads(body), "token": f"next:{COLLECTION}:{scenes[-1].id}"}
            links.append(_link("next", f"{here}/search", GEOJSON, method="POST", body=following))
        features = [item(world.seed, scene, origin) for scene in scenes]
        return json.dumps({"type": "FeatureCollection", "features": features, "links": links})

    return Starlette(
        routes=[
            Route(_ROOT, landing),
            Route(f"{_ROOT}/", landing),
            Route(f"{_ROOT}/search", search, methods=["POST"]),
            Route(f"{_ROOT}/collections/{{name}}", collection),
            Route(f"{_ROOT}/collections/{{name}}/items/{{item}}", one_item),
        ],
        exception_handlers={HTTPException: refused},
    )
