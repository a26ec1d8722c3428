"""What an agent finds: held-out places asked about in the environment with tools, beside controls."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from scipy.stats import binomtest

from infra.pretrain.teacher import GEOCODE, opened
from tasks.agent.environment import ANSWERED, Environment
from tasks.agent.prompt import Prompt, answer_lines
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import Geocodes
from tasks.geo.distance import distance_km
from tasks.recipes.rewards import reward_for
from tasks.recipes.spotmini import PROMPT, REPLY_TOKENS
from tasks.reward.answer import ParseFailure, parse_point
from tasks.reward.outcome import TRUTH_COLUMNS, Excluded
from tasks.services.geocoder import GeocodeCandidate
from tasks.train.encoding import Encoder
from tasks.train.fast.model import FastModel
from tasks.train.rollouts.source import Engines, recipe_scorer
from tasks.train.with_tools import ToolRollouts, opening_prompt

TOKENS = 640  # of replies and tool results after the prompt: a right trajectory takes 440 to 520
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tried:
    """One attempt: how far off, what it earned, how its calls went."""

    error_km: float | None
    reward: float
    calls: int
    executed: int  # valid, parseable and executable: SpotAgent's fig. 7b
    found: int  # and not without a result
    asked: str  # what the geocoder was asked for
    end: str


def attempts(
    fast: FastModel,
    encoder: Encoder,
    rows: Sequence[Row],
    tools: Toolbox,
    recipe: Prompt = PROMPT,
    count: int = 1,
    temperature: float = 0.0,
    files: Sequence[str] | None = None,
    tokens: int = TOKENS,
) -> list[list[Tried]]:
    """`count` attempts at each picture; `files` shows other pictures than the rows' own."""
    fast.model.eval()
    scorer = recipe_scorer("spotagent")
    at_once = 256 if fast.device.type == "cuda" else 8
    engines = Engines(fast, encoder.end_tokens, at_once)
    found: list[list[Tried]] = []
    step = max(1, at_once // count)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        shown = [row["file"] for row in part] if files is None else files[start : start + step]
        made: list[Environment] = []
        make = maker(dict(zip([row["image_id"] for row in part], shown, strict=True)), tools, recipe, made)
        prompts = [opening_prompt(make(row), encoder) for row in part]
        made.clear()
        rollouts = ToolRollouts(engines, encoder, make, count, tokens, recipe.budgets.turns, temperature, REPLY_TOKENS)
        groups = rollouts.draw(prompts, part)
        marks = iter(scorer([(one, row) for group, row in zip(groups, part, strict=True) for one in group]))
        environments = iter(made)
        for row in part:
            found.append([_tried(next(environments), row, next(marks).reward or 0.0) for _ in range(count)])
    return found


def maker(
    files: Mapping[str, str], tools: Toolbox, recipe: Prompt, made: list[Environment]
) -> Callable[[Row], Environment]:
    """Makes environments and notes them in `made`."""

    def make(row: Row) -> Environment:
        made.append(Environment(opened(files[row["image_id"]]), tools, recipe))
        return made[-1]

    return make


def _tried(environment: Environment, row: Row, reward: float) -> Tried:
    point = parse_point(environment.final_text)
    error = None
    if not isinstance(point, ParseFailure) and point.lat is not None and point.lon is not None:
        error = float(distance_km(point.lat, point.lon, row["lat"], row["lon"]))
    asked = [call.arguments for call in environment.calls if call.name == GEOCODE]
    try:
        address = str(json.loads(asked[0]).get("address", "")) if asked else ""
    except (ValueError, AttributeError):
        address = ""
    calls = environment.calls
    executed, found = sum(one.executed for one in calls), sum(one.succeeded for one in calls)
    return Tried(error, reward, len(calls), executed, found, address, environment.end_reason)


def figures(tried: Sequence[Tried], rows: Sequence[Row]) -> dict[str, Any]:
    """Shares with 95 % intervals (Wilson) and means."""
    n = len(tried)
    calls = sum(one.calls for one in tried)
    known = [one.error_km for one in tried if one.error_km is not None]
    read = sum(one.asked == row["street"] for one, row in zip(tried, rows, strict=True))

    def share(hits: int) -> list[float]:
        return wilson(hits, n)

    return {
        "places": n,
        **{f"acc_{km}km": share(sum(error < km for error in known)) for km in (25, 200, 750, 2500)},
        "reward": mean(one.reward for one in tried),
        "reward_interval": interval([one.reward for one in tried]),
        "median_km": median(known) if known else None,
        "answered": share(sum(one.end == ANSWERED and one.error_km is not None for one in tried)),
        "with_calls": share(sum(one.calls > 0 for one in tried)),
        "calls": calls,
        "call_success": wilson(sum(one.executed for one in tried), calls) if calls else None,
        "call_found": wilson(sum(one.found for one in tried), calls) if calls else None,
        "read_exactly": share(read),
        "rewards": [round(one.reward, 4) for one in tried],
    }


def joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of further places added; without a median, which only the places themselves would give."""
    rewards = [*one["rewards"], *other["rewards"]]

    def share(name: str, of: str) -> list[float] | None:
        both = [each for each in (one, other) if each[name] is not None]
        hits = sum(round(each[name][0] * each[of]) for each in both)
        return wilson(hits, sum(each[of] for each in both)) if both else None

    shares = [name for name in one if name.startswith(("acc_", "call_", "answered", "with_calls", "read_"))]
    return {
        **{name: share(name, "calls" if name.startswith("call_") else "places") for name in shares},
        "places": one["places"] + other["places"],
        "calls": one["calls"] + other["calls"],
        "reward": mean(rewards),
        "reward_interval": interval(rewards),
        "rewards": rewards,
    }


def wilson(hits: int, n: int) -> list[float]:
    """[share, low, high] of a proportion, by Wilson's 95 % interval."""
    if not n:
        return [0.0, 0.0, 1.0]
    found = binomtest(hits, n).proportion_ci(method="wilson")
    return [round(hits / n, 4), round(found.low, 4), round(found.high, 4)]


def interval(values: Sequence[float]) -> list[float]:
    """The middle 95 % of means of resampled values (bootstrap, seeded)."""
    rng = random.Random(0)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(1000))
    return [means[25], means[974]]


def gain(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """[mean, low, high] of what each place earns more than before: the same places, so place by place."""
    each = [two - one for one, two in zip(before, after, strict=True)]
    return [mean(each), *interval(each)]


def ceiling(rows: Sequence[Row], geocoder: Geocodes) -> dict[str, Any]:
    """What an agent would find that reads every street's plate: its name asked, the first result answered."""
    scorer = reward_for("spotagent")

    async def ask() -> list[list[GeocodeCandidate]]:
        return [await geocoder.search(row["street"], 1) for row in rows]

    tried = []
    for row, found in zip(rows, asyncio.run(ask()), strict=True):
        error = float(distance_km(found[0].lat, found[0].lon, row["lat"], row["lon"])) if found else None
        reward = 0.0
        if found:
            text = answer_lines(found[0].country, found[0].city, found[0].lat, found[0].lon, 2)
            scored = scorer(text, **{name: row[name] for name in TRUTH_COLUMNS})
            reward = 0.0 if isinstance(scored, Excluded) else scored.reward
        tried.append(Tried(error, reward, 1, 1, int(bool(found)), row["street"], ANSWERED if found else ""))
    return figures(tried, rows)
