"""Pictures from untrusted bytes to upright RGB pixels, or a `BadImage` that says why not.

Only JPEG and PNG are decoded, and a size limit is checked before any pixel is. JPEGs go through libjpeg-turbo in its
strict mode: a picture with damaged parts, which other decoders fill with grey, is refused. What it does not take
(PNG, CMYK, odd sampling) goes through Pillow.
"""

import io
import re
import struct
import warnings
import zlib
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from tasks.imaging.colour_profile import cmyk_as_rgb

Pixels = NDArray[np.uint8]  # height x width x 3, RGB

MAX_DECODED_PIXELS = 210_000_000  # phones take 200 M; the largest panoramas in the wild have about 70 M
Image.MAX_IMAGE_PIXELS = MAX_DECODED_PIXELS  # else Pillow warns of pictures that we accept
# It warns of those between this and twice as much, which we refuse by their size.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

BadImageKind = Literal[
    "not_an_image", "truncated", "too_large", "animated", "unsupported_format", "too_small", "not_equirectangular"
]
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png"}  # MPO: a JPEG with a second picture behind it, from phones
# GIF and WebP are opened only to be able to say what is wrong with them.
_FORMATS = ["JPEG", "PNG", "GIF", "WEBP"]
_ORIENTATION = 0x0112
# Of a PNG: its first bytes, and the chunks that are not pixels.
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TELLING = {b"eXIf", b"tEXt", b"zTXt", b"iTXt"}  # these may stand behind the pixels
PACKED = {b"iCCP", b"tEXt", b"zTXt", b"iTXt"}  # may unpack to more than they should, and no pixel needs them
_STARTS = (b"\xff\xd8\xff", SIGNATURE)

# libjpeg's fixed messages for pixels that are lost. It has no codes to go by, and its other complaints (bytes between
# segments, an odd version) leave every pixel intact.
_DAMAGE = re.compile(
    "Premature end of JPEG file|premature end of data segment|bad (Huffman|arithmetic) code"
    "|found marker|extraneous bytes before marker 0x(d[0-7]|da|c4)"
)


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
    """The facts of a picture, all of which was decoded; `BadImage` if a part could not be."""
    picture = Encoded.open(data, max_decoded_pixels)
    picture.check()
    return picture.facts


