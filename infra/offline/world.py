"""A small deterministic Earth: which gazetteer cities have imagery, and what each image is."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infra.offline import ids
from infra.offline.gazetteer import Gazetteer, gazetteer
from infra.offline.place import Place, make_place, point_along
from infra.offline.seeded_random import fraction, fractions, generator
from infra.offline.side_streets import SideStreets

DEFAULT_SEED = 7
DEFAULT_SIZE = 40_000
SPACING_M = 9.0
MILLION_PEOPLE_PER_COPY = 0.75
MOST_COPIES = 12
BIG_CITY = 100_000
BIG_CITY_SHARE = 0.3
CROWDED = 10  # cities of a dense world that have half of its imagery
_FIRST_DAY_MS = 1_420_070_400_000  # 2015-01-01
_DAYS = 3900
_MAKES = (("GoPro", "GoPro Max"), ("Insta360", "Insta360 ONE X2"), ("RICOH", "RICOH THETA V"), ("Garmin", "VIRB 360"))
_PHONES = (("samsung", "SM-G973F"), ("Apple", "iPhone 12"), ("Xiaomi", "Mi A2"), ("GoPro", "HERO8 Black"))

CONDITIONS = ("clear", "near_duplicate", "exact_duplicate", "blurred", "dark", "no_clue", "landmark")
_CONDITION_STEPS = np.cumsum([0.74, 0.06, 0.04, 0.04, 0.04, 0.05])
# Sizes that cameras and uploads have, odd ones among them.
PANO_SIZES = ((2048, 1024), (3840, 1920), (4096, 2048), (4096, 2044), (5056, 2528), (5760, 2880), (8192, 4096))
_BLUR, _LIGHT = 1 / 130, 0.09  # of a picture that is spoilt outright


@dataclass(frozen=True)
class Modes:
    """How a world departs from the default one, which is quick and even."""

    mixed_sizes: bool = False  # panoramas of PANO_SIZES instead of one width
    dense: bool = False  # imagery crowds into the largest cities: thousands of images on a tile
    graded: bool = False  # every picture is a little blurred and dim, some much; no clear line between good and bad

    def names(self) -> list[str]:
        """The modes that are on."""
        return [name for name, on in vars(self).items() if on]


@dataclass(frozen=True)
class ImageRecord:
    """What is known of one image; the truth lives here and in the painter, never in a chat model."""

    image_id: str
    place: int
    slot: int
    painted_as: int  # the slot whose scene this is: a duplicate shows the picture before it
    condition: str
    is_pano: bool
    sequence_id: str
    lat: float
    lon: float
    compass_deg: float
    captured_at_ms: int
    altitude_m: float
    quality: float | None
    creator: str
    creator_id: str
    make: str
    model: str
    width: int
    height: int
    computed_lat: float | None  # None: not yet processed, so the field is absent
    computed_lon: float | None
    blur: float = 0.0  # radius of the blur, as a part of the picture's width
    light: float = 1.0  # share of the light that is there


class World:
    """`size` places of the open gazetteer that have imagery, chosen by a seed; details are computed when requested."""

    def __init__(
        self, seed: int = DEFAULT_SEED, size: int = DEFAULT_SIZE, pano_width: int = 4096, modes: Modes | None = None
    ) -> None:
        if size < 1:
            raise ValueError(f"size: {size} places; at least 1 is needed")
        if pano_width % 64 or not 512 <= pano_width <= 5760:
            raise ValueError(f"pano_width: {pano_width}; a multiple of 64 between 512 and 5760 is needed")
        self.seed, self.pano_width, self.modes = seed, pano_width, modes or Modes()
        self.gazetteer: Gazetteer = gazetteer()
        self._city, self._copy = _choose(self.gazetteer, seed, size, self.modes.dense)
        self._order: np.ndarray | None = None
        self.size = len(self._city)
        self._lat, self._lon = self.gazetteer.lat[self._city], self.gazetteer.lon[self._city]
        self.place = lru_cache(maxsize=20_000)(self._make_place)
        self.images = lru_cache(maxsize=20_000)(self._make_images)
        self.side_streets = SideStreets(seed, self.gazetteer)

    def _make_place(self, index: int) -> Place:
        """The place at an index in [0, size)."""
        if not 0 <= index < self.size:
            raise IndexError(f"place {index} of {self.size}")
        row = int(self._city[index])
        near = self.gazetteer.nearest(float(self.gazetteer.lat[row]), float(self.gazetteer.lon[row]), 9)
        neighbours = [(self.gazetteer.city(i), km) for i, km in near if i != row]
        return make_place(
            self.seed, index, self.gazetteer.city(row), int(self._copy[index]), neighbours, self.modes.dense
        )

    def sign_texts(self, index: int) -> Place:
        """The place without its direction sign, near where it lies: cheap enough to read the world's signs once."""
        row = int(self._city[index])
        return make_place(self.seed, index, self.gazetteer.city(row), int(self._copy[index]), None, self.modes.dense)

    def row_of(self, index: int) -> int:
        """The gazetteer row of a place's town."""
        return int(self._city[index])

    def places_of_town(self, row: int) -> list[int]:
        """Indices of the places in the town at a gazetteer row."""
        if self._order is None:
            self._order = np.argsort(self._city, kind="stable")
        first, last = np.searchsorted(self._city, (row, row + 1), sorter=self._order)
        return [int(index) for index in self._order[first:last]]

    def _make_images(self, index: int) -> tuple[ImageRecord, ...]:
        """All images of a place in the order they were taken: one sequence."""
        place = self.place(index)
        return tuple(self._record(place, slot, condition) for slot, condition in enumerate(self._conditions(place)))

    def first_image(self, index: int) -> ImageRecord:
        """The first image of a place; cheap enough to put every place of a continent on a map."""
        place = self.sign_texts(index)
        return self._record(place, 0, self._conditions(place)[0])

    def image(self, image_id: str) -> ImageRecord | None:
        """The image with an id, or None when this world has none."""
        position = ids.read_image_id(self.seed, image_id)
        if position is None or not 0 <= position[0] < self.size:
            return None
        images = self.images(position[0])
        return images[position[1]] if position[1] < len(images) else None

    def places_near(self, west: float, south: float, east: float, north: float) -> list[int]:
        """Indices of places whose city lies in or close to the box; the images' own positions decide what is inside."""
        pad_lat = 0.12  # a place and its sequence stay within 8 km of the city
        pad_lon = pad_lat / max(0.05, math.cos(math.radians(min(89.0, max(abs(south), abs(north))))))
        inside = (self._lat >= south - pad_lat) & (self._lat <= north + pad_lat)
        inside &= (self._lon >= west - pad_lon) & (self._lon <= east + pad_lon)
        return [int(i) for i in np.flatnonzero(inside)]

    def images_in(self, west: float, south: float, east: float, north: float) -> list[ImageRecord]:
        """Every image inside a box."""
        records = []
        for index in self.places_near(west, south, east, north):
            place = self.place(index)
            margin = 0.002
            if not (
                south - margin <= place.lat <= north + margin
                and west - margin / 0.05 <= place.lon <= east + margin / 0.05
            ):
                continue
            records += [r for r in self.images(index) if south <= r.lat <= north and west <= r.lon <= east]
        return records

    def _conditions(self, place: Place) -> list[str]:
        drawn: list[str] = []
        for slot in range(place.image_count):
            share = fraction(self.seed, "condition", place.paint_seed, slot)
            condition = CONDITIONS[int(np.searchsorted(_CONDITION_STEPS, share, side="right"))]
            # A duplicate needs an original before it that is not itself a duplicate.
            if condition.endswith("duplicate") and (slot == 0 or drawn[-1].endswith("duplicate")):
                condition = "clear"
            drawn.append(condition)
        return drawn

    def _record(self, place: Place, slot: int, condition: str) -> ImageRecord:
        source = slot - 1 if condition.endswith("duplicate") else slot
        rng = generator(self.seed, "image", place.paint_seed, slot)
        is_pano = self._is_pano(place, source)
        along_m = camera_along_m(slot, condition)
        lat, lon = point_along(place.lat, place.lon, place.bearing_deg, along_m)
        width, height = self._pano_size(place) if is_pano else (1600, 1200)
        blur, light = self._spoilt(place, slot, condition)
        processed = rng.random() < 0.95
        shift = rng.normal(0.0, 1.5e-5, size=2)
        make, model = (_MAKES if is_pano else _PHONES)[int(fraction(self.seed, "camera", place.paint_seed) * 4)]
        creator = int(fraction(self.seed, "creator", place.city.admin1, place.country, place.index % 7) * 1e6)
        day = int(fraction(self.seed, "day", place.paint_seed) * _DAYS)
        return ImageRecord(
            image_id=ids.image_id(self.seed, place.index, slot),
            place=place.index,
            slot=slot,
            painted_as=source,
            condition=condition,
            is_pano=is_pano,
            sequence_id=ids.sequence_id(self.seed, place.index),
            lat=round(lat, 12),
            lon=round(lon, 12),
            compass_deg=round(
                (place.bearing_deg + (0.0 if is_pano else photo_yaw_deg(self.seed, place, source))) % 360.0, 8
            ),
            captured_at_ms=_FIRST_DAY_MS + day * 86_400_000 + 36_000_000 + slot * 2_000,
            altitude_m=round(float(20 + 300 * fraction(self.seed, "altitude", place.paint_seed)), 3),
            quality=round(float(rng.uniform(0.15, 0.95)), 6) if rng.random() < 0.9 else None,
            creator=f"mapper_{creator}",
            creator_id=str(10**14 + creator * 7919),
            make=make,
            model=model,
            width=width,
            height=height,
            computed_lat=round(lat + float(shift[0]), 12) if processed else None,
            computed_lon=round(lon + float(shift[1]), 12) if processed else None,
            blur=blur,
            light=light,
        )

    def _pano_size(self, place: Place) -> tuple[int, int]:
        if not self.modes.mixed_sizes:
            return self.pano_width, self.pano_width // 2
        return PANO_SIZES[int(fraction(self.seed, "size", place.paint_seed) * len(PANO_SIZES))]

    def _spoilt(self, place: Place, slot: int, condition: str) -> tuple[float, float]:
        """(blur, light) of a picture: all or nothing, unless the world is graded."""
        blur = _BLUR if condition == "blurred" else 0.0
        light = _LIGHT if condition == "dark" else 1.0
        if self.modes.graded:
            # Most pictures are nearly clear; the tail reaches what is spoilt outright.
            blur = max(blur, 0.6 * _BLUR * fraction(self.seed, "blur", place.paint_seed, slot) ** 4)
            light = min(light, 1.0 - 0.8 * fraction(self.seed, "dusk", place.paint_seed, slot) ** 4)
        return blur, light

    def _is_pano(self, place: Place, slot: int) -> bool:
        mode = fraction(self.seed, "mode", place.paint_seed)
        return mode < 0.45 or (mode < 0.85 and slot % 2 == 0)


