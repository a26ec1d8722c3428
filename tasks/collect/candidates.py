"""One picture a provider has, as far as its metadata tells, and how far it lies from a place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from tasks.geo.distance import distance_km, is_point

Kind = Literal["panorama", "photo"]
Point = tuple[float, float]  # latitude, longitude


@dataclass(frozen=True)
class PictureRecord:
    """A picture as its provider describes it. Absent values are None; quality is 0 where the provider has none."""

    source: str  # the provider's name
    source_id: str  # empty: the record has no sound id
    kind: Kind | None  # None: what it is is not clear, so it is not used
    point: Point | None = None  # None: it says no place on Earth
    found_at: Point | None = None  # the position that the camera wrote: the provider searches by this
    url: str | None = None
    pixels: int | None = None
    quality: float = 0.0  # 0 to 1
    sequence_id: str | None = None
    compass_angle: float | None = None  # 0 to 360, clockwise from north: where the middle of the picture looks
    camera_type: str | None = None
    creator: str | None = None
    captured_at: datetime | None = None
    licence: str | None = None  # None: nothing allows its use, so it is not used
    platform: str = ""  # as credits name the provider
    more: Mapping[str, Any] = field(default_factory=dict)  # what else goes into `metadata_json`

    @property
    def key(self) -> str:
        """A name for the picture among those of all providers."""
        return key_of(self.source, self.source_id)


def key_of(source: str, source_id: str) -> str:
    """A name for a picture among those of all providers."""
    return f"{source}/{source_id}"


@dataclass(frozen=True, kw_only=True)
class Candidate(PictureRecord):
    """A picture near a place."""

    lat: float
    lon: float
    found_at: Point
    distance_m: float  # from the place it would answer
    shift_m: float = 0.0  # between where the camera says it was and where matching puts it


def candidate_of(record: PictureRecord, place_lat: float, place_lon: float) -> Candidate | None:
    """The record as a candidate for a place; None when it says no place on Earth."""
    if record.point is None:
        return None
    lat, lon = record.point
    found_at = record.found_at or record.point
    return Candidate(
        **(vars(record) | {"found_at": found_at}),
        lat=lat,
        lon=lon,
        distance_m=distance_km(place_lat, place_lon, lat, lon) * 1000.0,
        shift_m=distance_km(*found_at, lat, lon) * 1000.0,
    )


def point_of(geometry: Any) -> Point | None:
    """The point of a GeoJSON geometry; None where it holds none on Earth. Nothing promises that types are right."""
    pair = geometry.get("coordinates") if isinstance(geometry, dict) else None
    if not isinstance(pair, list) or len(pair) < 2:
        return None
    lon, lat = number_of(pair[0]), number_of(pair[1])  # GeoJSON: longitude first
    if lat is None or lon is None or not is_point(lat, lon):
        return None
    # 0, 0 is what a position that is not known is written as; there is no street within 500 km of it.
    return (lat, lon) if lat or lon else None


def pixels_of(width: Any, height: Any) -> int | None:
    """The size of a picture; None where a side is not a whole number above 0."""
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        return None
    return width * height


def number_of(value: Any) -> float | None:
    """A finite number; None for anything else, also true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON knows whole numbers of any length
        return None
    return number if math.isfinite(number) else None


def heading_of(value: Any) -> float | None:
    """A direction within the circle, 0 to 360."""
    angle = number_of(value)
    return None if angle is None else angle % 360.0 % 360.0  # twice: -1e-20 % 360 is 360 itself


def text_of(value: Any) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None
