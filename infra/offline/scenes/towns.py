"""Towns as a satellite sees them: how built-up the ground is, the roads between towns, streets, roofs and parks."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy.spatial import cKDTree

from infra.offline.gazetteer import gazetteer
from infra.offline.scenes.projection import to_utm
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.window import Cells, Window, blend, draw_pair, noise, step_up
from infra.offline.seeded_random import fraction

_PEOPLE_PER_KM2 = 3000.0
_LARGEST_M = 24_000.0
_MARGIN_M = 80_000.0
_ROAD_M = 40_000.0
_MOST_BEND = 0.25  # of a road's length that it may deviate from the straight line
_ASPHALT = np.array([0.098, 0.096, 0.095], dtype=np.float32)
_PARK = np.array([0.042, 0.072, 0.036], dtype=np.float32)
_DRY_PARK = np.array([0.17, 0.145, 0.105], dtype=np.float32)
# Roofs as red, green, blue reflectance: grey, light concrete, tiles, sheet metal, tar.
_ROOFS = np.array(
    [[0.155, 0.15, 0.145], [0.26, 0.255, 0.24], [0.20, 0.135, 0.105], [0.33, 0.335, 0.34], [0.10, 0.10, 0.105]],
    dtype=np.float32,
)
_MEAN_ROOF = np.array([0.185, 0.175, 0.165], dtype=np.float32)
_ROOF_STEPS = np.array([0.40, 0.66, 0.86, 0.93], dtype=np.float32)
_DISTRICT_M = 1900.0
LEAST_URBAN = 0.05  # below this there is no city, however its suburbs fray


@dataclass(frozen=True)
class Towns:
    """Towns on and around a tile, in its UTM zone, and the roads between them."""

    x: np.ndarray
    y: np.ndarray
    radius_m: np.ndarray
    roads: tuple[tuple[float, np.ndarray], ...]  # (width in m, corners)

    @cached_property
    def road_bounds(self) -> tuple[np.ndarray, ...]:
        """(left, low, right, high) of every road."""
        lines = np.array([line for _, line in self.roads])
        return *lines.min(axis=1).T, *lines.max(axis=1).T


@lru_cache(maxsize=16)
def towns_of(tile: Tile) -> Towns:
    """The towns that can show on a tile."""
    world = gazetteer()
    lat, lon = tile.outline
    pad = _MARGIN_M / 111_000
    wide = pad / max(0.1, math.cos(math.radians(min(85.0, float(np.abs(lat).max())))))
    east = (world.lon - lon.min() + wide) % 360.0
    rows = np.flatnonzero(
        (world.lat > lat.min() - pad) & (world.lat < lat.max() + pad) & (east < np.ptp(lon) + 2 * wide)
    )
    rows = rows[np.lexsort((world.ids[rows], -world.population[rows]))]
    x, y = to_utm(world.lat[rows], world.lon[rows], tile.zone, tile.south)
    people = np.maximum(world.population[rows], 300)
    radius = np.minimum(_LARGEST_M, 1000.0 * np.sqrt(people / (math.pi * _PEOPLE_PER_KM2)))
    return Towns(x, y, radius, tuple(_roads(x, y, people, world.ids[rows], tile)))


def _roads(
    x: np.ndarray, y: np.ndarray, people: np.ndarray, ids: np.ndarray, tile: Tile
) -> list[tuple[float, np.ndarray]]:
    """Each town is joined to the two nearest larger ones by a road that bends a little."""
    if len(x) < 2:
        return []
    spots = np.stack([x, y], axis=1)
    near, neighbours = cKDTree(spots).query(spots, k=min(24, len(x)), distance_upper_bound=_ROAD_M)
    # Towns are ordered by size: a smaller number is a larger town.
    larger = (neighbours < np.arange(len(x))[:, None]) & np.isfinite(near)
    small, which = np.nonzero(larger & (np.cumsum(larger, axis=1) <= 2))
    large = neighbours[small, which]
    # Only roads that may come through the tile: most towns lie in its wide margin.
    bend_m = _MOST_BEND * np.hypot(*(spots[large] - spots[small]).T)
    low, high = np.minimum(spots[small], spots[large]), np.maximum(spots[small], spots[large])
    outside = (
        (high[:, 0] + bend_m < tile.left_m)
        | (low[:, 0] - bend_m > tile.left_m + SIZE_M)
        | (high[:, 1] + bend_m < tile.top_m - SIZE_M)
        | (low[:, 1] - bend_m > tile.top_m)
    )
    roads = []
    t = np.linspace(0, 1, 9)[:, None]
    waves = [np.sin((k + 1) * math.pi * t) / (k + 1) for k in range(3)]
    for a, b in zip(small[~outside].tolist(), large[~outside].tolist(), strict=True):
        ahead = spots[b] - spots[a]
        bends = sum((fraction("road", ids[a], ids[b], k) - 0.5) * wave for k, wave in enumerate(waves))
        line = spots[a] + ahead * t + np.array([-ahead[1], ahead[0]]) * bends * 0.25
        roads.append((22.0 if people[a] > 20_000 else 14.0 if people[a] > 3000 else 9.0, line))
    return roads


def built_up(towns: Towns, window: Window, wobble: np.ndarray) -> np.ndarray:
    """How urban the nodes are, 0 to 1: near 1 in a centre, about a third at the edge of the town; `wobble` frays it."""
    x, y = window.nodes
    open_land = np.ones(x.shape, dtype=np.float32)
    reaches = towns.radius_m * 2.6
    near = (towns.x + reaches >= x[0, 0]) & (towns.x - reaches <= x[0, -1])
    near &= (towns.y + reaches >= y[-1, 0]) & (towns.y - reaches <= y[0, 0])
    for number in np.flatnonzero(near).tolist():
        at_x, at_y, radius, reach = towns.x[number], towns.y[number], towns.radius_m[number], reaches[number]
        first, last = np.searchsorted(x[0], (at_x - reach, at_x + reach))
        upper, lower = np.searchsorted(-y[:, 0], (-(at_y + reach), -(at_y - reach)))
        if first >= last or upper >= lower:
            continue
        part = slice(upper, lower), slice(first, last)
        far2 = ((x[part] - at_x) ** 2 + (y[part] - at_y) ** 2) / radius**2
        open_land[part] *= 1 - 0.96 * np.exp(-far2 * (1 + 0.7 * wobble[part])).astype(np.float32)
    return 1 - open_land


def draw_roads(towns: Towns, window: Window) -> np.ndarray | None:
    """How much of each pixel is road, 0 to 1; None when no road comes through or pixels are too coarse to show one."""
    if window.step_m > 45:
        return None
    picture = Image.new("L", (window.columns, window.rows))
    draw = ImageDraw.Draw(picture)
    if not towns.roads:
        return None
    left, low, right, high = towns.road_bounds
    pad = 2 * window.step_m
    near = (right >= window.left_m - pad) & (left <= window.left_m + window.columns * window.step_m + pad)
    near &= (high >= window.top_m - window.rows * window.step_m - pad) & (low <= window.top_m + pad)
    for number in np.flatnonzero(near).tolist():
        width, line = towns.roads[number]
        spots = np.stack([line[:, 0] - window.left_m, window.top_m - line[:, 1]], axis=1) / window.step_m
        strength = min(255, round(255 * width / window.step_m))
        draw.line([tuple(s) for s in spots.tolist()], fill=strength, width=max(1, round(width / window.step_m)))
    filled = np.asarray(picture)
    return filled.astype(np.float32) / 255 if filled.any() else None


def city_share(seed: int, x: np.ndarray, y: np.ndarray, urban: np.ndarray) -> np.ndarray:
    """How much of a pixel is city, 0 to 1; towns end in frayed suburbs."""
    fray = 0.16 * noise(seed, "suburb", x, y, 620.0) + 0.09 * noise(seed, "yard", x, y, 170.0)
    return step_up(urban + fray, 0.30, 0.46)


def street_m(seed: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Metres to the middle of the nearest street between two blocks."""
    return _blocks(seed, x, y)[4]


