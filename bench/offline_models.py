"""How good the chat models are: every role on fresh places, first and later frames, beside the ranges wanted.

    python -m bench offline_models --places 200 --agent-places 40

Pictures are painted small, at the size a model is shown. Tools are answered by the world's own search and geocoder,
without sockets. The models themselves get pictures and words, as over HTTP.
"""

import argparse
import base64
import io
import itertools
import json
import math
import multiprocessing
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from infra.offline.chat.endpoint import answer
from infra.offline.gazetteer import NameIndex
from infra.offline.place import Place, shop_text
from infra.offline.render import encode, paint
from infra.offline.render.signs import SeenSign
from infra.offline.services.geocoding import Nominatim
from infra.offline.services.web_search import Tavily
from infra.offline.sign_index import SignIndex
from infra.offline.words import WORDS
from infra.offline.world import ImageRecord, World

GRADES = ("none", "weak", "some", "rich")
LEGIBLE_PX = 5.0  # height of letters in a picture 1,024 px wide; the keenest answerer reads from there on
LEAST_FREE = 0.5  # of a board


def clue_grade(place: Place, signs: Iterable[SeenSign], width: int) -> str:
    """One of GRADES, of a picture that is `width` px wide and shows these boards of a place.

    Nothing legible; words and names that tell a language; a line that tells the country, or the town; lines for both.
    A town's name alone may be that of a namesake.
    """
    told = {
        tells(place, line)
        for sign in signs
        if sign.free >= LEAST_FREE
        for line, letters_px in zip(sign.lines, sign.letters_px, strict=True)
        if letters_px * 1024 >= LEGIBLE_PX * width
    }
    return GRADES[len(told & {"town", "country"}) + 1] if told else GRADES[0]


def tells(place: Place, line: str) -> str:
    """What a painted line of a place tells: its "town", its "country" (a phone's prefix, a town near by), "words"."""
    words = WORDS[place.language]
    if line == place.local_name or any(line == shop_text(words, shop.kind, place.local_name) for shop in place.shops):
        return "town"
    for name, km in place.towns_ahead:
        if line == f"{name}  {km}":
            return "town" if name == place.local_name else "country"
    prefix = place.facts.phone_prefix
    is_phone = any(line in shop.lines[1:] for shop in place.shops)
    return "country" if is_phone and prefix and line.startswith(prefix) else "words"


LIMITS_KM = (1, 25, 200, 750)
TRIALS = 8
LEARNABLE, EASY = (0.25, 0.50), (0.20, 0.40)
LEAST_SEQUENCES, LEAST_GAIN = 4.0, 0.10
MOST_OFF = 0.05  # of stated confidence against the share that is right


@dataclass
class Measured:
    """One picture's results."""

    frame: str  # first | later
    verdict: str  # of the judge
    single: dict[str, float]  # error in km of each answerer at temperature 0
    trials: list[float]  # of answerer-base at temperature 1
    confidence: dict[str, float]  # of each answerer at temperature 0, that it is within 25 km
    agent: dict[str, Any] = field(default_factory=dict)  # empty where the agents were not asked
    clues: str = ""  # grade of what the picture gives away; empty where it was not noted


def report(rows: list[Measured]) -> bool:
    """Prints the figures of every frame; whether all ranges hold over both frames together."""
    held = True
    for frame in ("first", "later", "both"):
        some = [row for row in rows if frame in (row.frame, "both")]
        if not some:
            continue
        print(f"\n== {frame} frames: {len(some)} pictures; judged {dict(Counter(row.verdict for row in some))}")
        for name in some[0].single:
            _accuracy(name, [row.single[name] for row in some])
        held = _by_clues(some) and held if frame == "both" else held
        held = _calibration(some) and held if frame == "both" else held
        held = _regimes(some) and held if frame == "both" else held
        with_agent = [row.agent for row in some if row.agent]
        if with_agent:
            held = _agents(with_agent) and held if frame == "both" else held
    return held


def _accuracy(name: str, errors: Sequence[float]) -> None:
    shares = "  ".join(f"<{limit} km {100 * _share(errors, limit):.0f} %" for limit in LIMITS_KM)
    print(f"{name:<18} {shares}")


