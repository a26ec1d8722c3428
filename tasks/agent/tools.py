"""The tools: SpotAgent's three (appendix A.2), the six of Thinking with Map (Table 1), and three with numbered results.

A tool is a function of a context and a model's arguments, declared by `@tool`: the service it asks, and whether it
looks at the picture. Schemas and checks follow from its signature and docstring (`toolspec`); MCP, TRL, verl, rate
budgets and the store of answers read the declaration. What a tool returns is data for a model. What the model did wrong
is a `ToolMistake`; a service that is down raises its own error, which the toolbox notes and turns into plain text.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from tasks.agent.picture import Picture
from tasks.agent.toolspec import BadArguments, ToolSpec, tool_spec
from tasks.imaging.images import model_view
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


class LooksUp(Protocol):
    """A search by a picture."""

    async def look_alikes(self, jpeg: bytes, max_results: int = 10, of: str = "") -> list[SearchResult]: ...


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
    likeness: float = 1.0  # of a recorded question that it answers to the one asked; 1: the same


@dataclass(frozen=True)
class ToolContext:
    """What tools work with. None of it is named by a model."""

    picture: Picture | None = None
    search: Finds | None = None
    image_search: LooksUp | None = None
    geocoder: Geocodes | None = None
    maps: Charts | None = None
    max_results: int = 5
    search_results: int | None = None  # pages of a web search; None: max_results


F = TypeVar("F", bound=Callable[..., Awaitable[ToolOutput]])
TOOLS: dict[str, ToolSpec] = {}


def tool(service: str | None = None, needs_picture: bool = False, thousandths: bool = False) -> Callable[[F], F]:
    """Declares a tool; `service` is a connection's name, such as `search`."""

    def declare(function: F) -> F:
        TOOLS[function.__name__] = tool_spec(function, service, needs_picture, thousandths)
        return function

    return declare


@tool(needs_picture=True)
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
    picture = require_part(context.picture, "a picture")
    try:
        region = await computing.run(picture.region, (x1, y1, x2, y2))
    except ValueError as error:
        raise ToolMistake(f"bbox_2d: {error}") from None
    box = [int(edge) if edge == int(edge) else edge for edge in bbox_2d]
    return ToolOutput({"bbox_2d": box, "image": "the region, enlarged"}, region)


@tool("search")
async def search_web(context: ToolContext, query: str) -> ToolOutput:
    """Search the web to verify hypotheses derived from visual evidence.

    Args:
        query: The specific search string, such as a name read on a sign.
    """
    search = require_part(context.search, "a web search")
    if not query.strip():
        raise ToolMistake("query is empty")
    results = await ask_service(search.search(query, context.search_results or context.max_results))
    return ToolOutput({"results": [{"title": r.title, "url": r.url, "content": r.content} for r in results]})


@tool("geocoder")
async def maps_geocode(context: ToolContext, address: str) -> ToolOutput:
    """Convert a textual location into geographic coordinates, best match first.

    Args:
        address: The place name or street address identified during the visual reasoning.
    """
    geocoder = require_part(context.geocoder, "a geocoder")
    if not address.strip():
        raise ToolMistake("address is empty")
    places = await ask_service(geocoder.search(address, context.max_results))
    if not places:
        raise ToolMistake(NO_PLACE)
    return ToolOutput({"results": [dict(vars(candidate)) for candidate in places]})


# Boxes of the following are in thousandths of the picture's sides, as Qwen3-VL draws them: no size has to be known.
# Their results are numbered, and in an order that says nothing: which of them count is the model's to say.


@tool(needs_picture=True, thousandths=True)
async def image_zoom(context: ToolContext, bbox_2d: list[float]) -> ToolOutput:
    """Crop and zoom into a region of the image, to read text or see detail.

    Args:
        bbox_2d: The region as [x1, y1, x2, y2], each from 0 to 1000 of the image's width or height.
    """
    return ToolOutput({"bbox_2d": bbox_2d, "image": "the region, enlarged"}, await _region(context, bbox_2d))


@tool("image_search", needs_picture=True, thousandths=True)
async def image_search(context: ToolContext, bbox_2d: list[float]) -> ToolOutput:
    """Search the web for pictures that look like a region of the image, and list the pages that show them.

    Args:
        bbox_2d: The region as [x1, y1, x2, y2], each from 0 to 1000 of the image's width or height.
    """
    service = require_part(context.image_search, "a search by pictures")
    region = await _region(context, bbox_2d)
    of = require_part(context.picture, "a picture").original_sha256
    pages = await ask_service(service.look_alikes(region, context.search_results or context.max_results, of))
    return ToolOutput({"bbox_2d": bbox_2d, "results": _numbered(pages, str(bbox_2d))})


@tool("search")
async def text_search(context: ToolContext, queries: list[str]) -> ToolOutput:
    """Search the web with one to three queries at once.

    Args:
        queries: One to three search strings, such as a name read on a sign with a town or country.
    """
    search = require_part(context.search, "a web search")
    if not 1 <= len(queries) <= 3 or not all(query.strip() for query in queries):
        raise ToolMistake("queries must be one to three texts, none of them empty")
    most = context.search_results or context.max_results
    found = await ask_service(asyncio.gather(*(search.search(query, most) for query in queries)))
    best_first = [page for rank in range(most) for pages in found for page in pages[rank : rank + 1]]
    pages = list({page.url: page for page in best_first}.values())
    return ToolOutput({"results": _numbered(pages[:most], str(queries))})


