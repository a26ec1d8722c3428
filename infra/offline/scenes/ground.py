"""The ground from above, as reflectance and scene class per pixel: coasts, mountains and moisture, and what follows of
them: sea, rivers, fields, woods, deserts, towns and snow."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.scenes.clouds import dryness
from infra.offline.scenes.coast import shore_distance_m
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.towns import LEAST_URBAN, built_up, draw_roads, paint_city, towns_of
from infra.offline.scenes.window import NODE_M, Cells, Window, blend, draw_pair, layers, noise, step_up

WATER, PLANTS, BARE, SNOW = 6, 4, 5, 11  # classes of the scene classification


@dataclass(frozen=True)
class Land:
    """What the ground follows from: values at the nodes, and metres from the coast at the pixels."""

    shore_nodes: np.ndarray
    shore: np.ndarray
    urban: np.ndarray
    dry: np.ndarray
    rugged: np.ndarray
    altitude_m: np.ndarray
    moist: np.ndarray


def shores(seed: int, tile: Tile, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Metres from the coast at the nodes and, with its coves and cliffs, at the pixels."""
    first, high, _ = _shore_frame(tile)
    left, wide, top, tall = window.node_index
    stride = window.node_m // NODE_M
    upper, start = high - top * stride, left * stride - first
    nodes = _shore(tile)[upper : upper + tall * stride : stride, start : start + wide * stride : stride]
    shore = window.spread(nodes)
    near = np.abs(shore) < 5_000
    if near.any():
        wiggle = 190 * window.soft(seed, "shore", 900.0) + 80 * noise(seed, "cliff", *window.plane, 260.0)
        shore = shore + np.where(near, wiggle, 0).astype(np.float32)
    return nodes, shore


def land_of(seed: int, tile: Tile, window: Window, shore_nodes: np.ndarray, shore: np.ndarray) -> Land:
    """The lie of the land in a window."""
    nx, ny = window.node_plane
    urban = built_up(towns_of(tile), window, layers(seed, "fray", nx, ny, (5_200.0, 1_900.0), 0.6))
    dry = dryness(*window.node_degrees)
    rugged = step_up(layers(seed, "rugged", nx, ny, (820_000.0, 260_000.0), 0.55), 0.12, 0.75) * (1 - 0.9 * urban)
    rugged = rugged * step_up(shore_nodes, 200.0, 5_900.0)
    relief = layers(seed, "relief", nx, ny, (38_000.0, 17_000.0, 7_500.0, 3_200.0, 1_400.0, 700.0), 0.52)
    crest = 1 - np.abs(relief)
    altitude_m = rugged * (1_500 * crest + 700 * (relief + 1)) + 120 * (relief + 1)
    moist = layers(seed, "moist", nx, ny, (140_000.0, 43_000.0, 15_000.0, 5_000.0, 1_900.0), 0.62) - 1.3 * dry
    return Land(shore_nodes, shore, urban, dry, rugged, altitude_m, moist)


def season_of(window: Window, day_of_year: int) -> np.ndarray:
    """-1 in the middle of winter, 1 in the middle of summer, none at the equator; at the nodes."""
    year = -np.cos(2 * np.pi * (day_of_year - 15) / 365.25)
    return np.asarray((year * np.clip(window.node_degrees[0] / 30, -1, 1)).astype(np.float32))


@lru_cache(maxsize=12)
def _shore(tile: Tile) -> np.ndarray:
    first, high, count = _shore_frame(tile)
    return shore_distance_m(first * NODE_M, high * NODE_M, NODE_M, count, count, tile.zone, tile.south)


def _shore_frame(tile: Tile) -> tuple[int, int, int]:
    return tile.left_m // NODE_M - 12, tile.top_m // NODE_M + 12, SIZE_M // NODE_M + 26


def detail_of(seed: int, window: Window) -> np.ndarray:
    return noise(seed, "detail", *window.plane, 330.0) * 0.6 + noise(seed, "grain", *window.plane, 75.0) * 0.4


def farm_share(
    land: Land, height: np.ndarray, cold: np.ndarray, farmed: np.ndarray, detail: np.ndarray | float
) -> np.ndarray:
    """How much of the ground is fields."""
    farm = step_up(0.44 + 0.40 * farmed - land.moist * 0.12 - land.rugged * 1.3 - cold
                   + 0.5 * land.urban + 0.06 * detail - 1.5 * np.clip(land.dry - 0.25, 0, 1), 0.02, 0.16)  # fmt: skip
    return farm * np.clip(1 - (height - 60) / 6, 0, 1)


def wood_share(
    land: Land,
    tree_share: np.ndarray,
    cold: np.ndarray,
    farm: np.ndarray,
    copse: np.ndarray,
    detail: np.ndarray | float,
) -> np.ndarray:
    """How much of it is woods."""
    return step_up(
        land.moist * 0.75 + tree_share + 0.22 * detail + 0.5 * copse + 0.25 * land.rugged - 0.42 * farm - cold * 1.5
        - 0.4 * land.urban, 0.10, 0.30,
    )  # fmt: skip


