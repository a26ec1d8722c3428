"""Land and sea: Natural Earth outlines, and how far from the coast a point of a UTM grid lies."""

import gzip
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import shapely
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter

from infra.offline.scenes.projection import to_geographic, to_utm

_STEP_DEG = 0.001
_COARSE_DEG = 0.1


@lru_cache(maxsize=1)
def _rings() -> list[np.ndarray]:
    """Outlines of land as (lon, lat) corners; clockwise ones are land, others water inside it."""
    with gzip.open(Path(__file__).parents[1] / "data" / "land.npy.gz") as file:
        pairs = np.load(file).astype(np.int64)
    rings, at = [], 0
    while at < len(pairs):
        count = int(pairs[at, 0] * 30_000 + pairs[at, 1])
        ring = np.empty((count, 2), dtype=np.int64)
        ring[0] = pairs[at + 1] * 1000 + pairs[at + 2]
        ring[1:] = pairs[at + 3 : at + 2 + count]
        rings.append(np.cumsum(ring, axis=0) * _STEP_DEG)
        at += 2 + count
    return rings


@lru_cache(maxsize=1)
def _index() -> tuple[np.ndarray, np.ndarray, shapely.STRtree]:
    """(polygons, whether each is land, search tree), largest first: later ones are painted over earlier ones."""
    rings = _rings()
    polygons = np.array([shapely.Polygon(ring) for ring in rings])
    land = np.array([not shapely.is_ccw(shapely.LinearRing(ring)) for ring in rings])
    order = np.argsort(-shapely.area(polygons), kind="stable")
    return polygons[order], land[order], shapely.STRtree(polygons[order])


@lru_cache(maxsize=512)
def _polygon(number: int) -> Any:
    """A polygon of the index, mended where rounding made it cross itself: slow for continents, so only when needed."""
    polygon = _index()[0][number]
    return polygon if shapely.is_valid(polygon) else shapely.make_valid(polygon)


@lru_cache(maxsize=1)
def _coarse() -> np.ndarray:
    """Whether a cell of 0.1 degrees has land in it: rows from 90 N, columns from 180 W."""
    picture = Image.new("L", (3600, 1800))
    draw = ImageDraw.Draw(picture)
    for ring in sorted(_rings(), key=lambda ring: -np.prod(np.ptp(ring, axis=0))):
        corners = [tuple(c) for c in ((ring - [-180.0, 90.0]) * [1 / _COARSE_DEG, -1 / _COARSE_DEG]).tolist()]
        draw.polygon(corners, fill=1, outline=1)
    return np.asarray(picture) > 0


def land_near(west: float, south: float, east: float, north: float) -> bool:
    """Whether a box may hold land; coarse, and the Caspian counts as land."""
    rows = slice(max(0, int((90 - north) / _COARSE_DEG)), max(0, int((90 - south) / _COARSE_DEG) + 1))
    columns = np.arange(int(np.floor((west + 180) / _COARSE_DEG)), int(np.floor((east + 180) / _COARSE_DEG)) + 1) % 3600
    return bool(_coarse()[rows][:, columns].any())


def shore_distance_m(
    left_m: float, top_m: float, step_m: float, columns: int, rows: int, zone: int, south: bool
) -> np.ndarray:
    """Metres from the coast at the points of a UTM grid: positive on land, negative at sea, flat beyond 6 km.

    The grid's first point is (left_m, top_m), rows run south. The margin that distances need is added and cut again.
    """
    pad = int(6_000 / step_m)
    wide, high = columns + 2 * pad, rows + 2 * pad
    left, top = left_m - pad * step_m, top_m + pad * step_m
    x = left + np.linspace(0, (wide - 1) * step_m, 5)
    y = top - np.linspace(0, (high - 1) * step_m, 5)
    lat, lon = to_geographic(*np.meshgrid(x, y), zone, south)
    _, land, tree = _index()
    picture = Image.new("L", (wide, high))
    draw = ImageDraw.Draw(picture)
    for turn in (0.0, -360.0, 360.0) if lon.max() > 178 or lon.min() < -178 else (0.0,):
        box = (lon.min() - 0.1 + turn, lat.min() - 0.1, lon.max() + 0.1 + turn, lat.max() + 0.1)
        for i in sorted(tree.query(shapely.box(*box))):
            for part in shapely.get_parts(shapely.clip_by_rect(_polygon(int(i)), *box)):
                if part.geom_type != "Polygon":
                    continue
                corners = shapely.get_coordinates(shapely.segmentize(part.exterior, 0.05))
                px, py = to_utm(corners[:, 1], corners[:, 0], zone, south)
                spots = np.stack([(px - left) / step_m, (top - py) / step_m], axis=1)
                draw.polygon([tuple(spot) for spot in spots.tolist()], fill=int(land[i]))
    is_land = np.array(picture)
    limit = 6_000 / step_m
    if is_land.all() or not is_land.any():
        return np.full((rows, columns), (limit - 0.5) * step_m * (1 if is_land.any() else -1), dtype=np.float32)
    inside, outside = (
        cv2.distanceTransform(part, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) for part in (is_land, 1 - is_land)
    )
    signed = np.where(is_land > 0, np.minimum(inside, limit) - 0.5, 0.5 - np.minimum(outside, limit)) * step_m
    smooth = gaussian_filter(signed, 1.0, truncate=3.0)
    return np.asarray(smooth[pad : pad + rows, pad : pad + columns].astype(np.float32))
