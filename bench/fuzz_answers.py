"""A million fuzzed answers through the parser: no crash, no point off the Earth, none over 50 ms of CPU.

Mutations and splices of the corpus, pieces in any order, nested brackets, deep JSON, long runs of digits, digits of
other scripts, and repeated units that make backtracking patterns slow. The slowest string is tried again twice and
its best time counts, since a garbage collection is not the parser's.

    python -m bench fuzz_answers
    python -m bench.fuzz_answers --strings 20000 --seed 5
"""

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.goals import Goal, judge
from tasks.reward.answer import ParsedAnswer, parse_answer

STRINGS, SEED, PART = 1_000_000, 0, 20_000
MOST_S = 0.05
CORPUS_FILE = Path(__file__).parents[1] / "tests" / "tasks" / "reward" / "answers.jsonl"
PIECES = [
    *"{}[]()\"':;,.<>/-+ \n\t\\=°′″*`|NSEWnsew0123456789~±$^",
    *("<answer>", "</answer>", "<think>", "</think>", "<tool_response>", "```json", '"lat":', '"lon":', "Longitude: "),
    *("lat", "lng=", "city:", '"country": ', "48.85", "-117.92", "1e999", "NaN", "null", "France; ", " to ", " or "),
    *('{"lat": 1, "lon": 2}', "北京", "纬度", "东经", "\u0301", "\ud800", "\x00", "😀", "９", "N 5° 3'", "FinalAnswer"),
    *(
        '"arguments": {',
        '{"name": "map", ',
        "[TOOL_CALLS]",
        "\nAction Input: ",
        "<function=map>",
        "map_query(",
        "{}",
        "Observation:",
    ),
    *("POINT(", "| lat | lon |\n", "\\boxed{", "^\\circ", "https://a.b/@1.5,", "&deg;", "<lat>", "</lat>", "48:51:30"),
]
# Repeated, these make a pattern with two ways to match the same text try all of them.
UNITS = ("1.", "1,", "1 ", "- ", "+1", " \n", "°", "1°1'", "a; ", "lat ", "lat:", "(1", "[[", "{{", "<a", "1e1", "N ")
DIGITS = ("٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗", "①②③④⑤⑥⑦⑧⑨⓪")


@dataclass
class Found:
    """What a part of the strings showed."""

    strings: int = 0
    points: int = 0
    slowest_s: float = 0.0
    slowest: str = ""
    crashes: list[str] = field(default_factory=list)


def corpus() -> list[str]:
    """The texts of the parser's corpus."""
    return [json.loads(line)["text"] for line in CORPUS_FILE.read_text(encoding="utf-8").splitlines()]


def _pieces(rng: random.Random, texts: Sequence[str]) -> str:
    return "".join(rng.choices(PIECES, k=rng.randrange(40)))


def _mutated(rng: random.Random, texts: Sequence[str]) -> str:
    text = rng.choice(texts)[:2000]
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randrange(8) :]
    return text


def _spliced(rng: random.Random, texts: Sequence[str]) -> str:
    one, other = rng.choice(texts)[:2000], rng.choice(texts)[:2000]
    return one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other) + 1) :]


def _nested(rng: random.Random, texts: Sequence[str]) -> str:
    kinds = rng.choices(["{}", "[]", "()", "<>"], k=rng.randrange(1, 60))
    inside = rng.choice(texts)[:300]
    closed = "".join(pair[1] for pair in reversed(kinds[: rng.randrange(len(kinds) + 1)]))
    return "".join(pair[0] for pair in kinds) + inside + closed


def _deep(rng: random.Random, texts: Sequence[str]) -> str:
    depth = rng.choice((3, 30, 300, 900))
    opened = rng.choice(('{"a":', '{"answer":', '{"coordinates":', "["))
    closing = "]" if opened == "[" else "}"
    return opened * depth + rng.choice(('{"lat": 1, "lon": 2}', "1", "null", '"48.8, 2.3"')) + closing * depth


def _digit_runs(rng: random.Random, texts: Sequence[str]) -> str:
    def run() -> str:
        return "".join(rng.choices("0123456789", k=rng.choice((1, 3, 20, 400, 3000))))

    between = rng.choice((", ", ".", " ", "° ", ";", "e", "-"))
    return rng.choice(("", "<answer>", "lat: ")) + between.join(run() for _ in range(rng.randrange(1, 6)))


def _other_digits(rng: random.Random, texts: Sequence[str]) -> str:
    table = str.maketrans("0123456789", rng.choice(DIGITS))
    return rng.choice(texts)[:1000].translate(table)


def _repeated(rng: random.Random, texts: Sequence[str]) -> str:
    unit = "".join(rng.choices((*UNITS, *PIECES), k=rng.randrange(1, 4)))
    body = unit * (rng.choice((50, 500, 4000, 30_000)) // len(unit) + 1)
    tail = rng.choice(("", "x", "!", "48.85, 2.29", "</answer>"))
    return rng.choice(("", "<answer>", "Coordinates: ", "```json\n")) + body + tail


MAKERS: tuple[tuple[float, Callable[[random.Random, Sequence[str]], str]], ...] = (
    (0.25, _pieces),
    (0.30, _mutated),
    (0.15, _spliced),
    (0.10, _nested),
    (0.04, _deep),
    (0.06, _digit_runs),
    (0.08, _other_digits),
    (0.02, _repeated),
)


def fuzz(strings: int, seed: int) -> Found:
    """Read this many strings of one seed."""
    rng, texts, found = random.Random(seed), corpus(), Found()
    chances, makers = zip(*MAKERS, strict=True)
    for make in rng.choices(makers, chances, k=strings):
        text = make(rng, texts)
        found.strings += 1
        try:
            took, is_point = _read(text)
        except Exception:  # noqa: BLE001 - any kind of crash is what is looked for
            found.crashes.append(f"{text[:200]!r}: {traceback.format_exc().splitlines()[-1]}")
            continue
        found.points += is_point
        if took > found.slowest_s:
            took = min(took, *(_read(text)[0] for _ in range(2)))
            if took > found.slowest_s:
                found.slowest_s, found.slowest = took, text[:120]
    return found


def _read(text: str) -> tuple[float, bool]:
    started = time.thread_time()
    answer = parse_answer(text)
    took = time.thread_time() - started
    if not isinstance(answer, ParsedAnswer) or answer.lat is None or answer.lon is None:
        return took, False
    if not (-90 <= answer.lat <= 90 and -180 <= answer.lon <= 180):
        raise AssertionError(f"a point off the Earth: {answer.lat}, {answer.lon}")
    return took, True


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strings", type=int, default=STRINGS)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args(list(arguments))
    sizes = [min(PART, given.strings - at) for at in range(0, given.strings, PART)]
    seeds = [given.seed * 100_000 + number for number in range(len(sizes))]
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        parts = list(pool.map(fuzz, sizes, seeds))
    strings, points = (sum(getattr(part, name) for part in parts) for name in ("strings", "points"))
    crashes = [crash for part in parts for crash in part.crashes]
    slowest = max(parts, key=lambda part: part.slowest_s)
    print(f"   {strings:,} strings, {points:,} with a point, {len(crashes)} crashes")
    print(f"   the slowest took {1000 * slowest.slowest_s:.1f} ms of CPU: {slowest.slowest!r}")
    for crash in crashes[:5]:
        print(f"   {crash}")
    return judge(
        [
            Goal("strings", strings, at_least=given.strings),
            Goal("crashes", len(crashes), at_most=0),
            Goal("seconds of CPU for the slowest", slowest.slowest_s, at_most=MOST_S),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
