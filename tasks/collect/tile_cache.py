"""Vector tiles that a worker remembers: one serves every place on it."""

import asyncio
import contextlib

from cachetools import LRUCache

from tasks.collect.providers.provider import StreetViewProvider
from tasks.collect.responses import MOST_ROWS, StageResponses
from tasks.collect.tiles import NO_IMAGES, BadTile, TileImages, TileName, read_tile
from tasks.runtime.computing import computing
from tasks.services import ServiceError

TRANSFERS = 2  # of a tile that cannot be read before it counts as broken
_SHARE_OF_AN_EMPTY_TILE = 100  # images: an entry without any takes room too


class TileCache:
    """Tiles, each requested once while it is remembered, also by several places at the same time.

    Small ones are kept among the stage's answers too: other workers, and a run after a kill, do not ask for them again.
    """

    def __init__(self, provider: StreetViewProvider, most_images: int, responses: StageResponses | None = None) -> None:
        self._provider, self._responses = provider, responses or StageResponses()
        self._tiles: LRUCache[TileName, TileImages] = LRUCache(
            most_images, lambda images: len(images) + _SHARE_OF_AN_EMPTY_TILE
        )
        self._coming: dict[TileName, asyncio.Task[TileImages]] = {}

    def __contains__(self, name: TileName) -> bool:
        return name in self._tiles

    async def get(self, name: TileName) -> TileImages:
        """The tile's images."""
        if name in self._tiles:
            return self._tiles[name]
        if name not in self._coming:
            self._coming[name] = asyncio.create_task(self._fetch(name))
        # Shielded: a place that is given up must not take the tile from the others that wait for it.
        return await asyncio.shield(self._coming[name])

    async def _fetch(self, name: TileName) -> TileImages:
        layer = self._provider.limits.layer
        assert layer is not None, "a provider without tiles is searched by boxes"
        request = ("tile", self._provider.name, self._provider.server, name.x, name.y, name.z)
        try:
            kept = data = self._responses.find_bytes(*request)
            for transfer in range(1, TRANSFERS + 1):
                try:
                    if data is None:
                        data = await self._provider.tile(name)
                    # A city's tile takes a good part of a second, in which the other places go on.
                    images = await computing.run(read_tile, data, name, layer)
                    break
                except ServiceError as error:
                    if error.kind != "not_found":
                        raise
                    data, images = b"", NO_IMAGES
                    break
                except BadTile as error:
                    kept = data = None
                    if transfer == TRANSFERS:
                        detail = f"tile {name.z}/{name.x}/{name.y}: {error}"
                        raise ServiceError(self._provider.name, "bad_response", detail, retryable=True) from None
            if kept is None and data is not None and len(images) <= MOST_ROWS:
                await self._responses.keep_bytes(data, *request)
            with contextlib.suppress(ValueError):  # larger than all the room
                self._tiles[name] = images
            return images
        finally:
            del self._coming[name]
