"""The lie of the land: coasts, towns, mountains, moisture, and what follows of it: fields, woods, snow and water."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline.scenes.clouds import dryness
from infra.offline.scenes.coast import shore_distance_m
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.towns import built_up, towns_of
from infra.offline.scenes.window import NODE_M, Window, layers, noise, step_up

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
