"""Pictures: check them fully, bring them to a model's budget, cut from the original, forget their metadata.

Everything here is a pure function of bytes and gives the same bytes every time, because the lake names
pictures by their sha256. A picture from the web is untrusted: only JPEG and PNG are decoded, a size limit is
checked before any pixel is, and what is wrong with a picture is a `BadImage` with a kind, not a library's message.
"""

import base64
import io
import math
import struct
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_DECODED_PIXELS = 120_000_000  # the largest panoramas in the wild have about 70 M
Image.MAX_IMAGE_PIXELS = MAX_DECODED_PIXELS  # else Pillow warns of pictures that we accept
VIEW_QUALITY = 90
STORED_QUALITY = 92

BadImageKind = Literal[
    "not_an_image", "truncated", "too_large", "animated", "unsupported_format", "too_small", "not_equirectangular"
]
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png"}  # MPO: a JPEG with a second picture behind it, from phones
# GIF and WebP are opened only to be able to say what is wrong with them.
_FORMATS = ["JPEG", "PNG", "GIF", "WEBP"]


class BadImage(Exception):
    """A picture that cannot be used. `kind` says why, in one word a stage can decide on."""

    def __init__(self, kind: BadImageKind, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind: BadImageKind = kind
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True)
class ImageFacts:
    """What a decoded picture is: size as displayed (EXIF orientation applied), format, file extension."""

    width: int
    height: int
    format: str
    extension: str


def inspect(data: bytes, max_decoded_pixels: int = MAX_DECODED_PIXELS) -> ImageFacts:
    """The facts of a picture, every pixel of which was decoded; `BadImage` if one could not be."""
    picture = _decode(data, max_decoded_pixels)
    kind = picture.format or ""
    width, height = picture.size
    if orientation(picture) >= 5:  # those swap the sides
        width, height = height, width
    return ImageFacts(width=width, height=height, format="JPEG" if kind == "MPO" else kind, extension=_EXTENSIONS[kind])


