"""What a worker of the street-view stage keeps open."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakValueDictionary

from schemas.settings.collect import CollectSettings
from tasks.collect.download import Downloads
from tasks.collect.previous import prepared_with
from tasks.collect.responses import RecallingMapillary, StageResponses
from tasks.collect.search import Search
from tasks.collect.tile_cache import TileCache
from tasks.lake import Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.computing import AdaptiveLimiter, computing
from tasks.services import Mapillary

FEWEST, MOST = 8, 64  # places under way in a worker: a service that takes a second for an answer needs dozens
VERSION = 2  # raise it when other bytes are stored for the same picture and settings


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    mapillary: Mapillary
    lake: Lake
    settings: CollectSettings
    responses: StageResponses = field(default_factory=StageResponses)
    withdrawn: Withdrawn = field(default_factory=Withdrawn)
    ended: frozenset[str] = frozenset()  # pictures that a check has found to be deleted
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def fetching(self, source_id: str) -> asyncio.Lock:
        """Held while a picture is fetched: several places may choose one, and it is fetched once."""
        return self._locks.setdefault(source_id, asyncio.Lock())

    @cached_property
    def prepared(self) -> str:
        """A name for how bytes are stored here."""
        return prepared_with(self.settings, VERSION)

    @cached_property
    def limiter(self) -> AdaptiveLimiter:
        return AdaptiveLimiter(FEWEST, MOST, computing)

    @cached_property
    def downloads(self) -> Downloads:
        return Downloads(self.mapillary, self.settings, self.lake.images, self.responses)

    @cached_property
    def tiles(self) -> TileCache:
        return TileCache(self.mapillary, self.settings.tiles_kept)

    def search(self, lat: float, lon: float, half_size_m: float, since_s: float = 0.0) -> Search:
        """The pictures in the box that reaches half_size_m from a point, best first."""
        service = self.mapillary.since(since_s) if isinstance(self.mapillary, RecallingMapillary) else self.mapillary
        return Search(service, self.tiles, self.settings, lat, lon, half_size_m)
