"""The Panoramax API (a STAC API of pictures, their files and vector tiles) over the same painted pictures.

It answers as geovisio 2.15 does: no second page, ten pictures without a limit, one for a JSON array of ids, no length
and no validator of a file, 404 for what is gone.
"""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from infra.offline.computing import compute_in_thread
from infra.offline.fault_layer import change_count, is_deleted
from infra.offline.seeded_random import fraction, key_of
from infra.offline.services.image_host import ImageHost
from infra.offline.services.mapillary import EXTENT, tile_box, tile_point
from infra.offline.world import ImageRecord, World

API = "/panoramax/api"
PICTURE_ZOOM, SEQUENCE_ZOOM = 15, 8
MAX_LIMIT, USUAL_LIMIT = 10_000, 10
_SIZES = {"hd": "original", "sd": "2048", "thumb": "256"}
_LOW_BITS = (1 << 62) - 1
# An instance has one licence; pictures of a sequence are of one instance. `proprietary`: it has set none.
_INSTANCES = ((0.75, "CC-BY-SA-4.0"), (0.95, "etalab-2.0"), (1.0, "proprietary"))
_PIECE = 65_536


def picture_id(record: ImageRecord) -> str:
    """A UUID that leads back to the image."""
    number = int(record.image_id)
    high = key_of("panoramax", number) & ~0xF000 | 0x4000
    return str(uuid.UUID(int=(high & (1 << 64) - 1) << 64 | 1 << 63 | number))


