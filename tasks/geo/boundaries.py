"""Which country and region a point lies in, for millions of points at once.

The Earth is cut into squares of a tenth of a degree. Each square knows the region of one reference point inside it,
and, where borders or coasts cross it, their segments. A point in an uncrossed square has its square's answer. Any
other point is reached from the reference point by one step east or west and one step north or south: every segment
stepped over swaps the region on its left for the region on its right, so adding up signed crossings gives the exact
answer without ever looking at a whole polygon.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.geo.atlas import Outlines, outlines

SIDE_DEG = 0.1
ROWS, COLUMNS = 1800, 3600
# Where in its square a reference point sits. Not a multiple of the 1e-5 degrees of the outlines: no vertex is level
# with a reference point, so no crossing is ever a tie.
REFERENCE = 0.4142135

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Segments:
    """Border segments; `label` is what lies on the left of each, 0 being the sea."""

    lat0: Floats
    lon0: Floats
    lat1: Floats
    lon1: Floats
    label: Ints

    def take(self, chosen: NDArray[np.bool_] | Ints) -> "Segments":
        return Segments(self.lat0[chosen], self.lon0[chosen], self.lat1[chosen], self.lon1[chosen], self.label[chosen])


@dataclass(frozen=True)
class Index:
    """A lookup from points to labels 0..n, 0 being the sea."""

    base: NDArray[np.int32]  # label of the reference point, per square
    crossed: NDArray[np.int32]  # number among the crossed squares, or -1
    start: Ints  # segments of crossed square k are pieces[start[k]:start[k + 1]]
    pieces: Segments
    # Where segments of crossed square k cross its reference parallel, and what stepping east over one adds:
    # level_lon[level_start[k]:level_start[k + 1]]. They depend on the square alone, so they are computed once.
    level_start: Ints
    level_lon: Floats
    level_change: Ints

    def label(self, lat: ArrayLike, lon: ArrayLike) -> Ints:
        """The label at each point; points on a border go to one of its sides."""
        lats, lons = np.atleast_1d(np.asarray(lat, float)), np.atleast_1d(np.asarray(lon, float))
        square = square_of(lats, lons)
        labels = self.base[square].astype(np.int64)
        number = self.crossed[square]
        near = np.flatnonzero(number >= 0)
        if near.size:
            labels[near] += self._steps(lats[near], wrap(lons[near]), square[near], number[near])
        return labels

    def _steps(self, lat: Floats, lon: Floats, square: Ints, number: NDArray[np.int32]) -> Ints:
        """What to add to the reference point's label on the way to each point."""
        row, column = square // COLUMNS, square % COLUMNS
        from_lat, from_lon = reference(row, column)
        # East or west along the reference point's parallel, whose crossings are known for each square.
        point, step = runs(self.level_start[number + 1] - self.level_start[number])
        crossing = self.level_start[number][point] + step
        x, px, rx = self.level_lon[crossing], lon[point], from_lon[point]
        over = ((x > rx) & (x <= px)).astype(np.int8) - ((x <= rx) & (x > px))
        change = np.bincount(point, weights=over * self.level_change[crossing], minlength=len(lat))
        # North or south along the point's own meridian. A segment going east has its region on the north.
        point, step = runs(self.start[number + 1] - self.start[number])
        piece = self.start[number][point] + step
        s, px = self.pieces, lon[point]
        right, left = s.lon0[piece] <= px, s.lon1[piece] <= px
        plumb = np.flatnonzero(right != left)  # the meridian runs between the two ends
        point, piece, px, right = point[plumb], piece[plumb], px[plumb], right[plumb]
        lat0, lon0 = s.lat0[piece], s.lon0[piece]
        y = lat0 + (px - lon0) / (s.lon1[piece] - lon0) * (s.lat1[piece] - lat0)
        py, ry = lat[point], from_lat[point]
        over = ((y > ry) & (y <= py)).astype(np.int8) - ((y <= ry) & (y > py))
        signed = np.where(right, over, -over) * s.label[piece]
        return (change + np.bincount(point, weights=signed, minlength=len(lat))).astype(np.int64)


def wrap(lon: Floats) -> Floats:
    """Longitudes in [-180, 180), the last meridian kept where it is."""
    return np.where((lon >= -180) & (lon <= 180), lon, (lon + 180) % 360 - 180)


def square_of(lat: Floats, lon: Floats) -> Ints:
    """The number of the square of each point, row by row from the south-west."""
    if not (np.isfinite(lat).all() and np.isfinite(lon).all() and (np.abs(lat) <= 90).all()):
        raise ValueError("coordinates must be numbers, latitudes within -90..90")
    row = np.minimum((lat + 90) * 10, ROWS - 1).astype(np.int64)
    column = np.minimum((wrap(lon) + 180) * 10, COLUMNS - 1).astype(np.int64)
    return row * COLUMNS + column


def reference(row: Ints, column: Ints) -> tuple[Floats, Floats]:
    """Latitude and longitude of the reference points of squares."""
    return (row + REFERENCE) / 10 - 90, (column + REFERENCE) / 10 - 180


def segments(shape: Outlines) -> Segments:
    """The sides of all rings; the label of a side is its region's number plus one."""
    inner = np.ones(len(shape.lat), dtype=bool)
    inner[shape.start[1:] - 1] = False  # no side leads from the end of a ring to the next one
    head = np.flatnonzero(inner)
    label = np.repeat(shape.ring_region + 1, np.diff(shape.start) - 1)
    return Segments(shape.lat[head], shape.lon[head], shape.lat[head + 1], shape.lon[head + 1], label)


