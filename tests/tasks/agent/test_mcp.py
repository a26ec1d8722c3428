"""The tools over the Model Context Protocol, called by the official client."""

import base64
import io
import json

import pytest
from mcp import Client
from PIL import Image

from tasks.agent.mcp_server import build_server
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import TOOLS, ToolContext
from tasks.services.errors import ServiceError
from tasks.services.maps import Poi

POI = Poi("B01", "Gasthaus", "restaurant", "Hauptstrasse 1", "Bonn, Germany", 50.7, 7.1)


class Charts:
    """A map service that knows one point of interest."""

    error: Exception | None = None

    async def tips(self, text, limit=10):
        if self.error:
            raise self.error
        return [POI]

    async def find(self, keyword, city="", limit=10):
        return [POI]

    async def detail(self, poi_id):
        return POI if poi_id == POI.id else None

    async def picture(self, lat, lon, zoom, style):
        data = io.BytesIO()
        Image.new("RGB", (256, 256), "green" if style == "satellite" else "white").save(data, "PNG")
        return data.getvalue()


@pytest.fixture
def charts():
    return Charts()


@pytest.fixture
def server(studio, charts):
    toolbox = Toolbox(ToolContext(search=studio.web, image_search=studio.web, geocoder=studio.maps, maps=charts))
    return build_server(toolbox, studio.picture, tuple(TOOLS), "1")


CALLS = {
    "image_zoom_in_tool": {"bbox_2d": [0, 0, 300, 300]},
    "image_zoom_tool": {"bbox_2d": [0, 0, 300, 300]},
    "image_zoom": {"bbox_2d": [0, 0, 300, 300]},
    "image_search": {"bbox_2d": [0, 0, 300, 300]},
    "text_search": {"queries": ["x", "y"]},
    "search_web": {"query": "x"},
    "maps_geocode": {"address": "Paris"},
    "poi_input_tips": {"text": "Gast"},
    "poi_keyword_search": {"keyword": "Gasthaus"},
    "poi_detail_query": {"id": "B01"},
    "static_map_query": {"center": [50.7, 7.1]},
    "satellite_map_query": {"center": [50.7, 7.1], "zoom": 17},
}


async def test_a_real_client_lists_and_calls_every_tool(server):
    async with Client(server) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == set(CALLS) == set(TOOLS)
        for name, arguments in CALLS.items():
            assert dict(listed[name].input_schema) == TOOLS[name].input_schema()
            result = await client.call_tool(name, arguments)
            assert not result.is_error, (name, result)
            assert isinstance(json.loads(result.content[0].text), dict)
            if "zoom" in name or "map_query" in name:
                picture = Image.open(io.BytesIO(base64.b64decode(result.content[1].data)))
                assert result.content[1].mime_type == "image/jpeg" and picture.format == "JPEG"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", {}),
        ("search_web", {}),
        ("search_web", {"query": "x", "extra": 1}),
        ("image_zoom_in_tool", {"bbox_2d": [5, 5, 1, 1]}),
        ("poi_detail_query", {"id": "unknown"}),
        ("static_map_query", {"center": [99, 7.1]}),
    ],
)
async def test_what_cannot_be_answered_is_an_error_in_words(server, name, arguments):
    async with Client(server) as client:
        result = await client.call_tool(name, arguments)
        assert result.is_error and json.loads(result.content[0].text)["error"]


async def test_an_outage_is_told_without_its_address(server, charts):
    charts.error = ServiceError("maps", "outage", "https://secret.example is down")
    async with Client(server) as client:
        result = await client.call_tool("poi_input_tips", {"text": "x"})
        assert result.is_error and "secret" not in result.content[0].text


async def test_without_a_picture_there_is_nothing_to_zoom(studio):
    server = build_server(Toolbox(ToolContext(search=studio.web)), None, tuple(TOOLS), "1")
    async with Client(server) as client:
        assert "image_zoom_tool" not in {tool.name for tool in (await client.list_tools()).tools}
