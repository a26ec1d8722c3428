"""Search by a picture as Google's Cloud Vision answers it (web detection): pages whose pictures look like the one sent.

What a picture is found by is what can be read in it: a sign leads to the pages on the shops and streets of that name,
wherever they are, and beside them stand pages on streets that only look alike. The service is not told whose picture it
is, and knows the world's pages, never the place of the picture that is sent.
"""

import base64
import binascii
import hashlib
import io
import json
from typing import Any

from PIL import Image, UnidentifiedImageError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.chat.sight import READABLE_SCORE, read_text
from infra.offline.computing import compute_in_thread
from infra.offline.facts import countries
from infra.offline.seeded_random import fraction
from infra.offline.services.web_search import Tavily

KEY_START = "AIza"
MOST, LARGEST_PIXELS = 20, 40_000_000
READ = 3  # lines, the largest
ALIKE = ("Street scene", "Old town street", "Shop fronts", "Road with trees", "Town square")


class Vision:
    """Web detection over the pages of a web search."""

    def __init__(self, web: Tavily) -> None:
        self.web = web

    def routes(self) -> list[Route]:
        """The routes to mount."""
        return [Route("/vision/v1/images:annotate", self._annotate, methods=["POST"])]

    async def _annotate(self, request: Request) -> Response:
        key = request.headers.get("x-goog-api-key") or request.query_params.get("key", "")
        if not key:
            return _error(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.")
        if not key.startswith(KEY_START):
            refused = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
            return _error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", [refused])
        try:
            requests = json.loads(await request.body())["requests"]
            wanted = [(one["image"]["content"], one["features"][0]) for one in requests]
        except (ValueError, KeyError, TypeError, IndexError):
            return _error(400, "INVALID_ARGUMENT", "Request must specify image and features.")
        if any(feature.get("type") != "WEB_DETECTION" for _, feature in wanted):
            return _error(400, "INVALID_ARGUMENT", "Only WEB_DETECTION is served here.")
        answers = [
            await compute_in_thread(self.answer, content, feature.get("maxResults")) for content, feature in wanted
        ]
        return JSONResponse({"responses": answers})

    def answer(self, content: Any, most: Any = None) -> dict[str, Any]:
        """The answer to one picture, or why it has none."""
        try:
            data = base64.b64decode(content, validate=True)
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > LARGEST_PIXELS:
                    raise ValueError("too large")
                pixels = image.convert("RGB")
        except (OSError, ValueError, TypeError, binascii.Error, UnidentifiedImageError, Image.DecompressionBombError):
            return {"error": {"code": 3, "message": "Bad image data."}}
        count = most if isinstance(most, int) and 0 < most <= MOST else 10
        lines = [line.text for line in read_text(pixels) if line.score >= READABLE_SCORE and len(line.text) > 2][:READ]
        pages = self.web.search(" ".join(lines)[:300], count) if lines else []
        titles = [(page["title"], page["url"]) for page in pages]
        titles += self._alike(hashlib.sha256(data).hexdigest(), count - min(len(titles), count // 2))
        label = [{"label": "street sign" if lines else "street", "languageCode": "en"}]
        if not titles:
            return {"webDetection": {"bestGuessLabels": label}}
        rows = [
            {"url": url, "pageTitle": title, "partialMatchingImages": [{"url": f"{url}/picture.jpg"}]}
            for title, url in titles[:count]
        ]
        return {"webDetection": {"pagesWithMatchingImages": rows, "bestGuessLabels": label}}

    def _alike(self, picture: str, most: int) -> list[tuple[str, str]]:
        """Pages on towns that have nothing to do with the picture, drawn by its bytes."""
        known = self.web.world.gazetteer
        found = []
        for number in range(min(most, 2 + int(4 * fraction("alike", picture)))):
            city = known.city(int(fraction("alike", picture, number) * len(known)))
            what = ALIKE[int(fraction("what", picture, number) * len(ALIKE))]
            title = f"{what} in {city.name}, {countries()[city.country].name}"
            found.append((title, f"https://photos.example/{city.geoname_id}/{number}"))
        return found


def _error(code: int, status: str, message: str, details: list[dict[str, Any]] | None = None) -> Response:
    error: dict[str, Any] = {"code": code, "message": message, "status": status}
    return JSONResponse({"error": error | ({"details": details} if details else {})}, code)
