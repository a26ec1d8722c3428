"""A picture to be located: the original, and the view of it a model sees."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.imaging import images
from tasks.lake.image_store import ImageStore

VIEW_MAX_PIXELS, VIEW_MIN_PIXELS = 2_000_000, 40_000


@dataclass(frozen=True)
class Picture:
    """The original and its view. Boxes are in pixels of the view; regions are cut from the original."""

    original: bytes
    view: bytes
    scale: float  # of the view against the original
    width: int  # of the view
    height: int
    max_pixels: int = VIEW_MAX_PIXELS  # of the view, and of every region cut out of the original
    min_pixels: int = VIEW_MIN_PIXELS

    @cached_property
    def view_uri(self) -> str:
        """The view as chat messages carry it; every attempt at the picture sends it."""
        return images.to_data_uri(self.view)

    @cached_property
    def view_sha256(self) -> str:
        """By which stored messages name the view."""
        return hashlib.sha256(self.view).hexdigest()

    def region(self, box: tuple[float, float, float, float]) -> bytes:
        """A JPEG cut from the original under a box drawn on the view; ValueError for a box outside."""
        return images.region_view(self.original, box, self.scale, self.max_pixels, self.min_pixels)


def open_picture(original: bytes, max_pixels: int = VIEW_MAX_PIXELS, min_pixels: int = VIEW_MIN_PIXELS) -> Picture:
    """The picture with its view: within the pixel budget, upright, without metadata."""
    view, scale = images.model_view(original, max_pixels, min_pixels)
    facts = images.inspect(view)
    return Picture(original, view, scale, facts.width, facts.height, max_pixels, min_pixels)


async def stored_picture(store: ImageStore, row: Mapping[str, Any], max_pixels: int, min_pixels: int) -> Picture:
    """The picture that a row names by `sha256` and `extension`, read and decoded beside the event loop."""
    original = await asyncio.to_thread(store.read, row["sha256"], row["extension"])
    return await asyncio.to_thread(open_picture, original, max_pixels, min_pixels)
