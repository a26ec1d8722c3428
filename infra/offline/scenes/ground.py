"""The ground from above: sea, rivers, fields, woods, deserts, mountains, towns and snow, as reflectance per pixel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infra.offline.scenes.city import LEAST_URBAN, paint_city
from infra.offline.scenes.land import (
    BARE,
    PLANTS,
    SNOW,
    WATER,
    Land,
    detail_of,
    farm_share,
    fresh_water,
    frost,
    land_of,
    on_pixels,
    season_of,
    shores,
    tree_share,
    wood_share,
)
from infra.offline.scenes.tiles import Tile
from infra.offline.scenes.towns import draw_roads, towns_of
from infra.offline.scenes.window import Cells, Window, blend, draw_pair, layers, step_up


def _colour(red: float, green: float, blue: float) -> np.ndarray:
    return np.array([red, green, blue], dtype=np.float32)


_DEEP, _SHALLOW, _RIVER = _colour(0.010, 0.020, 0.036), _colour(0.032, 0.072, 0.078), _colour(0.026, 0.040, 0.042)
_SAND, _ROCK, _RED_EARTH = _colour(0.36, 0.275, 0.185), _colour(0.21, 0.175, 0.14), _colour(0.19, 0.115, 0.07)
_BEACH, _SNOW = _colour(0.33, 0.29, 0.22), _colour(0.78, 0.80, 0.84)
_WOOD, _TAIGA, _JUNGLE = _colour(0.026, 0.044, 0.026), _colour(0.021, 0.033, 0.023), _colour(0.021, 0.043, 0.021)
_GRASS, _DRY_GRASS, _TUNDRA = _colour(0.062, 0.082, 0.045), _colour(0.155, 0.125, 0.078), _colour(0.10, 0.092, 0.066)
_CROP, _RIPE, _SOIL = _colour(0.038, 0.074, 0.032), _colour(0.19, 0.155, 0.085), _colour(0.135, 0.10, 0.072)
_LEAFLESS = _colour(0.075, 0.066, 0.052)
_ROAD = _colour(0.15, 0.145, 0.14)


@dataclass(frozen=True)
class Ground:
    """What lies under the clouds."""

    colour: np.ndarray  # rows x columns x (red, green, blue), reflectance
    kind: np.ndarray  # uint8 scene class


def paint_ground(seed: int, tile: Tile, window: Window, day_of_year: int, sun_deg: tuple[float, float]) -> Ground:
    """The ground of a window of a tile on a day of the year, lit by a sun at (elevation, azimuth)."""
    shore_nodes, shore = shores(seed, tile, window)
    half = np.float32(window.step_m / 2)
    if shore.min() > half:  # no sea
        land, kind = _paint_land(seed, tile, window, shore_nodes, shore, day_of_year, sun_deg)
        return Ground(land.astype(np.float32, copy=False), kind)
    depth = step_up(-shore, 0.0, 2_600.0)
    sea = blend(np.broadcast_to(_SHALLOW, (*shore.shape, 3)), _DEEP, depth**0.5)
    sea = (
        sea
        * (1 + 0.10 * window.spread(layers(seed, "sea", *window.node_plane, (9_000.0, 2_700.0, 700.0), 0.7)))[..., None]
    )
    if shore.max() < -half:
        return Ground(sea.astype(np.float32), np.full(shore.shape, WATER, dtype=np.uint8))
    land_share = np.clip(shore / (2 * half) + 0.5, 0, 1)
    land, kind = _paint_land(seed, tile, window, shore_nodes, shore, day_of_year, sun_deg)
    kind[land_share < 0.5] = WATER
    return Ground(blend(sea, land, land_share).astype(np.float32), kind)


def _paint_land(
    seed: int,
    tile: Tile,
    window: Window,
    shore_nodes: np.ndarray,
    shore: np.ndarray,
    day_of_year: int,
    sun_deg: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray]:
    lat = window.node_degrees[0]
    x, y = window.plane
    # Climate changes with latitude point by point, never window by window: else tiles would show their edges.
    height = window.spread(np.abs(lat).astype(np.float32))
    season = window.spread(season_of(window, day_of_year))
    nodes = land_of(seed, tile, window, shore_nodes, shore)
    spread = Land(
        shore_nodes,
        shore,
        urban=window.spread(nodes.urban),
        dry=window.spread(nodes.dry),
        rugged=window.spread(nodes.rugged),
        altitude_m=window.spread(nodes.altitude_m),
        moist=window.spread(nodes.moist),
    )
    dry, rough, alt, moist, urban = spread.dry, spread.rugged, spread.altitude_m, spread.moist, spread.urban
    detail = detail_of(seed, window)

    cold = step_up(height + alt / 180, 62, 72)
    grass = blend(np.broadcast_to(_GRASS, (*alt.shape, 3)), _DRY_GRASS, _thirst(height, season, moist))
    earth = blend(
        blend(np.broadcast_to(_RED_EARTH, (*alt.shape, 3)), _SOIL, step_up(height, 18, 30)),
        _SAND,
        step_up(dry, 0.3, 0.8),
    )
    earth = blend(earth, _ROCK, step_up(rough + 0.25 * detail + 0.3 * window.soft(seed, "stone", 2_300.0), 0.35, 0.75))
    colour = blend(grass, earth, step_up(dry - 0.25 * moist + 0.1 * detail, 0.22, 0.5))
    if cold.max() > 0:
        colour = blend(colour, np.broadcast_to(_TUNDRA, colour.shape), cold)

    farm = farm_share(spread, height, cold, window.soft(seed, "farm", 21_000.0), detail)
    green = step_up(0.5 * (1 - dry) + 0.25 * moist, -0.1, 0.25)
    part = _part(farm > 0.01, whole=window.step_m > 60)
    if part is not None:
        fields = _fields(
            seed, window, part(x), part(y), part(window.soft(seed, "parish", 5_000.0)), part(season), part(height),
            part(earth),
        )  # fmt: skip
        share = part(farm)
        part.put(colour, blend(part(colour), fields, share))
        part.put(green, part(green) * (1 - share) + share * (fields[..., 1] > fields[..., 0]))
    wood = wood_share(spread, on_pixels(window, tree_share), cold, farm, window.soft(seed, "copse", 1_700.0), detail)
    trees = blend(np.broadcast_to(_JUNGLE, (*alt.shape, 3)), _WOOD, step_up(height, 14, 24))
    trees = blend(trees, _TAIGA, step_up(height, 54, 60))
    leafless = 0.35 * np.clip(-season, 0, 1) * step_up(height, 32, 40) * (1 - step_up(height, 54, 60))
    tone = blend(trees, _LEAFLESS, leafless)
    colour = blend(colour, tone * (1 + 0.16 * detail)[..., None], wood)
    green = np.maximum(green, wood)
    colour = colour * (1 + 0.17 * detail * (1 - wood))[..., None]
    colour = _shade(colour, window, nodes.altitude_m, sun_deg)

    roads = draw_roads(towns_of(tile), window)
    if roads is not None:
        colour = blend(colour, np.broadcast_to(_ROAD, colour.shape), roads * 0.75 * (1 - wood * 0.3))
    part = _part(urban > LEAST_URBAN)
    if part is not None:
        blocks, city = paint_city(seed, part(x), part(y), window.step_m, part(urban), step_up(part(dry), 0.3, 0.7))
        part.put(colour, blend(part(colour), blocks, city))
        part.put(green, part(green) * (1 - city) + city * (blocks[..., 1] > blocks[..., 0] * 1.06))
    kind = np.where(green > 0.5, PLANTS, BARE).astype(np.uint8)
    if shore.min() < 70:
        beach = step_up(-shore, -70.0, -15.0) * step_up(window.soft(seed, "beach", 4_000.0), -0.2, 0.3) * (1 - cold)
        colour = blend(colour, np.broadcast_to(_BEACH, colour.shape), beach * 0.9)
        kind[beach > 0.5] = BARE

    snow = step_up(
        on_pixels(window, lambda at: frost(at, season_of(window, day_of_year)))
        + alt / 4_200 - 1.0 + 0.16 * detail + 0.18 * window.soft(seed, "drift", 6_000.0),
        0.0,
        0.14,
    )  # fmt: skip
    if snow.max() > 0.01:
        snow = snow * (1 - 0.55 * wood) * (1 - 0.4 * step_up(urban, 0.3, 0.6))
        colour = blend(colour, _shade(np.broadcast_to(_SNOW, colour.shape), window, nodes.altitude_m, sun_deg), snow)
        kind[snow > 0.5] = SNOW
    water = fresh_water(seed, window, nodes, height)
    if water.max() > 0:
        colour = blend(colour, np.broadcast_to(_RIVER, colour.shape), water)
        kind[water > 0.5] = WATER
    return colour, kind


class _Part:
    """The pixels of a window that something is painted on, as one row of them."""

    def __init__(self, where: np.ndarray) -> None:
        self.where = where

    def __call__(self, values: np.ndarray) -> np.ndarray:
        taken: np.ndarray = values[self.where][None]
        return taken

    def put(self, values: np.ndarray, painted: np.ndarray) -> None:
        values[self.where] = painted[0]


class _Whole(_Part):
    def __call__(self, values: np.ndarray) -> np.ndarray:
        return values

    def put(self, values: np.ndarray, painted: np.ndarray) -> None:
        values[...] = painted


def _part(where: np.ndarray, whole: bool = False) -> _Part | None:
    """What is to be painted, as a part only where that saves more than picking pixels costs; None: nothing."""
    share = float(where.mean())
    if share == 0:
        return None
    return _Whole(where) if whole or share > 0.7 else _Part(where)


def _thirst(height: np.ndarray, season: np.ndarray, moist: np.ndarray) -> np.ndarray:
    """How yellow grass is: savannas always a little, middle latitudes in late summer."""
    savanna = step_up(height, 7, 13) * (1 - step_up(height, 28, 36))
    base = 0.55 * savanna + (0.35 * np.clip(season, 0, 1) + 0.2) * (1 - savanna)
    return np.asarray(np.clip(base - 0.5 * moist, 0, 1))


def _shade(colour: np.ndarray, window: Window, altitude_m: np.ndarray, sun_deg: tuple[float, float]) -> np.ndarray:
    """Slopes towards the sun are lighter, others darker."""
    south, east = np.gradient(altitude_m, window.node_m)
    azimuth, elevation = np.radians(sun_deg[1]), np.radians(max(12.0, sun_deg[0]))
    facing = -(east * np.sin(azimuth) - south * np.cos(azimuth)) / np.tan(elevation)
    return np.asarray(colour * window.spread(np.clip(1 + 0.9 * facing, 0.35, 1.7).astype(np.float32))[..., None])


def _fields(
    seed: int,
    window: Window,
    x: np.ndarray,
    y: np.ndarray,
    parish: np.ndarray,
    season: np.ndarray,
    height: np.ndarray,
    earth: np.ndarray,
) -> np.ndarray:
    """Parcels: each neighbourhood has its own direction and size of fields, each field its own crop."""
    step_m, size = window.step_m, 4_300.0
    warp = parish * 1_500
    i, j = np.floor((x + warp) / size).astype(np.int64), np.floor((y - warp * 0.8) / size).astype(np.int64)
    parishes = Cells(i, j)
    angle = (parishes.draw(seed, "lie") - 0.5) * np.float32(1.3)
    cosine, sine = parishes.take(np.cos(angle)), parishes.take(np.sin(angle))
    wide = parishes.take(110 + 330 * parishes.draw(seed, "field width") ** 2)
    deep = parishes.take(160 + 520 * parishes.draw(seed, "field depth"))
    dx, dy = (x - i * size).astype(np.float32), (y - j * size).astype(np.float32)
    u = (dx * cosine + dy * sine) / wide + 128
    a = np.floor(u)
    row_x = a.astype(np.int64) + i * 256
    v = (dy * cosine - dx * sine) / deep + 128 + draw_pair(seed, "shift", row_x, j)[0]
    b = np.floor(v)
    crop, growth = draw_pair(seed, "crop", row_x, b.astype(np.int64) + j * 256)
    ripeness = np.clip(0.5 + 0.45 * season + (crop - 0.5) * 1.5, 0, 1)  # winter: bare and sown; summer: green to ripe
    sown = crop * np.float32(1.7) % 1
    shade = np.float32(0.75) + np.float32(0.5) * growth
    green, grown = sown < 0.75, sown < 0.42
    ripe = step_up(ripeness, 0.72, 0.95) * (0.35 + 0.4 * step_up(height, 15, 25))
    edge = np.minimum(np.minimum(u - a, a + 1 - u) * wide, np.minimum(v - b, b + 1 - v) * deep)
    hedge = np.clip((5.0 + step_m / 2 - edge) / step_m, 0, 1) * np.float32(min(1.0, 10.0 / step_m) * 0.55)
    out = np.empty((3, *x.shape), dtype=np.float32)
    for k in range(3):  # colour by colour: several times quicker than pixel by pixel
        tone = out[k]
        np.multiply(earth[..., k], shade, out=tone)
        np.copyto(tone, _GRASS[k] * shade, where=green)
        np.copyto(tone, _CROP[k] * (np.float32(0.5) + np.float32(0.8) * shade), where=grown)
        tone += (_RIPE[k] * shade - tone) * ripe
        tone *= np.float32(0.8)
        tone += np.float32(0.1) * (_GRASS[k] + _SOIL[k])
        tone += (np.float32(1.5) * _WOOD[k] - tone) * hedge
        if step_m > 60:  # from afar fields flow into each other
            mean = tone.mean()
            tone -= mean
            tone *= np.float32(min(1.0, 75.0 / step_m))
            tone += mean
    return out.transpose(1, 2, 0)
