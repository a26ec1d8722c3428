"""A cloud-optimized GeoTIFF read by byte ranges: its index, wherever it lies, then only the tiles that are needed.

The index is read by tifffile from the ranges it turns out to need; tiles are decoded by imagecodecs. A file from the
web is untrusted: sizes are checked before anything is allocated, and what is wrong is an UnusableScene.
"""

import asyncio
import io
import logging
import math
import operator
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tasks.services.errors import gather_all
from tasks.services.sentinel.scenes import UnusableScene

Read = Callable[[int, int], Awaitable[bytes]]  # the bytes [start, end) of a file
Pixels = NDArray[Any]

FIRST_BYTES = 16_384  # holds the index of a scene of 10,980 x 10,980 pixels in tiles of 512
MOST_INDEX_BYTES = 4_000_000  # read for an index
MOST_INDEX_READS = 64
NEAR = 65_536
MOST_SIDE = 200_000
MOST_TILE_SIDE = 4096
MOST_TILE_BYTES = 64_000_000
GAP = 4096  # tiles this close are read in one range: GDAL writes eight bytes between them
RANGE_BYTES = 4_000_000  # longer ranges are cut, so that several are under way
_MANY = 1 << 40

# A truncated index is expected here and tifffile's complaints about it are not: errors are raised, not logged.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Level:
    """One resolution of a file."""

    page: Any  # tifffile's page, which decodes its tiles
    width: int
    height: int
    step_m: float
    tile_width: int
    tile_height: int
    bands: int
    dtype: np.dtype[Any]
    offsets: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def across(self) -> int:
        """Tiles in a row."""
        return -(-self.width // self.tile_width)


@dataclass(frozen=True)
class Cog:
    """A file's index: where it lies on the Earth, and its levels, finest first."""

    epsg: int | None
    left_m: float
    top_m: float
    levels: tuple[Level, ...]

    def level_for(self, step_m: float) -> Level:
        """The coarsest level whose pixels are no larger than `step_m`, or the finest one."""
        fine = [level for level in self.levels if level.step_m <= step_m * 1.001]
        return max(fine, key=lambda level: level.step_m, default=self.levels[0])


class _NeedMore(Exception):
    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size


class _Parts(io.RawIOBase):
    """A file of which some parts are at hand; it raises _NeedMore for any other."""

    def __init__(self, parts: dict[int, bytes]) -> None:
        self._parts, self._at = parts, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + (0, self._at, _MANY)[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise _NeedMore(self._at, MOST_INDEX_BYTES)
        for start, data in self._parts.items():
            if start <= self._at and self._at + size <= start + len(data):
                piece = data[self._at - start : self._at - start + size]
                self._at += size
                return piece
        raise _NeedMore(self._at, size)

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        view[:] = self.read(len(view))
        return len(view)


async def open_cog(read: Read) -> Cog:
    """The index of a file: usually its first bytes, else read where it lies."""
    parts = {0: await read(0, FIRST_BYTES)}
    for _ in range(MOST_INDEX_READS):
        try:
            return _index(parts)
        except _NeedMore as more:
            held = sum(map(len, parts.values()))
            if more.size > MOST_INDEX_BYTES - held:
                raise UnusableScene("the file's index is damaged") from None
            # What is near a part continues it: an index that follows it must not be read piece by piece.
            before = next((at for at, data in parts.items() if at <= more.start <= at + len(data) + NEAR), None)
            start = more.start if before is None else before + len(parts[before])
            end = max(more.start + more.size, start + min(held, MOST_INDEX_BYTES - held))
            added = await read(start, end)
            if start + len(added) < more.start + more.size:
                raise UnusableScene("the file ends inside its index") from None
            if before is None:
                parts[start] = added
            else:
                parts[before] += added
    raise UnusableScene("the file's index is damaged")


def _index(parts: dict[int, bytes]) -> Cog:
    try:
        source: Any = _Parts(parts)
        with tifffile.TiffFile(source) as file:
            pages = [page for page in file.pages if isinstance(page, tifffile.TiffPage)]
            if not pages:
                raise UnusableScene("the file holds no picture")
            epsg, left_m, top_m, step_m = _place(pages[0])
            levels = [
                _level(page, step_m * pages[0].imagewidth / page.imagewidth)
                for page in pages
                if not int(page.subfiletype) & 4  # transparency masks
            ]
    except (_NeedMore, UnusableScene):
        raise
    except Exception as error:  # noqa: BLE001 - damaged bytes lead the parser into errors of every kind
        raise UnusableScene(f"the file's index cannot be read ({type(error).__name__})") from None
    # An overview whose pixels are not square would shift what it shows.
    alike = [
        level
        for level in levels
        if (level.dtype, level.bands) == (levels[0].dtype, levels[0].bands)
        and abs(level.width * levels[0].height - level.height * levels[0].width) <= 1e-6 * levels[0].width * level.width
    ]
    return Cog(epsg, left_m, top_m, tuple(sorted(alike, key=lambda level: level.step_m)))


def _place(page: Any) -> tuple[int | None, float, float, float]:
    """(EPSG code, left, top, pixel size) of a picture."""
    tags = page.geotiff_tags or {}
    scale, tie = tags.get("ModelPixelScale"), tags.get("ModelTiepoint")
    if scale is None or tie is None or len(scale) < 2 or len(tie) != 6:
        raise UnusableScene("the file does not say where it lies")
    numbers = [float(value) for value in (*scale[:2], *tie)]
    if not all(map(math.isfinite, numbers)) or numbers[0] <= 0 or abs(numbers[0] - numbers[1]) > 1e-6:
        raise UnusableScene("the file's pixels are not square")
    step_m = numbers[0]
    left, top = numbers[5] - numbers[2] * step_m, numbers[6] + numbers[3] * step_m
    if tags.get("GTRasterTypeGeoKey") == 2:  # the corner given is the middle of the first pixel
        left, top = left - step_m / 2, top + step_m / 2
    code = tags.get("ProjectedCSTypeGeoKey")
    return (int(code) if code is not None else None), left, top, step_m


def _level(page: Any, step_m: float) -> Level:
    if not page.is_tiled or page.dtype is None or page.planarconfig != 1:
        raise UnusableScene("the file is not in tiles of whole pixels")
    level = Level(
        page=page,
        width=page.imagewidth,
        height=page.imagelength,
        step_m=step_m,
        tile_width=page.tilewidth,
        tile_height=page.tilelength,
        bands=page.samplesperpixel,
        dtype=page.dtype,
        offsets=tuple(map(operator.index, page.dataoffsets)),  # a damaged index may call them texts
        counts=tuple(map(operator.index, page.databytecounts)),
    )
    sizes = (level.width, level.height, level.tile_width, level.tile_height)
    tiles = level.across * -(-level.height // max(1, level.tile_height))
    if min(sizes) < 1 or max(sizes[:2]) > MOST_SIDE or max(sizes[2:]) > MOST_TILE_SIDE or not 1 <= level.bands <= 4:
        raise UnusableScene(f"the file's sizes make no sense: {sizes}")
    if level.dtype.kind != "u" or level.dtype.itemsize > 2:
        raise UnusableScene(f"the file's numbers are {level.dtype}, not unsigned ones of 8 or 16 bits")
    if len(level.offsets) != tiles or len(level.counts) != tiles or max(level.counts) > MOST_TILE_BYTES:
        raise UnusableScene("the file's index does not fit its size")
    return level


def ranges(level: Level, tiles: Iterable[int]) -> list[tuple[int, int, list[int]]]:
    """[start, end) of the byte ranges that hold these tiles, and which tiles each holds; empty tiles are in none."""
    spans: list[tuple[int, int, list[int]]] = []
    for tile in sorted((t for t in set(tiles) if level.counts[t]), key=lambda t: level.offsets[t]):
        start, end = level.offsets[tile], level.offsets[tile] + level.counts[tile]
        if spans and 0 <= start - spans[-1][1] <= GAP and end - spans[-1][0] <= RANGE_BYTES:
            spans[-1] = (spans[-1][0], end, [*spans[-1][2], tile])
        else:
            spans.append((start, end, [tile]))
    return spans


async def read_tiles(read: Read, level: Level, tiles: Iterable[int], window: tuple[int, int, int, int]) -> Pixels:
    """Pixels of a window (left, top, right, bottom) of a level, 0 where no tile was requested; bands come last."""
    left, top, right, bottom = window
    shape = (bottom - top, right - left) + ((level.bands,) if level.bands > 1 else ())
    out = np.zeros(shape, dtype=level.dtype.newbyteorder("="))

    async def read_part(start: int, end: int, held: list[int]) -> None:
        data = await read(start, end)
        if len(data) != end - start:
            raise UnusableScene("the file ends before its last tile")
        await asyncio.to_thread(_put, level, data, start, held, out, (left, top))

    await gather_all(read_part(*part) for part in ranges(level, tiles))
    return out


def _put(level: Level, data: bytes, start: int, held: list[int], out: Pixels, corner: tuple[int, int]) -> None:
    for tile in held:
        at = level.offsets[tile] - start
        pixels = _decode(level, data[at : at + level.counts[tile]], tile)
        row = tile // level.across * level.tile_height - corner[1]
        column = tile % level.across * level.tile_width - corner[0]
        # The part of the tile that lies in the window.
        first_row, first_column = max(0, -row), max(0, -column)
        part = pixels[first_row : max(0, out.shape[0] - row), first_column : max(0, out.shape[1] - column)]
        if not part.size:
            continue
        row, column = row + first_row, column + first_column
        out[row : row + part.shape[0], column : column + part.shape[1]] = part


def _decode(level: Level, data: bytes, tile: int) -> Pixels:
    # tifffile would look for this in the file's first tile, which is not at hand.
    level.page.__dict__.setdefault("is_jfif", data[6:10] == b"JFIF")
    try:
        decoded = level.page.decode(data, tile, jpegtables=level.page.jpegtables)[0]
    except Exception as error:  # noqa: BLE001 - every codec raises errors of its own, and damaged bytes any of them
        raise UnusableScene(f"a tile cannot be decoded ({type(error).__name__})") from None
    if decoded is None or decoded.shape[-1] != level.bands:
        raise UnusableScene("a tile is not of the file's shape")
    pixels: Pixels = decoded[0, :, :, 0] if level.bands == 1 else decoded[0]
    return pixels
