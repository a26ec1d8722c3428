"""Scripted models and services for the loop, so that each test says exactly what they answer."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from PIL import Image, ImageDraw

from schemas.messages import ChatReply, ToolCall, Usage
from tasks.agent.attempt import Sampling
from tasks.agent.environment import Environment, Trajectory, run_agent
from tasks.agent.picture import Picture, open_picture
from tasks.agent.prompt import Budgets
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import ToolContext
from tasks.recipes.spotagent import RECIPE
from tasks.recipes.spotagent.observer_pair import ObserverPair
from tasks.services.geocoder import GeocodeCandidate
from tasks.services.search import SearchResult

ANSWER = "<think>Sure.</think><answer>Country: France\nCity: Paris\nLatitude: 48.8566\nLongitude: 2.3522</answer>"


def paint(width: int = 4096, height: int = 2048) -> bytes:
    """A grey picture with one red square at (3000..3200, 1000..1200)."""
    image = Image.new("RGB", (width, height), "grey")
    ImageDraw.Draw(image).rectangle((3000, 1000, 3199, 1199), fill="red")
    exif = Image.Exif()
    exif[0x010E] = "taken at SECRET PLACE"
    data = io.BytesIO()
    image.save(data, "JPEG", quality=95, exif=exif)
    return data.getvalue()


@dataclass
class Models:
    """An observer with one description and a planner that says the scripted replies in turn."""

    script: list[ChatReply]
    description: str = "## Environment\n- grey."
    asked: list[tuple[str, list[Any], dict[str, Any]]] = field(default_factory=list)

    async def complete(self, model: str, messages: Any, **options: Any) -> ChatReply:
        self.asked.append((model, [*messages], options))
        if model == "observer":
            return ChatReply(self.description, usage=Usage(100, 10, 0.0, 1))
        return self.script.pop(0)

    def planner_asked(self) -> list[tuple[list[Any], dict[str, Any]]]:
        return [(messages, options) for model, messages, options in self.asked if model == "planner"]


@dataclass
class Web:
    results: list[SearchResult] = field(default_factory=list)
    error: Exception | None = None

    async def search(self, query: str, max_results: int = 5) -> list[SearchResult]:
        if self.error:
            raise self.error
        return self.results

    async def look_alikes(self, jpeg: bytes, max_results: int = 10, of: str = "") -> list[SearchResult]:
        return await self.search("", max_results)


@dataclass
class Maps:
    found: list[GeocodeCandidate] = field(default_factory=list)
    error: Exception | None = None

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        if self.error:
            raise self.error
        return self.found


PARIS = GeocodeCandidate(48.8566, 2.3522, "Paris", "Paris, France", "France", "FR", "Île-de-France", "Paris", 0.9)


@dataclass
class Studio:
    """Everything one run of the loop needs."""

    original: bytes
    picture: Picture
    kept: dict[str, bytes] = field(default_factory=dict)
    web: Web = field(default_factory=lambda: Web([SearchResult("T", "https://x", "C", 1.0)]))
    maps: Maps = field(default_factory=lambda: Maps([PARIS]))
    models: Models = field(default_factory=lambda: Models([]))
    environment: Environment | None = None

    def keep(self, jpeg: bytes) -> str:
        sha256 = hashlib.sha256(jpeg).hexdigest()
        self.kept[sha256] = jpeg
        return sha256

    async def run(
        self,
        *script: ChatReply,
        tools: tuple[str, ...] | None = None,
        budgets: Budgets | None = None,
        result_chars: int = 6000,
        **options: Any,
    ) -> Trajectory:
        """SpotAgent's pair on the picture, the planner saying the script."""
        self.models.script = list(script)
        recipe = RECIPE.prompt if tools is None else RECIPE.prompt.with_tools(*tools)
        toolbox = Toolbox(ToolContext(search=self.web, geocoder=self.maps), result_chars)
        self.environment = Environment(self.picture, toolbox, recipe, budgets, self.keep, **options)
        return await run_agent(
            self.environment, ObserverPair(self.models, recipe.helpers, "observer", "planner", Sampling())
        )


@pytest.fixture(scope="module")
def opened() -> Picture:
    return open_picture(paint(), 2_000_000, 40_000)


@pytest.fixture
def studio(opened: Picture) -> Studio:
    return Studio(opened.original, opened)


@pytest.fixture
def call() -> Callable[..., ChatReply]:
    def make(name: str, arguments: str, thought: str = "<think>Hm.</think>", number: int = 1) -> ChatReply:
        calls = tuple(ToolCall(f"c{i}", name, arguments) for i in range(number))
        return ChatReply(thought, calls, "tool_calls", Usage(200, 20, 0.5, 1))

    return make


@pytest.fixture
def answer() -> ChatReply:
    return ChatReply(ANSWER, usage=Usage(300, 30, 0.25, 2))
