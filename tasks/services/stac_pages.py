"""The pages of a search in a STAC API.

pystac-client searches; what it sends goes through our client, so that budgets, breakers and the SSRF guard see it.
pystac-client is synchronous: each search runs in a thread and hands its requests to the event loop.
"""

import asyncio
import json
from concurrent.futures import Future
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pystac.link import HREF, Link
from pystac_client import ItemSearch
from pystac_client.stac_api_io import StacApiIO

from tasks.services.errors import HttpResponse, ServiceError
from tasks.services.http import Expected, HttpClient

PAGE = 100  # items a request: pages of 250 are megabytes, and the service's gateway gives up after 30 s
MAX_PAGES = 100
JSON_TYPES = ("application/geo+json", "application/json")


class SearchPages(StacApiIO):
    """Pages of one search, requested through our HTTP client in its event loop."""

    def __init__(self, http: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(max_retries=None)
        self._http, self._loop = http, loop
        self._body: dict[str, Any] = {}
        self._asked: set[str] = set()
        self._items = 0
        self._waits_for: Future[dict[str, Any]] | None = None
        self._is_cancelled = False

    def read_json(self, source: HREF, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The next page. Of a link to it only the question is read: its address could lead elsewhere."""
        if isinstance(source, Link) and source.extra_fields.get("method") == "POST":
            self._body = {**self._body, **source.extra_fields["body"]}
            page = self._page("POST", body=self._body)
        elif isinstance(source, Link):
            page = self._page("GET", params=dict(parse_qsl(urlsplit(source.href).query)))
        else:
            self._body = dict(kwargs["parameters"])
            page = self._page("POST", body=self._body)
        if self._is_cancelled:
            page.close()
            raise asyncio.CancelledError
        self._waits_for = asyncio.run_coroutine_threadsafe(page, self._loop)
        return self._waits_for.result()

    def all_items(self, api_url: str, question: dict[str, Any]) -> list[dict[str, Any]]:
        """Every item of a search, page after page; for a thread of its own."""
        search = ItemSearch(f"{api_url}/search", stac_io=self, limit=PAGE, **question)
        return list(search.items_as_dicts())

    def cancel(self) -> None:
        """End the search: its caller is gone."""
        self._is_cancelled = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    async def _page(self, method: str, **question: Any) -> dict[str, Any]:
        """A page that keeps to the protocol, with one link at most: to the next page."""
        page, response = await self._http.request_json(
            method, "/search", kind="search", expected=Expected(JSON_TYPES), **question
        )
        rows = page.get("features") if isinstance(page, dict) else None
        if not isinstance(rows, list):
            raise self._http.bad_response("no list under 'features'", response, retryable=True)
        if not all(isinstance(row, dict) for row in rows):
            raise self._http.bad_response("an item that is not an object", response)
        self._items += len(rows)
        following = self._next_link(page, response) if rows else None
        if following is None:
            return {"features": rows, "links": []}
        name = json.dumps(following, sort_keys=True)
        if name in self._asked:
            raise self._http.bad_response("the next page is one that was read before", response)
        self._asked.add(name)
        if len(self._asked) >= MAX_PAGES:
            raise ServiceError(
                "stac",
                "too_dense",
                f"{MAX_PAGES} pages with {self._items} items and no end; shorten the search's dates "
                "(collect.satellite.start, end)",
            )
        return {"features": rows, "links": [following]}

    def _next_link(self, page: dict[str, Any], response: HttpResponse) -> dict[str, Any] | None:
        """The link to the next page, as STAC has it: a POST with a body, whatever stands in it, or a GET."""
        links = page.get("links")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, dict) and link.get("rel") == "next":
                href, body = link.get("href"), link.get("body")
                if str(link.get("method", "GET")).upper() == "POST":
                    if not isinstance(body, dict) or not body:
                        raise self._http.bad_response("a link to the next page without a body", response)
                    return {"rel": "next", "href": "", "method": "POST", "body": body}
                if not isinstance(href, str) or not urlsplit(href).query:
                    raise self._http.bad_response("a link to the next page that asks nothing", response)
                return {"rel": "next", "href": href}
        return None
