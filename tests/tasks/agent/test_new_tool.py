"""A tool is declared in one place: everything that offers, checks, pays for or keeps it follows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client

from schemas.messages import ToolCall
from schemas.settings.services import ServicesSettings
from tasks.agent.mcp_server import build_server
from tasks.agent.service_tools import asked_services, tool_services
from tasks.agent.toolbox import Toolbox, tool_schemas
from tasks.agent.tools import TOOLS, ToolContext, ToolOutput, tool
from tasks.services import connect


@pytest.fixture
def sun_position() -> Iterator[str]:
    @tool()
    async def sun_position(context: ToolContext, lat: float, lon: float, time: str) -> ToolOutput:
        """Where the sun stands above a place.

        Args:
            lat: Latitude in degrees.
            lon: Longitude in degrees.
            time: UTC time such as 2026-06-21T12:00.
        """
        return ToolOutput({"elevation_deg": round(90 - abs(lat - 23.4), 1)})

    yield "sun_position"
    del TOOLS["sun_position"]


class Kept:
    """Counts what would be kept as a service's answer."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask_once(self, asked: Any, ask: Any) -> ToolOutput:
        self.asked.append(asked)
        return await ask()  # type: ignore[no-any-return]


async def test_a_declared_tool_is_offered_called_and_paid_for(sun_position: str) -> None:
    [schema] = tool_schemas([sun_position])
    assert schema["function"]["parameters"]["required"] == ["lat", "lon", "time"]
    assert TOOLS[sun_position].method(None).__name__ == sun_position  # type: ignore[arg-type]
    answers = Kept()
    box = Toolbox(responses=answers)
    words = json.dumps({"lat": 48.4, "lon": 2.0, "time": "2026-06-21T12:00"})
    called = await box.call(ToolCall("1", sun_position, words), None, [sun_position])
    assert json.loads(called.text) == {"elevation_deg": 65.0} and answers.asked == [], "it asks nobody"
    assert tool_services([sun_position]) == ()
    server = build_server(box, None, [sun_position, "image_zoom_in_tool"], "1")
    async with Client(server) as client:
        assert [one.name for one in (await client.list_tools()).tools] == [sun_position], "without a picture no zoom"


def test_answers_of_another_service_are_not_taken_for_this_ones() -> None:
    @tool("stac")
    async def scenes(context: ToolContext, name: str) -> ToolOutput:
        """Satellite scenes.

        Args:
            name: Of a place.
        """
        return ToolOutput({})

    try:
        lines = {
            url: asked_services(connect(ServicesSettings(stac={"base_url": url}), {}))  # type: ignore[arg-type]
            for url in ("http://127.0.0.1:1/a", "http://127.0.0.1:2/b")
        }
        assert len(set(lines.values())) == 2 and tool_services(["scenes"]) == ("stac",)
    finally:
        del TOOLS["scenes"]
    plain = asked_services(connect(ServicesSettings(), {}))
    assert plain == "loopback /tavily loopback /nominatim loopback /maps", "answers that are kept stay found"
