"""Mapillary Graph API v4 (one image, images of a box, of a list of ids, the errors real clients have recorded) and its
vector tiles at zoom 14, with the sequences and images of a tile."""

import itertools
import json
import math
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.offline.fault_layer import clock, is_deleted
from infra.offline.seeded_random import fraction, key_of
from infra.offline.services.image_host import ImageHost
from infra.offline.world import ImageRecord, World

_traces = itertools.count()
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
TOKEN = "MLY|1000000000000001|0ff11e0ff11e0ff11e0ff11e0ff11e00"  # public: it opens only this world
_TOKEN_SHAPE = re.compile(r"MLY\|\d+\|[0-9a-f]{32}")
MAX_AREA_DEG2 = 0.01
MAX_LIMIT = 2000
MAX_IDS = 50
EXTENT = 4096  # units of a tile
IMAGE_ZOOM = 14
_TILE_PATH = "/mapillary-tiles/maps/vtp/mly1_public/2/{z:int}/{x:int}/{y:int}"
_SIZES = ("256", "1024", "2048", "original")
# Known upstream, but this world has no models of its streets: absent, as upstream where none was made.
_NEVER_THERE = ("mesh", "sfm_cluster")


class GraphError(Exception):
    """An error answer on its way out."""

    def __init__(
        self, status: int, message: str, kind: str | None = None, code: int | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.more = status, message, kind, code, more

    def response(self) -> Response:
        """The HTTP answer."""
        number = key_of("trace", next(_traces))
        trace = "A" + "".join(_ALPHABET[(number >> (6 * i)) & 63] for i in range(20))
        error: dict[str, Any] = {"message": self.message}
        if self.kind is not None:
            error["type"] = self.kind
        if self.code is not None:
            error["code"] = self.code
        error |= self.more
        error["fbtrace_id"] = trace
        return Response(json.dumps({"error": error}), self.status, media_type="application/json")


def unknown_object(image_id: str) -> GraphError:
    """No image has this id: 400, not 404."""
    text = (
        f"Unsupported get request. Object with ID '{image_id}' does not exist, cannot be loaded due to missing "
        "permissions, or does not support this operation"
    )
    return GraphError(400, text, "MLYApiException", 100, error_subcode=33)


def bad_parameter(text: str) -> GraphError:
    """A parameter that cannot be read."""
    return GraphError(400, f"(#100) {text}", "MLYApiException", 100)


@dataclass(frozen=True)
class Limits:
    """Where the API starts to refuse. The crowd limits are scaled to this world, which is thinner than the real one."""

    entity_per_minute: int = 60_000
    search_per_minute: int = 10_000
    tiles_per_day: int = 50_000
    crowd: int = 30  # more images than this in a box, and some are silently left out
    dense: int = 60  # more than this, and the box is refused

    def of(self, kind: str) -> tuple[float, int]:
        """(seconds, requests allowed in them) for a kind of request: "entity", "search" or "tile"."""
        if kind == "tile":
            return 86_400.0, self.tiles_per_day
        return 60.0, self.search_per_minute if kind == "search" else self.entity_per_minute


class Mapillary:
    """The Graph API over a world."""

    def __init__(
        self, world: World, host: ImageHost, limits: Limits, tokens: frozenset[str] = frozenset((TOKEN,))
    ) -> None:
        self.world, self.host, self.limits, self.tokens = world, host, limits, tokens
        self._recent: dict[str, deque[float]] = {"entity": deque(), "search": deque(), "tile": deque()}

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [
            Route("/mapillary/images", self.guard("search", self._images)),
            Route("/mapillary/", self.guard("entity", self._many)),
            Route("/mapillary/{image_id}", self.guard("entity", self._one)),
            Route("/mapillary/{image_id}/", self.guard("entity", self._one)),  # the official client writes the slash
        ]

    def guard(self, kind: str, answer: Callable[[Request], Any], slow: bool = False) -> Callable[[Request], Any]:
        """The endpoint behind token check and rate limit; a `slow` answer is made in a thread of its own."""

        async def endpoint(request: Request) -> Response:
            try:
                self._check_token(request)
                self._check_rate(kind)
                body = await anyio.to_thread.run_sync(answer, request) if slow else answer(request)
            except GraphError as error:
                return error.response()
            return body if isinstance(body, Response) else Response(json.dumps(body), media_type="application/json")

        return endpoint

    def _check_token(self, request: Request) -> None:
        header = request.headers.get("authorization", "")
        in_header = header.partition(" ")[0].lower() in ("oauth", "bearer")
        token = header.partition(" ")[2].strip() if in_header else request.query_params.get("access_token", "")
        if not token:
            raise GraphError(500, "Invalid OAuth 2.0 Access Token", "MLYApiException", 190)  # 500, not 401
        if not _TOKEN_SHAPE.fullmatch(token):
            raise GraphError(401, "Failed to decode", "OAuthException", 190)
        if token not in self.tokens:
            status = 401 if in_header else 400  # of a token that no application owns, depending on where it was given
            raise GraphError(status, "Error validating application", "OAuthException", 190)

    def _check_rate(self, kind: str) -> None:
        recent, now = self._recent[kind], time.monotonic()
        window_s, most = self.limits.of(kind)
        while recent and recent[0] < now - window_s:
            recent.popleft()
        if len(recent) >= most:
            # 403, not 429.
            raise GraphError(403, "Application request limit reached", "MLYApiException", 4, is_transient=True)
        recent.append(now)

    def _one(self, request: Request) -> dict[str, Any]:
        image_id = request.path_params["image_id"]
        return self._fields(self.record(image_id, request), request)

    def record(self, image_id: str, request: Request) -> ImageRecord:
        """The image with an id; the API's own error when there is none."""
        record = self.world.image(image_id)
        if record is None or is_deleted(request.scope, image_id):
            raise unknown_object(image_id)
        return record

    def _many(self, request: Request) -> dict[str, Any]:
        wanted = [text for text in request.query_params.get("ids", "").split(",") if text]
        if not wanted:
            raise bad_parameter("The parameter ids is required")
        if len(wanted) > MAX_IDS:
            raise bad_parameter(f"Too many IDs. Maximum: {MAX_IDS}. Provided: {len(wanted)}")
        return {image_id: self._fields(self.record(image_id, request), request) for image_id in wanted}

    def _images(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        limit = _limit_of(query)
        records = self._in_box(*_box_of(query))
        if "is_pano" in query:
            wanted = query["is_pano"].lower() in ("true", "1")
            records = [record for record in records if record.is_pano == wanted]
        records = [record for record in records if not is_deleted(request.scope, record.image_id)]
        return {"data": [self._fields(record, request) for record in records[:limit]]}

    def _in_box(self, west: float, south: float, east: float, north: float) -> list[ImageRecord]:
        area = (east - west) * (north - south)
        if area > MAX_AREA_DEG2 * (1 + 1e-9):
            text = f"Bounding box area is too large. Maximum allowed area is 0.010 square degrees, but got {area:.3f}"
            raise GraphError(500, text)
        records = self.world.images_in(west, south, east, north)
        if len(records) > self.limits.dense:
            # Whatever the limit and the fields of the request.
            text = "Please reduce the amount of data you're asking for, then retry your request"
            raise GraphError(500, text, code=1)
        if len(records) > self.limits.crowd:
            # As the real service: a crowded box comes back thinner, with no word about it.
            share = (self.limits.crowd / len(records)) ** 0.5
            records = [record for record in records if fraction("thinned", record.image_id) < share]
        # Upstream promises no order; a scrambled one keeps clients from relying on ours.
        return sorted(records, key=lambda record: key_of("order", record.image_id))

    def _fields(self, record: ImageRecord, request: Request) -> dict[str, Any]:
        """Only the requested fields, and of those only what exists: an absent value is left out, never null."""
        names = [name.strip() for name in request.query_params.get("fields", "id").split(",") if name.strip()]
        expired = "expired_url" in request.scope.get("faults", ())
        shown: dict[str, Any] = {}
        for name in names:
            value = self._value(record, name, request, expired)
            if value is not None:
                shown[name] = value
        return shown | {"id": record.image_id}

    def _value(self, record: ImageRecord, name: str, request: Request, expired: bool) -> Any:
        if name.startswith("thumb_") and name.endswith("_url") and name[6:-4] in _SIZES:
            now = clock(request.scope)
            return self.host.signed_url(str(request.base_url), record.image_id, name[6:-4], now, expired)
        if name in _NEVER_THERE:
            return None
        if name not in _FIELDS:
            raise bad_parameter(f"Tried accessing nonexisting field ({name})")
        return _FIELDS[name](record)


def _point(lat: float | None, lon: float | None) -> dict[str, Any] | None:
    return None if lat is None else {"type": "Point", "coordinates": [lon, lat]}


def _rotation(compass_deg: float) -> list[float]:
    """The turn of an upright camera as an axis times an angle: a quarter turn down, then around to the compass."""
    half = math.radians(compass_deg) / 2
    turn, axis = 2 * math.acos(math.cos(half) * math.sqrt(0.5)), (math.cos(half), math.sin(half), math.sin(half))
    length = math.sqrt(sum(part * part for part in axis))
    return [round(turn * part / length, 9) for part in axis]


_FIELDS: dict[str, Callable[[ImageRecord], Any]] = {
    "id": lambda r: r.image_id,
    "sequence": lambda r: r.sequence_id,
    "captured_at": lambda r: r.captured_at_ms,
    "geometry": lambda r: _point(r.lat, r.lon),
    "computed_geometry": lambda r: _point(r.computed_lat, r.computed_lon),
    "compass_angle": lambda r: r.compass_deg,
    "computed_compass_angle": lambda r: None if r.computed_lat is None else round((r.compass_deg + 0.7) % 360.0, 8),
    "altitude": lambda r: r.altitude_m,
    "computed_altitude": lambda r: None if r.computed_lat is None else round(r.altitude_m * 0.02 + 1.9, 6),
    "atomic_scale": lambda r: None if r.computed_lat is None else round(0.9 + 0.2 * fraction("scale", r.image_id), 9),
    "computed_rotation": lambda r: None if r.computed_lat is None else _rotation(r.compass_deg),
    "camera_parameters": lambda r: None if r.is_pano else [0.688, 0.0, 0.0],  # focal length over width, distortion
    "quality_score": lambda r: r.quality,
    "camera_type": lambda r: "equirectangular" if r.is_pano else "perspective",
    "is_pano": lambda r: r.is_pano,
    "creator": lambda r: {"username": r.creator, "id": r.creator_id},
    "make": lambda r: r.make,
    "model": lambda r: r.model,
    "width": lambda r: r.width,
    "height": lambda r: r.height,
    "exif_orientation": lambda r: 1,
    # Upstream serialises this 64-bit number as a float; so do we.
    "merge_cc": lambda r: None if r.computed_lat is None else float(f"{1e18 + 8e18 * fraction(r.sequence_id):.4g}"),
}


def _limit_of(query: Any) -> int:
    text = query.get("limit", str(MAX_LIMIT))
    if not text.isdigit() or not 1 <= int(text) <= MAX_LIMIT:
        raise bad_parameter(f"Param limit must be an integer between 1 and {MAX_LIMIT}")
    return int(text)


def _box_of(query: Any) -> tuple[float, float, float, float]:
    """(west, south, east, north) of a query."""
    if "bbox" not in query:
        raise bad_parameter("The parameter bbox is required")
    try:
        west, south, east, north = (float(part) for part in query["bbox"].split(","))
    except ValueError:
        west = east = south = north = float("nan")
    if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
        raise bad_parameter("Param bbox must be west,south,east,north")
    return west, south, east, north


class MapillaryTiles:
    """The tile host over a world."""

    def __init__(self, world: World, graph: Mapillary) -> None:
        self.world, self.graph = world, graph

    def routes(self) -> list[Route]:
        """The routes to mount."""
        endpoint = self.graph.guard("tile", self._tile, slow=True)
        return [Route(_TILE_PATH, endpoint), Route(f"{_TILE_PATH}/", endpoint)]

    def _tile(self, request: Request) -> Response:
        z, x, y = (request.path_params[axis] for axis in "zxy")
        if z != IMAGE_ZOOM or x >= 1 << z or y >= 1 << z:
            raise bad_parameter("Tile coordinates are out of range")
        return Response(self.tile(x, y, partial(is_deleted, request.scope)), media_type="application/x-protobuf")

    def tile(self, x: int, y: int, gone: Callable[[str], bool] = lambda image_id: False) -> bytes:
        """The bytes of one tile, without the images that are gone; a tile without anything in it is empty."""
        from mapbox_vector_tile import encode  # brings shapely: only a request for a tile waits for it

        places = self.world.places_near(*tile_box(IMAGE_ZOOM, x, y))
        sequences = [[record for record in self.world.images(index) if not gone(record.image_id)] for index in places]
        lines = [line for images in sequences if images for line in _line(images, x, y)]
        points = [
            {"geometry": {"type": "Point", "coordinates": point}, "properties": _image(record)}
            for images in sequences
            for record in images
            if (point := _on_tile(record, x, y)) is not None
        ]
        layers = [{"name": "sequence", "features": lines}, {"name": "image", "features": points}]
        layers = [layer for layer in layers if layer["features"]]
        return bytes(encode(layers, default_options={"y_coord_down": True, "extents": EXTENT})) if layers else b""


def tile_box(z: int, x: int, y: int) -> tuple[float, float, float, float]:
    """(west, south, east, north) of a tile of the web's map grid."""
    side = 1 << z

    def north_of(row: int) -> float:
        return math.degrees(math.atan(math.sinh(math.pi * (1 - 2 * row / side))))

    return x / side * 360 - 180, north_of(y + 1), (x + 1) / side * 360 - 180, north_of(y)


def tile_point(lat: float, lon: float, z: int, x: int, y: int) -> tuple[int, int]:
    """Whole tile units from the tile's north-west corner; outside [0, EXTENT) the point is not on the tile."""
    side = 1 << z
    across = (lon + 180) / 360 * side - x
    high = math.radians(max(-85.0511, min(85.0511, lat)))
    down = (1 - math.asinh(math.tan(high)) / math.pi) / 2 * side - y
    return math.floor(across * EXTENT), math.floor(down * EXTENT)


def _on_tile(record: ImageRecord, x: int, y: int) -> tuple[int, int] | None:
    point = tile_point(record.lat, record.lon, IMAGE_ZOOM, x, y)
    return point if all(0 <= part < EXTENT for part in point) else None


def _line(images: list[ImageRecord], x: int, y: int) -> list[dict[str, Any]]:
    """One feature for a sequence, if any of it lies on the tile: a line, or several where the camera was paused."""
    parts: list[list[tuple[int, int]]] = [[]]
    paused = len(images) > 4 and fraction("paused", images[0].sequence_id) < 0.25
    for k, record in enumerate(images):
        point = _on_tile(record, x, y)
        if (paused and k == len(images) // 2) or point is None:
            parts.append([])
        if point is not None and (not parts[-1] or parts[-1][-1] != point):
            parts[-1].append(point)
    # A line has two ends: what is shorter than a unit is drawn one unit long.
    lines = [part if len(part) > 1 else [part[0], (part[0][0] + 1, part[0][1])] for part in parts if part]
    if not lines:
        return []
    line_geometry = {"type": "LineString", "coordinates": lines[0]}
    geometry = line_geometry if len(lines) == 1 else {"type": "MultiLineString", "coordinates": lines}
    first = images[0]
    shown = {"id": first.sequence_id, "image_id": int(first.image_id), "captured_at": first.captured_at_ms}
    return [{"geometry": geometry, "properties": {**shown, "is_pano": first.is_pano, **_organization(first)}}]


def _image(record: ImageRecord) -> dict[str, Any]:
    return {
        "id": int(record.image_id),
        "sequence_id": record.sequence_id,
        "captured_at": record.captured_at_ms,
        "is_pano": record.is_pano,
        "compass_angle": record.compass_deg,
        **_organization(record),
    }


def _organization(record: ImageRecord) -> dict[str, int]:
    """The organization an image was given under; most were given under none."""
    share = fraction("organization", record.creator)
    return {"organization_id": 10**14 + int(share * 1e12)} if share < 0.25 else {}
