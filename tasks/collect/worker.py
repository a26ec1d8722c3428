"""What a worker of the street-view stage keeps open."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakValueDictionary

from schemas.settings.collect import CollectSettings
from tasks.collect.download import Downloads
from tasks.collect.previous import prepared_with
from tasks.collect.providers.provider import StreetViewProvider
from tasks.collect.responses import RecalledBoxes, StageResponses
from tasks.collect.search import PlaceSearch, Search, SeveralSearches
from tasks.collect.tile_cache import TileCache
from tasks.lake import Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.computing import AdaptiveLimiter, computing

FEWEST, MOST = 8, 64  # places under way in a worker: a service that takes a second for an answer needs dozens
VERSION = 2  # raise it when other bytes are stored for the same picture and settings


@dataclass(frozen=True)
class WorkerContext:
    """What a worker keeps open."""

    providers: tuple[StreetViewProvider, ...]  # those that are preferred first
    lake: Lake
    settings: CollectSettings
    responses: StageResponses = field(default_factory=StageResponses)
    withdrawn: Withdrawn = field(default_factory=Withdrawn)
    ended: frozenset[str] = frozenset()  # keys of pictures that a check has found to be deleted
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def fetching(self, key: str) -> asyncio.Lock:
        """Held while a picture is fetched: several places may choose one, and it is fetched once."""
        return self._locks.setdefault(key, asyncio.Lock())

    def provider(self, name: str) -> StreetViewProvider:
        return next(provider for provider in self.providers if provider.name == name)

    @cached_property
    def prepared(self) -> str:
        """A name for how bytes are stored here."""
        return prepared_with(self.settings, VERSION)

    @cached_property
    def limiter(self) -> AdaptiveLimiter:
        return AdaptiveLimiter(FEWEST, MOST, computing)

    @cached_property
    def downloads(self) -> Downloads:
        return Downloads(self.providers, self.settings, self.lake.images, self.responses)

    @cached_property
    def tiles(self) -> list[TileCache]:
        share = self.settings.tiles_kept // len(self.providers)
        return [TileCache(provider, share, self.responses) for provider in self.providers]

    def search(self, lat: float, lon: float, half_size_m: float, since_s: float = 0.0) -> PlaceSearch:
        """The pictures in the box that reaches half_size_m from a point, best first."""
        searches = []
        for provider, tiles in zip(self.providers, self.tiles, strict=True):
            recalled = RecalledBoxes(provider, self.responses, since_s)
            searches.append(Search(provider, tiles, self.settings, lat, lon, half_size_m, recalled.in_box))
        return searches[0] if len(searches) == 1 else SeveralSearches(searches, self.settings.prefer)
