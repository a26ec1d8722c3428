"""The ground under a view: near, the ground of the satellite scenes; far, land and sea by country and climate."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from PIL import Image, ImageFilter

from infra.offline.country_map import country_map
from infra.offline.maps.view import View
from infra.offline.scenes.clouds import dryness
from infra.offline.scenes.ground import paint_ground
from infra.offline.scenes.projection import to_geographic, to_mercator, to_utm, unbroken
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.towns import built_up, towns_of
from infra.offline.scenes.window import Window, layers, noise, step_up

_FRAME_M = 50_000  # frames of 110 km lie this far apart: a view up to 56 km wide fits into one
_REACH_M = 28_000.0
_SUMMER, _SUN = 190, (55.0, 160.0)
_BRIGHT = 0.3558  # as in the scenes' true colour


@dataclass(frozen=True)
class Frame:
    """As much of a scene's tile as its painter asks for, anywhere on the grid of a zone."""

    zone: int
    south: bool
    left_m: int
    top_m: int

    @cached_property
    def outline(self) -> tuple[np.ndarray, np.ndarray]:
        """(lat, lon) of the corners and the middles of the sides."""
        run = np.array([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0]) * SIZE_M
        return to_geographic(self.left_m + run, self.top_m - np.roll(run, 2), self.zone, self.south)


@dataclass(frozen=True)
class Near:
    """The ground of a view close enough to see fields and streets."""

    colour: Image.Image  # true colour
    kind: np.ndarray  # scene class per pixel
    urban: np.ndarray  # 0 to 1 per pixel
    roads: list[tuple[float, np.ndarray, np.ndarray]]  # (width in m, lats, lons)


def is_near(view: View) -> bool:
    """Whether a view can be painted like a scene: small enough, and where scenes are."""
    half = view.ground_m * max(view.width, view.height) / 2
    return half <= _REACH_M * 0.93 and abs(view.middle[0]) < 79.0


def near_ground(seed: int, view: View) -> Near:
    """The ground of a near view."""
    lat, lon = view.middle
    zone, south = int((lon + 180.0) // 6) % 60 + 1, lat < 0
    x, y = (float(v) for v in to_utm(np.array(lat), np.array(lon), zone, south))
    left, top = int(x // _FRAME_M) * _FRAME_M - 30_000, int(y // _FRAME_M) * _FRAME_M + 80_000
    frame = cast(Tile, Frame(zone, south, left - left % 60, top - top % 60))
    corners = view.degrees(np.array([0, 0, view.width, view.width]), np.array([0, view.height, view.height, 0]))
    east, north = to_utm(*corners, zone, south)
    step = max(0.5, view.ground_m)
    columns, rows = (int(np.ptp(side) / step) + 4 for side in (east, north))
    window = Window(zone, south, float(east.min()) - 2 * step, float(north.max()) + 2 * step, step, columns, rows)
    quad = np.stack([(east - window.left_m) / step, (window.top_m - north) / step], axis=1).ravel().tolist()
    size = view.width, view.height

    def seen(values: np.ndarray, how: Image.Resampling) -> Image.Image:
        return Image.fromarray(values).transform(size, Image.Transform.QUAD, quad, how)

    ground = paint_ground(seed, frame, window, _SUMMER, _SUN)
    shown = np.clip(ground.colour * (255 / _BRIGHT), 0, 255).astype(np.uint8)
    towns = towns_of(frame)
    fray = layers(seed, "fray", *window.node_plane, (5_200.0, 1_900.0), 0.6)
    urban = window.spread(built_up(towns, window, fray)).astype(np.float32)
    roads = [(width, *to_geographic(line[:, 0], line[:, 1], zone, south)) for width, line in towns.roads]
    return Near(
        seen(shown, Image.Resampling.BILINEAR),
        np.asarray(seen(ground.kind, Image.Resampling.NEAREST)),
        np.asarray(seen(urban, Image.Resampling.BILINEAR)),
        roads,
    )


def land_of(view: View) -> np.ndarray:
    """How much of each pixel is land, 0 to 1; rounded where the country map is coarser than the pixels."""
    row_px = 1852.0 / view.ground_m  # the country map has a row per arc-minute
    pad = math.ceil(2 * row_px) + 2
    wider = View(view.zoom, view.left - pad, view.top - pad, view.width + 2 * pad, view.height + 2 * pad)
    mask = Image.fromarray((countries_of(wider) > 0).astype(np.uint8) * 255)
    if row_px > 1.2:
        mask = mask.filter(ImageFilter.GaussianBlur(0.7 * row_px))
        mask = mask.point([min(255, max(0, round((v - 127.5) * 0.8 * row_px + 127.5))) for v in range(256)])
    return np.asarray(mask)[pad:-pad, pad:-pad] / np.float32(255)


def countries_of(view: View) -> np.ndarray:
    """Number of the country per pixel, 0 at sea."""
    down, across = np.arange(view.height) + 0.5, np.arange(view.width) + 0.5
    lat, _ = view.degrees(np.zeros(view.height), down)
    _, lon = view.degrees(across, np.zeros(view.width))
    return country_map().land(lat[:, None], (lon[None, :] + 180.0) % 360.0 - 180.0)


def far_colour(seed: int, view: View) -> Image.Image:
    """True colour of a view too wide for fields: sea, woods, grass, deserts and ice."""
    lat, lon = view.degrees(*np.meshgrid(np.arange(view.width) + 0.5, np.arange(view.height) + 0.5))
    lon = (lon + 180.0) % 360.0 - 180.0
    x, y = to_mercator(np.clip(lat, -84, 84), unbroken(lon, lon))
    rough = layers(seed, "far", x, y, (900_000.0, 260_000.0, 80_000.0, 26_000.0), 0.6)
    dry = np.clip(dryness(lat, lon) + 0.12 * rough, 0, 1)
    north = np.abs(lat) + 3.0 * rough
    land = np.array([58.0, 82.0, 42.0]) + np.array([24.0, 16.0, 10.0]) * rough[..., None]
    for share, colour in (
        (step_up(north, 48, 58), (46.0, 66.0, 44.0)),
        (step_up(dry, 0.25, 0.7), (196.0, 160.0, 112.0)),
        (step_up(north, 64, 70), (128.0, 122.0, 100.0)),
        (step_up(north, 71, 78), (236.0, 240.0, 244.0)),
        (((lat < -60) | ((lat > 60) & (lon < -18) & (lon > -56) & (lat < 84))) * 1.0, (238.0, 241.0, 245.0)),
    ):
        land = land + (np.array(colour) - land) * np.asarray(share)[..., None]
    land = land * (1 + 0.08 * noise(seed, "far grain", x, y, max(9_000.0, 4 * view.px_m)))[..., None]
    deep = np.array([12.0, 32.0, 62.0]) + 5 * noise(seed, "far sea", x, y, 700_000.0)[..., None]
    picture = np.clip(deep + (land - deep) * land_of(view)[..., None], 0, 255).astype(np.uint8)
    return Image.fromarray(picture)


def ground_width_px(width_m: float, view: View, least: float = 1.0) -> int:
    """How many pixels something on the ground is wide."""
    return max(math.ceil(least), round(width_m / view.ground_m))