def avenue_m(seed: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Metres, roughly, to the middle of a wide road that winds through the town."""
    return np.asarray(np.abs(noise(seed, "avenue", x, y, 2_400.0)) * 1_500)


def _blocks(seed: int, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """(district i, j, u, v, metres to the edge, quarter): u and v count blocks inside the district."""
    warp = noise(seed, "district", x, y, 2600.0) * 700
    i, j = np.floor((x + warp) / _DISTRICT_M).astype(np.int64), np.floor((y - warp) / _DISTRICT_M).astype(np.int64)
    districts = Cells(i, j)
    angle = districts.draw(seed, "angle") * np.float32(np.pi / 2)
    cosine, sine = districts.take(np.cos(angle)), districts.take(np.sin(angle))
    wide = districts.take(85 + 75 * districts.draw(seed, "block width"))
    deep = districts.take(70 + 130 * districts.draw(seed, "block depth"))
    # Positions inside the district: small numbers, so that single precision is enough.
    dx = (x - i * _DISTRICT_M).astype(np.float32)
    dy = (y - j * _DISTRICT_M).astype(np.float32)
    u = (dx * cosine + dy * sine) / wide + 64
    v = (dy * cosine - dx * sine) / deep + 64
    a, b = np.floor(u), np.floor(v)
    edge = np.minimum(np.minimum(u - a, a + 1 - u) * wide, np.minimum(v - b, b + 1 - v) * deep)
    return i, j, u, v, edge, districts.take(districts.draw(seed, "quarter"))


def paint_city(
    seed: int, x: np.ndarray, y: np.ndarray, step_m: float, urban: np.ndarray, dry: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(reflectance, share of the pixel that is city, 0 to 1) at Mercator positions of a town."""
    share = city_share(seed, x, y, urban)
    i, j, u, v, edge, quarter = _blocks(seed, x, y)
    a, b = np.floor(u), np.floor(v)
    street = np.clip((9.0 + step_m / 2 - edge) / step_m, 0, 1) * min(1.0, 18.0 / step_m + 0.1)
    block_x, block_y = a.astype(np.int64) + i * 128, b.astype(np.int64) + j * 128
    kind, tone = draw_pair(seed, "block", block_x, block_y)
    # Single houses: a finer draw inside the block, so that roofs differ from their neighbours.
    house, _ = draw_pair(seed, "house", block_x * 6 + ((u - a) * 6).astype(np.int64),
                      block_y * 6 + ((v - b) * 6).astype(np.int64))  # fmt: skip
    # Coarse pixels hold many houses: what single ones add or take away evens out.
    single = np.float32(min(1.0, 22.0 / step_m))
    which = np.searchsorted(_ROOF_STEPS, (0.45 * tone + 0.25 * house + 0.6 * quarter) % 1)
    roof: np.ndarray = np.moveaxis(_ROOFS.T[:, which], 0, -1)
    roof = _MEAN_ROOF + (roof - _MEAN_ROOF) * (np.float32(0.8) * single)
    even = np.float32(min(1.0, 70.0 / step_m))  # from afar quarters flow into each other
    roof = roof * (0.95 + 0.26 * even * (quarter - 0.5) + single * 0.34 * (house - 0.5))[..., None]
    # Yards and shadows between the houses.
    yard_x, yard_y = block_x * 9 + ((u - a) * 9).astype(np.int64), block_y * 7 + ((v - b) * 7).astype(np.int64)
    roof = roof * (1 - 0.22 * single * (draw_pair(seed, "yard", yard_x, yard_y)[0] > 0.6))[..., None]
    green = np.clip(0.62 - 0.62 * urban + 0.25 * (tone - 0.5), 0.04, 0.6)  # gardens: fewer towards the centre
    park = (kind < 0.05 * single) | (noise(seed, "park", x, y, 780.0) > 0.62)
    green = np.where(park, 0.92, green * (1 + single * (house - 0.5)))
    plants = blend(_PARK, _DRY_PARK, dry)
    ground = blend(roof, plants, np.clip(green, 0, 0.97))
    avenue = avenue_m(seed, x, y)
    paved = np.maximum(
        street * (1 - 0.8 * park), np.clip((13.0 + step_m / 2 - avenue) / step_m, 0, 1) * min(1.0, 26.0 / step_m) ** 2
    )
    return blend(ground, _ASPHALT, paved), share
