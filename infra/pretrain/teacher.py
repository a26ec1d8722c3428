"""Cold-start trajectories for a small model: zoom to the street's plate, read it, ask the geocoder, answer.

A script writes the replies; the environment and the tools are those of every other agent. Where to look and what to
read come from the painter (the part of a stronger observer), where it is comes from the tool's answer alone. As in
SpotAgent's rejection sampling, a trajectory whose answer is too far from the truth is not kept.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from starlette.applications import Starlette

from infra.offline.gazetteer import NameIndex
from infra.offline.render import encode
from infra.offline.services.geocoding import Nominatim
from infra.offline.sign_index import SignIndex
from infra.offline.world import World
from infra.pretrain.tokens import shortened
from schemas.messages import ChatReply, Message, ToolCall
from schemas.settings.services import GeocoderEndpoint
from tasks.agent.environment import Environment
from tasks.agent.picture import Picture, open_picture
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import Geocodes, ToolContext
from tasks.geo.distance import distance_km
from tasks.imaging import images
from tasks.imaging.decode import Encoded
from tasks.recipes.spotmini import MAX_PIXELS, MIN_PIXELS, PROMPT, RESULTS
from tasks.services.errors import HttpResponse, safe_url
from tasks.services.geocoder import GeocodeCandidate, Geocoder
from tasks.services.transport import Connection, HttpRequest


def geocoder_of(world: World, ready: bool = False) -> Geocoder:
    """A client of the world's Nominatim; `ready` builds its indices now."""
    nominatim = Nominatim(world, NameIndex(world.gazetteer), SignIndex(world))
    if ready:
        nominatim.search("a street")
    application = Starlette(routes=nominatim.routes())
    endpoint = GeocoderEndpoint(requests_per_minute=None, requests_per_day=None)
    transport = httpx.ASGITransport(application)

    async def send(request: HttpRequest, answered: Callable[[float], None]) -> HttpResponse:
        async with httpx.AsyncClient(transport=transport) as client:
            got = await client.request(request.method, request.url, headers=dict(request.headers), content=request.body)
        answered(0.0)
        return HttpResponse(got.status_code, got.headers.get("content-type", ""), got.content, safe_url(request.url))

    return Geocoder(Connection("geocoder", endpoint), send=send)


class Remembering:
    """A geocoder that looks up each name once: the rollouts of a group mostly ask for the same."""

    def __init__(self, inner: Geocodes) -> None:
        self._inner = inner
        self._known: dict[tuple[str, int], list[GeocodeCandidate]] = {}

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        if (query, limit) not in self._known:
            self._known[query, limit] = await self._inner.search(query, limit)
        return self._known[query, limit]


class WrongGeocoder:
    """A control: finds some other place instead, in the same form."""

    def __init__(self, inner: Geocodes, world: World, seed: int) -> None:
        self._inner, self._world, self._rng = inner, world, random.Random(seed)

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        found = await self._inner.search(query, limit)
        chosen = []
        for one in found:
            city = self._world.gazetteer.city(self._rng.randrange(len(self._world.gazetteer)))
            chosen.append(replace(one, lat=round(city.lat, 7), lon=round(city.lon, 7), city=city.name))
        return chosen


def toolbox_of(geocoder: Geocodes) -> Toolbox:
    """Zoom and geocoder."""
    return Toolbox(ToolContext(geocoder=Remembering(geocoder), max_results=RESULTS))


SIDE = 256
SUFFIX = ".tiles"


def write_tiles(path: Path, picture: Image.Image, view: bytes, scale: float) -> None:
    """The picture's tiles and its view, in one file that appears whole."""
    parts = [view]
    for top in range(0, picture.height, SIDE):
        for left in range(0, picture.width, SIDE):
            box = (left, top, min(left + SIDE, picture.width), min(top + SIDE, picture.height))
            parts.append(encode(picture.crop(box)))
    head = json.dumps(
        {"width": picture.width, "height": picture.height, "scale": scale, "sizes": [len(one) for one in parts]}
    ).encode()
    partial = path.with_suffix(".partial")
    partial.write_bytes(struct.pack("<I", len(head)) + head + b"".join(parts))
    partial.rename(path)


@dataclass(frozen=True)
class TiledPicture(Picture):
    """A picture whose original lies in tiles."""

    sizes: tuple[int, int] = (0, 0)  # of the original, width and height
    tiles: tuple[bytes, ...] = ()

    @cached_property
    def _cut(self) -> dict[tuple[float, float, float, float], bytes]:
        return {}

    def region(self, box: tuple[float, float, float, float]) -> bytes:
        if box not in self._cut:  # the rollouts of a group mostly look at the same
            self._cut[box] = self._region(box)
        return self._cut[box]

    def _region(self, box: tuple[float, float, float, float]) -> bytes:
        width, height = self.sizes
        left, top, right, bottom = images.box_on_original(box, self.scale, width, height)
        across = -(-width // SIDE)
        rows = []
        for row in range(top // SIDE, (bottom - 1) // SIDE + 1):
            tiles = range(row * across + left // SIDE, row * across + (right - 1) // SIDE + 1)
            rows.append(np.concatenate([Encoded.open(self.tiles[n]).pixels() for n in tiles], axis=1))
        x, y = left // SIDE * SIDE, top // SIDE * SIDE
        cut = np.concatenate(rows)[top - y : bottom - y, left - x : right - x]
        return images.cut_view(np.ascontiguousarray(cut), self.max_pixels, self.min_pixels)


def read_tiles(path: Path, max_pixels: int, min_pixels: int) -> TiledPicture:
    """The picture of a file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + length])
    at, parts = 4 + length, []
    for size in head["sizes"]:
        parts.append(data[at : at + size])
        at += size
    facts = images.inspect(parts[0])
    return TiledPicture(
        b"", parts[0], head["scale"], facts.width, facts.height, max_pixels, min_pixels,
        sizes=(head["width"], head["height"]), tiles=tuple(parts[1:]),
    )  # fmt: skip


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
    environment = Environment(opened(row["file"]), tools, PROMPT)
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
