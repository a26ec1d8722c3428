"""Sky, distant hills and the ground with its road markings: everything behind the things of the street."""

import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageChops

from infra.offline.data import read_table
from infra.offline.place import Place
from infra.offline.render.canvas import Camera, Canvas, colour
from infra.offline.seeded_random import generator

CELL_M = 0.05
REACH_M = 40.0
_LEVELS = 7

SOIL, GRASS, HILLS = (
    {row["climate"]: colour(row[name]) for row in read_table("climates.csv")} for name in ("soil", "grass", "hills")
)
WHITE, YELLOW = (236, 236, 230), (232, 186, 44)


def paint_sky(place: Place, camera: Camera, rng: np.random.Generator) -> Image.Image:
    """The picture filled with sky: gradient, sun, soft clouds. Painted small and enlarged, for it has no edges."""
    height_px = int(camera.horizon_row) + 2
    columns = np.linspace(0, camera.width - 1, camera.width // 16)
    rows = np.linspace(0, height_px - 1, height_px // 16)
    ray = camera.rays(columns, rows)
    ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
    up = np.clip(ray[..., 1], 0, 1)[..., None]
    haze = {"arid": 0.75, "tropical": 0.6, "polar": 0.5}.get(place.climate, 0.35) + 0.3 * rng.random()
    zenith = np.array([52.0, 108.0, 190.0]) * (0.85 + 0.15 * math.sin(math.radians(place.sun_height_deg)))
    edge = np.array([205.0, 218.0, 230.0]) * (1 - haze * 0.12) + np.array([18.0, 4.0, -20.0]) * (haze * 0.8)
    sky = zenith * up**0.55 + edge * (1 - up**0.55)
    around = math.radians(place.sun_azimuth_deg - place.bearing_deg)
    height = math.radians(place.sun_height_deg)
    sun = np.array([math.sin(around) * math.cos(height), math.sin(height), math.cos(around) * math.cos(height)])
    towards = np.clip(ray @ sun, 0, 1)[..., None]
    sky += 60 * towards**12 + 190 * towards**900
    # Clouds live on a plane far above, so they shrink towards the horizon as real ones do.
    cover = rng.uniform(-0.25, 0.55)
    plane = ray[..., :3:2] / np.maximum(ray[..., 1:2], 0.05)
    cloud = np.zeros(plane.shape[:2])
    for octave in range(4):
        angle, speed = rng.uniform(0, 2 * math.pi, size=3), 0.7 * 1.9**octave
        for k in range(3):
            direction = np.array([math.cos(angle[k]), math.sin(angle[k])])
            cloud += (
                np.sin(plane @ direction * speed + 7.0 * angle[(k + 1) % 3] + 1.6 * np.sin(plane[..., k % 2] * speed))
                / 1.7**octave
            )
    cloud = np.clip(cloud * 0.22 + cover, 0, 1)[..., None] * np.clip(up * 6, 0, 1)
    sky = sky * (1 - cloud * 0.85) + np.array([240.0, 241.0, 244.0]) * cloud * 0.85
    small = Image.fromarray(np.clip(sky, 0, 255).astype(np.uint8))
    picture = Image.new("RGB", (camera.width, camera.height))
    picture.paste(small.resize((camera.width, height_px), Image.Resampling.BILINEAR))
    return picture


def paint_hills(canvas: Canvas, place: Place, rng: np.random.Generator) -> None:
    """A far silhouette all around; steepness is the place's own, so neighbouring pictures agree."""
    relief = rng.uniform(0.4, 1.0) ** 2 * 8.5
    base = np.array(HILLS[place.climate], dtype=float)
    for layer, distance in ((0, 2400.0), (1, 1200.0)):
        azimuth = np.linspace(-math.pi, math.pi, 361)
        phase = rng.uniform(0, 2 * math.pi, size=6)
        wave = sum(np.sin(k * azimuth + phase[k - 1]) / k**0.8 for k in range(1, 7))
        degrees = np.maximum(0.25, relief * (0.35 + 0.28 * wave) * (1.0 - 0.45 * layer))
        top = distance * np.tan(np.radians(degrees))
        tone = base * (1.0 - 0.18 * layer) + (1 - layer) * 22
        red, green, blue = (int(c) for c in np.clip(tone, 0, 255))
        x, z = canvas.camera.x + distance * np.sin(azimuth), canvas.camera.z + distance * np.cos(azimuth)
        low = np.full_like(x, -20.0)
        quads = np.stack(
            [np.stack([x[:-1], top[:-1], z[:-1]], 1), np.stack([x[1:], top[1:], z[1:]], 1),
             np.stack([x[1:], low[1:], z[1:]], 1), np.stack([x[:-1], low[:-1], z[:-1]], 1)], axis=1,
        )  # fmt: skip
        canvas.quads(quads, [(red, green, blue)])


class Road:
    """The road's cross-section: half width, lines and what lies beside it."""

    def __init__(self, place: Place, rng: np.random.Generator) -> None:
        facts = place.facts
        self.lane_m = float(rng.uniform(3.1, 3.6))
        self.half_m = self.lane_m + (0.35 if facts.edge_line != "none" else 0.1)
        self.walk_m = {"centre": 2.6, "suburb": 1.8, "rural": 0.0}[place.setting]
        self.side = 1.0 if facts.drives_on == "right" else -1.0
        self.centre = YELLOW if facts.centre_line == "yellow" else WHITE
        self.edge = None if facts.edge_line == "none" else YELLOW if facts.edge_line == "yellow" else WHITE
        self.edge_dashed = facts.edge_style == "dashed"
        # Double solid yellow is the common sight where the centre is yellow; elsewhere broken white.
        self.centre_double = facts.centre_line == "yellow" and rng.random() < 0.6
        self.dash_m, self.gap_m = (3.0, 4.5) if facts.continent != "EU" else (3.0, 6.0)
        self.asphalt = float(rng.uniform(76, 118))

    @property
    def camera_x(self) -> float:
        """The middle of the lane the camera car drives in."""
        return self.side * self.lane_m / 2


def _section(place: Place, road: Road, dashes: bool, rng: np.random.Generator) -> np.ndarray:
    """Colours across the road, one row per CELL_M, from -REACH_M to REACH_M."""
    x = (np.arange(int(2 * REACH_M / CELL_M)) + 0.5) * CELL_M - REACH_M
    away = np.abs(x)
    ground = np.array(GRASS[place.climate] if place.setting != "centre" else SOIL[place.climate], dtype=float)
    if place.setting == "centre":
        ground = ground * 0.35 + np.array([150.0, 146.0, 138.0]) * 0.65
    colours = np.repeat(ground[None], len(x), axis=0)
    tone = np.interp(x, np.linspace(-REACH_M, REACH_M, 90), rng.normal(0, 9, 90))[:, None]
    colours += tone
    paved = away < road.half_m
    tracks = 7.0 * np.cos((away - road.lane_m / 2) * 2 * math.pi / 1.7)
    colours[paved] = (road.asphalt - tracks[paved])[:, None] * np.array([1.0, 1.0, 1.02])
    if road.walk_m:
        walk = (away >= road.half_m) & (away < road.half_m + road.walk_m)
        colours[walk] = (168, 164, 156)
        colours[(away >= road.half_m) & (away < road.half_m + 0.18)] = (196, 194, 188)
        colours[walk & (np.floor(away / 0.6) % 2 == 0)] -= 7
    else:
        colours[(away >= road.half_m) & (away < road.half_m + 0.9)] = np.array(SOIL[place.climate], dtype=float) * 0.94
    if road.edge is not None and (dashes or not road.edge_dashed):
        colours[np.abs(away - (road.half_m - 0.25)) < 0.075] = road.edge
    if road.centre_double:
        colours[np.abs(away - 0.14) < 0.06] = road.centre
    elif dashes:
        colours[away < 0.075] = road.centre
    return colours


def _levels(section: np.ndarray) -> np.ndarray:
    """The cross-section at halving resolutions, so that far lines fade instead of flickering."""
    stacked = [section]
    for level in range(1, _LEVELS):
        width = 2**level
        padded = np.pad(section, ((width // 2, width - width // 2), (0, 0)), mode="edge")
        total = np.cumsum(padded, axis=0)
        stacked.append((total[width:] - total[:-width])[: len(section)] / width)
    return np.asarray(np.clip(np.stack(stacked), 0, 255).astype(np.uint8))


def paint_ground(image: Image.Image, place: Place, road: Road | None, camera: Camera, rng: np.random.Generator) -> None:
    """Everything below the horizon: the road in exact perspective, or open ground where there is none."""
    first = int(camera.horizon_row)
    depth = camera.ground_depth(np.arange(first, camera.height)).astype(np.float32)
    ray_x, ray_z = camera.ground_rays
    if road is None:
        bare = np.repeat(np.array(GRASS[place.climate], float)[None], int(2 * REACH_M / CELL_M), axis=0)
        off = on = _levels(
            bare
            + np.interp(np.arange(len(bare)), np.arange(0, len(bare), 20), rng.normal(0, 7, len(bare) // 20))[:, None]
        )
        period = duty = 1.0
    else:
        # One draw for both, so that dashes differ from gaps by the lines only.
        grain = int(rng.integers(0, 1 << 30))
        on, off = (_levels(_section(place, road, dashes, np.random.default_rng(grain))) for dashes in (True, False))
        period, duty = road.dash_m + road.gap_m, road.dash_m
    cells = on.shape[1]
    across = depth[:, None] * ray_x[None, :] + np.float32(camera.x)
    index = np.clip((across + np.float32(REACH_M)) * np.float32(1 / CELL_M), 0, cells - 1).astype(np.int32)
    footprint = depth / camera.focal_px / CELL_M
    level = np.clip(np.round(np.log2(np.maximum(footprint, 1.0))), 0, _LEVELS - 1).astype(np.int32)
    index += (level * cells)[:, None]
    pixels = np.take(_packed(off), index)
    if road is not None:
        lines = np.abs(np.abs(across) - np.float32(road.half_m - 0.25)) < 0.45
        lines |= np.abs(across) < 0.45
        row, column = np.nonzero(lines)
        along = depth[row] * ray_z[column] + np.float32(camera.z)
        painted = (along % period) < duty
        row, column = row[painted], column[painted]
        pixels[row, column] = np.take(_packed(on), index[row, column])
    ground = Image.frombuffer("RGBX", (camera.width, len(depth)), pixels.tobytes(), "raw", "RGBX", 0, 1).convert("RGB")
    # Air between the camera and the far ground takes its colour away.
    haze = np.clip(1 - np.exp(-depth / 260.0), 0, 0.85)
    hazy = int(np.count_nonzero(haze > 0.03))
    mask = Image.fromarray((haze[:hazy] * 255).astype(np.uint8)[:, None]).resize(
        (camera.width, hazy), Image.Resampling.NEAREST
    )
    image.paste(ImageChops.add(ground, mottle(camera.width, len(depth)), 1, -128), (0, first))
    image.paste(tuple(int(c * 0.9 + 16) for c in HILLS[place.climate]), (0, first), mask)


@lru_cache(maxsize=4)
def mottle(width: int, height: int) -> Image.Image:
    """Unevenness of the ground: grains near the camera, fewer towards the horizon."""
    rng = generator("mottle")
    coarse = Image.fromarray(rng.normal(128, 40, size=(128, 128)).clip(0, 255).astype(np.uint8)).resize(
        (512, 512), Image.Resampling.BICUBIC
    )
    tile = (np.asarray(coarse, dtype=np.float32) - 128) * 0.12 + rng.normal(0, 5.5, size=(512, 512))
    full = np.tile(tile, (height // 512 + 1, width // 512 + 1))[:height, :width]
    full = full * np.linspace(0.25, 1.0, height)[:, None]
    return Image.fromarray(np.clip(full + 128, 0, 255).astype(np.uint8)).convert("RGB")


def _packed(levels: np.ndarray) -> np.ndarray:
    """Colours as single 32-bit numbers: one lookup a pixel instead of three."""
    flat = levels.reshape(-1, 3).astype(np.uint32)
    return (flat[:, 0] | (flat[:, 1] << 8) | (flat[:, 2] << 16) | (255 << 24)).astype("<u4")