def tree_share(lat: np.ndarray) -> np.ndarray:
    """How much the climate of a latitude favours woods."""
    return _over_latitude(
        lat, (0, 8, 16, 28, 38, 48, 56, 64, 69, 72), (0.62, 0.5, 0.1, -0.12, -0.05, 0.05, 0.28, 0.3, -0.2, -1.0)
    )


def frost(lat: np.ndarray, season: np.ndarray) -> np.ndarray:
    """Above 1 snow lies in the plains."""
    base = _over_latitude(lat, (0, 25, 35, 45, 52, 58, 64, 72), (0.0, 0.05, 0.15, 0.35, 0.48, 0.62, 0.75, 0.9))
    return base - np.float32(0.46) * season


def _over_latitude(lat: np.ndarray, at: tuple[float, ...], values: tuple[float, ...]) -> np.ndarray:
    return np.asarray(np.interp(np.abs(lat), at, values).astype(np.float32))


def on_pixels(window: Window, follows: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """What follows from the latitude, at the pixels."""
    return window.spread(follows(window.node_degrees[0]))


def fresh_water(seed: int, window: Window, land: Land, height: np.ndarray) -> np.ndarray:
    """How much of each pixel is river or lake."""
    nx, ny = window.node_plane
    course = layers(seed, "river", nx, ny, (64_000.0, 23_000.0, 7_000.0, 2_500.0), 0.42)
    south, east = np.gradient(course, window.node_m)
    away_m = np.clip(course / np.maximum(np.hypot(south, east), 1e-6), -3_000, 3_000).astype(np.float32)
    size = layers(seed, "stream", nx, ny, (120_000.0, 30_000.0), 0.4)
    half_m = np.clip(55 + 130 * size + 40 * land.moist - 50 * land.rugged, 0, 260).astype(np.float32)
    water = np.clip((window.spread(half_m) - np.abs(window.spread(away_m))) / np.float32(window.step_m) + 0.5, 0, 1)
    water = np.where(window.spread(half_m) > 6, water, 0)
    if height.max() > 51 and height.min() < 72:
        basin = (
            layers(seed, "lake", nx, ny, (16_000.0, 6_500.0, 2_600.0, 900.0), 0.55)
            + 0.2 * land.moist
            - 1.2 * land.urban
        )
        bank = window.spread(basin) + 0.035 * window.soft(seed, "shore", 900.0)
        bank += 0.02 * noise(seed, "cliff", *window.plane, 260.0) - on_pixels(
            window, lambda lat: _over_latitude(lat, (48, 51, 60, 70, 73), (3, 0.95, 0.53, 0.53, 2))
        )
        water = np.maximum(water, step_up(bank, 0.0, 0.02))
    return np.asarray(water.astype(np.float32))


def ground_classes(seed: int, tile: Tile, window: Window, day_of_year: int) -> np.ndarray:
    """The scene classes of the ground alone, without its colours: a quarter of the work.

    Water and snow are those of `paint_ground`; plants and bare ground follow from the land without single fields.
    """
    shore_nodes, shore = shores(seed, tile, window)
    kind = np.full(shore.shape, WATER, dtype=np.uint8)
    if shore.max() <= 0:
        return kind
    land = land_of(seed, tile, window, shore_nodes, shore)
    lat = window.node_degrees[0]
    height = np.abs(lat).astype(np.float32)
    cold = step_up(height + land.altitude_m / 180, 62, 72)
    farm = farm_share(land, height, cold, noise(seed, "farm", *window.node_plane, 21_000.0), 0.0)
    wood = wood_share(land, tree_share(lat), cold, farm, noise(seed, "copse", *window.node_plane, 1_700.0), 0.0)
    green = step_up(0.5 * (1 - land.dry) + 0.25 * land.moist, -0.1, 0.25)
    green = np.maximum(green * (1 - farm) + 0.65 * farm, wood) * (1 - 0.8 * step_up(land.urban, 0.30, 0.46))
    kind[:] = np.where(window.spread(green) > 0.5, PLANTS, BARE)
    cover = (
        frost(lat, season_of(window, day_of_year))
        + land.altitude_m / 4_200
        - 1.0
        + 0.18 * noise(seed, "drift", *window.node_plane, 6_000.0)
    )
    if cover.max() > -0.16:  # else no snow, whatever the detail of the ground
        snow = step_up(window.spread(cover) + 0.16 * detail_of(seed, window), 0.0, 0.14)
        snow *= (1 - 0.55 * window.spread(wood)) * (1 - 0.4 * window.spread(step_up(land.urban, 0.3, 0.6)))
        kind[snow > 0.5] = SNOW
    kind[fresh_water(seed, window, land, window.spread(height)) > 0.5] = WATER
    kind[shore < 0] = WATER
    return kind


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
