"""SpotAgent's three tools (appendix A.2), and what every tool is: a function of a context and a model's arguments.

The signature and docstring of each tool are its whole description; `toolspec` derives schemas and checks from them.
What a tool returns is data for a model. What the model did wrong is a `ToolMistake`; a service that is down raises
its own error, which the toolbox notes and turns into plain text.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tasks.agent.picture import Picture
from tasks.agent.toolspec import BadArguments
from tasks.runtime.computing import computing
from tasks.services.errors import ServiceError
from tasks.services.geocoder import GeocodeCandidate
from tasks.services.maps import Poi
from tasks.services.search import SearchResult

# Kinds that speak of the request, which the model wrote; all others speak of the service.
_MODEL_MISTAKES = ("rejected", "not_found", "too_big")

T = TypeVar("T")


class Finds(Protocol):
    """A web search."""

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]: ...


class Geocodes(Protocol):
    """Names to coordinates."""

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]: ...


class Charts(Protocol):
    """A map service: points of interest and pictures of the ground."""

    async def tips(self, text: str, limit: int = 10) -> list[Poi]: ...
    async def find(self, keyword: str, city: str = "", limit: int = 10) -> list[Poi]: ...
    async def detail(self, poi_id: str) -> Poi | None: ...
    async def picture(self, lat: float, lon: float, zoom: int, style: str) -> bytes: ...


NO_PLACE = "no place of this name was found"
NO_POINT = "no point of interest has this id"


class ToolMistake(ValueError):
    """The call cannot be answered through the model's own doing; the text tells it why."""


class ToolMissing(ValueError):
    """The tool needs something this run does not have, such as a picture or a service."""


@dataclass(frozen=True)
class ToolOutput:
    """What a tool found: a JSON value, and the picture if there is one (a JPEG)."""

    value: dict[str, Any]
    picture: bytes | None = None


@dataclass(frozen=True)
class ToolContext:
    """What tools work with. None of it is named by a model."""

    picture: Picture | None = None
    search: Finds | None = None
    geocoder: Geocodes | None = None
    maps: Charts | None = None
    max_results: int = 5


async def image_zoom_in_tool(context: ToolContext, bbox_2d: list[float]) -> ToolOutput:
    """Crop and zoom into a region of the image, to read text or see detail.

    Args:
        bbox_2d: The region as [x1, y1, x2, y2] in pixels of the image, top left and bottom right corner.
    """
    if len(bbox_2d) != 4:
        raise BadArguments("bbox_2d: four numbers are needed, [x1, y1, x2, y2]")
    x1, y1, x2, y2 = bbox_2d
    if not (x1 < x2 and y1 < y2):
        raise ToolMistake("bbox_2d must have x1 < x2 and y1 < y2")
    picture = given(context.picture, "a picture")
    try:
        region = await computing.run(picture.region, (x1, y1, x2, y2))
    except ValueError as error:
        raise ToolMistake(f"bbox_2d: {error}") from None
    box = [int(edge) if edge == int(edge) else edge for edge in bbox_2d]
    return ToolOutput({"bbox_2d": box, "image": "the region, enlarged"}, region)


async def search_web(context: ToolContext, query: str) -> ToolOutput:
    """Search the web to verify hypotheses derived from visual evidence.

    Args:
        query: The specific search string, such as a name read on a sign.
    """
    search = given(context.search, "a web search")
    if not query.strip():
        raise ToolMistake("query is empty")
    found = await asking(search.search(query, context.max_results))
    return ToolOutput({"results": [{"title": r.title, "url": r.url, "content": r.content} for r in found]})


async def maps_geocode(context: ToolContext, address: str) -> ToolOutput:
    """Convert a textual location into geographic coordinates, best match first.

    Args:
        address: The place name or street address identified during the visual reasoning.
    """
    geocoder = given(context.geocoder, "a geocoder")
    if not address.strip():
        raise ToolMistake("address is empty")
    found = await asking(geocoder.search(address, context.max_results))
    if not found:
        raise ToolMistake(NO_PLACE)
    return ToolOutput({"results": [dict(vars(candidate)) for candidate in found]})


def given(part: T | None, what: str) -> T:
    """The part of the context, or ToolMissing where this run has none."""
    if part is None:
        raise ToolMissing(f"there is no {what.removeprefix('a ')} in this run")
    return part


async def asking(answer: Awaitable[T]) -> T:
    """The service's answer; a request it refuses is the model's mistake, an outage stays an outage."""
    try:
        return await answer
    except ServiceError as error:
        if error.kind in _MODEL_MISTAKES:
            raise ToolMistake(f"the service refused the request ({error.kind})") from error
        raise
