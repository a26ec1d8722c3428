"""Cold-start trajectories for a small model: zoom to the street's plate, read it, ask the geocoder, answer.

A script writes the replies; the environment and the tools are those of every other agent. Where to look and what to
read come from the painter (the part of a stronger observer), where it is comes from the tool's answer alone. As in
SpotAgent's rejection sampling, a trajectory whose answer is too far from the truth is not kept.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from infra.pretrain.quoting import shortened
from infra.pretrain.tiles import SUFFIX, read_tiles
from schemas.messages import ChatReply, Message, ToolCall
from tasks.agent.environment import Environment
from tasks.agent.picture import Picture, open_picture
from tasks.agent.recipes.spotmini import MAX_PIXELS, MIN_PIXELS, RECIPE
from tasks.agent.toolbox import Toolbox
from tasks.geo.distance import distance_km

MAX_ERROR_KM = 5.0
ZOOM, GEOCODE = "image_zoom_in_tool", "maps_geocode"


@dataclass(frozen=True)
class Taught:
    """A kept trajectory: the stored messages, the tools offered, the JPEGs it shows."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    pictures: list[bytes]


@lru_cache(maxsize=2048)
def opened(file: str) -> Picture:
    """The picture with the view that the model sees."""
    if file.endswith(SUFFIX):
        return read_tiles(Path(file), MAX_PIXELS, MIN_PIXELS)
    return open_picture(Path(file).read_bytes(), MAX_PIXELS, MIN_PIXELS)


def teach(row: dict[str, Any], tools: Toolbox) -> Taught | str:
    """The trajectory for a picture, or why there is none."""
    if row["plate"] is None:
        return "no_plate"
    environment = Environment(opened(row["file"]), tools, RECIPE)
    box = plate_box(row["plate"], environment.picture.scale)
    asyncio.run(_play(environment, box, row["street"]))
    if not environment.final_text:
        return "tool_failed"
    found = json.loads(str(environment.messages[-2]["content"]))["results"][0]
    if _km(found["lat"], found["lon"], row) > MAX_ERROR_KM:
        return "too_far"
    return Taught(environment.messages, environment.offered() or [], list(environment.pictures.values()))


def is_placed(row: dict[str, Any], tools: Toolbox) -> bool:
    """Whether the geocoder's first result for the street is the right one: else its trajectory would be rejected."""
    geocoder = tools.context.geocoder
    found = asyncio.run(geocoder.search(row["street"], 1)) if geocoder is not None else []
    return bool(found) and _km(found[0].lat, found[0].lon, row) <= MAX_ERROR_KM


def _km(lat: float, lon: float, row: dict[str, Any]) -> float:
    return float(distance_km(lat, lon, row["lat"], row["lon"]))


async def _play(environment: Environment, box: list[int], street: str) -> None:
    await environment.step(_calling("The plate with the street's name is too small to read.", ZOOM, {"bbox_2d": box}))
    await environment.step(_calling("I read the plate and ask where it is.", GEOCODE, {"address": street}))
    said = str(environment.messages[-1]["content"])
    if environment.done or not environment.calls[-1].succeeded:
        return
    found = json.loads(said)["results"][0]
    lines = (f"Country: {found['country']}", f"City: {found['city']}", f"Latitude: {shortened(found['lat'])}",
             f"Longitude: {shortened(found['lon'])}")  # fmt: skip
    answer = "<think>The first result fits.</think><answer>\n" + "\n".join(lines) + "\n</answer>"
    await environment.step(ChatReply(answer, (), "stop"))


def _calling(thought: str, name: str, arguments: dict[str, Any]) -> ChatReply:
    call = ToolCall("call", name, json.dumps(arguments, ensure_ascii=False))
    return ChatReply(f"<think>{thought}</think>", (call,), "tool_calls")


def plate_box(plate: list[int], scale: float) -> list[int]:
    """The plate with a margin, in whole pixels of the view."""
    left, top, right, bottom = plate
    more_x, more_y = 0.06 * (right - left) + 1, 0.15 * (bottom - top) + 1
    return [
        int((left - more_x) * scale), int((top - more_y) * scale),
        -int(-(right + more_x) * scale // 1), -int(-(bottom + more_y) * scale // 1),
    ]  # fmt: skip