def _by_clues(rows: list[Measured]) -> bool:
    """Accuracy by the grade of a picture's clues: the more it gives away, the more answers are within each distance."""
    means = []
    for grade in GRADES:
        some = [row for row in rows if row.clues == grade]
        if some:
            shares = {
                limit: _share([error for row in some for error in row.single.values()], limit) for limit in LIMITS_KM
            }
            means.append(sum(shares.values()) / len(shares))
            told = "  ".join(f"<{limit} km {100 * share:.0f} %" for limit, share in shares.items())
            print(f"clues {grade:<12} {told}  of all answerers, {len(some)} pictures")
    steps = [more - less for less, more in itertools.pairwise(means)]
    return _goal("least gain by a grade of clues", min(steps), 0.0, math.inf) if steps else True


def _calibration(rows: list[Measured]) -> bool:
    """Stated confidence beside what became of it, in tenths, and how far they are apart on average."""
    answers = [(row.confidence[name], row.single[name] < 25) for row in rows for name in row.confidence]
    off = 0.0
    for tenth in range(10):
        some = [(said, right) for said, right in answers if min(9, int(10 * said)) == tenth]
        if some:
            said, right = (sum(column) / len(some) for column in zip(*some, strict=True))
            off += len(some) / len(answers) * abs(said - right)
            print(f"answers that say {said:.2f}: {right:.2f} are right, of {len(some)}")
    return _goal("expected calibration error", off, 0.0, MOST_OFF)


def _regimes(rows: list[Measured]) -> bool:
    good = True
    for limit in LIMITS_KM:
        passes = [sum(error < limit for error in row.trials) for row in rows]
        share = sum(0 < count < TRIALS for count in passes) / len(passes)
        mastered = sum(count == TRIALS for count in passes) / len(passes)
        good &= _goal(f"learnable at {limit} km", share, *LEARNABLE, f"mastered {100 * mastered:.0f} %")
    easy = sum(sum(error < 10 for error in row.single.values()) >= 2 for row in rows) / len(rows)
    return _goal("easy: 2 of 3 within 10 km", easy, *EASY) and good


def _agents(rows: list[dict[str, Any]]) -> bool:
    _accuracy("agent, T 0", [row["cold"] for row in rows])
    _accuracy("agent, T 1", [error for row in rows for error in row["trials"]])
    _accuracy("agent, best of 4", [min(row["trials"][:4]) for row in rows])
    _accuracy("verifier of 4", [row["verifier"] for row in rows])
    _accuracy("observer + planner", [row["planner"] for row in rows])
    calls = [count for row in rows for count in row["calls"]]
    print(f"tool calls a trajectory {sum(calls) / len(calls):.1f}; different orders of tools in {TRIALS}: "
          f"{sum(row['kinds'] for row in rows) / len(rows):.1f}")  # fmt: skip
    mean = sum(row["sequences"] for row in rows) / len(rows)
    good = _goal(f"different sequences of {TRIALS}", mean, LEAST_SEQUENCES, math.inf)
    once = _share([error for row in rows for error in row["trials"]], 25)
    gain = _share([min(row["trials"][:4]) for row in rows], 25) - once
    return _goal("best@4 above pass@1, 25 km", gain, LEAST_GAIN, math.inf) and good


def _goal(name: str, value: float, low: float, high: float, more: str = "") -> bool:
    good = low <= value <= high
    wanted = f"{low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
    print(f"{name:<30} {value:.2f}  ({wanted}: {'holds' if good else 'DOES NOT HOLD'}) {more}".rstrip())
    return good


def _share(errors: Sequence[float], limit: float) -> float:
    return sum(error < limit for error in errors) / max(1, len(errors))


