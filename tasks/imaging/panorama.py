"""Full panoramas: equirectangular, all around and from pole to pole, at one fixed size."""

import io
import math
import re

import numpy as np
from PIL import Image

from tasks.imaging.colour_profile import as_srgb
from tasks.imaging.decode import BadImage, Encoded, Pixels, jpeg, png_header
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
    return jpeg(as_srgb(pixels, picture.profile), STORED_QUALITY)


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


_XMP_LIMIT = 1_000_000
_SLACK = 0.01  # of a side: rounding, and the same that a picture may differ from 2:1
_OTHER = frozenset({"cylindrical"})  # what may stand instead of equirectangular


def xmp_of(picture: Image.Image) -> bytes:
    """The XMP of an opened header."""
    packet = picture.info.get("xmp") or picture.info.get("XML:com.adobe.xmp") or b""
    return (packet.encode("utf-8", "replace") if isinstance(packet, str) else bytes(packet))[:_XMP_LIMIT]


def xmp_value(xmp: bytes, name: bytes) -> str | None:
    """A GPano value, as an attribute or as an element. Looked up, not parsed: XML from outside may be hostile."""
    match = re.search(rb"GPano:" + name + rb"(?:\s*=\s*[\"']([^\"'<>]{1,60})[\"']|>([^<>]{1,60})<)", xmp)
    return (match[1] or match[2]).decode("utf-8", "replace") if match else None


def refuse_part(data: bytes) -> None:
    """`BadImage` if an encoded picture says that it is not all of an equirectangular sphere, whatever its sides.

    To be called while its metadata is there. Silence, nonsense and tags that were left behind when a whole panorama was
    made smaller say nothing.
    """
    try:
        xmp = xmp_of(Image.open(io.BytesIO(png_header(data) or data), formats=["JPEG", "PNG"]))
    except Exception:  # noqa: BLE001 - damaged metadata makes Pillow raise anything; decoding judges the picture
        return
    projection = (xmp_value(xmp, b"ProjectionType") or "").strip()
    if projection.casefold() in _OTHER:
        raise BadImage("not_equirectangular", f"its metadata says that it is {projection.casefold()}")
    full = [_pixels(xmp, b"FullPano%sPixels" % side) for side in (b"Width", b"Height")]
    shown = [_pixels(xmp, b"CroppedAreaImage%sPixels" % side) for side in (b"Width", b"Height")]
    shares = [part / whole if part and whole else 1.0 for part, whole in zip(shown, full, strict=True)]
    if min(shares) < 1.0 - _SLACK:
        across, upright = 360 * min(1.0, shares[0]), 180 * min(1.0, shares[1])
        raise BadImage(
            "not_equirectangular",
            f"its metadata says {_sides(shown)} of a sphere of {_sides(full)}, {across:g} x {upright:g} degrees",
        )


def _pixels(xmp: bytes, name: bytes) -> float | None:
    try:
        number = float(xmp_value(xmp, name) or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _sides(sides: list[float | None]) -> str:
    return " x ".join("?" if side is None else f"{side:.0f}" for side in sides)
