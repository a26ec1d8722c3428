"""A scene as its STAC item describes it: when, how cloudy, where, and under which addresses its files lie."""

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import shapely
import shapely.geometry

from tasks.services.sentinel.grid import unwrapped

CLASSES = "SCL"
BANDS = ("B04", "B03", "B02")  # red, green, blue
VISUAL = "visual"
# From processing baseline 04.00 on, 1000 is added to every band; it came into use on this day.
OFFSET, OFFSET_BASELINE, OFFSET_SINCE = 1000, 4.0, datetime(2022, 1, 25, tzinfo=UTC)
_CODE = re.compile(r"EPSG:(\d{4,6})")


class UnusableScene(Exception):
    """The scene cannot be used, however often it is read; another may be."""


@dataclass(frozen=True)
class Scene:
    """What is known of a scene before any of its files is opened."""

    id: str
    captured_at: datetime
    cloud_percent: float
    offset: int  # to be subtracted from the stored numbers of a band
    epsg: int | None  # what the item says; the file has the last word
    geometry: Any = field(repr=False, compare=False)  # GeoJSON, longitudes as they came
    hrefs: dict[str, str] = field(repr=False, compare=False)
    tile: str | None = None
    baseline: float = 0.0  # of the processing

    def footprint(self, near_lon: float) -> Any:
        """The part of the Earth it shows, in (lon, lat), longitudes the short way round from `near_lon`.

        Footprints come cut in two at the 180th meridian, or uncut and then all around the world: both are mended.
        """
        parts = []
        for ring in _outer_rings(self.geometry):
            lon = unwrapped(ring[:, 0], near_lon)
            # A ring is small: it is where its first corner is, wherever the others were written.
            lon = lon[0] + (lon - lon[0] + 180.0) % 360.0 - 180.0
            parts.append(shapely.make_valid(shapely.Polygon(np.stack([lon, ring[:, 1]], axis=1))))
        return shapely.union_all(parts)


def read_scene(item: dict[str, Any], assets: tuple[str, ...]) -> Scene:
    """A scene from an item with all these assets, or UnusableScene. Nothing promises the right types."""
    found = item.get("properties")
    properties: dict[str, Any] = found if isinstance(found, dict) else {}
    cloud = _number(properties.get("eo:cloud_cover"))
    captured_at = _time(properties.get("datetime"))
    if captured_at is None or cloud is None:
        raise UnusableScene("no datetime" if captured_at is None else "no eo:cloud_cover")
    if not _outer_rings(item.get("geometry")):
        raise UnusableScene("no footprint")
    if not isinstance(item.get("id"), str) or not item["id"]:
        raise UnusableScene("no id")
    hrefs = {name: _href(item, name) for name in assets}
    tile = properties.get("s2:mgrs_tile")
    return Scene(
        id=item["id"],
        captured_at=captured_at,
        cloud_percent=min(max(cloud, 0.0), 100.0),
        offset=_offset(properties.get("s2:processing_baseline"), captured_at),
        epsg=_epsg(properties),
        geometry=item["geometry"],
        hrefs=hrefs,
        tile=tile if isinstance(tile, str) else None,
        baseline=_baseline(properties.get("s2:processing_baseline")) or 0.0,
    )


def _href(item: dict[str, Any], name: str) -> str:
    assets = item.get("assets")
    asset = assets.get(name) if isinstance(assets, dict) else None
    href = asset.get("href") if isinstance(asset, dict) else None
    if not isinstance(href, str) or not href:
        raise UnusableScene(f"no asset {name}")
    return href


def _offset(baseline: Any, captured_at: datetime) -> int:
    """What the ground processor added; the archive's own word before the calendar's, for old scenes are made anew."""
    number = _baseline(baseline)
    if number is None:
        return OFFSET if captured_at >= OFFSET_SINCE else 0
    return OFFSET if number >= OFFSET_BASELINE else 0


def _baseline(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _epsg(properties: dict[str, Any]) -> int | None:
    number = properties.get("proj:epsg")
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    match = _CODE.fullmatch(str(properties.get("proj:code", "")))
    return int(match[1]) if match else None


def _outer_rings(geometry: Any) -> list[np.ndarray]:
    """Corners (lon, lat) of the outer ring of every polygon; none if this is not an area."""
    kind = geometry.get("type") if isinstance(geometry, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        return []
    polygons = [geometry.get("coordinates")] if kind == "Polygon" else geometry.get("coordinates")
    rings = []
    try:
        for polygon in polygons:
            ring = np.asarray(polygon[0], dtype=np.float64)[:, :2]
            if len(ring) >= 4 and np.isfinite(ring).all():
                rings.append(ring)
    except (TypeError, ValueError, IndexError, KeyError):
        return []
    return rings


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _time(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
