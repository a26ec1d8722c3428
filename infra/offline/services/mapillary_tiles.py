"""Mapillary's vector tiles: overview, sequences and images, and the tiles of map features, as Mapbox vector tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.offline.fault_layer import is_deleted
from infra.offline.seeded_random import fraction
from infra.offline.services import mapillary_errors as errors
from infra.offline.services.mapillary import Mapillary, organization_of
from infra.offline.services.mapillary_objects import features_in
from infra.offline.world import ImageRecord, World

EXTENT = 4096
OVERVIEW_ZOOMS, SEQUENCE_ZOOMS, IMAGE_ZOOM = range(0, 6), range(6, 15), 14
LINE_ZOOM = 12  # from here on a sequence is longer than a unit of the tile
MOST_POINTS, MOST_LINES = 2000, 3000
SETS = ("mly1_public", "mly1_computed_public", "mly_map_feature_point", "mly_map_feature_traffic_sign")
_TYPE = "application/x-protobuf"
_PATH = "/mapillary-tiles/maps/vtp/{name}/2/{z}/{x}/{y}"


class MapillaryTiles:
    """The tile host over a world."""

    def __init__(self, world: World, graph: Mapillary) -> None:
        self.world, self.graph = world, graph

    def routes(self) -> list[Route]:
        """The routes to mount."""
        endpoint = self.graph.guard("tile", self._tile, slow=True)
        return [Route(_PATH, endpoint), Route(f"{_PATH}/", endpoint)]

    def _tile(self, request: Request) -> Response:
        given = request.path_params
        name = given["name"]
        if name not in SETS or not all(given[axis].isdigit() for axis in "zxy"):
            return Response("Not Found", 404, media_type="text/plain")
        z, x, y = (int(given[axis]) for axis in "zxy")
        if z > IMAGE_ZOOM or x >= 1 << z or y >= 1 << z:
            raise errors.bad_parameter("Tile coordinates are out of range")
        return Response(self.tile(name, z, x, y, partial(is_deleted, request.scope)), media_type=_TYPE)

    def tile(self, name: str, z: int, x: int, y: int, gone: Callable[[str], bool] = lambda image_id: False) -> bytes:
        """The bytes of one tile, without the images that are gone; a tile without anything in it is empty."""
        from mapbox_vector_tile import encode  # brings shapely: only who asks for tiles waits for it

        if name.startswith("mly1"):
            layers = self._image_layers(z, x, y, name == "mly1_computed_public", gone)
        else:
            layers = self._feature_layers(name, z, x, y)
        layers = [layer for layer in layers if layer["features"]]
        return bytes(encode(layers, default_options={"y_coord_down": True, "extents": EXTENT})) if layers else b""

    def _image_layers(
        self, z: int, x: int, y: int, computed: bool, gone: Callable[[str], bool]
    ) -> list[dict[str, Any]]:
        box = tile_box(z, x, y)
        if z in OVERVIEW_ZOOMS:
            records = [self.world.first_image(i) for i in self.world.places_of_cities_in(*box)[:MOST_POINTS]]
            records = [record for record in records if not gone(record.image_id)]
            return [{"name": "overview", "features": _points(records, z, x, y, computed, _overview)}]
        if z < LINE_ZOOM:
            chosen = self.world.places_of_cities_in(*box)[:MOST_LINES]
            sequences: list[tuple[ImageRecord, ...]] = [(self.world.first_image(index),) for index in chosen]
        else:
            sequences = [self.world.images(index) for index in self.world.places_near(*box)]
        kept = (tuple(record for record in images if not gone(record.image_id)) for images in sequences)
        sequences = [images for images in kept if images]
        lines = [line for images in sequences for line in _lines(images, z, x, y, computed)]
        layers = [{"name": "sequence", "features": lines}]
        if z == IMAGE_ZOOM:
            records = [record for images in sequences for record in images]
            layers.append({"name": "image", "features": _points(records, z, x, y, computed, _image)})
        return layers

    def _feature_layers(self, name: str, z: int, x: int, y: int) -> list[dict[str, Any]]:
        if z != IMAGE_ZOOM:
            return []
        signs = name == "mly_map_feature_traffic_sign"
        rows = []
        for feature in features_in(self.world, *tile_box(z, x, y)):
            if ("traffic-sign" in feature.value) != signs:
                continue
            shown = {
                "id": int(feature.feature_id),
                "value": feature.value,
                "first_seen_at": feature.first_seen_at_ms,
                "last_seen_at": feature.last_seen_at_ms,
            }
            point = tile_point(feature.lat, feature.lon, z, x, y)
            rows.append({"geometry": {"type": "Point", "coordinates": point}, "properties": shown})
        return [{"name": "traffic_sign" if signs else "point", "features": rows}]


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


def _position(record: ImageRecord, computed: bool) -> tuple[float, float] | None:
    if not computed:
        return record.lat, record.lon
    if record.computed_lat is None or record.computed_lon is None:
        return None
    return record.computed_lat, record.computed_lon


def _on_tile(point: tuple[int, int]) -> bool:
    return 0 <= point[0] < EXTENT and 0 <= point[1] < EXTENT


def _points(records: list[ImageRecord], z: int, x: int, y: int, computed: bool, shown: Any) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        at = _position(record, computed)
        point = tile_point(*at, z, x, y) if at is not None else (-1, -1)
        if _on_tile(point):
            rows.append({"geometry": {"type": "Point", "coordinates": point}, "properties": shown(record)})
    return rows


def _lines(images: tuple[ImageRecord, ...], z: int, x: int, y: int, computed: bool) -> list[dict[str, Any]]:
    """One feature for a sequence, if any of it lies on the tile: a line, or several where the camera was paused."""
    parts: list[list[tuple[int, int]]] = [[]]
    paused = len(images) > 4 and fraction("paused", images[0].sequence_id) < 0.25
    for k, record in enumerate(images):
        at = _position(record, computed)
        point = tile_point(*at, z, x, y) if at is not None else None
        if (paused and k == len(images) // 2) or point is None or not _on_tile(point):
            parts.append([])
        if point is not None and _on_tile(point) and (not parts[-1] or parts[-1][-1] != point):
            parts[-1].append(point)
    # A line has two ends: what is shorter than a unit is drawn one unit long.
    lines = [part if len(part) > 1 else [part[0], (part[0][0] + 1, part[0][1])] for part in parts if part]
    if not lines:
        return []
    geometry = (
        {"type": "LineString", "coordinates": lines[0]}
        if len(lines) == 1
        else {"type": "MultiLineString", "coordinates": lines}
    )
    first = images[0]
    shown = {
        "id": first.sequence_id,
        "image_id": int(first.image_id),
        "captured_at": first.captured_at_ms,
        "is_pano": first.is_pano,
    }
    return [{"geometry": geometry, "properties": shown | _organization(first)}]


def _overview(record: ImageRecord) -> dict[str, Any]:
    return {
        "id": int(record.image_id),
        "sequence_id": record.sequence_id,
        "captured_at": record.captured_at_ms,
        "is_pano": record.is_pano,
    }


def _image(record: ImageRecord) -> dict[str, Any]:
    return _overview(record) | {"compass_angle": record.compass_deg} | _organization(record)


def _organization(record: ImageRecord) -> dict[str, Any]:
    number = organization_of(record)
    return {} if number is None else {"organization_id": number}
