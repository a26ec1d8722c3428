"""A picture as a request carries it: the bytes of a data URI, decoded once and named by its sha256."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

from infra.offline.chat.errors import bad

MAX_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 40_000_000
FORMATS = {"PNG", "JPEG", "WEBP", "GIF"}


def is_panorama(width: int, height: int) -> bool:
    """Whether a picture has the shape of an equirectangular panorama; a small wide one is more likely a crop."""
    return width >= 1400 and abs(width / height - 2) < 0.03


@dataclass(frozen=True)
class Picture:
    data: bytes
    sha256: str
    width: int
    height: int

    def rgb(self) -> Image.Image:
        """The decoded pixels."""
        with Image.open(io.BytesIO(self.data)) as image:
            return image.convert("RGB")


def open_data_uri(url: str, where: str) -> Picture:
    """The picture in a base64 data URI; a remote URL is refused, since this server fetches nothing."""
    if not url.startswith("data:"):
        raise bad("Failed to download image. Only base64 data URIs are accepted here.", where, "invalid_image_url")
    head, _, payload = url.partition(",")
    if not head.endswith(";base64"):
        raise bad("Invalid image data URI: expected base64 encoding.", where, "invalid_base64")
    try:
        data = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad("Invalid base64 image_url.", where, "invalid_base64") from None
    if len(data) > MAX_BYTES:
        raise bad("Image is too large. The limit is 20 MB.", where, "image_too_large")
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind, (width, height) = image.format, image.size
            if kind not in FORMATS:
                raise UnidentifiedImageError(kind)
            if width * height > MAX_PIXELS:
                raise bad("Image has too many pixels.", where, "image_too_large")
            image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        text = "You uploaded an unsupported image. Please make sure your image is valid png, jpeg, gif or webp."
        raise bad(text, where, "invalid_image_format") from None
    return Picture(data, hashlib.sha256(data).hexdigest(), width, height)
