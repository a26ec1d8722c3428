"""Files of every make a provider may have, read by ranges; damaged ones are named, not believed."""

import struct
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.io import MemoryFile

from tasks.services.sentinel import cog as cogs
from tasks.services.sentinel.cog import MOST_INDEX_BYTES, Level, open_cog, ranges, read_tiles
from tasks.services.sentinel.grid import Grid, grid_around
from tasks.services.sentinel.raster import OnGrid, blocks_of, on_grid
from tasks.services.sentinel.scenes import UnusableScene

RNG = np.random.default_rng(5)


class File:
    """A file in memory that counts what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.reads = data, []

    async def read(self, start: int, end: int) -> bytes:
        self.reads.append((start, min(end, len(self.data))))
        return self.data[start:end]


def written(pixels: np.ndarray, **options: Any) -> bytes:
    bands = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    frame = {"driver": "COG", "dtype": pixels.dtype, "count": len(bands), "height": bands.shape[1],
             "width": bands.shape[2], "crs": "EPSG:32633", "nodata": 0,
             "transform": rasterio.transform.from_origin(300_000, 5_900_040, 10, 10)}  # fmt: skip
    with MemoryFile() as memory:
        with memory.open(**{**frame, **options}) as file:
            file.write(bands)
        return memory.read()


@pytest.mark.parametrize(
    "options",
    [
        {"compress": "DEFLATE", "predictor": "YES", "blocksize": 512},
        {"compress": "DEFLATE", "predictor": "YES", "blocksize": 1024},
        {"compress": "LZW", "predictor": "YES", "blocksize": 256},
        {"compress": "ZSTD", "blocksize": 256},
        {"compress": "NONE", "blocksize": 256},
        {"compress": "DEFLATE", "blocksize": 256, "bigtiff": "YES"},
        {"compress": "DEFLATE", "blocksize": 128, "sparse_ok": True},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
@pytest.mark.parametrize("kind", ["band", "classes", "visual"])
async def test_every_window_is_what_rasterio_reads(options: dict[str, Any], kind: str) -> None:
    size = 1400
    smooth = np.add.outer(np.arange(size) * 3, np.arange(size) * 2) % 60_000 + 1
    pixels = {
        "band": smooth.astype(np.uint16),
        "classes": (smooth // 700 % 12).astype(np.uint8),
        "visual": np.stack([smooth % 251, smooth % 241, smooth % 239], axis=2).astype(np.uint8),
    }[kind]
    pixels[:300, :300] = 0  # a tile without data, which may not be in the file at all
    data = written(pixels, **options)
    file = File(data)
    index = await open_cog(file.read)
    assert (index.epsg, index.left_m, index.top_m, index.levels[0].step_m) == (32633, 300_000, 5_900_040, 10)
    assert sum(end - start for start, end in file.reads) <= 16_384
    with MemoryFile(data) as memory, memory.open() as other:
        steps = [10.0, *(10.0 * factor for factor in other.overviews(1))]
        assert [level.step_m for level in index.levels] == pytest.approx(steps, rel=1e-2)
        for level in (index.levels[0], index.levels[-1]):
            window = (level.width // 5, level.height // 3, level.width * 4 // 5, level.height - 1)
            tiles = [
                row * level.across + column
                for row in range(window[1] // level.tile_height, (window[3] - 1) // level.tile_height + 1)
                for column in range(window[0] // level.tile_width, (window[2] - 1) // level.tile_width + 1)
            ]
            found = await read_tiles(file.read, level, tiles, window)
            whole = other.read(out_shape=(other.count, level.height, level.width))
            expected = whole[:, window[1] : window[3], window[0] : window[2]]
            assert np.array_equal(found if found.ndim == 2 else np.moveaxis(found, 2, 0), np.squeeze(expected))


@pytest.mark.parametrize("photometric", ["YCBCR", "RGB"])
async def test_a_picture_in_jpeg_is_what_rasterio_reads(photometric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = np.mgrid[:700, :700]
    pixels = np.stack([rows // 3, columns // 3, (rows + columns) // 6], axis=2).astype(np.uint8) + 1
    # The COG driver always converts; tiles as others write them come from the plain one.
    options = {"driver": "GTiff", "tiled": True, "blockxsize": 256, "blockysize": 256, "photometric": photometric}
    data = written(pixels, compress="JPEG", **options)
    monkeypatch.setattr(cogs, "FIRST_BYTES", 2000)
    index = await open_cog(File(data).read)
    found = await read_tiles(File(data).read, index.levels[0], range(9), (0, 0, 700, 700))
    with MemoryFile(data) as memory, memory.open() as other:
        expected = np.moveaxis(other.read(), 0, 2).astype(int)
    assert np.abs(found.astype(int) - expected).max() <= 4
    assert np.abs(found.astype(int) - expected).mean() < 0.5


async def test_an_index_longer_than_the_first_bytes_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(RNG.integers(1, 9000, (1500, 1500), dtype=np.uint16), blocksize=128, compress="DEFLATE")
    whole = await open_cog(File(data).read)
    for first in (8, 100, 700, 1500):
        monkeypatch.setattr(cogs, "FIRST_BYTES", first)
        file = File(data)
        index = await open_cog(file.read)
        assert [level.offsets for level in index.levels] == [level.offsets for level in whole.levels]
        assert len(file.reads) > 1
        assert [end for _, end in file.reads[:-1]] == [start for start, _ in file.reads[1:]]  # nothing twice


@settings(max_examples=60, deadline=None)
@given(st.data())
async def test_damaged_bytes_never_pass_for_pixels_of_another_size(data: st.DataObject) -> None:
    """Flipped and cut bytes: an UnusableScene, or an index whose sizes hold."""
    good = bytearray(_small())
    for _ in range(data.draw(st.integers(1, 6))):
        good[data.draw(st.integers(0, min(len(good), 1400) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    file = File(bytes(good[: cut if data.draw(st.booleans()) else len(good)]))
    try:
        index = await open_cog(file.read)
        level = index.levels[0]
        found = await read_tiles(file.read, level, range(min(4, len(level.offsets))), (0, 0, 40, 40))
    except UnusableScene:
        return
    assert found.shape[:2] == (40, 40)


async def test_positions_that_a_damaged_index_calls_texts_are_refused() -> None:
    good = _small()
    for tag in (324, 325):  # positions and lengths of the tiles
        entry = good.index(struct.pack("<HHI", tag, 4, 9))
        damaged = good[: entry + 2] + struct.pack("<H", 2) + good[entry + 4 :]
        with pytest.raises(UnusableScene, match=r"index cannot be read \(TypeError\)"):
            await open_cog(File(damaged).read)


def _small() -> bytes:
    if not hasattr(_small, "made"):
        pixels = np.arange(300 * 300, dtype=np.uint16).reshape(300, 300)
        _small.made = written(pixels, blocksize=128, compress="DEFLATE", predictor="YES")  # type: ignore[attr-defined]
    return _small.made  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: b"<html>not here</html>" * 9, "cannot be read"),
        (lambda: b"", "cannot be read|damaged|ends"),
        (lambda: _tiff(np.zeros((64, 64), np.uint16)), "not in tiles|where it lies"),
        (lambda: written(np.ones((64, 64), np.float32), driver="GTiff", tiled=True, blockxsize=64, blockysize=64),
         "not unsigned ones of 8 or 16 bits"),
        (lambda: written(np.ones((64, 64), np.uint16), driver="GTiff"), "tiles"),
        (lambda: written(np.ones((64, 64), np.uint16), transform=rasterio.Affine(10, 0, 0, 0, -20, 0)), "square"),
    ],
)  # fmt: skip
async def test_what_is_no_scene_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UnusableScene, match=said):
        await open_cog(File(make()).read)


def _tiff(pixels: np.ndarray) -> bytes:
    import io

    out = io.BytesIO()
    tifffile.imwrite(out, pixels)
    return out.getvalue()


async def test_tiles_past_the_end_and_bytes_that_do_not_decode() -> None:
    data = _small()
    index = await open_cog(File(data).read)
    level = index.levels[0]
    with pytest.raises(UnusableScene, match="ends before"):
        await read_tiles(File(data[: level.offsets[0] + 10]).read, level, [0], (0, 0, 100, 100))
    broken = bytearray(data)
    broken[level.offsets[0] : level.offsets[0] + level.counts[0]] = b"\xff" * level.counts[0]
    with pytest.raises(UnusableScene, match="decoded"):
        await read_tiles(File(bytes(broken)).read, level, [0], (0, 0, 100, 100))


async def test_an_index_behind_the_pixels_is_read_where_it_lies() -> None:
    """As GDAL leaves a file whose overviews were added later: its first bytes point megabytes ahead."""
    pixels = np.random.default_rng(1).integers(1, 60_000, (2048, 2048)).astype(np.uint16)
    with MemoryFile() as memory:
        profile = {"tiled": True, "blockxsize": 256, "blockysize": 256, "count": 1, "dtype": "uint16"}
        place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 300_000, 0, -10, 5_900_000)}
        with memory.open(driver="GTiff", width=2048, height=2048, **profile, **place) as file:
            file.write(pixels[None])
            file.build_overviews([2, 4])
        data = memory.read()
    file = File(data)
    index = await open_cog(file.read)
    assert [level.width for level in index.levels] == [2048, 1024, 512]
    assert max(start for start, _ in file.reads) > MOST_INDEX_BYTES and len(file.reads) <= 4
    assert sum(end - start for start, end in file.reads) < 100_000
    level = index.levels[0]
    assert (await read_tiles(file.read, level, range(len(level.offsets)), (0, 0, 2048, 2048)) == pixels).all()
    with pytest.raises(UnusableScene, match="ends inside its index"):
        await open_cog(File(data[:5_000_000]).read)


async def test_the_item_and_its_file_must_agree_on_the_zone() -> None:
    grid = grid_around(53.2, 12.0, 10, 64)
    assert (await on_grid(File(_small()).read, grid, 32633)).epsg == 32633
    assert (await on_grid(File(_small()).read, grid, None)).epsg == 32633
    with pytest.raises(UnusableScene, match="EPSG:32632"):
        await on_grid(File(_small()).read, grid, 32632)
    with pytest.raises(UnusableScene, match="no UTM zone"):
        await on_grid(File(written(np.ones((64, 64), np.uint16), crs="EPSG:3857")).read, grid, None)


def level_with(offsets: list[int], counts: list[int]) -> Level:
    return Level(None, 512, 512, 10, 128, 128, 1, np.dtype(np.uint16), tuple(offsets), tuple(counts))


def test_neighbouring_tiles_are_one_range() -> None:
    level = level_with([1000, 1108, 1216, 90_000, 0, 1_000_000], [100, 100, 100, 100, 0, 3_999_999])
    assert ranges(level, [2, 0, 1, 1]) == [(1000, 1316, [0, 1, 2])]
    assert ranges(level, range(5)) == [(1000, 1316, [0, 1, 2]), (90_000, 90_100, [3])]  # 4 is not in the file
    assert ranges(level, [3, 5]) == [(90_000, 90_100, [3]), (1_000_000, 4_999_999, [5])]


@given(st.integers(-300, 700), st.integers(-300, 700), st.integers(40, 300), st.data())
@settings(max_examples=60, deadline=None)
def test_no_tile_too_few_and_none_too_many(left: int, top: int, size: int, data: st.DataObject) -> None:
    """Of the same zone: all tiles that a needed pixel lies in, and none that no pixel of its block of 16 x 16 does."""
    level = level_with([1] * 16, [1] * 16)
    grid = Grid(32633, 300_000.0 + left * 10, 5_900_040.0 - top * 10, 10.0, size)
    placed = OnGrid(level, 300_000.0, 5_900_040.0, 32633, grid, None)  # type: ignore[arg-type]
    need = np.zeros((size, size), dtype=bool)
    rows = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
    need[rows[0] : rows[1], : data.draw(st.integers(0, size))] = True
    found = set(placed.tiles(blocks_of(need)))
    assert _tiles_of(need, left, top) <= found
    around = np.repeat(np.repeat(blocks_of(need), 16, axis=0), 16, axis=1)[:size, :size]
    assert found <= _tiles_of(around, left, top)


def _tiles_of(pixels: np.ndarray, left: int, top: int) -> set[int]:
    rows, columns = np.nonzero(pixels)
    rows, columns = rows + top, columns + left
    inside = (rows >= 0) & (rows < 512) & (columns >= 0) & (columns < 512)
    return set((rows[inside] // 128 * 4 + columns[inside] // 128).tolist())
