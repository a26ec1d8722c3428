"""Reverse image search: pages with pictures like a given one, as Google's Cloud Vision finds them (web detection), or a
lake's own pictures (`geofix serve pictures`).

The picture goes along in the request; no address that an answer names is fetched. What comes back was written by
strangers: data, never instructions.
"""

import base64
import re
from html import unescape
from typing import Any

from tasks.services.errors import Kind, ServiceError, invalid_google_key
from tasks.services.http import Expected, ServiceClient, key_header
from tasks.services.search import SearchResult
from tasks.services.transport import Connection

# Codes inside a 200, of one picture: what is wrong with the request, the key, the quota; every other one is an outage.
_KINDS: dict[int, Kind] = {3: "rejected", 7: "auth", 8: "quota", 16: "auth"}
_MARKUP = re.compile(r"<[^<>]{0,40}>")  # titles come with the words that matched in bold


class ImageSearch(ServiceClient):
    """Pages for a picture, best first."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        super().__init__(connection, key_header(connection, "X-Goog-Api-Key", ""), **http_options)
        self._is_lake = getattr(connection.endpoint, "protocol", None) == "lake"

    async def look_alikes(self, jpeg: bytes, max_results: int = 10, of: str = "") -> list[SearchResult]:
        """The pages found; none is an empty list. The service tells their titles, not what stands on them.

        `of` is the sha256 of the whole picture. Only a lake's own search is told it, to leave that place out.
        """
        feature = {"type": "WEB_DETECTION", "maxResults": max_results}
        body: dict[str, Any] = {
            "requests": [{"image": {"content": base64.b64encode(jpeg).decode()}, "features": [feature]}]
        }
        if self._is_lake:
            body["labels"] = {"picture": of}
        expected = Expected(classify=lambda response: invalid_google_key(self._http.service, response))
        value, response = await self._http.request_json("POST", "/v1/images:annotate", body=body, expected=expected)
        answers = value.get("responses") if isinstance(value, dict) else None
        if not isinstance(answers, list) or len(answers) != 1 or not isinstance(answers[0], dict):
            raise self._http.bad_response("no single answer under 'responses'", response)
        if answers[0].get("error"):
            error = answers[0]["error"]
            code = error.get("code") if isinstance(error, dict) else None
            kind = _KINDS.get(code, "outage") if isinstance(code, int) else "outage"
            told = self._http.bad_response(f"code {code}", response).message
            raise ServiceError(self._http.service, kind, told, status=response.status, retryable=kind == "outage")
        found = answers[0].get("webDetection", {})  # nothing found leaves fields out
        rows = found.get("pagesWithMatchingImages", []) if isinstance(found, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._http.bad_response("no list under 'pagesWithMatchingImages'", response)
        titles = (unescape(_MARKUP.sub("", str(row.get("pageTitle") or ""))) for row in rows)
        pages = (
            SearchResult(title, str(row.get("url") or ""), "", 0.0) for title, row in zip(titles, rows, strict=True)
        )
        return [page for page in pages if page.title or page.url][:max_results]
