"""The offline world's geocoder inside this process: the same routes and the same client, without a socket."""

from __future__ import annotations

import random
from dataclasses import replace

import httpx
from starlette.applications import Starlette

from infra.offline.names import NameIndex
from infra.offline.services.nominatim import Nominatim
from infra.offline.sign_index import SignIndex
from infra.offline.world import World
from schemas.settings.services import GeocoderEndpoint
from tasks.agent.recipes.spotmini import RESULTS
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import Geocodes, ToolContext
from tasks.services.geocoder import GeocodeCandidate, Geocoder
from tasks.services.http import Connection


def geocoder_of(world: World, ready: bool = False) -> Geocoder:
    """A client of the world's Nominatim; `ready` builds its indices now."""
    nominatim = Nominatim(world, NameIndex(world.gazetteer), SignIndex(world))
    if ready:
        nominatim.search("a street")
    application = Starlette(routes=nominatim.routes())
    endpoint = GeocoderEndpoint(requests_per_minute=None, requests_per_day=None)
    return Geocoder(Connection("geocoder", endpoint), transport=lambda: httpx.ASGITransport(application))


class Remembering:
    """A geocoder that looks up each name once: the rollouts of a group mostly ask for the same."""

    def __init__(self, inner: Geocodes) -> None:
        self._inner = inner
        self._known: dict[tuple[str, int], list[GeocodeCandidate]] = {}

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        if (query, limit) not in self._known:
            self._known[query, limit] = await self._inner.search(query, limit)
        return self._known[query, limit]


class WrongGeocoder:
    """A control: finds some other place instead, in the same form."""

    def __init__(self, inner: Geocodes, world: World, seed: int) -> None:
        self._inner, self._world, self._rng = inner, world, random.Random(seed)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        found = await self._inner.search(query, limit)
        chosen = []
        for one in found:
            city = self._world.gazetteer.city(self._rng.randrange(len(self._world.gazetteer)))
            chosen.append(replace(one, lat=round(city.lat, 7), lon=round(city.lon, 7), city=city.name))
        return chosen


def toolbox_of(geocoder: Geocodes) -> Toolbox:
    """Zoom and geocoder."""
    return Toolbox(ToolContext(geocoder=Remembering(geocoder), max_results=RESULTS))