def sequence_id(record: ImageRecord) -> str:
    """A UUID of the drive that an image is of."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, record.sequence_id))


def licence_of(record: ImageRecord) -> str:
    """The SPDX name of the licence of the instance that has the image."""
    share = fraction("instance", record.sequence_id)
    return next(licence for up_to, licence in _INSTANCES if share < up_to)


class Panoramax:
    """The API over a world."""

    def __init__(self, world: World, host: ImageHost) -> None:
        self.world, self.host = world, host

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [
            Route(f"{API}/search", self._search, methods=["GET", "POST"]),
            Route(f"{API}/map/{{z:int}}/{{x:int}}/{{y:int}}.mvt", self._tile),
            Route(f"{API}/pictures/{{picture}}/{{size}}.jpg", self._picture),
            Route(f"{API}/collections/{{sequence}}/items/{{picture}}", self._item),
        ]

    def record(self, name: str, request: Request) -> ImageRecord | None:
        """The image with a picture's id, unless it is gone."""
        record = self.world.image(str(uuid.UUID(name).int & _LOW_BITS)) if _is_uuid(name) else None
        known = record is not None and picture_id(record) == name and not is_deleted(request.scope, name)
        return record if known else None

    async def _search(self, request: Request) -> Response:
        query: dict[str, Any] = dict(request.query_params)
        if request.method == "POST":
            query = await request.json()
        limit = str(query.get("limit", USUAL_LIMIT))
        if not limit.isdigit() or not 1 <= int(limit) <= MAX_LIMIT:
            return _refusal(f"Parameter limit must be either empty or a number between 1 and {MAX_LIMIT}")
        try:
            records = self._by_id(query["ids"], request) if "ids" in query else self._in_box(query.get("bbox"), request)
        except ValueError as error:
            return _refusal(str(error))
        features = [self._feature(record, request) for record in records[: int(limit)]]
        value = {"type": "FeatureCollection", "features": features, "links": _root(request)}
        return Response(json.dumps(value), media_type="application/geo+json")

    def _by_id(self, ids: Any, request: Request) -> list[ImageRecord]:
        is_array = isinstance(ids, list) or ids.startswith("[")
        names = (ids if isinstance(ids, list) else json.loads(ids))[:1] if is_array else ids.split(",")
        if not all(map(_is_uuid, names)):
            raise ValueError("Parameter ids should be a JSON array of strings")
        records = (self.record(name, request) for name in dict.fromkeys(names))
        return [record for record in records if record is not None]

    def _in_box(self, box: Any, request: Request) -> list[ImageRecord]:
        parts = box.split(",") if isinstance(box, str) else box or []
        if len(parts) != 4:
            raise ValueError("Parameter bbox must be in format [minX, minY, maxX, maxY]")
        west, south, east, north = map(float, parts)
        if max(abs(west), abs(east)) > 180 or max(abs(south), abs(north)) > 90:
            allowed = "longitude (-180 to 180) and latitude (-90 to 90)"
            raise ValueError(f"Parameter bbox must contain valid {allowed} values")
        lat, lon = (south + north) / 2, (west + east) / 2
        records = [
            record
            for record in self.world.images_in(west, south, east, north)
            if not is_deleted(request.scope, picture_id(record))
        ]
        return sorted(records, key=lambda one: ((one.lat - lat) ** 2 + (one.lon - lon) ** 2, one.image_id))

    async def _item(self, request: Request) -> Response:
        record = self.record(request.path_params["picture"], request)
        if record is None or sequence_id(record) != request.path_params["sequence"]:
            return _missing("Item doesn't exist")
        feature = self._feature(record, request)
        feature["properties"] |= {"geovisio:status": "ready", "geovisio:visibility": "anyone"}
        return Response(json.dumps(feature), media_type="application/geo+json")

    def _feature(self, record: ImageRecord, request: Request) -> dict[str, Any]:
        name, sequence, licence = picture_id(record), sequence_id(record), licence_of(record)
        here = f"{str(request.base_url).rstrip('/')}{API}"
        files = {
            size: {"href": f"{here}/pictures/{name}/{size}.jpg", "type": "image/jpeg", "roles": ["data"]}
            for size in _SIZES
        }
        taken = datetime.fromtimestamp(record.captured_at_ms / 1000, UTC).isoformat()
        point = [round(record.lon, 7), round(record.lat, 7)]
        properties = {
            "datetime": taken,
            "datetimetz": taken,
            "created": taken,
            "updated": taken,
            "geovisio:producer": record.creator,
            "geovisio:rank_in_collection": record.slot + 1,
            "geovisio:image": files["hd"]["href"],
            "license": licence,
            "pers:interior_orientation": _orientation(record),
            "quality:horizontal_accuracy": 4.0,
            "panoramax:horizontal_pixel_density": 6 if record.is_pano else 23,
            "view:azimuth": round(record.compass_deg) % 360,
            "original_file:name": f"{record.slot}.jpg",
            "semantics": [],
            "exif": {"Exif.Image.Make": record.make, "Exif.Image.Model": record.model},
        }
        return {
            "type": "Feature",
            "stac_version": "1.0.0",
            "id": name,
            "collection": sequence,
            "geometry": {"type": "Point", "coordinates": point},
            "bbox": [*point, *point],
            "properties": properties,
            "providers": [{"id": record.creator_id, "name": record.creator, "roles": ["producer"]}],
            "assets": files,
            "links": [
                *_root(request),
                {"rel": "self", "href": f"{here}/collections/{sequence}/items/{name}", "type": "application/geo+json"},
                *(
                    []
                    if licence == "proprietary"
                    else [{"rel": "license", "href": f"https://spdx.org/licenses/{licence}"}]
                ),
            ],
        }

    async def _picture(self, request: Request) -> Response:
        name, size = request.path_params["picture"], _SIZES.get(request.path_params["size"])
        if size is None or not _is_uuid(name):
            return HTMLResponse("<!doctype html><title>404 Not Found</title><h1>Not Found</h1>", 404)
        record = self.record(name, request)
        if record is None:
            return _missing("Picture can't be found, you may check its ID")
        data = await compute_in_thread(self.host.jpeg, record, size, change_count(request.scope, name))

        async def pieces() -> Any:
            for start in range(0, len(data), _PIECE):
                yield data[start : start + _PIECE]

        # It says that it knows ranges, and answers one with the whole file.
        return StreamingResponse(pieces(), media_type="image/jpeg", headers={"accept-ranges": "bytes"})

    async def _tile(self, request: Request) -> Response:
        z, x, y = (request.path_params[axis] for axis in "zxy")
        if z > PICTURE_ZOOM:
            return _missing(f"Z parameter is out of bounds (should be 0-{PICTURE_ZOOM})")
        if x >= 1 << z or y >= 1 << z:
            return _missing("X or Y parameter is out of bounds")
        gone = partial(is_deleted, request.scope)
        data = await anyio.to_thread.run_sync(self.tile, z, x, y, gone) if z >= SEQUENCE_ZOOM else b""
        return Response(data, media_type="application/vnd.mapbox-vector-tile")

    def tile(self, z: int, x: int, y: int, gone: Callable[[str], bool] = lambda name: False) -> bytes:
        """The bytes of one tile, without the pictures that are gone; a tile without anything in it is empty."""
        from mapbox_vector_tile import encode  # brings shapely: only a request for a tile waits for it

        lines, points = [], []
        for index in self.world.places_near(*tile_box(z, x, y)):
            records = [record for record in self.world.images(index) if not gone(picture_id(record))]
            spots = [(record, tile_point(record.lat, record.lon, z, x, y)) for record in records]
            shown = [(record, spot) for record, spot in spots if all(0 <= part < EXTENT for part in spot)]
            if len(shown) > 1:
                line = {"type": "LineString", "coordinates": [spot for _, spot in shown]}
                lines.append({"geometry": line, "properties": {"id": sequence_id(shown[0][0]), **_seen(shown[0][0])}})
            if z == PICTURE_ZOOM:
                points += [
                    {"geometry": {"type": "Point", "coordinates": spot}, "properties": _shown(record)}
                    for record, spot in shown
                ]
        layers = [{"name": "sequences", "features": lines}, {"name": "pictures", "features": points}]
        layers = [layer for layer in layers if layer["features"]]
        return bytes(encode(layers, default_options={"y_coord_down": True, "extents": EXTENT})) if layers else b""


