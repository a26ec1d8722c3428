"""When the two satellites pass, and which part of a tile a pass sees: the swath's edges make the no-data wedges."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
import shapely

from infra.offline.scenes.tiles import SIZE_M, Tile, tile_named
from infra.offline.seeded_random import fraction

ORBITS = 143  # of one repeat cycle
CYCLE_DAYS = 10
SWATH_KM = 290.0
LEAST_SHARE = 0.01  # of a tile; a pass that sees less of it makes no product
FIRST_DAY = datetime(2021, 7, 1, tzinfo=UTC)
LAST_DAY = datetime(2024, 6, 30, tzinfo=UTC)  # passes before this midnight are in the archive
_INCLINATION = math.radians(98.57)
_PERIOD_S = CYCLE_DAYS * 86_400 / ORBITS
_NODE_HOUR = 10.5  # mean local solar time where a pass crosses the equator southward
_EPOCH = datetime(2021, 6, 21, tzinfo=UTC)
_KM_PER_DEG = 111.195
# Before this processing baseline reflectance has no offset; from it on 1000 is added to every band.
BASELINES = (
    (datetime(2021, 1, 1, tzinfo=UTC), "03.00"),
    (datetime(2021, 9, 1, tzinfo=UTC), "03.01"),
    (datetime(2022, 1, 25, tzinfo=UTC), "04.00"),
    (datetime(2022, 12, 6, tzinfo=UTC), "05.09"),
    (datetime(2023, 12, 13, tzinfo=UTC), "05.10"),
)
_ID = re.compile(r"(S2[AB])_MSIL2A_(\d{8}T\d{6})_R(\d{3})_T(\w{5})_(\d{8}T\d{6})")


@dataclass(frozen=True)
class Scene:
    """One tile seen by one pass."""

    tile: Tile
    orbit: int  # 1..143
    number: int  # half cycles of five days since the epoch; even ones are Sentinel-2A, odd ones 2B

    @property
    def satellite(self) -> str:
        """`S2A` or `S2B`."""
        return "S2A" if self.number % 2 == 0 else "S2B"

    @property
    def at(self) -> datetime:
        """When the pass began, whole seconds."""
        return pass_time(self.orbit, self.number)

    @property
    def baseline(self) -> str:
        """The version of the ground processor, `04.00` for instance."""
        return next(name for start, name in reversed(BASELINES) if self.at >= start)

    @property
    def offset(self) -> int:
        """What has to be subtracted from the stored numbers: 1000 from baseline 04.00 on."""
        return 1000 if self.baseline >= "04.00" else 0

    @property
    def id(self) -> str:
        """The item's id."""
        made = self.at + timedelta(seconds=int(14_400 + 40_000 * fraction("made", self.tile.name, self.number)))
        return (
            f"{self.satellite}_MSIL2A_{self.at:%Y%m%dT%H%M%S}_R{self.orbit:03d}_T{self.tile.name}_{made:%Y%m%dT%H%M%S}"
        )

    @property
    def coverage(self) -> float:
        """The share of the tile the swath covers."""
        return swath_share(self.tile, self.orbit)


def pass_time(orbit: int, number: int) -> datetime:
    """When a pass crosses the equator, whole seconds."""
    return _EPOCH + timedelta(seconds=int((orbit - 1) * _PERIOD_S + number * CYCLE_DAYS * 43_200))


def _node_deg(orbit: int | np.ndarray) -> float | np.ndarray:
    """Longitude where an orbit crosses the equator southward: where it is half past ten then."""
    hours = (orbit - 1) * _PERIOD_S / 3600.0 % 24.0
    return (15.0 * (_NODE_HOUR - hours) + 180.0) % 360.0 - 180.0


