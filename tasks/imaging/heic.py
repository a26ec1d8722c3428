"""HEIC, which phones write: taken as a JPEG of the same pixels, and its EXIF data.

The pixels come upright: libheif applies a file's own turns, and the EXIF orientation beside them is reset.
"""

import io

import numpy as np
import pillow_heif
from PIL import Image

from tasks.imaging.colour_profile import as_srgb
from tasks.imaging.decode import MAX_DECODED_PIXELS, BadImage

_QUALITY = 95
_MOST_EXIF = 65_000  # bytes that a JPEG can hold of it
_CAMERA, _GPS = 0x8769, 0x8825
_LONG_VALUE = 1_000  # characters: longer values are a maker's own notes
_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"mif1"}


def is_heic(data: bytes) -> bool:
    """Whether the first bytes are those of a HEIC picture; AVIF and videos begin alike and are not."""
    return data[4:8] == b"ftyp" and data[8:12] in _BRANDS and b"avif" not in data[12:64]


def heic_size(data: bytes) -> tuple[int, int]:
    """Width and height, from the header; `BadImage` where it cannot be read or is too large."""
    width, height = _open(data).size
    if width * height > MAX_DECODED_PIXELS:
        raise BadImage("too_large", f"{width} x {height} exceeds {MAX_DECODED_PIXELS} pixels")
    return width, height


def heic_exif(data: bytes) -> bytes:
    """The EXIF data of the primary picture, empty without any; no pixel is decoded."""
    return _open(data).info.get("exif") or b""


def heic_as_jpeg(data: bytes) -> bytes:
    """The primary picture as an upright JPEG in sRGB, with its EXIF data."""
    heic_size(data)
    try:
        picture = _open(data).to_pillow()
    except (OSError, ValueError, RuntimeError, EOFError) as error:
        raise BadImage("truncated", "a HEIC picture whose pixels cannot be read") from error
    exif = picture.info.get("exif") or b""
    paper = picture.convert("RGB")
    if "A" in picture.getbands():
        paper = Image.new("RGB", picture.size, "white")
        paper.paste(picture, mask=picture.getchannel("A"))
    paper = Image.fromarray(as_srgb(np.array(paper), picture.info.get("icc_profile")))
    out = io.BytesIO()
    paper.save(out, "JPEG", quality=_QUALITY, exif=_without_notes(exif) if len(exif) > _MOST_EXIF else exif)
    return out.getvalue()


def _without_notes(exif_data: bytes) -> bytes:
    """The position, time and size of EXIF data, without the notes of the maker, which may be larger than all else."""
    exif, small = Image.Exif(), Image.Exif()
    try:
        exif.load(exif_data)
        for ifd in (_CAMERA, _GPS):
            small.get_ifd(ifd).update(
                {tag: value for tag, value in exif.get_ifd(ifd).items() if len(str(value)) < _LONG_VALUE}
            )
        data = small.tobytes()
    except Exception:  # noqa: BLE001 - damaged metadata makes Pillow raise anything, and must not cost the picture
        return b""
    return data if len(data) <= _MOST_EXIF else b""


def _open(data: bytes) -> pillow_heif.HeifFile:
    try:
        return pillow_heif.open_heif(io.BytesIO(data))
    except (OSError, ValueError, RuntimeError, EOFError) as error:
        raise BadImage("truncated", f"a HEIC picture that cannot be read, {len(data)} bytes in all") from error