VIEW_PIXELS = 2_000_000
MOST_CALLS = 6
ANSWERERS = ("answerer-small", "answerer-base", "answerer-large")
SYSTEM = f"""Find out where the picture was taken. Think inside <think> tags. Make at most {MOST_CALLS} tool calls.
Answer inside <answer> ... </answer>:
Country: ...
City: ...
Latitude: ...
Longitude: ..."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": {field_: schema}, "required": [field_]},
        },
    }
    for name, field_, schema, about in (
        ("image_zoom_in_tool", "bbox_2d", {"type": "array"}, "Crop and zoom, in pixels of the image."),
        ("search_web", "query", {"type": "string"}, "Search the web."),
        ("maps_geocode", "address", {"type": "string"}, "Coordinates of an address."),
    )
]


@dataclass
class Trip:
    """One conversation: how far off its answer is, what it called, and its words."""

    error_km: float = math.inf
    calls: list[tuple[str, str]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


class Bench:
    """A world, and its tools without sockets."""

    def __init__(self, seed: int, size: int, pano_width: int) -> None:
        self.world = World(seed, size, pano_width)
        names, signs = NameIndex(self.world.gazetteer), SignIndex(self.world)
        names.prepare()
        signs.prepare()
        self.lookup, self.web = Nominatim(self.world, names, signs), Tavily(self.world, names, signs)

    def measure(self, record: ImageRecord, frame: str, with_agent: bool) -> Measured:
        """Every role on one picture."""
        signs: list[SeenSign] = []
        with Image.open(io.BytesIO(encode(paint(self.world, record, signs)))) as opened:
            image = opened.convert("RGB")
        clues = clue_grade(self.world.place(record.place), signs, image.width)
        view = reduce(image)
        part = picture_part(view)
        truth = (record.lat, record.lon)
        question = [{"role": "user", "content": [part, {"type": "text", "text": "Where was this picture taken?"}]}]
        verdict = json.loads(say("judge", question)["content"])["class"]
        single = {name: error_km(say(name, question)["content"], truth) for name in ANSWERERS}
        form = {"type": "json_object"}
        sure = {
            name: float(json.loads(say(name, question, response_format=form)["content"])["confidence"])
            for name in ANSWERERS
        }
        found = Measured(frame, verdict, single, [], sure, clues=clues)
        found.trials = [
            error_km(say("answerer-base", question, temperature=1, seed=seed)["content"], truth)
            for seed in range(TRIALS)
        ]
        if with_agent:
            found.agent = self._agent(image, view, part, truth)
        return found

    def _agent(
        self, image: Image.Image, view: Image.Image, part: dict[str, Any], truth: tuple[float, float]
    ) -> dict[str, Any]:
        trips = [self.locate("agent", image, view, [part], truth, 1.0, seed) for seed in range(TRIALS)]
        cold = self.locate("agent", image, view, [part], truth, 0.0, 0)
        told = say("observer", [{"role": "user", "content": [part]}])["content"]
        described = [{"type": "text", "text": f"The Observer reports:\n\n{told}"}]
        planner = self.locate("planner", image, view, described, truth, 0.0, 0)
        candidates = "\n\n".join(f"Candidate {i}:\n" + "\n".join(t.words) for i, t in enumerate(trips[:4], 1))
        asked = [{"role": "user", "content": [part, {"type": "text", "text": candidates}]}]
        chosen = error_km(say("verifier", asked)["content"], truth)
        return {
            "trials": [trip.error_km for trip in trips],
            "sequences": len({tuple(trip.calls) for trip in trips}),
            "kinds": len({tuple(name for name, _ in trip.calls) for trip in trips}),
            "cold": cold.error_km,
            "planner": planner.error_km,
            "verifier": chosen,
            "calls": [len(trip.calls) for trip in trips],
        }

    def locate(
        self,
        model: str,
        image: Image.Image,
        view: Image.Image,
        parts: list[dict[str, Any]],
        truth: tuple[float, float],
        temperature: float,
        seed: int,
    ) -> Trip:
        """One conversation with tools, until the model answers."""
        ask = {"type": "text", "text": "Where was this picture taken?"}
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": [*parts, ask]},
        ]
        trip = Trip()
        for _ in range(MOST_CALLS + 2):
            left = MOST_CALLS - len(trip.calls)
            fields = {"tools": TOOLS} if left > 0 else {}
            message = say(model, messages, temperature=temperature, seed=seed, **fields)
            messages.append({key: value for key, value in message.items() if value is not None})
            trip.words.append(str(message["content"]))
            if not message.get("tool_calls"):
                trip.error_km = error_km(str(message["content"]), truth)
                return trip
            for call in message["tool_calls"]:
                function = call["function"]
                trip.calls.append((function["name"], function["arguments"]))
                content = self._run(function, image, view, as_picture=model == "agent")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return trip

    def _run(self, function: dict[str, str], image: Image.Image, view: Image.Image, as_picture: bool) -> Any:
        try:
            given = json.loads(function["arguments"])
            if function["name"] == "image_zoom_in_tool":
                ratio = image.width / view.width
                left, top, right, bottom = (int(side * ratio) for side in given["bbox_2d"])
                crop = image.crop((left, top, max(right, left + 8), max(bottom, top + 8)))
                part = picture_part(crop)
                if as_picture:
                    return [{"type": "text", "text": json.dumps({"bbox_2d": given["bbox_2d"]})}, part]
                return json.dumps({"description": say("observer", [{"role": "user", "content": [part]}])["content"]})
            if function["name"] == "search_web":
                pages = self.web.search(str(given["query"]), 5)
                shown = [{key: page[key] for key in ("title", "url", "content")} for page in pages]
                return json.dumps({"results": shown})
            if function["name"] == "maps_geocode":
                rows = self.lookup.search(str(given["address"]))[:5]
                return json.dumps({"results": rows} if rows else {"error": "no place of this name was found"})
        except (ValueError, KeyError, TypeError) as error:
            return json.dumps({"error": f"{type(error).__name__}: malformed call"})
        return json.dumps({"error": f"unknown tool {function['name']}"})


def say(model: str, messages: list[dict[str, Any]], temperature: float = 0, **fields: Any) -> dict[str, Any]:
    """The message a model answers with."""
    body = {"model": model, "messages": messages, "temperature": temperature, **fields}
    message: dict[str, Any] = answer(json.dumps(body).encode())["choices"][0]["message"]
    return message


def error_km(text: str | None, truth: tuple[float, float]) -> float:
    """How far off an answer is; infinite where it names no point."""
    for pattern in (r"Latitude: (-?[\d.]+)\s+Longitude: (-?[\d.]+)", r'"lat": (-?[\d.]+), "lon": (-?[\d.]+)'):
        matched = re.search(pattern, text or "")
        if matched:
            return away_km((float(matched.group(1)), float(matched.group(2))), truth)
    return math.inf


def reduce(image: Image.Image) -> Image.Image:
    """The picture within a model's pixel budget."""
    scale = min(1.0, math.sqrt(VIEW_PIXELS / (image.width * image.height)))
    size = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    return image if scale == 1.0 else image.resize(size, Image.Resampling.LANCZOS)