def across_km(orbit: int | np.ndarray, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Kilometres east of an orbit's ground track; the swath reaches SWATH_KM / 2 to either side."""
    sine = np.clip(np.sin(np.radians(lat)) / math.sin(_INCLINATION), -0.9999, 0.9999)
    along = -np.arcsin(sine)  # angle flown since the equator
    turned = np.arctan2(math.cos(_INCLINATION) * np.sin(along), np.cos(along)) - along * (_PERIOD_S / 86_400)
    east = (np.asarray(lon) - _node_deg(orbit) - np.degrees(turned) + 180.0) % 360.0 - 180.0
    cosine = np.cos(np.radians(lat))
    # The track leans: going west by this much per degree south, distances across it are shorter than along a parallel.
    slope = np.clip(
        abs(math.cos(_INCLINATION)) / np.maximum(0.05, cosine**2 - math.cos(_INCLINATION) ** 2) ** 0.5, 0, 8
    )
    lean = slope + (_PERIOD_S / 86_400) * cosine
    return np.asarray(east * cosine * _KM_PER_DEG / np.sqrt(1.0 + lean**2))


@lru_cache(maxsize=65_536)
def swath_share(tile: Tile, orbit: int) -> float:
    """The share of a tile that an orbit's swath covers, to a thousandth or so."""
    lat, lon = tile.points(48)
    return float(np.mean(np.abs(across_km(orbit, lat, lon)) <= SWATH_KM / 2))


@lru_cache(maxsize=32_768)
def orbits_over(tile: Tile) -> tuple[int, ...]:
    """The orbits that see more than a hundredth of a tile."""
    lat, lon = (np.array([part]) for part in tile.centre)
    return tuple(orbit for orbit in orbits_near(lat, lon) if swath_share(tile, orbit) > LEAST_SHARE)


def orbits_near(lat: np.ndarray, lon: np.ndarray) -> dict[int, np.ndarray]:
    """For each orbit that may see a tile around one of these centres: the numbers of those centres."""
    numbers = np.arange(1, ORBITS + 1)
    away = np.abs(across_km(numbers[:, None], lat[None], lon[None]))
    close = away < SWATH_KM / 2 + SIZE_M / 1400  # half a diagonal
    return {int(numbers[k]): np.flatnonzero(close[k]) for k in np.flatnonzero(close.any(axis=1))}


def scenes_of(tile: Tile, start: datetime = FIRST_DAY, end: datetime = LAST_DAY) -> list[Scene]:
    """Scenes of a tile between two times, newest first."""
    start, end = max(start, FIRST_DAY), min(end, LAST_DAY - timedelta(seconds=1))
    scenes = []
    for orbit in orbits_over(tile):
        half = timedelta(days=CYCLE_DAYS / 2)
        first = math.ceil((start - pass_time(orbit, 0)) / half)
        last = math.floor((end - pass_time(orbit, 0)) / half)
        scenes += [Scene(tile, orbit, number) for number in range(first, last + 1)]
    return sorted(scenes, key=lambda scene: (scene.at, scene.orbit), reverse=True)


def scene_with_id(item_id: str) -> Scene | None:
    """The scene an item id names, or None when the archive has none."""
    match = _ID.fullmatch(item_id)
    tile = tile_named(match[4]) if match else None
    if match is None or tile is None or int(match[3]) not in orbits_over(tile):
        return None
    orbit = int(match[3])
    try:
        at = datetime.strptime(match[2], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    number = round((at - pass_time(orbit, 0)) / timedelta(days=CYCLE_DAYS / 2))
    scene = Scene(tile, orbit, number)
    return scene if scene.id == item_id and FIRST_DAY <= scene.at < LAST_DAY else None


@lru_cache(maxsize=8_192)
def footprint(tile: Tile, orbit: int) -> shapely.Polygon:
    """The part of a tile that an orbit sees, in (lon, lat); longitudes may pass 180."""
    lat, lon = tile.outline
    outline_shape = shapely.Polygon(np.stack([lon, lat], axis=1))
    if swath_share(tile, orbit) >= 1.0:
        return outline_shape
    # Two edges of the swath as lines of longitude over latitude; between them lies what is seen.
    rows = np.linspace(lat.min() - 0.05, lat.max() + 0.05, 15)
    middle = float(lon.mean())
    edges = []
    for side in (-SWATH_KM / 2, SWATH_KM / 2):
        at = np.full(rows.shape, middle)
        for _ in range(4):  # distance is all but linear in longitude
            here = across_km(orbit, rows, at)
            rate = (across_km(orbit, rows, at + 0.01) - here) / 0.01
            at = at + (side - here) / rate
        edges.append(np.stack([at, rows], axis=1))
    swath = shapely.Polygon(np.concatenate([edges[0], edges[1][::-1]]))
    seen = shapely.intersection(outline_shape, swath)
    parts = [part for part in shapely.get_parts(seen) if part.geom_type == "Polygon"]
    return max(parts, key=lambda part: part.area) if parts else outline_shape
