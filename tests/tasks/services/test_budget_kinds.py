"""Which budgets each kind of request is counted in, as a server sees it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from schemas.settings.services import MapillaryEndpoint, StacEndpoint
from tasks.collect.providers.mapillary.client import Mapillary
from tasks.services import ServiceError
from tasks.services.rate_budget import ProcessRateBudget
from tasks.services.transport import Connection

BOX = (4.0, 50.0, 4.01, 50.01)


@pytest.fixture
def service() -> Iterator[tuple[str, list[str]]]:
    """A server that answers every request of the client, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            is_tile = self.path.startswith("/mapillary-tiles")
            body = b"" if is_tile else b'{"data": []}' if "/images?" in self.path else b'{"id": "1"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf" if is_tile else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def ask_until_refused(
    base_url: str, ask: Callable[[Mapillary], list[Awaitable[Any]]], rate_budget: ProcessRateBudget, **budgets: float
) -> list[str]:
    """Every request at once; the messages of those that were not sent."""

    async def go() -> list[str]:
        endpoint = MapillaryEndpoint(base_url=base_url, **budgets)
        client = Mapillary(Connection("mapillary", endpoint, rate_budget=rate_budget))
        answers = await asyncio.gather(*ask(client), return_exceptions=True)
        await client.close()
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(one, ServiceError) and one.kind == "quota" for one in refused), refused
        return [str(one) for one in refused]

    return asyncio.run(go())


def searches(count: int) -> Callable[[Mapillary], list[Awaitable[Any]]]:
    return lambda client: [client.images_in_box(*BOX) for _ in range(count)]


def test_the_days_requests_are_of_every_kind(service: tuple[str, list[str]]) -> None:
    url, asked = service
    rate_budget = ProcessRateBudget()
    budgets = {"requests_per_day": 5, "search_per_minute": 60_000, "tiles_per_day": 100, "requests_per_minute": 60_000}

    def of_each_kind(client: Mapillary) -> list[Awaitable[Any]]:
        return [client.image("1"), client.tile(14, 1, 1), client.images_in_box(*BOX)]

    assert ask_until_refused(url, of_each_kind, rate_budget, **budgets) == []
    refused = ask_until_refused(url, searches(18), rate_budget, **budgets)
    assert len(asked) == 5 and len(refused) == 16  # three before, two of these
    assert all("services.mapillary.requests_per_day" in message for message in refused)
    refused = ask_until_refused(url, of_each_kind, rate_budget, **budgets)
    assert len(asked) == 5 and len(refused) == 3


def test_tiles_have_a_day_of_their_own_within_it(service: tuple[str, list[str]]) -> None:
    url, asked = service
    rate_budget = ProcessRateBudget()
    budgets = {"requests_per_day": 9, "tiles_per_day": 2, "search_per_minute": 60_000}
    refused = ask_until_refused(url, lambda client: [client.tile(14, 1, k) for k in range(6)], rate_budget, **budgets)
    assert len(asked) == 2 and len(refused) == 4
    assert all("services.mapillary.tiles_per_day" in message for message in refused)
    assert len(ask_until_refused(url, searches(10), rate_budget, **budgets)) == 3 and len(asked) == 9


def test_every_kind_has_one_pace_and_it_is_taken_last() -> None:
    """Two paces for one request would make it miss its moment in one of them."""
    full = MapillaryEndpoint(requests_per_minute=600, requests_per_day=5000, search_per_minute=100, tiles_per_day=1000)
    for kind in ("", "search", "tiles"):
        allowances = full.allowances(kind)
        assert [one.per_minute for one in allowances[:-1]] == [None] * (len(allowances) - 1)
        assert allowances[-1].per_minute == (100 if kind == "search" else 600)
        assert 5000 in [one.per_day for one in allowances if one.name == ""], kind
    assert full.allowances("picture") == ()
    stac = StacEndpoint(requests_per_minute=60, files_per_minute=90)
    assert [one.per_minute for one in stac.allowances("file")] == [90]
    assert [one.per_minute for one in stac.allowances("search")] == [60]


def test_tiles_keep_the_pace_of_the_service(service: tuple[str, list[str]]) -> None:
    """With a day of their own they are still counted in the minute: moments are given one by one."""
    url, _ = service
    rate_budget = ProcessRateBudget()
    budgets = {"requests_per_minute": 6000, "tiles_per_day": 100}
    assert ask_until_refused(url, lambda c: [c.tile(14, 1, k) for k in range(7)], rate_budget, **budgets) == []
    base = f"{url} "
    assert rate_budget.state(f"{base}tiles").used == 7
    assert rate_budget.state(base).used == 7 and rate_budget.state(base).next_s > 0
