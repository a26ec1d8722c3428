"""How well a base sees: signs of held-out places read from a zoom, attributes, boxes; each with shuffled pictures."""

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from infra.pretrain.feed import Pool
from infra.pretrain.model import Learner
from infra.pretrain.pictures import ATTRIBUTES, BOX
from infra.pretrain.tokens import IGNORED, Sequenced, Tokens, padded, record, stacked, text_batch

BINS = (7.5, 10.0, 12.0, 16.0, 24.0, 1e9)  # letter heights in pixels of the original
READABLE_PX = 12.0  # letters smaller than this are not counted as readable
BATCH = 256


@torch.no_grad()
def read_signs(learner: Learner, pool: Pool, tokens: Tokens, shuffle: bool = False) -> list[dict[str, Any]]:
    """One row for each line in letters the base knows: its height and whether it was read exactly."""
    rows: list[dict[str, Any]] = []
    for key, part, pixels in _batches(pool, "zoom"):
        cells = math.prod(pool.grid(key))
        made = [tokens.reading(cells, fact["line"], fact["text"]) if fact["latin"] else None for fact in part]
        kept = [number for number, question in enumerate(made) if question is not None]
        rows += [{**fact, "exact": False} for fact, question in zip(part, made, strict=True) if question is None]
        if kept:
            exact = _exact(learner, pixels[kept], pool.grid(key), [made_row for made_row in made if made_row],
                           [part[number]["index"] for number in kept], shuffle)  # fmt: skip
            rows += [{**part[number], "exact": right} for number, right in zip(kept, exact, strict=True)]
    return rows


def _batches(pool: Pool, kind: str) -> Iterator[tuple[str, list[dict[str, Any]], torch.Tensor]]:
    """(group, facts, pixels) of all pictures of a kind."""
    for key in pool.keys(kind, 1):
        for start in range(0, len(pool.facts[key]), BATCH):
            yield key, pool.facts[key][start : start + BATCH], pool.pixels[key][start : start + BATCH]


def _exact(
    learner: Learner, pixels: torch.Tensor, grid: tuple[int, int], made: Sequence[Sequenced], places: list[int],
    shuffle: bool,
) -> list[bool]:  # fmt: skip
    """Whether each exchange is answered exactly; with `shuffle` about a picture of another place."""
    if shuffle:
        pixels = pixels[others(places)]
    ids, labels = stacked(made)
    exact = learner.exact(learner.logits(learner.packed(pixels, grid, ids, labels, 0.0)), labels)
    return [bool(hit) for hit in exact.tolist()]


@torch.no_grad()
def quotes_right(learner: Learner, tokens: Tokens, count: int = 256) -> dict[str, float]:
    """How often a record of an invented place is answered with exactly its own words."""
    rng = random.Random("measure")
    ids, labels = (torch.tensor(rows) for rows in padded([record(tokens, rng) for _ in range(count)], tokens.pad))
    batch = text_batch(ids, labels, learner.device)
    logits = learner.logits(batch)
    return {
        "records": count,
        "exact": round(float(learner.exact(logits, labels).float().mean()), 4),
        "tokens": round(float((logits.argmax(-1) == batch.targets).float().mean()), 4),
    }


