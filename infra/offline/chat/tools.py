"""The tools a request offers: what each is for, and the argument that carries what it works on."""

from dataclasses import dataclass
from typing import Any

from infra.offline.chat.protocol import ChatRequest

ZOOM, SEARCH, GEOCODE = "zoom", "search", "geocode"
TIPS, KEYWORD, DETAIL, MAP, SATELLITE = "tips", "keyword", "detail", "map", "satellite"
# The tools that the agents were taught: what for, and the argument.
KNOWN = {
    "image_zoom_in_tool": (ZOOM, "bbox_2d"),
    "image_zoom_tool": (ZOOM, "bbox_2d"),
    "image_zoom": (ZOOM, "bbox_2d"),
    "search_web": (SEARCH, "query"),
    "text_search": (SEARCH, "query"),
    "image_search": (SEARCH, "query"),
    "maps_geocode": (GEOCODE, "address"),
    "poi_input_tips": (TIPS, "text"),
    "poi_keyword_search": (KEYWORD, "keyword"),
    "poi_detail_query": (DETAIL, "id"),
    "static_map_query": (MAP, "center"),
    "satellite_map_query": (SATELLITE, "center"),
}


@dataclass(frozen=True)
class Tool:
    """One function; its purpose is empty where the model does not know what it is for."""

    name: str
    purpose: str = ""
    argument: str = "value"

    def arguments(self, value: Any) -> dict[str, Any]:
        """The arguments of a call; a point is rounded to a metre."""
        return {self.argument: [round(degrees, 5) for degrees in value] if isinstance(value, tuple) else value}


def tool_named(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    """A tool by its name; one that the model was not taught carries its first argument."""
    properties = (parameters or {}).get("properties")
    first = next(iter(properties), "value") if isinstance(properties, dict) else "value"
    return Tool(name, *KNOWN.get(name, ("", first)))


def offered(request: ChatRequest) -> list[Tool]:
    """The tools of a request, in its order."""
    return [tool_named(name, parameters) for name, parameters in request.tools.items()]
