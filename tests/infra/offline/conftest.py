"""A small world served on a real socket."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import httpx
import pytest

from infra.offline.faults import Faults
from infra.offline.server import create_app, serving
from infra.offline.services.mapillary import TOKEN, Limits
from infra.offline.sign_index import SignIndex
from infra.offline.world import World


@dataclass
class Served:
    """A running server and what it serves."""

    url: str
    world: World
    http: httpx.Client

    @cached_property
    def signs(self) -> SignIndex:
        """An index of its own over the served world's signs."""
        return SignIndex(self.world)

    def graph(self, path: str, **params: str) -> httpx.Response:
        """A Graph API request with the world's token."""
        return self.http.get(f"/mapillary{path}", params={"access_token": TOKEN, **params})


def serve(world: World, **options: object) -> Iterator[Served]:
    """The world on a free loopback port until the generator is closed."""
    app = create_app(world, Faults(), warm=False, **options)  # type: ignore[arg-type]
    with serving(app) as url, httpx.Client(base_url=url, timeout=300) as http:
        yield Served(url, world, http)


@pytest.fixture(scope="session")
def small_world() -> World:
    """Six hundred places with small panoramas."""
    return World(seed=7, size=600, pano_width=1024)


@pytest.fixture(scope="session")
def served(small_world: World) -> Iterator[Served]:
    """The small world over HTTP."""
    yield from serve(small_world)


@pytest.fixture
def crowded(small_world: World) -> Iterator[Served]:
    """The small world with limits so low that crowds, density and rates show."""
    yield from serve(small_world, limits=Limits(crowd=2, dense=6, entity_per_minute=5, search_per_minute=50))


@pytest.fixture
def breakable(served: Served) -> Iterator[Served]:
    """The served world, its faults and counts cleared before and after."""
    for _ in served.http.delete("/control/faults"), served.http.delete("/control/log"):
        pass
    yield served
    served.http.delete("/control/faults")