@dataclass(frozen=True)
class Encoded:
    """A picture whose header was read and accepted. Sizes are as displayed."""

    data: bytes
    facts: ImageFacts
    mode: str  # Pillow's name of the colours: RGB, L, CMYK, …
    orientation: int  # EXIF: 1 is upright

    @classmethod
    def open(cls, data: bytes, max_decoded_pixels: int = MAX_DECODED_PIXELS) -> Self:
        """The picture's header; `BadImage` when it already rules the picture out."""
        try:
            picture = Image.open(io.BytesIO(png_header(data, PACKED) or data), formats=_FORMATS)
        except Image.DecompressionBombError as error:
            raise BadImage("too_large", "more pixels than any camera takes") from error
        except UnidentifiedImageError as error:
            if data and any(data.startswith(start[: len(data)]) for start in _STARTS):
                raise BadImage("truncated", f"the header cannot be read, {len(data)} bytes in all") from error
            raise BadImage("not_an_image", f"{len(data)} bytes that are neither JPEG nor PNG") from error
        except (OSError, SyntaxError, ValueError, struct.error) as error:
            raise BadImage("truncated", "the header cannot be read") from error
        width, height = picture.size
        if (
            width * height > max_decoded_pixels
        ):  # before anything else is read: a PNG's tags may stand behind its pixels
            raise BadImage("too_large", f"{width} x {height} exceeds {max_decoded_pixels} pixels")
        kind = picture.format or ""
        if kind != "MPO" and getattr(picture, "is_animated", False):
            raise BadImage("animated", f"an animated {kind}")
        if kind not in _EXTENSIONS:
            raise BadImage("unsupported_format", f"{kind}; JPEG and PNG are taken")
        orientation = _orientation(data)
        if orientation >= 5:  # those swap the sides
            width, height = height, width
        facts = ImageFacts(width, height, "JPEG" if kind == "MPO" else kind, _EXTENSIONS[kind])
        return cls(data, facts, picture.mode, orientation)

    @property
    def eight_bit_rgb(self) -> bool:
        """Whether every reader shows these colours: several show CMYK and 16 bits a channel as white."""
        deep = self.facts.format == "PNG" and self.data[24] == 16  # the header's bits a channel
        return self.mode != "CMYK" and not deep

    @property
    def profile(self) -> bytes | None:
        """The colour profile in its header; none where it cannot be read, or unpacks to more than Pillow allows."""
        try:
            header = png_header(self.data, PACKED - {b"iCCP"}) or self.data
            profile = Image.open(io.BytesIO(header), formats=_FORMATS).info.get("icc_profile")
        except (OSError, SyntaxError, ValueError, struct.error):
            return None
        return profile if isinstance(profile, bytes) else None

    def as_it_lies(self) -> Self:
        """The same picture, not to be turned: for an orientation that is known to be wrong."""
        if self.orientation < 5:
            return replace(self, orientation=1)
        facts = replace(self.facts, width=self.facts.height, height=self.facts.width)
        return replace(self, facts=facts, orientation=1)

    def check(self) -> bool:
        """Decode all of it for the sake of its faults: `BadImage` if pixels are lost, false if there are odd bytes."""
        # An eighth of the size, in grey: every coefficient is still read, the arithmetic after it cannot fail.
        colours = "CMYK" if self.mode == "CMYK" else "GRAY"
        is_clean = self._turbo(colours, 8) is not None
        if not is_clean:
            self._load()
        return is_clean

    def pixels(self, least: tuple[int, int] | None = None) -> Pixels:
        """Upright RGB, transparent parts on white.

        `least` (width, height) allows a JPEG to come out at a half, a quarter or an eighth, but no smaller than that.
        """
        shrink = 1
        while least and shrink < 8 and min(self.facts.width / least[0], self.facts.height / least[1]) >= 2 * shrink:
            shrink *= 2
        decoded = self._turbo("RGB", shrink) if self.mode in ("RGB", "L") else None
        return _turned(_rgb(self._load()) if decoded is None else decoded, self.orientation)

    def _turbo(self, colours: str, shrink: int) -> Pixels | None:
        """What libjpeg-turbo makes of it; none if it is not for it, or has a fault that Pillow must judge."""
        if self.facts.format != "JPEG":
            return None
        sides = self.facts.width, self.facts.height
        width, height = sides if self.orientation < 5 else sides[::-1]
        least = {"min_width": -(-width // shrink), "min_height": -(-height // shrink)} if shrink > 1 else {}
        try:
            return np.asarray(simplejpeg.decode_jpeg(self.data, colours, fastdct=False, fastupsample=False, **least))
        except ValueError as error:
            if _DAMAGE.search(str(error)):
                size = f"{self.facts.width} x {self.facts.height}"
                raise BadImage("truncated", f"a {size} picture with missing or damaged parts") from error
            return None

    def _load(self) -> Image.Image:
        data = png_pixels(self.data) if self.facts.format == "PNG" else self.data
        try:
            picture = Image.open(io.BytesIO(data), formats=_FORMATS)
            picture.load()
        except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:  # what Pillow's decoders raise
            size = f"{self.facts.width} x {self.facts.height}"
            raise BadImage("truncated", f"a {size} picture whose pixels end early") from error
        return picture


def jpeg(pixels: Pixels, quality: int) -> bytes:
    """A baseline JPEG, 4:2:0, with no segment that is not needed to decode it."""
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420", fastdct=False))


def exif_of(picture: Image.Image) -> Image.Exif:
    """The EXIF data of an opened header. Pillow's own way decodes a PNG for it."""
    return Image.Image.getexif(picture)


def _orientation(data: bytes) -> int:
    orientation = 1
    for left_out in ((), PACKED) if data.startswith(SIGNATURE) else ((),):  # without texts, where these are broken
        try:
            header = io.BytesIO(png_header(data, left_out) or data)
            orientation = exif_of(Image.open(header, formats=_FORMATS)).get(_ORIENTATION, 1)
            break
        except (OSError, SyntaxError, ValueError, TypeError, KeyError, struct.error):  # broken EXIF says nothing
            continue
    return orientation if orientation in range(1, 9) else 1


def _rgb(picture: Image.Image) -> Pixels:
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        paper = Image.new("RGB", rgba.size, "white")
        paper.paste(rgba, mask=rgba.getchannel("A"))
        return np.array(paper)
    if picture.mode.startswith("I"):  # 16 bit grey: Pillow would cut it off at 255, not scale it
        grey = np.array(picture).astype(np.int64).clip(0, 65535) >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode == "CMYK":
        return np.array(cmyk_as_rgb(picture))
    return np.array(picture.convert("RGB"))


def _turned(pixels: Pixels, orientation: int) -> Pixels:
    """Upright, by the EXIF orientation."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def parts(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every part up to the end: its name, and all of it with length and checksum; what is cut off is left out."""
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            return
        name = data[at + 4 : at + 8]
        yield name, data[at:end]
        if name == b"IEND":
            return
        at = end


def chunk(name: bytes, body: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_header(data: bytes, left_out: Container[bytes] = ()) -> bytes | None:
    """All but the pixels, with what stands behind them before them; None when it is no PNG, or has no pixels."""
    if not data.startswith(SIGNATURE):
        return None
    before, behind, has_pixels = bytearray(), bytearray(), False
    for name, part in parts(data):
        if name == b"IDAT":
            has_pixels = True
        elif name in left_out:
            continue
        elif not has_pixels:
            before += part
        elif name in _TELLING:
            behind += part
    return SIGNATURE + before + behind + chunk(b"IDAT", b"") + chunk(b"IEND", b"") if has_pixels else None


def png_pixels(data: bytes) -> bytes:
    """The file without texts and profiles."""
    at, kept = len(SIGNATURE), bytearray(SIGNATURE)
    for name, part in parts(data):
        if name not in PACKED:
            kept += part
        at += len(part)
    return bytes(kept) + data[at:]