def model_view(data: bytes, max_pixels: int = 2_000_000, min_pixels: int = 40_000) -> tuple[bytes, float]:
    """A JPEG within a model's pixel budget, upright and without metadata, and its scale against the original."""
    picture = _upright_rgb(data)
    scale = view_scale(picture.width, picture.height, max_pixels, min_pixels)
    if scale != 1.0:
        picture = picture.resize(_scaled(picture.size, scale), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return _jpeg(picture, VIEW_QUALITY), scale


def view_scale(width: int, height: int, max_pixels: int = 2_000_000, min_pixels: int = 40_000) -> float:
    """The factor that brings width x height between min_pixels and max_pixels; 1.0 when it already is."""
    pixels = width * height
    if pixels > max_pixels:
        return math.sqrt(max_pixels / pixels)
    if pixels < min_pixels:
        return math.sqrt(min_pixels / pixels)
    return 1.0


def box_on_original(
    bbox_on_view: tuple[float, float, float, float], scale: float, width: int, height: int
) -> tuple[int, int, int, int]:
    """The pixels of a width x height original under a box (x1, y1, x2, y2) drawn on its view, clamped to it.

    Corners may come in any order. The result holds at least one pixel and covers the whole box.
    `ValueError` when the box is not made of finite numbers or lies outside the picture.
    """
    if not all(math.isfinite(edge) for edge in bbox_on_view):
        raise ValueError("the box holds a number that is not finite")
    x1, y1, x2, y2 = (edge / scale for edge in bbox_on_view)
    left, right = sorted((x1, x2))
    top, bottom = sorted((y1, y2))
    if left >= width or top >= height or right <= 0 or bottom <= 0:
        raise ValueError(f"the box lies outside the {width} x {height} picture")
    # A hair of tolerance: 300 * s / s may come back as 300.00000000000006 and must not cost a pixel.
    left_px = min(max(math.floor(left + 1e-6), 0), width - 1)
    top_px = min(max(math.floor(top + 1e-6), 0), height - 1)
    right_px = max(min(math.ceil(right - 1e-6), width), left_px + 1)
    bottom_px = max(min(math.ceil(bottom - 1e-6), height), top_px + 1)
    return left_px, top_px, right_px, bottom_px


def crop(data: bytes, bbox_on_view: tuple[float, float, float, float], scale: float) -> bytes:
    """A JPEG cut from the original picture, at its full resolution, under a box drawn on its view."""
    picture = _upright_rgb(data)
    return _jpeg(picture.crop(box_on_original(bbox_on_view, scale, *picture.size)), VIEW_QUALITY)


def equirectangular(data: bytes, width: int = 4096, height: int = 2048, min_pixels: int = 1_000_000) -> bytes:
    """A full panorama as a JPEG of exactly width x height; `BadImage` if it is too small or not 2:1."""
    picture = _upright_rgb(data)
    if picture.width * picture.height < min_pixels:
        raise BadImage("too_small", f"{picture.width} x {picture.height}, at least {min_pixels} pixels are needed")
    # A partial panorama stretched to 2:1 would bend every road in it, so it is refused, not resized.
    if abs(picture.width / picture.height - 2.0) > 0.02:
        raise BadImage("not_equirectangular", f"{picture.width} x {picture.height} is not 2:1")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return _jpeg(picture, STORED_QUALITY)


def thumbnail(data: bytes, max_side: int = 320, quality: int = 78) -> bytes:
    """A small JPEG whose longer side is at most max_side."""
    picture = _upright_rgb(data)
    scale = min(1.0, max_side / max(picture.size))
    if scale < 1.0:
        picture = picture.resize(_scaled(picture.size, scale), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return _jpeg(picture, quality)


def to_data_uri(jpeg: bytes) -> str:
    """A JPEG as a data URI, as chat messages and single-file pages carry it."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


def strip_exif(data: bytes, *, turn: bool = True) -> bytes:
    """The same picture without EXIF, XMP, IPTC or comments; pixels untouched unless it had to be turned upright.

    With `turn` off it stays as it lies: for pictures whose orientation tag is known to be wrong.
    """
    facts = inspect(data)
    if turn and orientation(Image.open(io.BytesIO(data), formats=_FORMATS)) != 1:
        picture = _upright_rgb(data)
        if facts.format == "JPEG":
            return _jpeg(picture, 95)
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue()
    return _jpeg_without_metadata(data) if facts.format == "JPEG" else _png_without_metadata(data)


def _decode(data: bytes, max_decoded_pixels: int = MAX_DECODED_PIXELS) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise BadImage("too_large", "more pixels than any camera takes") from error
    except UnidentifiedImageError as error:
        raise BadImage("not_an_image", f"{len(data)} bytes that are neither JPEG nor PNG") from error
    except (OSError, SyntaxError, ValueError, struct.error) as error:
        raise BadImage("truncated", "the header cannot be read") from error
    if picture.width * picture.height > max_decoded_pixels:
        raise BadImage("too_large", f"{picture.width} x {picture.height} exceeds {max_decoded_pixels} pixels")
    if picture.format != "MPO" and getattr(picture, "is_animated", False):
        raise BadImage("animated", f"an animated {picture.format}")
    if picture.format not in _EXTENSIONS:
        raise BadImage("unsupported_format", f"{picture.format}; JPEG and PNG are taken")
    try:
        picture.load()
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:  # what Pillow's decoders raise
        raise BadImage("truncated", f"a {picture.width} x {picture.height} picture whose pixels end early") from error
    return picture


def orientation(picture: Image.Image) -> int:
    """How the picture lies, 1 to 8 as EXIF counts; 1, upright, where the tag is absent, damaged or means nothing."""
    try:
        tag = picture.getexif().get(0x0112, 1)
    except Exception:  # noqa: BLE001 - damaged metadata makes Pillow raise anything, and must not cost the picture
        return 1
    return tag if isinstance(tag, int) and 1 <= tag <= 8 else 1


def _upright_rgb(data: bytes) -> Image.Image:
    picture = _decode(data)
    if orientation(picture) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        paper = Image.new("RGB", rgba.size, "white")
        paper.paste(rgba, mask=rgba.getchannel("A"))
        return paper
    return picture.convert("RGB")


def _scaled(size: tuple[int, int], scale: float) -> tuple[int, int]:
    # Enlarging rounds up to reach the minimum, shrinking rounds down to stay within the maximum.
    fit = math.ceil if scale > 1.0 else math.floor
    return max(1, fit(size[0] * scale)), max(1, fit(size[1] * scale))


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    picture.info.clear()  # Pillow would carry the comment, the ICC profile and EXIF over
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality, exif=b"")
    return out.getvalue()


def _jpeg_without_metadata(data: bytes) -> bytes:
    """The JPEG's own segments up to its end marker; what follows (a phone's second picture) goes too."""
    kept = bytearray(data[:2])
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise BadImage("truncated", "a JPEG segment does not begin with a marker")
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker == 0xD9:
            break
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA:
            end = _end_of_scan(data, end)
        body = data[at + 4 : end]
        is_metadata = (0xE1 <= marker <= 0xED or marker in (0xEF, 0xFE)) and not body.startswith(b"ICC_PROFILE\0")
        if not is_metadata:  # APP0 (JFIF), APP14 (Adobe's colour transform) and colour profiles are part of the look
            kept += data[at:end]
        at = end
    return bytes(kept) + b"\xff\xd9"


def _end_of_scan(data: bytes, at: int) -> int:
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 1 >= len(data):
            return len(data)
        follower = data[at + 1]
        if follower != 0 and not 0xD0 <= follower <= 0xD7:  # neither a stuffed byte nor a restart marker
            return at
        at += 2


_PNG_KEPT = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"bKGD", b"pHYs"}


def _png_without_metadata(data: bytes) -> bytes:
    kept = bytearray(data[:8])
    at = 8
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] in _PNG_KEPT:
            kept += data[at:end]
        if data[at + 4 : at + 8] == b"IEND":
            break
        at = end
    return bytes(kept)