def others(places: list[int]) -> list[int]:
    """For each picture the number of one of another place, half of the list away where that is another."""
    n = len(places)
    chosen = []
    for own in range(n):
        steps = ((own + n // 2 + more) % n for more in range(n))
        chosen.append(next((other for other in steps if places[other] != places[own]), own))
    return chosen


def reading_report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Exact shares: of all readable lines, of those in Latin letters, and by letter height."""
    readable = [row for row in rows if row["letters_px"] >= READABLE_PX]
    latin = [row for row in readable if row["latin"]]
    report: dict[str, Any] = {
        "lines": len(readable),
        "exact": _share(readable),
        "latin_lines": len(latin),
        "latin_exact": _share(latin),
        "first_lines": _share([row for row in latin if row["line"] == 0]),
        "second_lines": _share([row for row in latin if row["line"] == 1]),
        "by_letter_px": [],
    }
    for low, high in pairwise(BINS):
        inside = [row for row in rows if row["latin"] and low <= row["letters_px"] < high]
        report["by_letter_px"].append({"from": low, "lines": len(inside), "exact": _share(inside)})
    return report


def _share(rows: list[dict[str, Any]]) -> float:
    return round(sum(bool(row["exact"]) for row in rows) / max(1, len(rows)), 4)


@torch.no_grad()
def attributes(learner: Learner, pool: Pool, tokens: Tokens, shuffle: bool = False) -> dict[str, dict[str, float]]:
    """Per question: share answered exactly, and the share of the commonest answer, which a blind guess reaches."""
    right: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    common: dict[str, Counter[str]] = {question: Counter() for question in ATTRIBUTES}
    for key, part, pixels in _batches(pool, "view"):
        cells = math.prod(pool.grid(key))
        for question in ATTRIBUTES:
            answers = [fact["answers"][question] for fact in part]
            made = [
                tokens.sequence(cells, [(question, tokens.encode(answer))], tokens.length(cells)) for answer in answers
            ]
            exact = _exact(learner, pixels, pool.grid(key), [question for question in made if question is not None],
                           [fact["index"] for fact in part], shuffle)  # fmt: skip
            right[question] += sum(exact)
            totals[question] += len(part)
            common[question].update(answers)
    return {
        question: {
            "exact": round(right[question] / totals[question], 4),
            "commonest": round(common[question].most_common(1)[0][1] / totals[question], 4),
        }
        for question in ATTRIBUTES
        if totals[question]
    }


@torch.no_grad()
def answer(
    learner: Learner,
    pixels: torch.Tensor,
    grid: tuple[int, int],
    question: list[int],
    tokens: Tokens,
    most: int,
    opening: list[int] | None = None,
) -> list[str]:
    """The greedy answers to one question about pictures of one grid; it follows the picture, as token ids."""
    n = len(pixels)
    before = [*(opening or tokens.opening), *[tokens.image] * (grid[0] * grid[1]), *question]
    length = -(-(len(before) + most) // 8) * 8
    ids = torch.full((n, length), tokens.pad, dtype=torch.int64, device=learner.device)
    ids[:, : len(before)] = torch.tensor(before, device=learner.device)
    ended = torch.zeros(n, dtype=torch.bool, device=learner.device)
    at = len(before)
    while at < len(before) + most and not bool(ended.all()):
        labels = torch.full_like(ids, IGNORED)
        labels[:, at] = 0
        chosen = learner.logits(learner.packed(pixels, grid, ids, labels, 0.0)).argmax(-1)
        learner.seen = learner.picture_tokens
        ids[:, at] = torch.where(ended, torch.full_like(chosen, tokens.end), chosen)
        ended |= chosen == tokens.end
        at += 1
    learner.seen = None
    written = ids[:, len(before) : at].tolist()
    return [tokens.decode(ids[: ids.index(tokens.end)] if tokens.end in ids else ids) for ids in written]


def boxes(learner: Learner, pool: Pool, tokens: Tokens, shuffle: bool = False) -> dict[str, float]:
    """How often the box of the largest sign overlaps the true one by half, and at all."""
    overlaps: list[float] = []
    for key in pool.keys("view", 1):
        numbers = [n for n, fact in enumerate(pool.facts[key]) if fact["box"]][:BATCH]
        if not numbers:
            continue
        pixels = pool.pixels[key][numbers]
        if shuffle:
            pixels = pixels[others([pool.facts[key][n]["index"] for n in numbers])]
        replies = answer(learner, pixels, pool.grid(key), tokens.question_ids(BOX), tokens, 24)
        overlaps += [
            overlap(_box(text), _box(pool.facts[key][n]["box"])) for text, n in zip(replies, numbers, strict=True)
        ]
    total = max(1, len(overlaps))
    return {
        "pictures": len(overlaps),
        "iou_50": round(sum(overlap >= 0.5 for overlap in overlaps) / total, 4),
        "touches": round(sum(overlap > 0 for overlap in overlaps) / total, 4),
    }


def _box(text: str) -> tuple[float, ...] | None:
    sides = [float(number) for number in re.findall(r"\d+", text)]
    return tuple(sides) if len(sides) == 4 else None


def overlap(box: tuple[float, ...] | None, other: tuple[float, ...] | None) -> float:
    """Intersection over union of two boxes; 0 where one is none."""
    if box is None or other is None:
        return 0.0
    wide = min(box[2], other[2]) - max(box[0], other[0])
    high = min(box[3], other[3]) - max(box[1], other[1])
    if wide <= 0 or high <= 0:
        return 0.0
    area = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
    return wide * high / max(1e-9, area[0] + area[1] - wide * high)
