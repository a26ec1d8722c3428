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
# What archives call an asset besides its Sentinel-2 name: the common name of its band, and where a word means the map.
COMMON_NAMES = {"B04": "red", "B03": "green", "B02": "blue", CLASSES: "scl", VISUAL: "visual"}
# From processing baseline 04.00 on, 1000 is added to every band; it came into use on this day.
OFFSET, OFFSET_BASELINE, OFFSET_SINCE = 1000, 4.0, datetime(2022, 1, 25, tzinfo=UTC)
_BASELINES = ("s2:processing_baseline", "sentinel:processing_baseline", "processing:version")
_SUBTRACTED = ":boa_offset_applied"  # earthsearch: and sentinel: are written before it
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
    raw_properties = item.get("properties")
    properties: dict[str, Any] = raw_properties if isinstance(raw_properties, dict) else {}
    cloud = _number(properties.get("eo:cloud_cover"))
    captured_at = _time(properties.get("datetime"))
    if captured_at is None or cloud is None:
        raise UnusableScene("no datetime" if captured_at is None else "no eo:cloud_cover")
    if not _outer_rings(item.get("geometry")):
        raise UnusableScene("no footprint")
    if not isinstance(item.get("id"), str) or not item["id"]:
        raise UnusableScene("no id")
    hrefs = {name: _href(item, name) for name in assets}
    baseline = next((value for name in _BASELINES if (value := _baseline(properties.get(name))) is not None), None)
    return Scene(
        id=item["id"],
        captured_at=captured_at,
        cloud_percent=min(max(cloud, 0.0), 100.0),
        offset=_offset(properties, baseline, captured_at),
        epsg=_epsg(properties),
        geometry=item["geometry"],
        hrefs=hrefs,
        tile=_tile(properties),
        baseline=baseline or 0.0,
    )


def _href(item: dict[str, Any], name: str) -> str:
    assets = item.get("assets")
    by_name = (
        {key: asset for key, asset in assets.items() if isinstance(asset, dict)} if isinstance(assets, dict) else {}
    )
    for asset in (*_named(by_name, name), *_with_band(by_name, name)):
        href = asset.get("href")
        if isinstance(href, str) and href and _is_tiff(asset, href):
            return href
    raise UnusableScene(f"no asset {name}")


def _named(assets: dict[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    wanted = (name, name.casefold(), COMMON_NAMES[name])
    return [assets[key] for key in dict.fromkeys(wanted) if key in assets]


def _with_band(assets: dict[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Assets of a single band with this name, as the extension `eo` (eo:bands) or STAC 1.1 (bands) tells."""
    named = []
    for asset in assets.values():
        bands = asset.get("eo:bands") or asset.get("bands")
        if isinstance(bands, list) and len(bands) == 1 and isinstance(bands[0], dict):
            band = bands[0]
            names = band.get("name"), band.get("common_name"), band.get("eo:common_name")
            if name in names or COMMON_NAMES[name] in names:
                named.append(asset)
    return named


def _is_tiff(asset: dict[str, Any], href: str) -> bool:
    """Whether it may be read in parts: archives offer the same band as JPEG 2000 besides."""
    kind = asset.get("type")
    return "tiff" in kind if isinstance(kind, str) else not href.casefold().endswith(".jp2")


def _tile(properties: dict[str, Any]) -> str | None:
    tile = properties.get("s2:mgrs_tile") or properties.get("grid:code")
    return tile.removeprefix("MGRS-") if isinstance(tile, str) else None


def _offset(properties: dict[str, Any], baseline: float | None, captured_at: datetime) -> int:
    """What has to be subtracted: what the ground processor added, unless the archive has subtracted it already.

    The archive's own word counts before the calendar's, for old scenes are made anew.
    """
    if any(name.endswith(_SUBTRACTED) and value is True for name, value in properties.items()):
        return 0
    if baseline is None:
        return OFFSET if captured_at >= OFFSET_SINCE else 0
    return OFFSET if baseline >= OFFSET_BASELINE else 0


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
