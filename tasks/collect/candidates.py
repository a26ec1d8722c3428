"""One picture the image service has, as far as its metadata tells."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tasks.geo.distance import distance_km, is_point

Kind = Literal["panorama", "photo"]
FIELDS = (
    *("id", "sequence", "captured_at", "geometry", "computed_geometry", "compass_angle", "computed_compass_angle"),
    *("camera_type", "is_pano", "quality_score", "creator", "width", "height", "thumb_original_url"),
)
_SPHERES = frozenset({"spherical", "equirectangular"})  # the same camera under two names
_FLAT = frozenset({"perspective", "fisheye"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Candidate:
    """A picture near a place. Absent values are None; quality is 0 where the service has none."""

    source_id: str
    kind: Kind | None  # None: what it is is not clear, so it is not used
    lat: float
    lon: float
    found_at: tuple[float, float]  # where the camera said it was: the service searches by this
    url: str | None
    distance_m: float  # from the place it would answer
    pixels: int | None
    quality: float  # 0 to 1
    sequence_id: str | None
    compass_angle: float | None  # 0 to 360, clockwise from north: where the middle of the picture looks
    camera_type: str | None
    creator: str | None
    captured_at: datetime | None
    shift_m: float = 0.0  # between where the camera says it was and where matching puts it


def read_candidate(row: dict[str, Any], place_lat: float, place_lon: float) -> Candidate | None:
    """A row of the service as a candidate; None when it says no place on Earth.

    Absent values are absent keys there, and nothing promises that present ones have the right type.
    """
    said, corrected = _point(row.get("geometry")), _point(row.get("computed_geometry"))  # corrected by matching
    point = corrected or said
    if point is None:
        return None
    lat, lon = point
    found_at = said or point
    url, sequence, creator, camera = (
        row.get(key) for key in ("thumb_original_url", "sequence", "creator", "camera_type")
    )
    username = creator.get("username") if isinstance(creator, dict) else None
    angle = _number(row.get("computed_compass_angle"))
    angle = angle if angle is not None else _number(row.get("compass_angle"))
    return Candidate(
        source_id=str(row["id"]),
        kind=kind_of(row.get("is_pano"), camera),
        lat=lat,
        lon=lon,
        found_at=found_at,
        url=url if isinstance(url, str) else None,
        distance_m=distance_km(place_lat, place_lon, lat, lon) * 1000.0,
        pixels=_pixels(row.get("width"), row.get("height")),
        quality=min(max(_number(row.get("quality_score")) or 0.0, 0.0), 1.0),
        sequence_id=sequence if isinstance(sequence, str) else None,
        compass_angle=None if angle is None else angle % 360.0 % 360.0,  # twice: -1e-20 % 360 is 360 itself
        camera_type=camera if isinstance(camera, str) else None,
        creator=username if isinstance(username, str) and username else None,
        captured_at=_time(row.get("captured_at")),
        shift_m=distance_km(*found_at, lat, lon) * 1000.0,
    )


def kind_of(is_pano: Any, camera_type: Any) -> Kind | None:
    """What a picture is; None when its two fields contradict each other, or neither says it."""
    camera_type = camera_type if isinstance(camera_type, str) else None
    if camera_type in _SPHERES:
        return None if is_pano is False else "panorama"
    if camera_type in _FLAT:
        return None if is_pano is True else "photo"
    # Not known is not False: a sphere taken for a flat picture would go to models as one.
    if is_pano is True:
        return "panorama"
    return "photo" if is_pano is False else None


def _point(geometry: Any) -> tuple[float, float] | None:
    pair = geometry.get("coordinates") if isinstance(geometry, dict) else None
    if not isinstance(pair, list) or len(pair) < 2:
        return None
    lon, lat = _number(pair[0]), _number(pair[1])  # GeoJSON: longitude first
    if lat is None or lon is None or not is_point(lat, lon):
        return None
    # 0, 0 is what a position that is not known is written as; there is no street within 500 km of it.
    return (lat, lon) if lat or lon else None


def _pixels(width: Any, height: Any) -> int | None:
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        return None
    return width * height


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON knows whole numbers of any length
        return None
    return number if math.isfinite(number) else None


def _time(milliseconds: Any) -> datetime | None:
    number = _number(milliseconds)
    if number is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=number)
    except OverflowError:
        return None
