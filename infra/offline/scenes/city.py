"""City blocks: streets, roofs and parks on the built-up ground."""

from __future__ import annotations

import numpy as np

from infra.offline.scenes.window import Cells, blend, draw_pair, noise, step_up

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