def picture_part(image: Image.Image) -> dict[str, Any]:
    """A picture as a message carries it."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    uri = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": uri}}


def away_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    lat_a, lon_a, lat_b, lon_b = map(math.radians, (*a, *b))
    h = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2 * 6371.0 * math.asin(min(1.0, math.sqrt(h)))


def fresh_places(world: World, count: int, seed: int) -> list[tuple[ImageRecord, ImageRecord]]:
    """The first and the last clear picture of each of `count` places drawn from the world."""
    found: list[tuple[ImageRecord, ImageRecord]] = []
    for index in random.Random(seed).sample(range(world.size), world.size):
        clear = [record for record in world.images(index) if record.condition == "clear"]
        if len(clear) >= 2:
            found.append((clear[0], clear[-1]))
        if len(found) == count:
            break
    return found


_bench: Bench | None = None


def _one(job: tuple[ImageRecord, str, bool]) -> Measured:
    assert _bench is not None
    return _bench.measure(*job)


def main(arguments: Sequence[str] = ()) -> int:
    """Measures and prints; the exit code says whether every range holds."""
    global _bench
    parser = argparse.ArgumentParser(prog="python -m bench offline_models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--places", type=int, default=200)
    parser.add_argument("--agent-places", type=int, default=40, help="places on which agents with tools are run too")
    parser.add_argument("--seed", type=int, default=101, help="of the world and of the places drawn from it")
    parser.add_argument("--size", type=int, default=40_000)
    parser.add_argument("--pano-width", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a file for every picture's results, one JSON object a line")
    parser.add_argument("--report", type=Path, help="only print the figures of results kept before")
    options = parser.parse_args(list(arguments))
    if options.report is not None:
        kept_rows = [Measured(**json.loads(line)) for line in options.report.read_text().splitlines()]
        return 0 if report(kept_rows) else 1
    _bench = Bench(options.seed, options.size, options.pano_width)
    drawn = fresh_places(_bench.world, options.places, options.seed)
    jobs = [
        (record, frame, number < options.agent_places)
        for number, pair in enumerate(drawn)
        for record, frame in zip(pair, ("first", "later"), strict=True)
    ]
    started = time.monotonic()
    # Forked, so that the indices are built once; the eyes are loaded in each worker.
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        rows = []
        for row in pool.imap_unordered(_one, jobs, chunksize=2):
            rows.append(row)
            if options.keep is not None:
                with options.keep.open("a") as kept:
                    kept.write(json.dumps(asdict(row)) + "\n")
    print(f"{len(rows)} pictures of {len(drawn)} places, seed {options.seed}, in {time.monotonic() - started:.0f} s")
    return 0 if report(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
