"""You.com's web search in its JSON, over the same small web as Tavily's."""

from __future__ import annotations

import re
import time
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.seeded_random import fraction, key_of
from infra.offline.services.tavily import Tavily

KEY = "ydc-offline-world"  # public: it opens only this world
MOST = 100


class You:
    """Web search over the pages Tavily finds."""

    def __init__(self, web: Tavily) -> None:
        self.web = web

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/you/v1/search", self._search)]

    async def _search(self, request: Request) -> Response:
        started = time.perf_counter()
        key = request.headers.get("x-api-key", "")
        if not key:
            return JSONResponse({"message": "Missing X-API-Key header"}, 401)
        if not key.startswith("ydc-"):
            return JSONResponse({"message": "Forbidden"}, 403)
        query = request.query_params.get("query", "").strip()
        count = request.query_params.get("count", "10")
        if not query:
            return _invalid("query", "Field required", "missing")
        if not count.isdigit() or not 1 <= int(count) <= MOST:
            return _invalid("count", f"Input should be an integer between 1 and {MOST}", "int_parsing")
        pages = await anyio.to_thread.run_sync(self.web.search, query, int(count))
        return JSONResponse(
            {
                "results": {"web": [_page(page) for page in pages], "news": []},
                "metadata": {
                    "search_uuid": _uuid(query),
                    "query": query,
                    "latency": round(time.perf_counter() - started, 4),
                },
            }
        )


def _page(page: dict[str, Any]) -> dict[str, Any]:
    sentences = re.split(r"(?<=[.!?])\s+", page["content"])
    day = int(fraction("page age", page["url"]) * 2500)
    return {
        "url": page["url"],
        "title": page["title"],
        "description": sentences[0],
        "snippets": sentences,
        "page_age": f"{2018 + day // 365}-{1 + day % 365 // 31:02d}-{1 + day % 28:02d}T00:00:00",
        "thumbnail_url": None,
        "favicon_url": None,
        "authors": [],
    }


def _uuid(query: str) -> str:
    text = f"{key_of('search', query):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def _invalid(name: str, message: str, kind: str) -> Response:
    """A refused parameter, in the words of the framework the service is built with."""
    return JSONResponse({"detail": [{"type": kind, "loc": ["query", name], "msg": message, "input": None}]}, 422)
