"""Mapillary's detections and map features, and its vector tiles: overview, sequences, images and map features."""

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from infra.offline import ids
from infra.offline.fault_layer import is_deleted
from infra.offline.render.objects import detections, street_objects
from infra.offline.seeded_random import fraction, key_of
from infra.offline.services.mapillary import (
    MAX_AREA_DEG2,
    Mapillary,
    bad_parameter,
    box_of,
    box_too_big,
    limit_of,
    organization_of,
    unknown_object,
)
from infra.offline.world import ImageRecord, World

FIRST_SLOT = 32  # slots below are images: a feature's id can be read back like an image's
_EXTENT = 4096
EXTENT = 4096
OVERVIEW_ZOOMS, IMAGE_ZOOM = range(0, 6), 14
LINE_ZOOM = 12  # from here on a sequence is longer than a unit of the tile
MOST_POINTS, MOST_LINES = 2000, 3000
SETS = ("mly1_public", "mly1_computed_public", "mly_map_feature_point", "mly_map_feature_traffic_sign")
_TYPE = "application/x-protobuf"
_PATH = "/mapillary-tiles/maps/vtp/{name}/2/{z}/{x}/{y}"


@dataclass(frozen=True)
class MapFeature:
    """Something that stands at a street and was seen in its images."""

    feature_id: str
    value: str
    lat: float
    lon: float
    images: tuple[ImageRecord, ...]

    @property
    def first_seen_at_ms(self) -> int:
        """When the first of its images was taken."""
        return self.images[0].captured_at_ms

    @property
    def last_seen_at_ms(self) -> int:
        """When the last of its images was taken."""
        return self.images[-1].captured_at_ms


def features_of(world: World, index: int) -> list[MapFeature]:
    """The map features of a place."""
    images = world.images(index)
    return [
        MapFeature(ids.image_id(world.seed, index, FIRST_SLOT + k), thing.value, thing.lat, thing.lon, images)
        for k, thing in enumerate(street_objects(world, index))
    ]


def features_in(world: World, west: float, south: float, east: float, north: float) -> list[MapFeature]:
    """The map features in a box."""
    return [
        feature
        for index in world.places_near(west, south, east, north)
        for feature in features_of(world, index)
        if south <= feature.lat <= north and west <= feature.lon <= east
    ]


class MapillaryObjects:
    """Detections and map features over a world; mount before the images, whose route would take theirs."""

    def __init__(self, world: World, graph: Mapillary) -> None:
        self.world, self.graph = world, graph

    def routes(self) -> list[Route]:
        """The routes to mount."""
        features = self.graph.guard("search", self._map_features, slow=True)
        detected = self.graph.guard("entity", self._detections, slow=True)
        one = self.graph.guard("entity", self._one_feature, slow=True)
        routes = [Route("/mapillary/map_features", features)]
        for end in ("", "/"):
            routes.append(Route(f"/mapillary/{{image_id}}/detections{end}", detected))
            # Only ids of features are taken here; all others are images.
            routes.append(_FeatureRoute(self.world, f"/mapillary/{{feature_id}}{end}", one))
        return routes

    def _detections(self, request: Request) -> dict[str, Any]:
        record = self.graph.record(request.path_params["image_id"], request)
        rows = []
        for k, found in enumerate(detections(self.world, record)):
            rows.append({
                "id": str(10**17 + key_of("detection", record.image_id, k) % 2**56),
                # Upstream writes these moments as ISO text, unlike captured_at.
                "created_at": _iso(record.captured_at_ms + 86_400_000),
                "geometry": _outline(found.box),
                "image": _image_row(record),
                "value": found.value,
            })  # fmt: skip
        return {"data": [_chosen(row, request) for row in rows]}

    def _map_features(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        west, south, east, north = box_of(query)
        if (east - west) * (north - south) > MAX_AREA_DEG2 * (1 + 1e-9):
            raise box_too_big((east - west) * (north - south))
        wanted = {value for value in query.get("object_values", "").split(",") if value}
        limit = limit_of(query)
        found = features_in(self.world, west, south, east, north)
        found = [feature for feature in found if not wanted or feature.value in wanted]
        return {"data": [_chosen(_feature_row(feature), request) for feature in found[:limit]]}

    def _one_feature(self, request: Request) -> dict[str, Any]:
        feature_id = request.path_params["feature_id"]
        place, _ = ids.read_image_id(self.world.seed, feature_id) or (-1, -1)
        known = features_of(self.world, place) if 0 <= place < self.world.size else []
        for feature in known:
            if feature.feature_id == feature_id:
                return _chosen(_feature_row(feature), request)
        raise unknown_object(feature_id)


class _FeatureRoute(Route):
    """A route that takes only ids of map features."""

    def __init__(self, world: World, path: str, endpoint: Callable[[Request], Any]) -> None:
        super().__init__(path, endpoint)
        self._seed = world.seed

    def matches(self, scope: Any) -> Any:
        """As any route, but no match for the id of an image."""
        match, child = super().matches(scope)
        if match is not Match.NONE:
            found = ids.read_image_id(self._seed, child["path_params"]["feature_id"])
            if found is None or found[1] < FIRST_SLOT:
                return Match.NONE, {}
        return match, child


def _feature_row(feature: MapFeature) -> dict[str, Any]:
    return {
        "id": feature.feature_id,
        "first_seen_at": _iso(feature.first_seen_at_ms),
        "last_seen_at": _iso(feature.last_seen_at_ms),
        "object_value": feature.value,
        "object_type": "traffic_sign" if "traffic-sign" in feature.value else "point",
        "geometry": {"type": "Point", "coordinates": [feature.lon, feature.lat]},
        "images": {
            "data": [_image_row(record) for record in feature.images],
        },
    }


def _image_row(record: ImageRecord) -> dict[str, Any]:
    return {"id": record.image_id, "geometry": {"type": "Point", "coordinates": [record.lon, record.lat]}}


def _chosen(row: dict[str, Any], request: Request) -> dict[str, Any]:
    asked = [name.strip() for name in request.query_params.get("fields", "id").split(",") if name.strip()]
    for name in asked:
        if name not in row:
            raise bad_parameter(f"Tried accessing nonexisting field ({name})")
    return {name: row[name] for name in (*asked, "id")}


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")


def _outline(box: tuple[float, float, float, float]) -> str:
    """The box as upstream sends outlines: a base64 vector tile that spans the picture."""
    from mapbox_vector_tile import encode

    left, top, right, bottom = (round(part * _EXTENT) for part in box)
    ring = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    layer = {"name": "mpy-or", "features": [{"geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": {}}]}
    tile = encode([layer], default_options={"y_coord_down": True, "extents": _EXTENT})
    return base64.b64encode(tile).decode()


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
            raise bad_parameter("Tile coordinates are out of range")
        return Response(self.tile(name, z, x, y, partial(is_deleted, request.scope)), media_type=_TYPE)

    def tile(self, name: str, z: int, x: int, y: int, gone: Callable[[str], bool] = lambda image_id: False) -> bytes:
        """The bytes of one tile, without the images that are gone; a tile without anything in it is empty."""
        from mapbox_vector_tile import encode  # brings shapely: only a request for a tile waits for it

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
