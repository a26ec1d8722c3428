"""A picture to be located: the original, and the view of it a model sees."""

import asyncio
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cachetools import LRUCache, cached

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
    recent: images.RecentPictures = images.RECENT  # where it is found once it is decoded

    @cached_property
    def view_uri(self) -> str:
        """The view as chat messages carry it; every attempt at the picture sends it."""
        return images.to_data_uri(self.view)

    @cached_property
    def view_sha256(self) -> str:
        """By which stored messages name the view."""
        return hashlib.sha256(self.view).hexdigest()

    @cached_property
    def original_sha256(self) -> str:
        """By which recorded answers about the picture name it; no model sees it."""
        return hashlib.sha256(self.original).hexdigest()

    def region(self, box: tuple[float, float, float, float]) -> bytes:
        """A JPEG cut from the original under a box drawn on the view; ValueError for a box outside."""
        return images.region_view(self.original, box, self.scale, self.max_pixels, self.min_pixels, self.recent)


def open_picture(
    original: bytes,
    max_pixels: int = VIEW_MAX_PIXELS,
    min_pixels: int = VIEW_MIN_PIXELS,
    recent: images.RecentPictures = images.RECENT,
) -> Picture:
    """The picture with its view: within the pixel budget, upright, without metadata."""
    view, scale = images.model_view(original, max_pixels, min_pixels)
    facts = images.inspect(view)
    return Picture(original, view, scale, facts.width, facts.height, max_pixels, min_pixels, recent)


class StoredPictures:
    """Pictures of a lake for those who try each several times: opened once, and decoded once for all regions.

    Opened and decoded for each try, panoramas of 4096 x 2048 took longer than a small policy's replies.
    """

    def __init__(
        self, store: ImageStore, max_pixels: int, min_pixels: int, keep: int, decoded_bytes: int = images.RECENT_BYTES
    ) -> None:
        recent = images.RecentPictures(decoded_bytes)

        def read(sha256: str, extension: str) -> Picture:
            return open_picture(store.read(sha256, extension), max_pixels, min_pixels, recent)

        self.opened = cached(LRUCache(keep), condition=threading.Condition())(read)

    async def of_row(self, row: Mapping[str, Any]) -> Picture:
        """The picture that a row names, read and decoded beside the event loop."""
        return await asyncio.to_thread(self.opened, row["sha256"], row["extension"])


async def stored_picture(store: ImageStore, row: Mapping[str, Any], max_pixels: int, min_pixels: int) -> Picture:
    """The picture that a row names by `sha256` and `extension`, read and decoded beside the event loop."""
    original = await asyncio.to_thread(store.read, row["sha256"], row["extension"])
    return await asyncio.to_thread(open_picture, original, max_pixels, min_pixels)
