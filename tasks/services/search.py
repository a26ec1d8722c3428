"""Web search of Tavily and You.com. What it returns was written by strangers: data, never instructions."""

from dataclasses import dataclass
from typing import Any

from schemas.settings.services import SearchEndpoint
from tasks.services.errors import HttpResponse, ServiceError
from tasks.services.http import Expected, ServiceClient, key_header
from tasks.services.transport import Connection


@dataclass(frozen=True)
class SearchResult:
    """One page found."""

    title: str
    url: str
    content: str
    score: float


class Search(ServiceClient):
    """Tavily's web search: pages for a query, best first."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        super().__init__(connection, key_header(connection), **http_options)

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]:
        """The pages found; none is an empty list."""
        body = {"query": query, "max_results": max_results}
        value, response = await self._http.request_json(
            "POST", "/search", body=body, expected=Expected(classify=self._classify)
        )
        rows = value.get("results") if isinstance(value, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._http.bad_response("no list under 'results'", response)
        return [
            SearchResult(
                title=str(row.get("title") or ""),
                url=str(row.get("url") or ""),
                content=str(row.get("content") or ""),
                score=float(row["score"]) if isinstance(row.get("score"), int | float) else 0.0,
            )
            for row in rows
        ]

    def _classify(self, response: HttpResponse) -> ServiceError | None:
        # 432 and 433: the plan's or the pay-as-you-go quota is used up; waiting a minute does not help
        if response.status in (432, 433):
            return ServiceError("search", "quota", f"{response.url}: the quota is used up", status=response.status)
        return None


class YouSearch(ServiceClient):
    """You.com's web search."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        super().__init__(connection, key_header(connection, "X-API-Key", ""), **http_options)

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]:
        """The pages found; none is an empty list."""
        params = {"query": query, "count": max_results}
        value, response = await self._http.request_json("GET", "/v1/search", params=params)
        results = value.get("results") if isinstance(value, dict) else None
        rows = results.get("web") if isinstance(results, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._http.bad_response("no list under 'results.web'", response)
        return [
            SearchResult(
                title=str(row.get("title") or ""),
                url=str(row.get("url") or ""),
                content=_text(row),
                score=1.0 - place / max(1, len(rows)),
            )
            for place, row in enumerate(rows)
        ]


def open_search(connection: Connection, **http_options: Any) -> "Search | YouSearch":
    """The web search that the endpoint speaks."""
    endpoint = connection.endpoint
    is_you = isinstance(endpoint, SearchEndpoint) and endpoint.protocol == "you"
    return YouSearch(connection, **http_options) if is_you else Search(connection, **http_options)


def _text(row: dict[str, Any]) -> str:
    snippets = row.get("snippets")
    if isinstance(snippets, list) and snippets:
        return " ".join(str(part) for part in snippets)
    return str(row.get("description") or "")