def runs(counts: Ints) -> tuple[Ints, Ints]:
    """For counts 2, 0, 3: which one (0, 0, 2, 2, 2), and the how-manieth of it (0, 1, 0, 1, 2)."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def build_index(borders: Segments) -> Index:
    """The lookup for the sides of polygons that form a coverage."""
    squares, start, owner = _by_square(borders)
    crossed = np.full(ROWS * COLUMNS, -1, dtype=np.int32)
    crossed[squares] = np.arange(len(squares))
    pieces = borders.take(owner)
    return Index(_base(borders), crossed, start, pieces, *_levels(squares, start, pieces))


def _levels(squares: Ints, start: Ints, pieces: Segments) -> tuple[Ints, Floats, Ints]:
    """Crossings of each square's reference parallel: where the list of a square begins, longitudes, signed labels."""
    square = np.repeat(np.arange(len(squares)), np.diff(start))
    lat, _ = reference(squares // COLUMNS, squares % COLUMNS)
    level = lat[square]
    up = (pieces.lat0 <= level) & (level < pieces.lat1)
    cross = np.flatnonzero(up | ((pieces.lat1 <= level) & (level < pieces.lat0)))
    s = pieces.take(cross)
    lon = s.lon0 + (level[cross] - s.lat0) / (s.lat1 - s.lat0) * (s.lon1 - s.lon0)
    begin = np.searchsorted(cross, start)
    # A segment going north has its region on the west: stepping east over it leaves that region.
    return begin, lon, np.where(up[cross], -s.label, s.label)


def _base(borders: Segments) -> NDArray[np.int32]:
    """Labels of the reference points: on each parallel from the west, entering a region adds its label, leaving it
    takes the label away."""
    low = np.ceil((np.minimum(borders.lat0, borders.lat1) + 90) * 10 - REFERENCE).astype(np.int64)
    high = np.ceil((np.maximum(borders.lat0, borders.lat1) + 90) * 10 - REFERENCE).astype(np.int64)
    which, step = runs(high - low)
    row = low[which] + step
    s = borders.take(which)
    lat, _ = reference(row, row)
    lon = s.lon0 + (lat - s.lat0) / (s.lat1 - s.lat0) * (s.lon1 - s.lon0)
    column = np.maximum(np.ceil((lon + 180) * 10 - REFERENCE), 0).astype(np.int64)
    width = COLUMNS + 1  # the last column takes what is left at the date line
    change = np.where(s.lat1 > s.lat0, -s.label, s.label)
    steps = np.bincount(row * width + column, weights=change, minlength=ROWS * width)
    return np.cumsum(steps.reshape(ROWS, width)[:, :COLUMNS], axis=1).astype(np.int32).ravel()


def _by_square(borders: Segments) -> tuple[Ints, Ints, Ints]:
    """The crossed squares, where the list of each begins, and the segments of all lists."""
    size = np.maximum(np.abs(borders.lat1 - borders.lat0), np.abs(borders.lon1 - borders.lon0))
    # Long segments are marked in pieces, so that a slanted border does not mark a whole box.
    which, part = runs(np.maximum(np.ceil(size / SIDE_DEG), 1).astype(np.int64))
    count = np.maximum(np.ceil(size / SIDE_DEG), 1)[which]
    s = borders.take(which)
    box = []
    for a, b, limit in ((s.lat0 + 90, s.lat1 + 90, ROWS), (s.lon0 + 180, s.lon1 + 180, COLUMNS)):
        start_at, two = (a + part / count * (b - a)) * 10, (a + (part + 1) / count * (b - a)) * 10
        # A hair wider: what runs along the edge of a square is listed on both sides of it.
        first = np.clip(np.minimum(start_at, two) - 1e-6, 0, limit - 1).astype(np.int64)
        box += [first, np.clip(np.maximum(start_at, two) + 1e-6, 0, limit - 1).astype(np.int64) - first + 1]
    row, rows, column, columns = box
    piece, step = runs(rows * columns)
    square = (row[piece] + step // columns[piece]) * COLUMNS + column[piece] + step % columns[piece]
    pairs = square * len(borders.label) + which[piece]
    pairs.sort()
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])]
    square, owner = pairs // len(borders.label), pairs % len(borders.label)
    begin = np.flatnonzero(np.concatenate([[True], square[1:] != square[:-1]]))
    return square[begin], np.append(begin, len(square)), owner


@cache
def index() -> Index:
    """The lookup of admin-1 regions; label r + 1 is region r of the outlines."""
    return build_index(segments(outlines()))


@cache
def land_squares() -> NDArray[np.bool_]:
    """Which squares may hold land, by number: those on land, and those that a coast or border crosses."""
    return np.asarray((index().base != 0) | (index().crossed >= 0))


@cache
def country_codes() -> tuple[str, ...]:
    """ISO codes by country number; number 0, the sea, is the empty string."""
    return ("", *sorted(set(outlines().country)))


@cache
def country_of_label() -> Ints:
    """The country number of each label of the index."""
    number = {code: i for i, code in enumerate(country_codes())}
    return np.array([0, *(number[code] for code in outlines().country)])


def country_number(lat: ArrayLike, lon: ArrayLike) -> Ints:
    """The place of each point's country in `country_codes()`, 0 at sea."""
    return country_of_label()[index().label(lat, lon)]


def country_of(lat: ArrayLike, lon: ArrayLike) -> NDArray[np.str_]:
    """The ISO 3166 alpha-2 code at each point, empty at sea."""
    return np.array(country_codes())[country_number(lat, lon)]


def admin1_of(lat: ArrayLike, lon: ArrayLike) -> NDArray[np.str_]:
    """The name of the admin-1 region at each point, empty at sea."""
    return np.array(("", *outlines().name))[index().label(lat, lon)]
