"""Calls to models that a step would make where it was never measured: how many, by which role, of how many tokens."""

from collections.abc import Iterator
from typing import Any

from schemas.config import Config
from schemas.paper_tables import PaperSizes
from tasks.difficulty.attempts import roles as difficulty_roles
from tasks.recipes.recipe import RECIPES, prompt_with
from tasks.recipes.rewards import reward_roles

# Tokens of a call that was never measured (docs/models.md): words of the question, and words of the answer. A model
# that sees is also sent the picture.
PIXELS_A_TOKEN = 28 * 28  # Qwen2.5-VL's; others count fewer tokens for a picture of this size
ASSUMED = {
    "curate.judge": (900, 250),
    "curate.tiers": (300, 300),
    "synthesize": (1500, 500),
    "difficulty.attempts": (500, 400),
    "train.grpo": (600, 100),  # a reward's question about an answer
    "train.swarm_rounds": (1000, 300),
    "evaluate.answers": (1500, 300),
    "evaluate.scaling": (1500, 300),
    "evaluate.swarm": (3000, 300),
}
PLANNER = (4000, 300)  # SpotAgent's Tool-Call agent reads and writes no picture
TURNS = 5  # replies of an agent with tools, of 7 or 8 at most
SWARM_CALLS = 40  # of one agent: smileGeo's Table 2 prints 725 k tokens a picture for the swarm and its baselines
ROUND_CALLS = 2  # of one agent in a round of learning: half of them answer, are reviewed by two and sum up


def at_most(count: int, limit: int | None) -> int:
    """As many as there are, or the limit."""
    return count if limit is None else min(count, limit)


def rollouts_of(config: Config, sizes: PaperSizes) -> int:
    """Rollouts of GRPO."""
    grpo = config.train.grpo
    pictures = sizes.learnable or sizes.train if grpo.by_pass_at_k else sizes.train
    return round(at_most(pictures, grpo.max_pictures) * grpo.group_size * grpo.epochs)


def calls_of_items(
    config: Config, step: str, settings: Any, items: int
) -> Iterator[tuple[str, float, tuple[float, float]]]:
    """(role, calls, assumed tokens of one) of so many items of a step, which are pictures once or several times."""
    times = 1
    if step == "difficulty.attempts":
        times = settings.k
    elif step == "evaluate.answers":
        times = len(settings.policies) + settings.trained
    elif step == "evaluate.scaling":
        times = len(settings.scaling.policies)
    pictures = -(-items // max(1, times))
    sizes = PaperSizes(train=pictures, benchmark=0 if step.startswith("curate.") else pictures)
    for role, _, calls, tokens in assumed_calls(step, settings, config, sizes):
        yield role, calls, tokens


def assumed_calls(
    step: str, settings: Any, config: Config, sizes: PaperSizes
) -> Iterator[tuple[str, int, float, tuple[float, float]]]:
    """(role, pictures, calls, assumed tokens of one) of a step."""
    text, answer = ASSUMED.get(step, (1500, 500))
    seen = (text + getattr(settings, "view_max_pixels", 2_000_000) / PIXELS_A_TOKEN, answer)
    if step in ("curate.judge", "curate.tiers"):
        is_asked = step != "curate.judge" or settings.pictures != "none"
        pictures = sizes.train + sizes.benchmark if is_asked else 0
        for role in settings.models:
            yield role, pictures, pictures, seen
    elif step == "synthesize":
        recipe = RECIPES[settings.recipe]
        pictures = at_most(sizes.train, settings.max_images)
        writers = recipe.writer.roles(settings) if recipe.writer and not settings.single_agent else (settings.agent,)
        for role in dict.fromkeys(writers):
            is_planner = role == settings.planner and settings.planner != settings.observer
            calls = TURNS if is_planner else 2 if len(writers) > 1 else 3 if recipe.prompt.tools else 1
            yield role, pictures, pictures * settings.samples * calls, PLANNER if is_planner else seen
    elif step == "difficulty.attempts":
        pictures = at_most(sizes.train, settings.max_images)
        turns = TURNS if prompt_with(settings.agent_recipe, settings.tools).tools else 1
        own, *rewards = difficulty_roles(settings)
        yield own, pictures, pictures * settings.k * turns, seen
        for role in rewards:
            yield role, pictures, pictures * settings.k, (text, answer)
    elif step == "train.grpo":
        rollouts = rollouts_of(config, sizes)
        for role in reward_roles(settings.recipe, settings.grpo.reward):
            yield role, round(rollouts / settings.grpo.group_size), rollouts, (text, answer)
    elif step == "train.swarm_rounds":
        pictures = at_most(sizes.train, settings.swarm.learning.max_images)
        calls = pictures * settings.swarm.learning.rounds * ROUND_CALLS
        for role, _ in settings.swarm.cast:
            yield role, pictures, calls, seen
    elif step.startswith("evaluate."):
        pictures = at_most(sizes.benchmark, settings.max_images)
        turns = TURNS if prompt_with(settings.agent_recipe, settings.tools).tools else 1
        if step == "evaluate.answers":
            trained = ["trained"] if settings.trained else []
            for role in (*settings.policies, *trained):
                yield ("trained" if role in config.train.phases else role), pictures, pictures * turns, seen
            if settings.verifier:
                yield settings.verifier, pictures, pictures * len([*settings.policies, *trained]), (400, 50)
        elif step == "evaluate.scaling" and settings.scaling.policies:
            scaling = settings.scaling
            for role in scaling.policies:
                yield ("trained" if role in config.train.phases else role), pictures, pictures * turns * scaling.n, seen
            yield scaling.verifier, pictures, pictures * len(scaling.policies), (seen[0] + 3000 * scaling.n, 500)
        elif step == "evaluate.swarm":
            for role, _ in settings.swarm.cast:
                yield role, pictures, pictures * SWARM_CALLS, (text, answer)
