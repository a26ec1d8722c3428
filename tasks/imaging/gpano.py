"""What a panorama's own XMP says of its shape (GPano): how it was projected, and which part of the sphere it shows."""

import io
import math
import re

from PIL import Image

from tasks.imaging.decode import BadImage
from tasks.imaging.png_parts import png_header

_XMP_LIMIT = 1_000_000
_SLACK = 0.01  # of a side: rounding, and the same that a picture may differ from 2:1
_OTHER = frozenset({"cylindrical"})  # what may be said instead of equirectangular


def xmp_of(picture: Image.Image) -> bytes:
    """The XMP of an opened header."""
    found = picture.info.get("xmp") or picture.info.get("XML:com.adobe.xmp") or b""
    return (found.encode("utf-8", "replace") if isinstance(found, str) else bytes(found))[:_XMP_LIMIT]


def said(xmp: bytes, name: bytes) -> str | None:
    """A GPano value, as an attribute or as an element. Looked up, not parsed: XML from outside is no friend."""
    match = re.search(rb"GPano:" + name + rb"(?:\s*=\s*[\"']([^\"'<>]{1,60})[\"']|>([^<>]{1,60})<)", xmp)
    return (match[1] or match[2]).decode("utf-8", "replace") if match else None


def refuse_part(data: bytes) -> None:
    """`BadImage` if an encoded picture says that it is not all of an equirectangular sphere, whatever its sides.

    To be asked while its metadata is there. Silence, nonsense and tags that were left behind when a whole panorama was
    made smaller say nothing.
    """
    try:
        xmp = xmp_of(Image.open(io.BytesIO(png_header(data) or data), formats=["JPEG", "PNG"]))
    except Exception:  # noqa: BLE001 - damaged metadata makes Pillow raise anything; decoding judges the picture
        return
    projection = (said(xmp, b"ProjectionType") or "").strip()
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
        number = float(said(xmp, name) or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _sides(sides: list[float | None]) -> str:
    return " x ".join("?" if side is None else f"{side:.0f}" for side in sides)
