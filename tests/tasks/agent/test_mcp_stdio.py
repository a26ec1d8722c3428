"""`geofix mcp` as a client starts it: a process of its own, spoken to over standard input and output."""

import base64
import io
import json
import sys
from pathlib import Path

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from PIL import Image

from infra.offline.render import render_jpeg
from infra.offline.world import World
from tasks.agent.tools import TOOLS

SIZE = 200


@pytest.mark.slow  # starts the command and an offline world of its own
async def test_an_mcp_client_starts_the_command_and_calls_every_tool(tmp_path: Path) -> None:
    picture, world = tmp_path / "street.jpg", World(size=SIZE)
    record = world.first_image(0)
    picture.write_bytes(render_jpeg(world, record))
    options = ["--lake", str(tmp_path / "lake"), "--set", f"offline.size={SIZE}"]
    command = StdioServerParameters(command=sys.executable, args=["-m", "flows.cli", "mcp", str(picture), *options])
    async with stdio_client(command) as (reading, writing), ClientSession(reading, writing) as session:
        greeted = await session.initialize()
        assert greeted.server_info.name == "geofix" and "evidence" in (greeted.instructions or "")
        assert {tool.name for tool in (await session.list_tools()).tools} == set(TOOLS)
        town = world.place(0).city.name
        tips = json.loads((await session.call_tool("poi_input_tips", {"text": town})).content[0].text)
        found = json.loads((await session.call_tool("poi_keyword_search", {"keyword": town})).content[0].text)
        calls = {
            "image_zoom_in_tool": {"bbox_2d": [0, 0, 300, 300]},
            "image_zoom_tool": {"bbox_2d": [0, 0, 300, 300]},
            "search_web": {"query": town},
            "maps_geocode": {"address": town},
            "poi_input_tips": {"text": town},
            "poi_keyword_search": {"keyword": town},
            "poi_detail_query": {"id": (found["pois"] + tips["tips"])[0]["id"]},
            "static_map_query": {"center": [record.lat, record.lon]},
            "satellite_map_query": {"center": [record.lat, record.lon], "zoom": 16},
        }
        assert set(calls) == set(TOOLS)
        for name, arguments in calls.items():
            result = await session.call_tool(name, arguments)
            assert not result.is_error, (name, result)
            assert isinstance(json.loads(result.content[0].text), dict)
            if "zoom" in name or "map_query" in name:
                shown = Image.open(io.BytesIO(base64.b64decode(result.content[1].data)))
                assert shown.format == "JPEG" and min(shown.size) >= 100
        refused = await session.call_tool("search_web", {"query": town, "extra": 1})
        assert refused.is_error and "extra" in refused.content[0].text
