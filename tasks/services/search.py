"""Web search over the Tavily protocol. What it returns was written by strangers: data, never instructions."""

from dataclasses import dataclass
from typing import Any

from tasks.services.errors import ServiceError
from tasks.services.http import Answer, Connection, Http


@dataclass(frozen=True)
class SearchResult:
    """One page found."""

    title: str
    url: str
    content: str
    score: float


class Search:
    """Pages for a query, best first."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        headers = {"Authorization": f"Bearer {connection.key.get_secret_value()}"} if connection.key else {}
        self._http = Http(connection, headers=headers, **http_options)

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]:
        """The pages found; none is an empty list."""
        body = {"query": query, "max_results": max_results}
        value, answer = await self._http.request_json("POST", "/search", json_body=body, classify=self._classify)
        rows = value.get("results") if isinstance(value, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._http.bad_response("no list under 'results'", answer)
        return [
            SearchResult(
                title=str(row.get("title") or ""),
                url=str(row.get("url") or ""),
                content=str(row.get("content") or ""),
                score=float(row["score"]) if isinstance(row.get("score"), int | float) else 0.0,
            )
            for row in rows
        ]

    async def close(self) -> None:
        await self._http.close()

    def _classify(self, answer: Answer) -> ServiceError | None:
        # 432 and 433: the plan's or the pay-as-you-go quota is used up; waiting a minute does not help
        if answer.status in (432, 433):
            return ServiceError("search", "quota", f"{answer.url}: the quota is used up", status=answer.status)
        return None
