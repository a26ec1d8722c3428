"""How good observer and planner are on fresh places, and that they fall to chance when pictures are swapped.

    python -m infra.offline.chat.measure --places 200

Starts an offline world of its own, asks everything over HTTP, and compares with the truth only afterwards.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import random
import re
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from PIL import Image

from infra.offline.render import render_jpeg
from infra.offline.server import create_app, make_server
from infra.offline.world import ImageRecord, World

KEYS = {"chat": "sk-offline-world", "search": "tvly-offline-world"}
VIEW_PIXELS = 2_000_000
MAX_CALLS = 6
SYSTEM = f"You find out where a picture was taken from an observer's description. Use at most {MAX_CALLS} tool calls."
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {argument: form}}}}
    for name, argument, form in (
        ("image_zoom_in_tool", "bbox_2d", {"type": "array", "items": {"type": "integer"}}),
        ("search_web", "query", {"type": "string"}),
        ("maps_geocode", "address", {"type": "string"}),
    )
]


@dataclass
class Trip:
    """One conversation: what was answered and how it came about."""

    lat: float | None = None
    lon: float | None = None
    tools: list[str] = field(default_factory=list)
    failed_calls: int = 0
    steps: list[str] = field(default_factory=list)


class Client:
    """Observer, planner and tools, as a pipeline would use them: by URL."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)

    def say(self, model: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        body = {"model": model, "messages": messages, "temperature": 0, **fields}
        headers = {"Authorization": f"Bearer {KEYS['chat']}"}
        answer = self.http.post("/openai/v1/chat/completions", json=body, headers=headers)
        answer.raise_for_status()
        return dict(answer.json()["choices"][0]["message"])

    def observe(self, image: Image.Image) -> str:
        part = {"type": "image_url", "image_url": {"url": data_uri(image)}}
        asked = [{"type": "text", "text": "Describe the picture from the whole scene down to single signs."}, part]
        return str(self.say("observer", [{"role": "user", "content": asked}])["content"])

    def locate(self, image: Image.Image) -> Trip:
        """One conversation of observer and planner about a picture."""
        trip, view = Trip(), reduce(image)
        description = self.observe(view)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": description},
        ]
        trip.steps.append(description)
        for _ in range(MAX_CALLS + 1):
            message = self.say("planner", messages, tools=TOOLS)
            messages.append({key: value for key, value in message.items() if value is not None})
            trip.steps.append(json.dumps(messages[-1], ensure_ascii=False))
            if not message.get("tool_calls"):
                _read_answer(trip, str(message["content"]))
                return trip
            for call in message["tool_calls"]:
                result = self._run(call["function"], image, view, trip)
                trip.steps.append(result)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return trip

    def _run(self, function: dict[str, str], image: Image.Image, view: Image.Image, trip: Trip) -> str:
        trip.tools.append(function["name"])
        try:
            arguments = json.loads(function["arguments"])
            if function["name"] == "image_zoom_in_tool":
                ratio = image.width / view.width
                left, top, right, bottom = (int(side * ratio) for side in arguments["bbox_2d"])
                return self.observe(image.crop((left, top, max(right, left + 8), max(bottom, top + 8))))
            if function["name"] == "search_web":
                headers = {"Authorization": f"Bearer {KEYS['search']}"}
                body = {"query": str(arguments["query"]), "max_results": 5}
                return self.http.post("/tavily/search", json=body, headers=headers).text
            if function["name"] == "maps_geocode":
                query = {"q": arguments["address"], "format": "jsonv2", "addressdetails": 1, "limit": 5}
                return self.http.get("/nominatim/search", params=query).text
        except (ValueError, KeyError, TypeError) as error:
            trip.failed_calls += 1
            return json.dumps({"error": f"{type(error).__name__}: malformed call"})
        trip.failed_calls += 1
        return json.dumps({"error": f"unknown tool {function['name']}"})


def _read_answer(trip: Trip, text: str) -> None:
    matched = re.search(r"<answer>(\{.*?\})</answer>", text, re.DOTALL)
    if matched:
        answer = json.loads(matched.group(1))
        trip.lat, trip.lon = float(answer["lat"]), float(answer["lon"])


def reduce(image: Image.Image) -> Image.Image:
    """The picture within a model's pixel budget."""
    scale = min(1.0, math.sqrt(VIEW_PIXELS / (image.width * image.height)))
    size = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    return image if scale == 1.0 else image.resize(size, Image.Resampling.LANCZOS)


def data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def away_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    lat_a, lon_a, lat_b, lon_b = map(math.radians, (*a, *b))
    h = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * 6371.0 * math.asin(min(1.0, math.sqrt(h)))


def fresh_places(world: World, count: int, seed: int) -> list[ImageRecord]:
    """One clear picture of each of `count` places drawn from the world."""
    found: list[ImageRecord] = []
    for index in random.Random(seed).sample(range(world.size), world.size):
        clear = [record for record in world.images(index) if record.condition == "clear"]
        if clear:
            found.append(clear[0])
        if len(found) == count:
            break
    return found


def report(name: str, trips: list[Trip], truths: list[tuple[float, float]]) -> list[float]:
    """Prints the shares within the usual distances; gives the distances."""
    distances = [
        away_km((trip.lat, trip.lon), truth) if trip.lat is not None and trip.lon is not None else math.inf
        for trip, truth in zip(trips, truths, strict=True)
    ]
    shares = "  ".join(
        f"<= {limit} km {100 * sum(d <= limit for d in distances) / len(distances):.1f} %"
        for limit in (1, 5, 25, 200, 750, 2500)
    )
    print(f"{name:<16} {shares}", flush=True)
    return distances


def serve(world: World) -> tuple[str, Any]:
    """The world on a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = make_server(create_app(world), port=port)
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    return f"http://127.0.0.1:{port}", server


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.offline.chat.measure", description=__doc__)
    parser.add_argument("--places", type=int, default=50)
    parser.add_argument("--seed", type=int, default=101, help="of the world and of the places drawn from it")
    parser.add_argument("--size", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="print this many conversations that went wrong")
    options = parser.parse_args(argv)
    world = World(options.seed, options.size)
    records = fresh_places(world, options.places, options.seed)
    truths = [(record.lat, record.lon) for record in records]
    url, server = serve(world)
    client = Client(url)

    def locate(record: ImageRecord) -> Trip:
        with Image.open(io.BytesIO(render_jpeg(world, record))) as image:
            return client.locate(image.convert("RGB"))

    started = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        trips = list(pool.map(locate, records))
        spent = time.monotonic() - started
        distances = report("own pictures", trips, truths)
        report("pictures swapped", list(pool.map(locate, [*records[1:], records[0]])), truths)
    used = Counter(tool for trip in trips for tool in trip.tools)
    print(
        f"{len(trips)} places in {spent:.0f} s; tool calls {dict(used)}; malformed {sum(t.failed_calls for t in trips)}"
    )
    shown = [i for i, distance in enumerate(distances) if distance > 25][: options.show]
    for i in shown:
        place = world.place(records[i].place)
        print(f"\n=== {distances[i]:.0f} km off; truth {place.city.name}, {place.country}, {place.street}")
        print("\n".join(step[:1500] for step in trips[i].steps))
    server.should_exit = True
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
