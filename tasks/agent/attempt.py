"""Policies by name, and one try of a policy at a picture: what Pass@K, evaluation and test-time scaling repeat."""

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import StageRefused
from schemas.messages import ChatReply, Message
from tasks.agent.environment import TOOL_OUTAGE, Environment, Trajectory, run_agent
from tasks.agent.picture import Picture
from tasks.agent.prompt import Prompt
from tasks.agent.toolbox import Toolbox
from tasks.services.chat import Chat
from tasks.services.errors import ServiceError

TRAINED = "trained:"
PHASES = ("sft", "cold_start", "grpo")
# The packaged agent is in no table: its name, most and least pixels of the pictures it was taught with, and the recipe
# whose words and tools it knows. A right reply of it has at most 70 tokens or so.
PACKAGED, PACKAGED_PIXELS = "trained:finds-2", (100_352, 40_000)
PACKAGED_RECIPE, PACKAGED_TOKENS = "spotmini", 128


def newest_model(models: pl.DataFrame, recipe: str, phase: str | None = None) -> str | None:
    """The id of the newest model that was trained by a recipe, of one phase or of any."""
    # Policies alone: a recipe may also learn what is none, such as whom to ask.
    models = models.filter((pl.col("recipe") == recipe) & pl.col("training_stage").is_in(PHASES))
    if phase is not None:
        models = models.filter(pl.col("training_stage") == phase)
    return str(models.sort("written_at")["model_id"][-1]) if models.height else None


def policy_role(name: str, models: pl.DataFrame, recipe: str) -> str:
    """The role that a policy goes by: `cold_start` and the like are the recipe's newest model of that phase."""
    if name not in PHASES:
        return name
    model_id = newest_model(models, recipe, name)
    if model_id is None:
        raise StageRefused(
            f"policy '{name}' is the newest {name} model of recipe {recipe}, and the lake has none: train it first"
        )
    return f"{TRAINED}{model_id}"


def trained_pixels(models: pl.DataFrame) -> dict[str, tuple[int, int]]:
    """Policy -> most and least pixels of the pictures that a trained model was trained with."""
    pixels = {PACKAGED: PACKAGED_PIXELS}
    for name, text in models.select("model_id", "config_json").iter_rows():
        config = json.loads(text or "{}")
        if "image_max_pixels" in config:
            pixels[f"{TRAINED}{name}"] = config["image_max_pixels"], config["image_min_pixels"]
    return pixels


def shown_pixels(policy: str, trained: dict[str, tuple[int, int]], most: int, least: int) -> tuple[int, int]:
    """Most and least pixels of a picture that a policy is shown: of a trained model no more than in its training.

    Each server shrinks a larger picture by a rule of its own, and the boxes that the model names are in pixels of
    pictures as it was trained with.
    """
    own = trained.get(policy)
    return own if own is not None and own[0] < most else (most, least)


def name_by_tools(scores: pl.DataFrame, predictions: pl.DataFrame) -> pl.DataFrame:
    """The scores, with `with tools` or `no tools` behind a policy that was evaluated in both ways on a split."""
    tools = predictions.select("evaluation_id", "tools").unique("evaluation_id")
    known = scores.join(tools, on="evaluation_id", how="left", maintain_order="left")
    how = (
        pl.when(pl.col("tools") == "none")
        .then(pl.lit(" no tools"))
        .when(pl.col("tools") == "all")
        .then(pl.lit(" with tools"))
        .otherwise(pl.format(" with {}", "tools"))
    )
    in_several_ways = pl.col("tools").drop_nulls().n_unique().over("split", "policy") > 1
    named_policy = pl.when(in_several_ways).then(pl.concat_str("policy", how, ignore_nulls=True)).otherwise("policy")
    return known.with_columns(named_policy.alias("policy")).drop("tools")


def stable_seed(*parts: object) -> int:
    """A seed that follows from the parts: the same on every machine and in every run, within 31 bits."""
    text = json.dumps([str(part) for part in parts]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn."""

    temperature: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None

    def options(self) -> dict[str, Any]:
        """The options of a request."""
        return {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}


class SingleAgent:
    """One model that sees the pictures, thinks, and calls the tools itself."""

    def __init__(self, chat: Chat, role: str, sampling: Sampling | None = None) -> None:
        self._chat, self._role, self._sampling = chat, role, sampling or Sampling()

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> ChatReply:
        return await self._chat.complete(self._role, messages, tools=tools, **self._sampling.options())


@dataclass(frozen=True)
class Attempt:
    """What was said, how, and how long it took."""

    text: str
    trajectory: Trajectory
    seconds: float

    @property
    def tool_pattern(self) -> str:
        """The tools used, each once, in the order of first use; `none` without any."""
        return " > ".join(dict.fromkeys(call.name for call in self.trajectory.calls)) or "none"

    def columns(self) -> dict[str, Any]:
        """What tables of attempts and predictions keep of it."""
        calls, usage = self.trajectory.calls, self.trajectory.usage
        return {
            "answer": self.text,
            "end_reason": self.trajectory.end_reason,
            "tool_calls": len(calls),
            "tool_successes": sum(call.executed for call in calls),
            "tool_pattern": self.tool_pattern,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.cost_usd,
            "seconds": round(self.seconds, 3),
        }


async def run_attempt(
    chat: Chat, role: str, picture: Picture, prompt: Prompt, tools: Toolbox, **options: Any
) -> Attempt:
    """The attempt. A service that fails raises: an outage says nothing about the policy."""

    async def ask(messages: list[Message], offered: list[dict[str, Any]] | None) -> ChatReply:
        return await chat.complete(role, messages, tools=offered, **options)

    environment = Environment(picture, tools, prompt, stop_at_outage=True)
    started = time.monotonic()
    trajectory = await run_agent(environment, ask)
    if trajectory.end_reason == TOOL_OUTAGE:
        raise ServiceError("tools", "outage", f"a tool's service did not answer: {trajectory.outage}", retryable=True)
    text = trajectory.final_text or next(
        (str(m["content"]) for m in reversed(trajectory.messages) if m["role"] == "assistant"), ""
    )
    return Attempt(text, trajectory, time.monotonic() - started)