def _orientation(record: ImageRecord) -> dict[str, Any]:
    camera = {"camera_manufacturer": record.make, "camera_model": record.model}
    size = {"sensor_array_dimensions": [record.width, record.height]}
    if record.is_pano:
        return {**camera, **size, "field_of_view": 360}
    # Of a camera whose focal length is not known there is none.
    return {**camera, **size, **({"field_of_view": 69} if fraction("focal", record.sequence_id) < 0.7 else {})}


def _seen(record: ImageRecord) -> dict[str, Any]:
    kind = "equirectangular" if record.is_pano else "flat"
    return {"type": kind, "model": f"{record.make} {record.model}", "gps_accuracy": 4.0}


def _shown(record: ImageRecord) -> dict[str, Any]:
    # As PostgreSQL writes a moment.
    taken = datetime.fromtimestamp(record.captured_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S+00")
    own = {"id": picture_id(record), "ts": taken, "heading": round(record.compass_deg) % 360}
    return {**own, **_seen(record), "sequences": json.dumps([sequence_id(record)])}


def _root(request: Request) -> list[dict[str, str]]:
    here = f"{str(request.base_url).rstrip('/')}{API}/"
    return [{"rel": "root", "href": here, "title": "Instance catalog", "type": "application/json"}]


def _refusal(message: str) -> Response:
    return JSONResponse({"message": message, "status_code": 400}, 400)


def _missing(message: str) -> Response:
    return JSONResponse({"message": message, "status_code": 404}, 404)


def _is_uuid(text: Any) -> bool:
    try:
        return bool(str(uuid.UUID(text)) == text)
    except (ValueError, AttributeError, TypeError):
        return False
