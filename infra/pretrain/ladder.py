"""The first rung after the base: supervised training to answer at once where a picture was taken, with controls.

Pictures, prompts and answers have the pipeline's form. Places are held out by cells. Beside the trained model stand the
best constant answer, the same model with pictures of other places, and with boards without a word.
"""

from __future__ import annotations

import math
import random
import re
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from infra.offline.world import World
from infra.pretrain.feed import Pool
from infra.pretrain.measure import answer, others
from infra.pretrain.model import Learner
from infra.pretrain.tokens import IGNORED, Tokens

THRESHOLDS_KM = (25, 200, 750, 2500)
MOST = 48  # tokens of an answer


@dataclass(frozen=True)
class Prompt:
    """The words around a picture, as token ids."""

    opening: list[int]
    asked: list[int]

    @classmethod
    def of(cls, tokens: Tokens, system: str, question: str) -> Prompt:
        return cls(
            tokens.encode(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n<|vision_start|>"),
            tokens.encode(f"<|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n"),
        )


def answer_text(world: World, index: int) -> str:
    """The true answer in the form the prompt asks for."""
    place = world.place(index)
    return f"<answer>\nCountry: {place.facts.name}\nLatitude: {place.lat:.1f}\nLongitude: {place.lon:.1f}\n</answer>"


def tune(
    learner: Learner,
    pool: Pool,
    world: World,
    tokens: Tokens,
    prompt: Prompt,
    seconds: float,
    rate: float,
    count: int,
    seed: int,
    steps: int | None = None,
) -> list[dict[str, float]]:
    """Train on the pool's views for n seconds or steps; returns loss over time."""
    rng = random.Random(seed)
    started, step = time.monotonic(), 0
    log: list[dict[str, float]] = []
    lengths: dict[str, int] = {}
    keys = pool.keys("view", min(count, 64))
    while True:
        spent = (time.monotonic() - started) / seconds if steps is None else step / steps
        if spent >= 1:
            return log
        step += 1
        if step % 100 == 1:
            pool.refresh(0.5)
            keys = pool.keys("view", min(count, 64))
        key = rng.choice(keys)
        grid, listed = pool.grid(key), pool.facts[key]
        room = len(prompt.opening) + grid[0] * grid[1] + len(prompt.asked) + MOST
        lengths[key] = -(-room // 8) * 8
        chosen: list[int] = []
        ids: list[torch.Tensor] = []
        labels: list[torch.Tensor] = []
        while len(chosen) < count:
            number = rng.randrange(len(listed))
            made = _sequence(tokens, prompt, grid, answer_text(world, listed[number]["index"]), lengths[key])
            if made is not None:
                chosen.append(number)
                ids.append(torch.from_numpy(made[0]))
                labels.append(torch.from_numpy(made[1]))
        at = torch.tensor(chosen, device=pool.pixels[key].device)
        batch = learner.packed(pool.pixels[key][at], grid, torch.stack(ids), torch.stack(labels), 0.05)
        loss = F.cross_entropy(learner.logits(batch), batch.targets)
        now = rate * min(1.0, step / 50) * (1.0 if spent < 0.4 else max(0.03, (1 - spent) / 0.6))
        learner.update(loss, now)
        if step % 25 == 1:
            log.append({"seconds": round(time.monotonic() - started, 1), "step": step, "seen": step * count,
                        "loss": round(float(loss.detach()), 4), "pictures": sum(len(pool.facts[k]) for k in keys)})  # fmt: skip # noqa: E501


def _sequence(
    tokens: Tokens, prompt: Prompt, grid: tuple[int, int], text: str, length: int
) -> tuple[np.ndarray, np.ndarray] | None:
    before = [*prompt.opening, *[tokens.image] * (grid[0] * grid[1]), *prompt.asked]
    said = [*tokens.encode(text), tokens.end]
    if len(before) + len(said) > length:
        return None
    ids = np.full(length, tokens.pad, np.int64)
    labels = np.full(length, IGNORED, np.int64)
    ids[: len(before)] = before
    ids[len(before) : len(before) + len(said)] = labels[len(before) : len(before) + len(said)] = said
    return ids, labels


def locate(
    learner: Learner, pool: Pool, world: World, tokens: Tokens, prompt: Prompt, shuffle: bool = False
) -> list[dict[str, Any]]:
    """One row for each picture of the pool: what was answered, and how far off it is."""
    rows = []
    for key in pool.keys("view", 1):
        listed = pool.facts[key]
        for start in range(0, len(listed), 300):
            part = listed[start : start + 300]
            pixels = pool.pixels[key][start : start + 300]
            if shuffle:
                pixels = pixels[torch.tensor(others([fact["index"] for fact in part]), device=pixels.device)]
            said = answer(learner, pixels, pool.grid(key), prompt.asked, tokens, MOST, prompt.opening)
            for fact, text in zip(part, said, strict=True):
                place = world.place(fact["index"])
                rows.append(
                    {"index": fact["index"], "text": text, **judged(text, place.facts.name, place.lat, place.lon)}
                )
    return rows


def judged(text: str, country: str, lat: float, lon: float) -> dict[str, Any]:
    """Whether the country is right and how many km the point is off; an answer without a point is infinitely far."""
    named = re.search(r"Country: (.+)", text)
    point = re.search(r"Latitude: (-?\d+(?:\.\d+)?)\nLongitude: (-?\d+(?:\.\d+)?)", text)
    km = math.inf
    if point and abs(float(point[1])) <= 90 and abs(float(point[2])) <= 180:
        km = distance_km(float(point[1]), float(point[2]), lat, lon)
    return {"country": bool(named) and named is not None and named[1].strip() == country, "km": km}


def distance_km(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Great-circle distance on a sphere of 6371 km; the offline programs do not import the pipeline's."""
    p1, p2 = math.radians(lat1), math.radians(lat2)
    half = math.sin((p2 - p1) / 2) ** 2 + math.cos(p1) * math.cos(p2) * math.sin(math.radians(lon2 - lon1) / 2) ** 2
    return 2 * 6371.0 * math.asin(min(1.0, math.sqrt(half)))


def constant_rows(pool: Pool, held: Pool, world: World) -> list[dict[str, Any]]:
    """The blind guess: the commonest country of the training pictures and their best single point among a sample."""
    seen = [world.place(fact["index"]) for key in pool.keys("view", 1) for fact in pool.facts[key]]
    names = [place.facts.name for place in seen]
    country = max(set(names), key=names.count)
    sample = random.Random(0).sample(seen, min(300, len(seen)))
    points = random.Random(1).sample(seen, min(60, len(seen)))
    best = max(points, key=lambda p: sum(distance_km(p.lat, p.lon, o.lat, o.lon) < 2500 for o in sample))
    text = f"<answer>\nCountry: {country}\nLatitude: {best.lat:.1f}\nLongitude: {best.lon:.1f}\n</answer>"
    rows = []
    for key in held.keys("view", 1):
        for fact in held.facts[key]:
            place = world.place(fact["index"])
            rows.append({"index": fact["index"], "text": text, **judged(text, place.facts.name, place.lat, place.lon)})
    return rows


def accuracy(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares with 95 % Wilson intervals: country, and within each threshold."""
    n = len(rows)
    figures: dict[str, Any] = {"places": n, "parsed": sum(row["km"] < math.inf for row in rows) / max(1, n)}
    figures["country"] = wilson(sum(row["country"] for row in rows), n)
    for threshold in THRESHOLDS_KM:
        figures[f"acc_{threshold}km"] = wilson(sum(row["km"] <= threshold for row in rows), n)
    ordered = sorted(row["km"] for row in rows)
    figures["median_km"] = round(ordered[n // 2], 1) if n and ordered[n // 2] < math.inf else None
    return figures


def wilson(hits: int, n: int, z: float = 1.96) -> list[float]:
    """[share, low, high] of a proportion."""
    if not n:
        return [0.0, 0.0, 1.0]
    p = hits / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return [round(p, 4), round(middle - half, 4), round(middle + half, 4)]