async def _region(context: ToolContext, bbox_2d: list[float]) -> bytes:
    """What the picture shows under a box in thousandths of its sides."""
    if len(bbox_2d) != 4:
        raise BadArguments("bbox_2d: four numbers are needed, [x1, y1, x2, y2]")
    x1, y1, x2, y2 = bbox_2d
    if not (0 <= x1 < x2 <= 1000 and 0 <= y1 < y2 <= 1000):
        raise ToolMistake("bbox_2d must lie within 0 and 1000 and have x1 < x2 and y1 < y2")
    picture = require_part(context.picture, "a picture")
    x, y = picture.width / 1000, picture.height / 1000
    return await computing.run(picture.region, (x1 * x, y1 * y, x2 * x, y2 * y))


def _numbered(pages: Sequence[SearchResult], question: str) -> list[dict[str, Any]]:
    """The pages from 1 on, in an order that follows from the question alone and not from their rank."""
    drawn = sorted(pages, key=lambda page: hashlib.sha256(f"{question}\n{page.url}".encode()).digest())
    rows = ({"title": page.title, "url": page.url, "content": page.content} for page in drawn)
    return [{"number": number, **{k: v for k, v in row.items() if v}} for number, row in enumerate(rows, 1)]


def require_part(part: T | None, what: str) -> T:
    """The part of the context, or ToolMissing where this run has none."""
    if part is None:
        raise ToolMissing(f"there is no {what.removeprefix('a ')} in this run")
    return part


async def ask_service(answer: Awaitable[T]) -> T:
    """The service's answer; a request it refuses is the model's mistake, an outage stays an outage."""
    try:
        return await answer
    except ServiceError as error:
        if error.kind in _MODEL_MISTAKES:
            raise ToolMistake(f"the service refused the request ({error.kind})") from error
        raise


ROAD_ZOOM, SATELLITE_ZOOM = 15, 16


@tool(needs_picture=True)
async def image_zoom_tool(context: ToolContext, bbox_2d: list[float]) -> ToolOutput:
    """Zoom into a region of the image.

    Args:
        bbox_2d: The region as [x1, y1, x2, y2] in pixels of the image, top left and bottom right corner.
    """
    return await image_zoom_in_tool(context, bbox_2d)


@tool("maps")
async def poi_input_tips(context: ToolContext, text: str) -> ToolOutput:
    """Suggest points of interest whose names begin like a text.

    Args:
        text: The beginning of a name, as far as it can be read.
    """
    maps = require_part(context.maps, "a map service")
    if not text.strip():
        raise ToolMistake("text is empty")
    tips = await ask_service(maps.tips(text, 2 * context.max_results))
    return ToolOutput({"tips": [{"id": p.id, "name": p.name, "district": p.district} for p in tips]})


@tool("maps")
async def poi_keyword_search(context: ToolContext, keyword: str, city: str = "") -> ToolOutput:
    """Search points of interest by name or kind.

    Args:
        keyword: The name of a shop, station, street or other place, or its kind.
        city: The city to search in; empty for everywhere.
    """
    maps = require_part(context.maps, "a map service")
    if not keyword.strip():
        raise ToolMistake("keyword is empty")
    pois = await ask_service(maps.find(keyword, city, 2 * context.max_results))
    return ToolOutput({"pois": [asdict(poi) for poi in pois]})


@tool("maps")
async def poi_detail_query(context: ToolContext, id: str) -> ToolOutput:
    """Show everything the map knows about one point of interest.

    Args:
        id: The id of the point of interest, from a search or suggestion.
    """
    maps = require_part(context.maps, "a map service")
    if not id.strip():
        raise ToolMistake("id is empty")
    poi = await ask_service(maps.detail(id))
    if poi is None:
        raise ToolMistake(NO_POINT)
    return ToolOutput({"poi": asdict(poi)})


@tool("maps")
async def static_map_query(context: ToolContext, center: list[float], zoom: int = ROAD_ZOOM) -> ToolOutput:
    """Show a road map around a point.

    Args:
        center: The point as [latitude, longitude] in decimal degrees.
        zoom: The zoom level, 3 (a continent) to 18 (houses).
    """
    return await _map(context, center, zoom, "roadmap")


@tool("maps")
async def satellite_map_query(context: ToolContext, center: list[float], zoom: int = SATELLITE_ZOOM) -> ToolOutput:
    """Show a satellite picture around a point.

    Args:
        center: The point as [latitude, longitude] in decimal degrees.
        zoom: The zoom level, 3 (a continent) to 18 (houses).
    """
    return await _map(context, center, zoom, "satellite")


async def _map(context: ToolContext, center: list[float], zoom: int, style: str) -> ToolOutput:
    if len(center) != 2:
        raise BadArguments("center: two numbers are needed, [latitude, longitude]")
    lat, lon = center
    if not (abs(lat) <= 85 and abs(lon) <= 180):
        raise ToolMistake("center must be a latitude within 85 and a longitude within 180 degrees")
    if not 3 <= zoom <= 18:
        raise ToolMistake("zoom must be between 3 and 18")
    drawn = await ask_service(require_part(context.maps, "a map service").picture(lat, lon, zoom, style))
    # Through the decoder: what a server sent is shown to no model as it came.
    shown = (await computing.run(model_view, drawn, 262_144, 40_000))[0]
    return ToolOutput({"center": [lat, lon], "zoom": zoom, "image": f"{style}, north is up"}, shown)
