"""Mapillary's objects: detections in an image, and map features made of them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.routing import Match, Route

from infra.offline import ids
from infra.offline.seeded_random import key_of
from infra.offline.services import mapillary_errors as errors
from infra.offline.services.mapillary import MAX_AREA_DEG2, MAX_LIMIT, Mapillary, box_of
from infra.offline.world import ImageRecord, World

FIRST_SLOT = 32  # slots below are images: a feature's id can be read back like an image's
_EXTENT = 4096


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
    from infra.offline.render.objects import standing

    images = world.images(index)
    return [
        MapFeature(ids.image_id(world.seed, index, FIRST_SLOT + k), thing.value, thing.lat, thing.lon, images)
        for k, thing in enumerate(standing(world, index))
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
        from infra.offline.render.objects import detections

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
            raise errors.box_too_big((east - west) * (north - south))
        wanted = {value for value in query.get("object_values", "").split(",") if value}
        limit = query.get("limit", str(MAX_LIMIT))
        if not limit.isdigit() or not 1 <= int(limit) <= MAX_LIMIT:
            raise errors.bad_parameter(f"Param limit must be an integer between 1 and {MAX_LIMIT}")
        found = features_in(self.world, west, south, east, north)
        found = [feature for feature in found if not wanted or feature.value in wanted]
        return {"data": [_chosen(_feature_row(feature), request) for feature in found[: int(limit)]]}

    def _one_feature(self, request: Request) -> dict[str, Any]:
        feature_id = request.path_params["feature_id"]
        place, _ = ids.read_image_id(self.world.seed, feature_id) or (-1, -1)
        known = features_of(self.world, place) if 0 <= place < self.world.size else []
        for feature in known:
            if feature.feature_id == feature_id:
                return _chosen(_feature_row(feature), request)
        raise errors.unknown_object(feature_id)


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
            raise errors.bad_parameter(f"Tried accessing nonexisting field ({name})")
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
