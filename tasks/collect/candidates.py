"""Pictures near a place: found box by box, and put in the order in which they are tried."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from schemas.settings.collect import CollectSettings
from tasks.collect.boxes import Box, boxes_around
from tasks.geo import distance_km, is_point
from tasks.services import Mapillary, ServiceError

Kind = Literal["panorama", "photo"]
FULL_PAGE = 2000  # the service's limit: a page this long has left pictures out
MAX_SPLITS = 4  # 4^4 = 256 pieces of a box; what is denser than that is denser than anybody needs
FIELDS = (
    "id",
    "sequence",
    "captured_at",
    "geometry",
    "computed_geometry",
    "compass_angle",
    "computed_compass_angle",
    "is_pano",
    "quality_score",
    "creator",
    "width",
    "height",
    "thumb_original_url",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Candidate:
    """One picture the service has, as far as its metadata tells."""

    source_id: str
    kind: Kind
    lat: float
    lon: float
    url: str | None
    distance_m: float  # from the place it would answer
    pixels: int | None
    quality: float  # 0 to 1; 0 where the service has none
    sequence_id: str | None
    compass_angle: float | None
    creator: str | None
    captured_at: datetime | None


async def find(
    mapillary: Mapillary, lat: float, lon: float, half_size_m: float, is_pano: bool | None = None
) -> list[Candidate]:
    """Every picture in the box around a point, each once; of one kind only where `is_pano` says which."""
    rows: list[dict[str, Any]] = []
    for box in boxes_around(lat, lon, half_size_m):
        rows += await _rows(mapillary, box, is_pano, MAX_SPLITS)
    found = (read_candidate(row, lat, lon) for row in rows)
    # Boxes share edges, so a picture on one may come twice.
    return list({one.source_id: one for one in found if one is not None}.values())


async def _rows(mapillary: Mapillary, box: Box, is_pano: bool | None, splits_left: int) -> list[dict[str, Any]]:
    """The rows of a box. It is split where the service asks for it, and where a full page hides the rest."""
    rows: list[dict[str, Any]] = []
    try:
        rows = await mapillary.images_in_box(box.west, box.south, box.east, box.north, FIELDS, is_pano, FULL_PAGE)
        if len(rows) < FULL_PAGE or splits_left == 0:
            return rows
    except ServiceError as error:
        if error.kind not in ("too_big", "too_dense") or splits_left == 0:
            raise
    quarters = [await _rows(mapillary, quarter, is_pano, splits_left - 1) for quarter in box.quarters()]
    return [row for quarter in quarters for row in quarter]


def ranked(candidates: Iterable[Candidate], settings: CollectSettings) -> list[Candidate]:
    """The candidates worth trying, best first, in an order that depends on nothing but themselves."""

    def usable(one: Candidate) -> bool:
        least = settings.panorama_min_pixels if one.kind == "panorama" else settings.photo_min_pixels
        return one.pixels is None or one.pixels >= least

    def order(one: Candidate) -> tuple[bool, float, str]:
        small = one.kind == "photo" and (one.pixels or 0) < settings.photo_preferred_pixels
        return small, one.distance_m - settings.quality_bonus_m * one.quality, one.source_id

    return sorted((one for one in candidates if usable(one)), key=order)


def read_candidate(row: dict[str, Any], place_lat: float, place_lon: float) -> Candidate | None:
    """A row of the service as a candidate; None when it says no place on Earth.

    Absent values are absent keys there, and nothing promises that present ones have the right type.
    """
    point = _point(row.get("computed_geometry")) or _point(row.get("geometry"))  # computed: corrected by matching
    if point is None:
        return None
    lat, lon = point
    url, sequence, creator = row.get("thumb_original_url"), row.get("sequence"), row.get("creator")
    username = creator.get("username") if isinstance(creator, dict) else None
    angle = _number(row.get("computed_compass_angle"))
    return Candidate(
        source_id=str(row["id"]),
        kind="panorama" if row.get("is_pano") is True else "photo",
        lat=lat,
        lon=lon,
        url=url if isinstance(url, str) else None,
        distance_m=distance_km(place_lat, place_lon, lat, lon) * 1000.0,
        pixels=_pixels(row.get("width"), row.get("height")),
        quality=min(max(_number(row.get("quality_score")) or 0.0, 0.0), 1.0),
        sequence_id=sequence if isinstance(sequence, str) else None,
        compass_angle=angle if angle is not None else _number(row.get("compass_angle")),
        creator=username if isinstance(username, str) and username else None,
        captured_at=_time(row.get("captured_at")),
    )


def _point(geometry: Any) -> tuple[float, float] | None:
    pair = geometry.get("coordinates") if isinstance(geometry, dict) else None
    if not isinstance(pair, list) or len(pair) < 2:
        return None
    lon, lat = _number(pair[0]), _number(pair[1])  # GeoJSON: longitude first
    if lat is None or lon is None or not is_point(lat, lon):
        return None
    return lat, lon


def _pixels(width: Any, height: Any) -> int | None:
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        return None
    return width * height


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _time(milliseconds: Any) -> datetime | None:
    number = _number(milliseconds)
    if number is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=number)
    except OverflowError:
        return None
