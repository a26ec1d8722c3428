"""The tools over the Model Context Protocol, called by the official client."""

import base64
import io
import json

import numpy as np
import pytest
from mcp import Client
from PIL import Image

from tasks.agent.mcp_server import build_server
from tasks.agent.toolbox import TOOLS, Toolbox
from tasks.agent.tools import ToolContext
from tasks.services.errors import ServiceError
from tasks.services.maps import Poi
from tasks.services.sentinel.ground_cover import GroundCover

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


class Ground:
    """A satellite archive that shows a town, and nothing of the far south."""

    asked = 0

    async def cover(self, lat, lon):
        self.asked += 1
        shares = {"built_up": 0.6, "plants": 0.4}
        return None if lat < -60 else GroundCover(shares, shares, 1.0, "2023-07-01", np.full((128, 128, 3), 900, "u2"))


@pytest.fixture
def charts():
    return Charts()


@pytest.fixture
def server(studio, charts):
    toolbox = Toolbox(ToolContext(search=studio.web, geocoder=studio.maps, maps=charts, ground=Ground()))
    return build_server(toolbox, studio.picture, tuple(TOOLS), "1")


CALLS = {
    "image_zoom_in_tool": {"bbox_2d": [0, 0, 300, 300]},
    "image_zoom_tool": {"bbox_2d": [0, 0, 300, 300]},
    "search_web": {"query": "x"},
    "maps_geocode": {"address": "Paris"},
    "poi_input_tips": {"text": "Gast"},
    "poi_keyword_search": {"keyword": "Gasthaus"},
    "poi_detail_query": {"id": "B01"},
    "static_map_query": {"center": [50.7, 7.1]},
    "satellite_map_query": {"center": [50.7, 7.1], "zoom": 17},
    "ground_cover_query": {"center": [50.7, 7.1]},
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
            if "zoom" in name or "map_query" in name or "cover" in name:
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
        ("ground_cover_query", {"center": [84.0, 7.1]}),
        ("ground_cover_query", {"center": [-70.0, 7.1]}),
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


async def test_the_ground_is_recorded_like_other_answers(tmp_path):
    """Off unless asked for by name; what was answered once is not asked again."""
    from schemas.errors import InputError
    from schemas.messages import ToolCall
    from tasks.agent.toolbox import ToolResponses
    from tasks.recipes.recipe import RECIPES, prompt_with
    from tasks.services.response_store import ResponseStore

    for name, recipe in RECIPES.items():
        assert "ground_cover_query" not in recipe.prompt.tools
        assert "ground_cover_query" not in prompt_with(name, ("all",)).tools
        assert prompt_with(name, ("ground_cover_query",)).tools == ("ground_cover_query",)
        assert prompt_with(name, ("all", "ground_cover_query")).tools == (*recipe.prompt.tools, "ground_cover_query")
    with pytest.raises(InputError, match="has no tool 'ground'"):
        prompt_with("spotagent", ("ground",))
    ground = Ground()
    toolbox = Toolbox(ToolContext(ground=ground), responses=ToolResponses(ResponseStore(tmp_path / "store"), "archive"))
    call = ToolCall("1", "ground_cover_query", json.dumps({"center": [50.7, 7.1]}))
    first, second = [await toolbox.call(call, None, ("ground_cover_query",)) for _ in range(2)]
    assert first == second and ground.asked == 1 and first.record.succeeded
    told = json.loads(first.text)
    assert told["within_400_m"] == {"built_up": 0.6, "plants": 0.4} and told["image"] == "2560 m, north is up"
    assert Image.open(io.BytesIO(first.picture)).size == (512, 512)
