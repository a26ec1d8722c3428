"""SpotAgent's three tools (appendix A.2). What they return is data for a model: JSON text of bounded length.

The signature and docstring of each tool are its whole description; `toolspec` derives schemas and checks from them.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tasks.imaging import images
from tasks.services.errors import ServiceError
from tasks.services.geocoder import GeocodeCandidate
from tasks.services.search import SearchResult

# Kinds that speak of the request, which the model wrote; all others speak of the service.
_MODEL_MISTAKES = ("rejected", "not_found", "too_big")


class Finds(Protocol):
    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]: ...


class Geocodes(Protocol):
    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]: ...


class ToolMistake(ValueError):
    """The call cannot be answered through the model's own doing; the text tells it why."""


@dataclass(frozen=True)
class ToolOutput:
    """What a tool found: a JSON value, and the picture if there is one (a JPEG)."""

    value: dict[str, Any]
    picture: bytes | None = None


@dataclass(frozen=True)
class Picture:
    """A picture to be located: the original, and the view of it a model sees."""

    original: bytes
    view: bytes
    scale: float  # of the view against the original
    width: int  # of the view
    height: int


def open_picture(original: bytes, max_pixels: int, min_pixels: int) -> Picture:
    """The picture with its view: within the pixel budget, upright, without metadata."""
    view, scale = images.model_view(original, max_pixels, min_pixels)
    facts = images.inspect(view)
    return Picture(original, view, scale, facts.width, facts.height)


class SpotTools:
    """The tools for one picture. Each public method is a tool."""

    def __init__(
        self,
        picture: Picture,
        observe: Callable[[bytes], Awaitable[str]],
        search: Finds,
        geocoder: Geocodes,
        *,
        max_pixels: int = 2_000_000,
        min_pixels: int = 40_000,
        max_results: int = 5,
    ) -> None:
        self._picture, self._observe, self._search, self._geocoder = picture, observe, search, geocoder
        self._max_pixels, self._min_pixels, self._max_results = max_pixels, min_pixels, max_results

    async def image_zoom_in_tool(self, bbox_2d: tuple[float, float, float, float]) -> ToolOutput:
        """Crop and zoom into a region of the image, to read text or see detail.

        Args:
            bbox_2d: The region as [x1, y1, x2, y2] in pixels of the image, top left and bottom right corner.
        """
        x1, y1, x2, y2 = bbox_2d
        if not (x1 < x2 and y1 < y2):
            raise ToolMistake("bbox_2d must have x1 < x2 and y1 < y2")
        region = await asyncio.to_thread(self._cut, (x1, y1, x2, y2))
        description = await self._observe(region)
        box = [int(edge) if edge == int(edge) else edge for edge in bbox_2d]
        return ToolOutput({"bbox_2d": box, "description": description}, region)

    async def search_web(self, query: str) -> ToolOutput:
        """Search the web to verify hypotheses derived from visual evidence.

        Args:
            query: The specific search string, such as a name read on a sign.
        """
        if not query.strip():
            raise ToolMistake("query is empty")
        found = await _asking(self._search.search(query, self._max_results))
        return ToolOutput({"results": [{"title": r.title, "url": r.url, "content": r.content} for r in found]})

    async def maps_geocode(self, address: str) -> ToolOutput:
        """Convert a textual location into geographic coordinates, best match first.

        Args:
            address: The place name or street address identified during the visual reasoning.
        """
        if not address.strip():
            raise ToolMistake("address is empty")
        found = await _asking(self._geocoder.search(address, self._max_results))
        if not found:
            raise ToolMistake("no place of this name was found")
        return ToolOutput({"results": [asdict(candidate) for candidate in found]})

    def _cut(self, box: tuple[float, float, float, float]) -> bytes:
        try:
            region = images.crop(self._picture.original, box, self._picture.scale)
        except ValueError as error:
            raise ToolMistake(f"bbox_2d: {error}") from None
        return images.model_view(region, self._max_pixels, self._min_pixels)[0]


async def _asking(answer: Awaitable[Any]) -> Any:
    """The service's answer; a request it refuses is the model's mistake, an outage stays an outage."""
    try:
        return await answer
    except ServiceError as error:
        if error.kind in _MODEL_MISTAKES:
            raise ToolMistake(f"the service refused the request ({error.kind})") from error
        raise


def as_text(value: dict[str, Any], max_chars: int) -> str:
    """A tool's value as JSON of at most `max_chars` characters that cannot be taken for tags.

    Strings are shortened, longest first, until the text fits, so that it stays JSON. `<` is written as its escape:
    a page that holds `</tool_response>` or `<answer>` must not end up as markup in a training text.
    """
    limit = max_chars
    while True:
        text = json.dumps(_shorten(value, limit), ensure_ascii=False).replace("<", "\\u003c")
        if len(text) <= max_chars or limit <= 8:
            # What still does not fit has too many parts, not too long ones.
            return text if len(text) <= max_chars else json.dumps({"error": "the result is too long to show"})
        limit = limit * 2 // 3


def _shorten(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else value[: limit - 1] + "…"
    if isinstance(value, dict):
        return {name: _shorten(part, limit) for name, part in value.items()}
    return [_shorten(part, limit) for part in value] if isinstance(value, list) else value