def camera_along_m(slot: int, condition: str) -> float:
    """Metres the camera has come along the street; a near-duplicate is a stop of the car, half a metre on."""
    if condition == "exact_duplicate":
        return (slot - 1) * SPACING_M
    return (slot - 1) * SPACING_M + 0.5 if condition == "near_duplicate" else slot * SPACING_M


def photo_yaw_deg(seed: int, place: Place, slot: int) -> float:
    """Where an ordinary photo looks, from the direction of travel: to the fronts on either side, seldom far off."""
    side = 1.0 if fraction(seed, "side", place.paint_seed, slot) < 0.5 else -1.0
    return side * (8.0 + 30.0 * fraction(seed, "yaw", place.paint_seed, slot))


def _choose(cities: Gazetteer, seed: int, size: int, dense: bool) -> tuple[np.ndarray, np.ndarray]:
    """(city row, copy) per place: a seeded draw without replacement, likelier for populous cities."""
    if dense:
        return _choose_crowded(cities, size)
    copies = 1 + np.minimum(MOST_COPIES - 1, cities.population / (MILLION_PEOPLE_PER_COPY * 1e6)).astype(np.int64)
    while copies.sum() < size:
        copies += 1
    rows = np.repeat(np.arange(len(cities)), copies)
    copy = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    uniform = fractions(seed, cities.ids[rows] * 64 + copy)
    # Exponential races: the first `size` arrivals are a draw without replacement with these weights.
    weight = _weights(cities)[rows] / np.repeat(copies, copies)
    big = cities.population[rows] >= BIG_CITY
    weight = (1 - BIG_CITY_SHARE) * weight / weight.sum() + BIG_CITY_SHARE * big / big.sum()
    arrival = -np.log1p(-uniform) / weight
    order = np.lexsort((copy, cities.ids[rows], arrival))[:size]
    return rows[order], copy[order]


def _choose_crowded(cities: Gazetteer, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(city row, copy) per place with half of all places in the largest cities, by turns."""
    order = np.lexsort((cities.ids, -cities.population))
    crowded, rest = np.arange(size // 2), np.arange(size - size // 2)
    rows = np.concatenate([order[crowded % CROWDED], order[CROWDED + rest % (len(order) - CROWDED)]])
    copy = np.concatenate([crowded // CROWDED, rest // (len(order) - CROWDED)])
    return rows, copy


def _weights(cities: Gazetteer) -> np.ndarray:
    """Imagery is everywhere where people are: each 1-degree cell by the log of its people, its towns by theirs."""
    people = np.log1p(np.maximum(cities.population, 1))
    _, cell = np.unique(np.floor(cities.lat) * 1000 + np.floor(cities.lon), return_inverse=True)
    in_cell = np.bincount(cell, weights=cities.population)[cell]
    return np.log1p(in_cell + 1) * people / np.bincount(cell, weights=people)[cell]
