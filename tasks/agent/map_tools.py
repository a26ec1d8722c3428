"""The six tools of Thinking with Map (Table 1): a zoom, and five that ask a map service, two of them for pictures."""

from dataclasses import asdict

from tasks.agent.tools import NO_POINT, ToolContext, ToolMistake, ToolOutput, asking, given, image_zoom_in_tool
from tasks.agent.toolspec import BadArguments
from tasks.imaging.images import model_view
from tasks.runtime.computing import computing

ROAD_ZOOM, SATELLITE_ZOOM = 15, 16


async def image_zoom_tool(context: ToolContext, bbox_2d: list[float]) -> ToolOutput:
    """Zoom into a region of the image.

    Args:
        bbox_2d: The region as [x1, y1, x2, y2] in pixels of the image, top left and bottom right corner.
    """
    return await image_zoom_in_tool(context, bbox_2d)


async def poi_input_tips(context: ToolContext, text: str) -> ToolOutput:
    """Suggest points of interest whose names begin like a text.

    Args:
        text: The beginning of a name, as far as it can be read.
    """
    maps = given(context.maps, "a map service")
    if not text.strip():
        raise ToolMistake("text is empty")
    found = await asking(maps.tips(text, 2 * context.max_results))
    return ToolOutput({"tips": [{"id": p.id, "name": p.name, "district": p.district} for p in found]})


async def poi_keyword_search(context: ToolContext, keyword: str, city: str = "") -> ToolOutput:
    """Search points of interest by name or kind.

    Args:
        keyword: The name of a shop, station, street or other place, or its kind.
        city: The city to search in; empty for everywhere.
    """
    maps = given(context.maps, "a map service")
    if not keyword.strip():
        raise ToolMistake("keyword is empty")
    found = await asking(maps.find(keyword, city, 2 * context.max_results))
    return ToolOutput({"pois": [asdict(poi) for poi in found]})


async def poi_detail_query(context: ToolContext, id: str) -> ToolOutput:
    """Show everything the map knows about one point of interest.

    Args:
        id: The id of the point of interest, from a search or suggestion.
    """
    maps = given(context.maps, "a map service")
    if not id.strip():
        raise ToolMistake("id is empty")
    poi = await asking(maps.detail(id))
    if poi is None:
        raise ToolMistake(NO_POINT)
    return ToolOutput({"poi": asdict(poi)})


async def static_map_query(context: ToolContext, center: list[float], zoom: int = ROAD_ZOOM) -> ToolOutput:
    """Show a road map around a point.

    Args:
        center: The point as [latitude, longitude] in decimal degrees.
        zoom: The zoom level, 3 (a continent) to 18 (houses).
    """
    return await _map(context, center, zoom, "roadmap")


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
    drawn = await asking(given(context.maps, "a map service").picture(lat, lon, zoom, style))
    # Through the decoder: what a server sent is shown to no model as it came.
    shown = (await computing.run(model_view, drawn, 262_144, 40_000))[0]
    return ToolOutput({"center": [lat, lon], "zoom": zoom, "image": f"{style}, north is up"}, shown)
