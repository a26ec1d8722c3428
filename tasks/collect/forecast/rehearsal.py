"""What a run would compute, done with pictures of our own: nothing else says how long it takes on this machine."""

import io
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image

from schemas.settings.collect import CollectSettings
from schemas.settings.satellite import SatelliteSettings
from tasks.collect.candidates import Kind
from tasks.collect.download import prepare
from tasks.collect.satellite.choice import owners
from tasks.collect.satellite.layers import Layer
from tasks.collect.satellite.mosaic import MARGIN, Reading, put_together
from tasks.collect.satellite.raster import around, blocks_of
from tasks.collect.satellite.stage import make_picture
from tasks.collect.satellite.tone import Reflectance, from_bands

_STEPS = 4  # sizes are told apart by the fourth root of two: as many stand-ins, each right to a tenth
_GRAIN = 7.0  # makes a JPEG about as large as a photograph of its size


def prepare_like(pixels: int, kind: Kind, settings: CollectSettings) -> None:
    """Prepare a picture of about so many pixels."""
    step = round(_STEPS * math.log2(max(1, pixels)))
    prepare(_stand_in(step, kind), kind, settings.model_copy(update={"panorama_min_pixels": 1, "photo_min_pixels": 1}))


@lru_cache(maxsize=32)
def _stand_in(step: int, kind: Kind) -> bytes:
    aspect = 2.0 if kind == "panorama" else 4 / 3
    height = max(8, round(math.sqrt(2 ** (step / _STEPS) / aspect)))
    width = 2 * height if kind == "panorama" else round(aspect * height)
    chance = np.random.default_rng(step)
    coarse = Image.fromarray(chance.integers(0, 255, (8, 16, 3), dtype=np.uint8)).resize((width, height))
    grain = chance.normal(0.0, _GRAIN, (height, width, 1))
    file = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
    return file.getvalue()


def compose_like(layers: Sequence[Layer], size: int, settings: SatelliteSettings) -> None:
    """Put a picture together from these layers, with invented ground in place of their bands."""
    owner, clear = owners(layers)
    blocks = [blocks_of(owner == number) for number in range(len(layers))]
    used = [number for number, needed in enumerate(blocks) if needed.any()]
    rects = [around(blocks[number], MARGIN, size) for number in used]
    ground = _ground(size)
    values: list[Reflectance] = [
        from_bands([ground[rect]] * 3, layers[n].scene.offset) for n, rect in zip(used, rects, strict=True)
    ]
    reading = Reading([layers[number] for number in used], used, rects, values, owner, clear)
    make_picture(put_together(reading, settings.max_gain), settings)


@lru_cache(maxsize=2)
def _ground(size: int) -> np.ndarray:
    return np.random.default_rng(size).normal(2200, 250, (size, size)).astype(np.uint16)
