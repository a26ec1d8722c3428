"""One picture from several scenes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.settings.satellite import SatelliteSettings
from tasks.collect.satellite.choice import UNOWNED, Owner, owners
from tasks.services.errors import gather_all
from tasks.services.sentinel.bands import read_bands
from tasks.services.sentinel.grid import Grid
from tasks.services.sentinel.layers import Layer
from tasks.services.sentinel.raster import Mask, Rect, around, blocks_of
from tasks.services.sentinel.scenes import Scene
from tasks.services.sentinel.tone import Reflectance, gains, scaled
from tasks.services.stac import Stac

MARGIN = 4  # blocks around what a scene shows


@dataclass(frozen=True)
class Part:
    """One scene's part of a picture."""

    scene: Scene
    share: float
    gain: tuple[float, float, float]


@dataclass(frozen=True)
class Mosaic:
    """A picture's reflectance, and what it is made of; the largest part first."""

    pixels: Reflectance
    parts: tuple[Part, ...]
    clear_share: float
    no_data_share: float
    lacking: Mapping[str, Mask] = field(default_factory=dict)  # scene id -> where its bands lack what it promised
    lacking_share: float = 0.0  # of the picture, for which no other scene at hand made up


@dataclass(frozen=True)
class Reading:
    """What was read for a picture: of each used layer its number in `owner`, its part of the grid and its values."""

    layers: Sequence[Layer]
    numbers: Sequence[int]
    rects: Sequence[Rect]
    values: Sequence[Reflectance]
    owner: Owner
    clear: Mask


async def make_mosaic(stac: Stac, layers: Sequence[Layer], grid: Grid, settings: SatelliteSettings) -> Mosaic:
    """The picture from its layers, each read only where it is the one shown."""
    reading = await read_layers(stac, layers, grid, settings.assets)
    return await asyncio.to_thread(put_together, reading, settings.max_gain)


async def read_layers(stac: Stac, layers: Sequence[Layer], grid: Grid, assets: str) -> Reading:
    """The bands of the layers, all at once."""
    owner, clear = owners(layers)
    blocks = [blocks_of(owner == number) for number in range(len(layers))]
    used = [number for number, needed in enumerate(blocks) if needed.any()]
    # A little more than is shown, as far as it lies in the same tiles: to see how scenes differ where they meet.
    rects = [around(blocks[number], MARGIN, grid.size) for number in used]
    values = await gather_all(
        read_bands(stac, layers[number].scene, grid, blocks[number], rect, assets)
        for number, rect in zip(used, rects, strict=True)
    )
    return Reading([layers[number] for number in used], used, rects, values, owner, clear)


def put_together(reading: Reading, max_gain: float) -> Mosaic:
    """The picture from what was read."""
    layers, rects, owner = reading.layers, reading.rects, reading.owner
    factors = gains(reading.values, [layer.clear for layer in layers], max_gain, rects)
    balanced = [scaled(values, gain) for values, gain in zip(reading.values, factors, strict=True)]
    pixels = np.zeros((*owner.shape, 3), dtype=np.uint16)
    for number, values, rect in zip(reading.numbers, balanced, rects, strict=True):
        np.copyto(pixels[rect], values, where=(owner[rect] == number)[..., None])
    # Bands may lack what the class map promised: another scene that was read there may have it.
    clear, holes = reading.clear.copy(), (pixels[..., 0] == 0) & (owner != UNOWNED)
    lacking = {}
    if holes.any():
        for layer, number in zip(layers, reading.numbers, strict=True):
            lacking[layer.scene.id] = holes & (owner == number)
        for layer, values, rect in zip(layers, balanced, rects, strict=True):
            filled = holes[rect] & (pixels[rect][..., 0] == 0) & (values[..., 0] != 0)
            np.copyto(pixels[rect], values, where=filled[..., None])
            clear[rect] &= layer.clear[rect] | ~filled
    empty = pixels[..., 0] == 0
    counts = np.bincount(owner.ravel() + 1, minlength=max(reading.numbers) + 2)
    parts = [
        Part(layer.scene, float(counts[number + 1] / owner.size), (float(gain[0]), float(gain[1]), float(gain[2])))
        for layer, number, gain in zip(layers, reading.numbers, factors, strict=True)
    ]
    return Mosaic(
        pixels=pixels,
        parts=tuple(sorted(parts, key=lambda part: (-part.share, part.scene.id))),
        clear_share=float((clear & ~empty).mean()),
        no_data_share=float(empty.mean()),
        lacking=lacking,
        lacking_share=float((holes & (empty | ~clear)).mean()),
    )
