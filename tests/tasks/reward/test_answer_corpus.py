"""Answers as models write them, each with the point it means or the reason why it means none; and fuzzed strings."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.reward.answer import ParsedAnswer, ParseFailure, parse_answer, parse_point

CORPUS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "answers.jsonl").read_text(encoding="utf-8").splitlines()
]
PIECES = [
    *"{}[]()\"':;,.<>/-+ \n\t\\=°′″*`|NSEWnsew0123456789~±$^",
    *("<answer>", "</answer>", "<think>", "</think>", "<tool_response>", "```json", '"lat":', '"lon":', "Longitude: "),
    *("lat", "lng=", "city:", '"country": ', "48.85", "-117.92", "1e999", "NaN", "null", "France; ", " to ", " or "),
    *('{"lat": 1, "lon": 2}', "北京", "纬度", "东经", "\u0301", "\ud800", "\x00", "😀", "９", "N 5° 3'", "FinalAnswer"),
    *("POINT(", "| lat | lon |\n", "\\boxed{", "^\\circ", "https://a.b/@1.5,", "&deg;", "<lat>", "</lat>", "48:51:30"),
]


def test_the_corpus_is_large_and_has_both_kinds() -> None:
    assert len(CORPUS) >= 500 and len({case["text"] for case in CORPUS}) == len(CORPUS)
    assert sum("reason" in case for case in CORPUS) >= 90


@pytest.mark.parametrize("kind", ["point", "reason"])
def test_every_answer_is_read_as_it_is_meant(kind: str) -> None:
    wrong = []
    for case in CORPUS:
        if ("reason" in case) == (kind == "reason"):
            answer = parse_point(case["text"])
            if kind == "reason":
                right = isinstance(answer, ParseFailure) and answer.reason == case["reason"]
            else:
                meant = (case["lat"], case["lon"])
                right = isinstance(answer, ParsedAnswer) and (answer.lat, answer.lon) == pytest.approx(meant, abs=1e-8)
            if not right:
                wrong.append((case, answer))
    assert not wrong, f"{len(wrong)} wrong, such as {wrong[:3]}"


def fuzzed(rng: random.Random) -> str:
    """Pieces in any order, a damaged answer of the corpus, or halves of two."""
    kind = rng.random()
    if kind < 0.5:
        return "".join(rng.choices(PIECES, k=rng.randrange(24)))
    text: str = rng.choice(CORPUS)["text"][:500]
    if kind < 0.8:
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(PIECES) + text[at + rng.randrange(6) :]
        return text
    other: str = rng.choice(CORPUS)["text"][:500]
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]


def run_fuzz(number: int, seed: int) -> float:
    """Seconds of CPU the slowest of the strings took."""
    rng, slowest = random.Random(seed), 0.0
    for _ in range(number):
        text = fuzzed(rng)
        started = time.thread_time()
        answer = parse_answer(text)
        slowest = max(slowest, time.thread_time() - started)
        if isinstance(answer, ParsedAnswer) and answer.has_point:
            assert answer.lat is not None and answer.lon is not None
            assert -90 <= answer.lat <= 90 and -180 <= answer.lon <= 180
    return slowest


def test_fuzzed_answers_neither_crash_nor_take_long() -> None:
    assert run_fuzz(5_000, 3) < 0.05


@pytest.mark.slow
def test_a_million_fuzzed_answers() -> None:
    slowest = run_fuzz(1_000_000, 4)
    print(f"slowest of 1,000,000: {1000 * slowest:.1f} ms of CPU")
    assert slowest < 0.05


CALLS = [
    "[TOOL_CALLS]{}",
    "<tool_call>",
    "</tool_call>1.5, 2.5",
    "\nAction Input: 1\nObservation:",
    "a_query(",
    '{"name":"a","args":',
]


@pytest.mark.parametrize(
    "unit", ["{", "1.5, ", "48.85 or ", "1°1'", "lat: 1 lon: 2 ", "<", "| 1 | 2 |\n", "\\boxed{", *CALLS]
)
def test_the_longest_answers_take_less_than_50_ms(unit: str) -> None:
    for size in (4_000, 30_000, 100_000, 200_000):
        body = unit * (size // len(unit))
        for text in (body, f"<answer>{body}</answer>", f"Coordinates: {body}"):
            # The best of three: what the machine does beside it is not the parser's.
            assert min(seconds(text) for _ in range(3)) < 0.05, (unit, size)


def seconds(text: str) -> float:
    started = time.thread_time()
    parse_answer(text)
    return time.thread_time() - started
