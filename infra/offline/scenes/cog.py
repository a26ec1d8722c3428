"""A scene's asset as a cloud-optimised GeoTIFF whose bytes are known before they are painted.

Tiles are stored uncompressed, so every offset follows from the sizes alone: the header can be sent without painting
anything, and a byte range paints only the tiles it touches. Header and directories come first, then the overviews,
coarsest first, then full resolution: the order GDAL's COG driver writes.
"""

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from cachetools import LRUCache, cached

from infra.offline.scenes.orbit import Scene
from infra.offline.scenes.paint import Pixels, paint_classes, paint_window
from infra.offline.scenes.tiles import SIZE_M, Tile
from infra.offline.scenes.window import Window

BLOCK = 320  # of a multiple of 16: small tiles are painted sooner, and the index still fits into the first 16 KiB
ASSETS = {"B02": 10, "B03": 10, "B04": 10, "visual": 10, "SCL": 20}  # name: metres
_BYTES = {"B02": 2, "B03": 2, "B04": 2, "visual": 3, "SCL": 1}
# What GDAL calls structural metadata: before each tile stands its size, after it its last four bytes once more.
_GHOST = (
    b"LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    b"BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_FRAME = 8
_SHORT, _LONG, _DOUBLE, _ASCII = 3, 4, 12, 2
_CACHE_BYTES = 160 * 1024 * 1024


@dataclass(frozen=True)
class Level:
    """One resolution of an asset: its size in pixels and where its tiles lie."""

    size: int
    across: int  # tiles in a row
    start: int  # offset of the first record: a tile with four bytes before and four after it


@dataclass(frozen=True)
class Layout:
    """An asset's header and levels, full resolution first."""

    header: bytes
    levels: tuple[Level, ...]
    record_bytes: int
    length: int

    def tile_at(self, offset: int) -> tuple[int, int, int, int]:
        """(level, column, row, offset of the record's first byte) of the tile that holds an offset past the header."""
        for number, level in enumerate(self.levels):  # full resolution lies last in the file
            if offset >= level.start:
                k = (offset - level.start) // self.record_bytes
                return number, k % level.across, k // level.across, level.start + k * self.record_bytes
        raise ValueError(f"offset {offset} lies in the header")


@lru_cache(maxsize=2_048)
def layout_of(tile: Tile, asset: str) -> Layout:
    """The layout of an asset of a tile; the same for every pass."""
    step = ASSETS[asset]
    sizes = [SIZE_M // step]
    while sizes[-1] > BLOCK:
        sizes.append(-(-sizes[-1] // 2))
    tile_bytes = BLOCK * BLOCK * _BYTES[asset]
    header = _header(tile, asset, sizes, [0] * len(sizes), tile_bytes)
    data = -(-len(header) // 4096) * 4096
    starts, at = [0] * len(sizes), data
    for number in reversed(range(len(sizes))):
        starts[number] = at
        at += (-(-sizes[number] // BLOCK)) ** 2 * (tile_bytes + _FRAME)
    header = _header(tile, asset, sizes, starts, tile_bytes).ljust(data, b"\0")
    levels = tuple(Level(size, -(-size // BLOCK), start) for size, start in zip(sizes, starts, strict=True))
    return Layout(header, levels, tile_bytes + _FRAME, at)


def _header(tile: Tile, asset: str, sizes: list[int], starts: list[int], tile_bytes: int) -> bytes:
    out = bytearray(b"II*\0" + struct.pack("<I", 0))
    out += f"GDAL_STRUCTURAL_METADATA_SIZE={len(_GHOST):06d} bytes\n".encode() + _GHOST
    out += b"\0" * (-len(out) % 16)
    link = 4
    for number, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        struct.pack_into("<I", out, link, len(out))
        entries = _entries(tile, asset, size, start, tile_bytes, number)
        extra_at = len(out) + 2 + 12 * len(entries) + 4
        extra, table = bytearray(), bytearray(struct.pack("<H", len(entries)))
        for tag, kind, values in entries:
            data = _pack(kind, values)
            count = len(data) if kind == _ASCII else len(values)
            if len(data) <= 4:
                table += struct.pack("<HHI", tag, kind, count) + data.ljust(4, b"\0")
            else:
                table += struct.pack("<HHII", tag, kind, count, extra_at + len(extra))
                extra += data + b"\0" * (-len(data) % 8)
        link = len(out) + len(table)
        out += table + b"\0\0\0\0" + extra
        out += b"\0" * (-len(out) % 16)
    return bytes(out)


def _pack(kind: int, values: tuple[float, ...] | bytes) -> bytes:
    if isinstance(values, bytes):
        return values
    return struct.pack(f"<{len(values)}{ {_SHORT: 'H', _LONG: 'I', _DOUBLE: 'd'}[kind] }", *values)


def _entries(
    tile: Tile, asset: str, size: int, start: int, tile_bytes: int, number: int
) -> list[tuple[int, int, tuple[float, ...] | bytes]]:
    """Tags of one directory in rising order: (tag, type, values)."""
    bands = 3 if asset == "visual" else 1
    bits = 16 if _BYTES[asset] == 2 else 8
    tiles = (-(-size // BLOCK)) ** 2
    entries: list[tuple[int, int, tuple[float, ...] | bytes]] = [
        (254, _LONG, (1 if number else 0,)),  # a reduced image
        (256, _LONG, (size,)),
        (257, _LONG, (size,)),
        (258, _SHORT, (bits,) * bands),
        (259, _SHORT, (1,)),  # not compressed
        (262, _SHORT, (2 if bands == 3 else 1,)),  # RGB or grey
        (277, _SHORT, (bands,)),
        (284, _SHORT, (1,)),  # bands of a pixel together
        (322, _LONG, (BLOCK,)),
        (323, _LONG, (BLOCK,)),
        (324, _LONG, tuple(start + 4 + k * (tile_bytes + _FRAME) for k in range(tiles))),
        (325, _LONG, (tile_bytes,) * tiles),
        (339, _SHORT, (1,) * bands),  # unsigned
    ]
    if number == 0:
        step = float(ASSETS[asset])
        keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, tile.epsg)  # projected, pixel is area, EPSG code
        entries += [
            (33550, _DOUBLE, (step, step, 0.0)),
            (33922, _DOUBLE, (0.0, 0.0, 0.0, float(tile.left_m), float(tile.top_m), 0.0)),
            (34735, _SHORT, keys),
        ]
    entries.append((42113, _ASCII, b"0\0"))  # GDAL's no-data value
    return entries


class Painter:
    """Bytes of scenes' assets, painted when requested; the last tiles are kept, for bands share their painting."""

    def __init__(self, seed: int, cache_bytes: int = _CACHE_BYTES) -> None:
        self.seed = seed
        # Bands of one place are requested at the same time: one paints, the others wait for it.
        self._painted = cached(LRUCache(cache_bytes, _size), condition=threading.Condition())(self._paint)

    def read(self, scene: Scene, asset: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end) of an asset, piece by piece."""
        layout = layout_of(scene.tile, asset)
        if start < len(layout.header):
            yield layout.header[start : min(end, len(layout.header))]
            start = min(end, len(layout.header))
        while start < end:
            level, column, row, first = layout.tile_at(start)
            last = min(end, first + layout.record_bytes)
            data = self.tile(scene, asset, level, column, row)
            record = struct.pack("<I", len(data)) + data + data[-4:]
            yield record[start - first : last - first]
            start = last

    def tile(self, scene: Scene, asset: str, level: int, column: int, row: int) -> bytes:
        """The bytes of one tile."""
        step = ASSETS[asset]
        if asset == "SCL":
            values = self._painted(paint_classes, scene, step, level, column, row)
        else:
            pixels = self._painted(paint_window, scene, step, level, column, row)
            values = pixels.visual() if asset == "visual" else pixels.band(asset, scene.offset)
        if values.shape[:2] == (BLOCK, BLOCK):
            return bytes(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
        full = np.zeros((BLOCK, BLOCK, *values.shape[2:]), dtype=values.dtype.newbyteorder("<"))
        full[: values.shape[0], : values.shape[1]] = values  # tiles reach past the image's edge
        return full.tobytes()

    def _paint(self, paint: Callable[..., Any], scene: Scene, step: int, level: int, column: int, row: int) -> Any:
        return paint(self.seed, scene, _window(scene, step, level, column, row))


def _size(painted: Pixels | np.ndarray) -> int:
    return painted.nbytes if isinstance(painted, np.ndarray) else painted.stored.nbytes + painted.kind.nbytes


def _window(scene: Scene, step: int, level: int, column: int, row: int) -> Window:
    size = SIZE_M // step
    for _ in range(level):
        size = -(-size // 2)
    pixel_m = SIZE_M / size
    return Window(
        scene.tile.zone,
        scene.tile.south,
        scene.tile.left_m + column * BLOCK * pixel_m,
        scene.tile.top_m - row * BLOCK * pixel_m,
        pixel_m,
        min(BLOCK, size - column * BLOCK),
        min(BLOCK, size - row * BLOCK),
    )
