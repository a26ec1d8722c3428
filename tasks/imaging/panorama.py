"""Full panoramas: equirectangular, all around and from pole to pole, at one fixed size."""

import io

import numpy as np
from PIL import Image

from tasks.imaging.colour_profile import as_srgb
from tasks.imaging.decode import BadImage, Encoded, Pixels, jpeg
from tasks.imaging.gpano import refuse_part
from tasks.imaging.resample import shrink

STORED_QUALITY = 92
_BORDER = 16  # pixels from beyond the edge, more than the widest filter reaches when a picture is made larger


def equirectangular(data: bytes, width: int = 4096, height: int = 2048, min_pixels: int = 1_000_000) -> bytes:
    """A full panorama as a JPEG of exactly width x height; `BadImage` if it is too small, not 2:1 or only a part.

    Columns keep their direction: the left edge stays the left edge, and the picture still closes around it.
    """
    picture = Encoded.open(data)
    facts = picture.facts
    if facts.width * facts.height < min_pixels:
        raise BadImage("too_small", f"{facts.width} x {facts.height}, at least {min_pixels} pixels are needed")
    # A partial panorama stretched to 2:1 would bend every road in it, so it is refused, not resized.
    refuse_part(data)
    if abs(facts.width / facts.height - 2.0) > 0.02:
        raise BadImage("not_equirectangular", f"{facts.width} x {facts.height} is not 2:1")
    pixels = picture.pixels(least=(2 * width, 2 * height))
    if (facts.width, facts.height) != (width, height):
        is_smaller = width <= facts.width and height <= facts.height
        pixels = shrink(pixels, (width, height), around=True) if is_smaller else _enlarged(pixels, width, height)
    return jpeg(as_srgb(pixels, _profile(picture)), STORED_QUALITY)


def _profile(picture: Encoded) -> bytes | None:
    """A JPEG's colour profile. The stored panorama has none, and neither have views of it, so it is applied."""
    if picture.facts.format != "JPEG":
        return None
    found = Image.open(io.BytesIO(picture.data)).info.get("icc_profile")
    return found if isinstance(found, bytes) else None


def bordered(pixels: Pixels, border: int) -> Pixels:
    """The panorama with `border` pixels more on every side: the columns go on around, over a pole lies the far side."""
    half = pixels.shape[1] // 2
    above = np.roll(pixels[:border][::-1], half, axis=1)
    below = np.roll(pixels[-border:][::-1], half, axis=1)
    tall = np.concatenate([above, pixels, below])
    return np.concatenate([tall[:, -border:], tall, tall[:, :border]], axis=1)


def _enlarged(pixels: Pixels, width: int, height: int) -> Pixels:
    inner = (_BORDER, _BORDER, _BORDER + pixels.shape[1], _BORDER + pixels.shape[0])
    picture = Image.fromarray(bordered(pixels, _BORDER))
    return np.array(picture.resize((width, height), Image.Resampling.LANCZOS, box=inner))
