"""The ground from above: sea, rivers, fields, woods, deserts, mountains, towns and snow, as reflectance per pixel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.scenes.city import paint_city
from infra.offline.scenes.clouds import dryness
from infra.offline.scenes.coast import shore_distance_m
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.towns import built_up, draw_roads, towns_of
from infra.offline.scenes.window import NODE_M, Window, blend, draw_each, draw_table, layers, noise, step_up

WATER, PLANTS, BARE, SNOW = 6, 4, 5, 11  # classes of the scene classification


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


@lru_cache(maxsize=12)
def _shore(tile: Tile) -> np.ndarray:
    first, high, count = _shore_frame(tile)
    return shore_distance_m(first * NODE_M, high * NODE_M, NODE_M, count, count, tile.zone, tile.south)


def _shore_frame(tile: Tile) -> tuple[int, int, int]:
    return tile.left_m // NODE_M - 12, tile.top_m // NODE_M + 12, SIZE_M // NODE_M + 26


def paint_ground(seed: int, tile: Tile, window: Window, day_of_year: int, sun_deg: tuple[float, float]) -> Ground:
    """The ground of a window of a tile on a day of the year, lit by a sun at (elevation, azimuth)."""
    first, high, _ = _shore_frame(tile)
    left, wide, top, tall = window.node_index
    stride = window.node_m // NODE_M
    upper, start = high - top * stride, left * stride - first
    shore_nodes = _shore(tile)[upper : upper + tall * stride : stride, start : start + wide * stride : stride]
    x, y = window.plane
    wiggle = 190 * window.soft(seed, "shore", 900.0) + 80 * noise(seed, "cliff", x, y, 260.0)
    shore = window.spread(shore_nodes)
    shore = shore + np.where(np.abs(shore) < 5_000, wiggle, 0).astype(np.float32)
    depth = step_up(-shore, 0.0, 2_600.0)
    sea = blend(np.broadcast_to(_SHALLOW, (*shore.shape, 3)), _DEEP, depth**0.5)
    sea = (
        sea
        * (1 + 0.10 * window.spread(layers(seed, "sea", *window.node_plane, (9_000.0, 2_700.0, 700.0), 0.7)))[..., None]
    )
    half = np.float32(window.step_m / 2)
    land_share = np.clip(shore / (2 * half) + 0.5, 0, 1)
    if shore.max() < -half:
        return Ground(sea.astype(np.float32), np.full(shore.shape, WATER, dtype=np.uint8))
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
    lat, lon = window.node_degrees
    nx, ny = window.node_plane
    x, y = window.plane
    # Climate changes with latitude point by point, never window by window: else tiles would show their edges.
    height = window.spread(np.abs(lat).astype(np.float32))
    # Season: -1 in the middle of winter, 1 in the middle of summer; none at the equator.
    year = -np.cos(2 * np.pi * (day_of_year - 15) / 365.25)
    season = window.spread((year * np.clip(lat / 30, -1, 1)).astype(np.float32))
    towns = towns_of(tile)
    urban_nodes = built_up(towns, window, layers(seed, "fray", nx, ny, (5_200.0, 1_900.0), 0.6))
    dry_nodes = dryness(lat, lon)
    rugged = step_up(layers(seed, "rugged", nx, ny, (820_000.0, 260_000.0), 0.55), 0.12, 0.75) * (1 - 0.9 * urban_nodes)
    rugged = rugged * step_up(shore_nodes, 200.0, 5_900.0)
    relief = layers(seed, "relief", nx, ny, (38_000.0, 17_000.0, 7_500.0, 3_200.0, 1_400.0, 700.0), 0.52)
    crest = 1 - np.abs(relief)
    altitude_m = rugged * (1_500 * crest + 700 * (relief + 1)) + 120 * (relief + 1)
    moist_nodes = (
        layers(seed, "moist", nx, ny, (140_000.0, 43_000.0, 15_000.0, 5_000.0, 1_900.0), 0.62) - 1.3 * dry_nodes
    )
    dry, rough, alt = window.spread(dry_nodes), window.spread(rugged), window.spread(altitude_m)
    moist, urban = window.spread(moist_nodes), window.spread(urban_nodes)
    detail = noise(seed, "detail", x, y, 330.0) * 0.6 + noise(seed, "grain", x, y, 75.0) * 0.4

    cold = step_up(height + alt / 180, 62, 72)
    grass = blend(np.broadcast_to(_GRASS, (*alt.shape, 3)), _DRY_GRASS, _thirst(height, season, moist))
    earth = blend(
        blend(np.broadcast_to(_RED_EARTH, (*alt.shape, 3)), _SOIL, step_up(height, 18, 30)),
        _SAND,
        step_up(dry, 0.3, 0.8),
    )
    earth = blend(earth, _ROCK, step_up(rough + 0.25 * detail + 0.3 * window.soft(seed, "stone", 2_300.0), 0.35, 0.75))
    colour = blend(grass, earth, step_up(dry - 0.25 * moist + 0.1 * detail, 0.22, 0.5))
    colour = blend(colour, np.broadcast_to(_TUNDRA, colour.shape), cold)

    farm = step_up(0.44 + 0.40 * window.soft(seed, "farm", 21_000.0) - moist * 0.12 - rough * 1.3 - cold
                   + 0.5 * urban + 0.06 * detail - 1.5 * np.clip(dry - 0.25, 0, 1), 0.02, 0.16)  # fmt: skip
    farm = farm * np.clip(1 - (height - 60) / 6, 0, 1)
    green = step_up(0.5 * (1 - dry) + 0.25 * moist, -0.1, 0.25)
    if farm.max() > 0.01:
        fields = _fields(seed, window, season, height, earth)
        colour = blend(colour, fields, farm)
        green = green * (1 - farm) + farm * (fields[..., 1] > fields[..., 0])
    tree_line = _tree_share(window)
    wood = step_up(
        moist * 0.75
        + tree_line
        + 0.22 * detail
        + 0.5 * window.soft(seed, "copse", 1_700.0)
        + 0.25 * rough
        - 0.42 * farm
        - cold * 1.5
        - 0.4 * urban,
        0.10,
        0.30,
    )
    trees = blend(np.broadcast_to(_JUNGLE, (*alt.shape, 3)), _WOOD, step_up(height, 14, 24))
    trees = blend(trees, _TAIGA, step_up(height, 54, 60))
    leafless = 0.35 * np.clip(-season, 0, 1) * step_up(height, 32, 40) * (1 - step_up(height, 54, 60))
    tone = blend(trees, _LEAFLESS, leafless)
    colour = blend(colour, tone * (1 + 0.16 * detail)[..., None], wood)
    green = np.maximum(green, wood)
    colour = colour * (1 + 0.17 * detail * (1 - wood))[..., None]
    colour = _shade(colour, window, altitude_m, sun_deg)

    roads = draw_roads(towns, window)
    if roads is not None:
        colour = blend(colour, np.broadcast_to(_ROAD, colour.shape), roads * 0.75 * (1 - wood * 0.3))
    if urban.max() > 0.02:
        blocks, city = paint_city(seed, x, y, window.step_m, urban, step_up(dry, 0.3, 0.7))
        colour = blend(colour, blocks, city)
        green = green * (1 - city) + city * (blocks[..., 1] > blocks[..., 0] * 1.06)
    kind = np.where(green > 0.5, PLANTS, BARE).astype(np.uint8)
    beach = step_up(-shore, -70.0, -15.0) * step_up(window.soft(seed, "beach", 4_000.0), -0.2, 0.3) * (1 - cold)
    colour = blend(colour, np.broadcast_to(_BEACH, colour.shape), beach * 0.9)
    kind[beach > 0.5] = BARE

    snow = step_up(
        _frost(window, season) + alt / 4_200 - 1.0 + 0.16 * detail + 0.18 * window.soft(seed, "drift", 6_000.0),
        0.0,
        0.14,
    )
    if snow.max() > 0.01:
        snow = snow * (1 - 0.55 * wood) * (1 - 0.4 * step_up(urban, 0.3, 0.6))
        colour = blend(colour, _shade(np.broadcast_to(_SNOW, colour.shape), window, altitude_m, sun_deg), snow)
        kind[snow > 0.5] = SNOW
    water = _fresh_water(seed, window, moist_nodes, rugged, urban_nodes, height)
    if water.max() > 0:
        colour = blend(colour, np.broadcast_to(_RIVER, colour.shape), water)
        kind[water > 0.5] = WATER
    return colour, kind


def _thirst(height: np.ndarray, season: np.ndarray, moist: np.ndarray) -> np.ndarray:
    """How yellow grass is: savannas always a little, middle latitudes in late summer."""
    savanna = step_up(height, 7, 13) * (1 - step_up(height, 28, 36))
    base = 0.55 * savanna + (0.35 * np.clip(season, 0, 1) + 0.2) * (1 - savanna)
    return np.clip(base - 0.5 * moist, 0, 1)


def _tree_share(window: Window) -> np.ndarray:
    """How much the climate of a latitude favours woods."""
    return _over_latitude(
        window, (0, 8, 16, 28, 38, 48, 56, 64, 69, 72), (0.62, 0.5, 0.1, -0.12, -0.05, 0.05, 0.28, 0.3, -0.2, -1.0)
    )


def _frost(window: Window, season: np.ndarray) -> np.ndarray:
    """Above 1 snow lies in the plains."""
    base = _over_latitude(window, (0, 25, 35, 45, 52, 58, 64, 72), (0.0, 0.05, 0.15, 0.35, 0.48, 0.62, 0.75, 0.9))
    return base - np.float32(0.46) * season


def _over_latitude(window: Window, at: tuple[float, ...], values: tuple[float, ...]) -> np.ndarray:
    return window.spread(np.interp(np.abs(window.node_degrees[0]), at, values).astype(np.float32))


def _shade(colour: np.ndarray, window: Window, altitude_m: np.ndarray, sun_deg: tuple[float, float]) -> np.ndarray:
    """Slopes towards the sun are lighter, others darker."""
    south, east = np.gradient(altitude_m, window.node_m)
    azimuth, elevation = np.radians(sun_deg[1]), np.radians(max(12.0, sun_deg[0]))
    facing = -(east * np.sin(azimuth) - south * np.cos(azimuth)) / np.tan(elevation)
    return colour * window.spread(np.clip(1 + 0.9 * facing, 0.35, 1.7).astype(np.float32))[..., None]


def _fields(seed: int, window: Window, season: np.ndarray, height: np.ndarray, earth: np.ndarray) -> np.ndarray:
    """Parcels: each neighbourhood has its own direction and size of fields, each field its own crop."""
    (x, y), step_m, size = window.plane, window.step_m, 4_300.0
    warp = window.soft(seed, "parish", 5_000.0) * 1_500
    i, j = np.floor((x + warp) / size).astype(np.int64), np.floor((y - warp * 0.8) / size).astype(np.int64)
    angle = (draw_table(seed, "lie", i, j) - 0.5) * np.float32(1.3)
    wide = 110 + 330 * draw_table(seed, "field width", i, j) ** 2
    deep = 160 + 520 * draw_table(seed, "field depth", i, j)
    dx, dy = (x - i * size).astype(np.float32), (y - j * size).astype(np.float32)
    u = (dx * np.cos(angle) + dy * np.sin(angle)) / wide + 128
    a = np.floor(u)
    row_x = a.astype(np.int64) + i * 256
    v = (dy * np.cos(angle) - dx * np.sin(angle)) / deep + 128 + draw_each(seed, "shift", row_x, j)
    b = np.floor(v)
    crop = draw_each(seed, "crop", row_x, b.astype(np.int64) + j * 256)
    ripeness = np.clip(0.5 + 0.45 * season + (crop - 0.5) * 1.5, 0, 1)  # winter: bare and sown; summer: green to ripe
    sown = crop[..., None] * 1.7 % 1
    shade = 0.75 + 0.5 * draw_each(seed, "growth", row_x, b.astype(np.int64) + j * 256)[..., None]
    tone = np.where(sown < 0.42, _CROP * (0.5 + shade * 0.8),
                    np.where(sown < 0.75, _GRASS * shade, earth * shade))  # fmt: skip
    ripe = step_up(ripeness, 0.72, 0.95) * (0.35 + 0.4 * step_up(height, 15, 25))
    tone = blend(tone, _RIPE * shade, ripe)
    tone = tone * 0.8 + np.float32(0.2) * (_GRASS + _SOIL) / 2
    edge = np.minimum(np.minimum(u - a, a + 1 - u) * wide, np.minimum(v - b, b + 1 - v) * deep)
    hedge = np.clip((5.0 + step_m / 2 - edge) / step_m, 0, 1) * min(1.0, 10.0 / step_m)
    tone = blend(tone, np.broadcast_to(_WOOD * 1.5, tone.shape), hedge * 0.55)
    mean = tone.mean(axis=(0, 1)) if step_m > 60 else tone
    return (mean + (tone - mean) * min(1.0, 75.0 / step_m)).astype(np.float32)


def _fresh_water(
    seed: int, window: Window, moist: np.ndarray, rugged: np.ndarray, urban: np.ndarray, height: np.ndarray
) -> np.ndarray:
    """How much of each pixel is river or lake."""
    nx, ny = window.node_plane
    course = layers(seed, "river", nx, ny, (64_000.0, 23_000.0, 7_000.0, 2_500.0), 0.42)
    south, east = np.gradient(course, window.node_m)
    away_m = np.clip(course / np.maximum(np.hypot(south, east), 1e-6), -3_000, 3_000).astype(np.float32)
    size = layers(seed, "stream", nx, ny, (120_000.0, 30_000.0), 0.4)
    half_m = np.clip(55 + 130 * size + 40 * moist - 50 * rugged, 0, 260).astype(np.float32)
    water = np.clip((window.spread(half_m) - np.abs(window.spread(away_m))) / np.float32(window.step_m) + 0.5, 0, 1)
    water = np.where(window.spread(half_m) > 6, water, 0)
    if height.max() > 51 and height.min() < 72:
        basin = layers(seed, "lake", nx, ny, (16_000.0, 6_500.0, 2_600.0, 900.0), 0.55) + 0.2 * moist - 1.2 * urban
        bank = window.spread(basin) + 0.035 * window.soft(seed, "shore", 900.0)
        bank += 0.02 * noise(seed, "cliff", *window.plane, 260.0) - _over_latitude(
            window, (48, 51, 60, 70, 73), (3, 0.95, 0.53, 0.53, 2)
        )
        water = np.maximum(water, step_up(bank, 0.0, 0.02))
    return water.astype(np.float32)
