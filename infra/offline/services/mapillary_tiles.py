"""Mapillary's vector tiles at zoom 14: the sequences and images of a tile."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.offline.fault_layer import is_deleted
from infra.offline.seeded_random import fraction
from infra.offline.services.mapillary import Mapillary, bad_parameter
from infra.offline.world import ImageRecord, World

EXTENT = 4096
IMAGE_ZOOM = 14
_TYPE = "application/x-protobuf"
_PATH = "/mapillary-tiles/maps/vtp/mly1_public/2/{z:int}/{x:int}/{y:int}"


class MapillaryTiles:
    """The tile host over a world."""

    def __init__(self, world: World, graph: Mapillary) -> None:
        self.world, self.graph = world, graph

    def routes(self) -> list[Route]:
        """The routes to mount."""
        endpoint = self.graph.guard("tile", self._tile, slow=True)
        return [Route(_PATH, endpoint), Route(f"{_PATH}/", endpoint)]

    def _tile(self, request: Request) -> Response:
        z, x, y = (request.path_params[axis] for axis in "zxy")
        if z != IMAGE_ZOOM or x >= 1 << z or y >= 1 << z:
            raise bad_parameter("Tile coordinates are out of range")
        return Response(self.tile(x, y, partial(is_deleted, request.scope)), media_type=_TYPE)

    def tile(self, x: int, y: int, gone: Callable[[str], bool] = lambda image_id: False) -> bytes:
        """The bytes of one tile, without the images that are gone; a tile without anything in it is empty."""
        from mapbox_vector_tile import encode  # brings shapely: only a request for a tile waits for it

        places = self.world.places_near(*tile_box(IMAGE_ZOOM, x, y))
        sequences = [[one for one in self.world.images(index) if not gone(one.image_id)] for index in places]
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
    whole = {"type": "LineString", "coordinates": lines[0]}
    geometry = whole if len(lines) == 1 else {"type": "MultiLineString", "coordinates": lines}
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
