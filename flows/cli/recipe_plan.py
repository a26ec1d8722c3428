"""`geofix run --dry-run`: the paper's numbers beside ours, and what the whole recipe costs, before anything starts.

Items are the lake's pictures, or those of the paper where the lake has none. Tokens of a call are those of earlier
calls to the same model, else the assumptions below. Nothing is asked and no key is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from flows.cli.command import DONE, Call
from flows.cli.printing import print_json
from flows.offered import refuse_equal_agents
from flows.order import segments
from flows.paper_numbers import NumberPair, compared
from schemas.config import Config, section_of
from schemas.describe import Setting, settings_of
from schemas.paper_tables import PaperSizes, load_paper, papers
from tasks.difficulty.attempts import roles as difficulty_roles
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES, prompt_with, rollout_prompt
from tasks.recipes.rewards import reward_roles
from tasks.runtime.model_costs import ModelCost, history, least_hours, model_cost, tokens_before
from tasks.runtime.stage import Stage
from tasks.services import connect
from tasks.train.opening import require_base
from tasks.train.schedule import steps_of

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
# docs/train-gpu.md, one H200, Qwen2.5-VL-7B's shape: tokens trained on, and tokens drawn, in a second.
TRAINED_A_SECOND, DRAWN_A_SECOND = 9_000, 4_000
MEASURED_BASE = "Qwen2.5-VL-7B"


@dataclass(frozen=True)
class StepPlan:
    """The calls of one step to one model."""

    step: str
    pictures: int
    cost: ModelCost


@dataclass(frozen=True)
class PhasePlan:
    """One phase of training."""

    phase: str
    samples: int
    steps: int
    gpu_hours: float | None  # of one H200; None: not measured for this base


@dataclass(frozen=True)
class RecipePlan:
    """Everything that is said before a run."""

    numbers: list[NumberPair]
    sizes: PaperSizes
    is_of_lake: bool
    steps: list[StepPlan]
    phases: list[PhasePlan]
    tool_calls: int  # of trajectories, rollouts and evaluation, at most
    hours: dict[str, float | None]  # by endpoint


def recipe_dry_run(call: Call, stages: Sequence[str]) -> int:
    """Print the plan of these stages; the exit code is 0 whatever it costs."""
    config = call.options().resolve()
    if "train" in stages:
        require_base(config.train)
    refuse_equal_agents(config, stages)
    plan = recipe_plan(config, stages)
    as_paper = replace(call, overrides=[*(call.overrides or []), "quality=paper"]).options().resolve()
    changed = [
        setting
        for setting in settings_of(as_paper, config)
        if setting.value != setting.default and setting.name != "quality"
    ]
    if call.as_json:
        known = [step.cost.cost_usd for step in plan.steps]
        sum_known = sum(cost or 0.0 for cost in known)
        total = {"cost_usd": None if None in known else sum_known, "known_usd": sum_known}
        added = {setting.name: setting.value for setting in changed}
        head = {"quality": config.quality, "quality_changes": added, "base": config.train.base}
        print_json({**asdict(plan), "sizes": plan.sizes.model_dump(), **head, "total": total})
    else:
        _show(config, plan, changed)
    return DONE


def recipe_plan(config: Config, stages: Sequence[str]) -> RecipePlan:
    """What a run of these stages is."""
    lake = Lake(config.lake, read_only=True)
    paper = load_paper(config.recipe) if config.recipe in papers() else None
    in_lake = _sizes_of(lake)
    planned = config.plan.places * (config.collect.panoramas + config.collect.photos)
    shares = config.plan.split
    sizes = in_lake or (paper.sizes if paper else None) or PaperSizes(
        train=round(planned * shares.train), benchmark=round(planned * shares.benchmark)
    )  # fmt: skip
    models = connect(config.services, {}, (), config.models, ()).chat.models
    steps = []
    for stage, declared in segments(config, stages):
        for step in declared:
            if not isinstance(step, Stage) or step.roles is None:
                continue
            settings = section_of(config, step.section or stage)
            planned_calls = list(_calls(step.name, settings, config, sizes))
            before = history(lake, step.name, models, [role for role, *_ in planned_calls])
            for role, pictures, calls, tokens in planned_calls:
                known = tokens_before(before, role, models)
                cost = model_cost(models, role, calls, *(known or (tokens, 0)))
                steps.append(StepPlan(step.name, pictures, cost))
    hours = least_hours([step.cost for step in steps], models)
    numbers = compared(paper, config) if paper else []
    phases = list(_phases(config, sizes)) if "train" in stages else []
    return RecipePlan(numbers, sizes, in_lake is not None, steps, phases, _tool_calls(config, sizes, stages), hours)


def _sizes_of(lake: Lake) -> PaperSizes | None:
    """The lake's pictures; None where it has no labels yet."""
    counts = dict(lake.read("labels", columns=["split"]).group_by("split").len().iter_rows())
    if not counts:
        return None
    kept = lake.read("regimes", columns=["kept"]).filter(pl.col("kept")).height
    return PaperSizes(train=counts.get("train", 0), benchmark=counts.get("benchmark", 0), learnable=kept or None)


def _at_most(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)


def _rollouts(config: Config, sizes: PaperSizes) -> int:
    """Rollouts of GRPO."""
    grpo = config.train.grpo
    pictures = sizes.learnable or sizes.train if grpo.pictures != "all" else sizes.train
    return round(_at_most(pictures, grpo.max_pictures) * grpo.group_size * grpo.epochs)


def _calls(
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
        pictures = _at_most(sizes.train, settings.max_images)
        writers = recipe.writer.roles(settings) if recipe.writer and not settings.single_agent else (settings.agent,)
        for role in dict.fromkeys(writers):
            is_planner = role == settings.planner and settings.planner != settings.observer
            calls = TURNS if is_planner else 2 if len(writers) > 1 else 3 if recipe.prompt.tools else 1
            yield role, pictures, pictures * settings.samples * calls, PLANNER if is_planner else seen
    elif step == "difficulty.attempts":
        pictures = _at_most(sizes.train, settings.max_images)
        turns = TURNS if prompt_with(settings.agent_recipe, settings.tools).tools else 1
        own, *rewards = difficulty_roles(settings)
        yield own, pictures, pictures * settings.k * turns, seen
        for role in rewards:
            yield role, pictures, pictures * settings.k, (text, answer)
    elif step == "train.grpo":
        rollouts = _rollouts(config, sizes)
        for role in reward_roles(settings.recipe, settings.grpo.reward):
            yield role, round(rollouts / settings.grpo.group_size), rollouts, (text, answer)
    elif step == "train.swarm_rounds":
        pictures = _at_most(sizes.train, settings.swarm.learning.max_images)
        calls = pictures * settings.swarm.learning.rounds * ROUND_CALLS
        for role, _ in settings.swarm.cast:
            yield role, pictures, calls, seen
    elif step.startswith("evaluate."):
        pictures = _at_most(sizes.benchmark, settings.max_images)
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


def _tool_calls(config: Config, sizes: PaperSizes, stages: Sequence[str]) -> int:
    calls = 0
    if "synthesize" in stages and "cold_start" in config.train.phases:
        prompt = RECIPES[config.synthesize.recipe].prompt
        calls += _at_most(sizes.train, config.synthesize.max_images) * (prompt.budgets.calls if prompt.tools else 0)
    if "train" in stages and "grpo" in config.train.phases:
        prompt = rollout_prompt(config.train.recipe, config.train.grpo.max_turns)
        calls += _rollouts(config, sizes) * (prompt.budgets.calls if prompt.tools else 0)
    if "evaluate" in stages:
        prompt = prompt_with(config.evaluate.agent_recipe, config.evaluate.tools)
        policies = len(config.evaluate.policies) + config.evaluate.trained
        scaled = config.evaluate.scaling.n * len(config.evaluate.scaling.policies)
        calls += sizes.benchmark * (policies + scaled) * (prompt.budgets.calls if prompt.tools else 0)
    return calls


def _phases(config: Config, sizes: PaperSizes) -> Iterator[PhasePlan]:
    """Samples, steps and, where this base was measured, hours of one GPU."""
    train = config.train
    picture = train.image_max_pixels / PIXELS_A_TOKEN
    is_measured = MEASURED_BASE in train.base
    for phase in train.phases:
        if phase == "grpo":
            drawn = _rollouts(config, sizes)
            pictures = round(drawn / train.grpo.group_size / train.grpo.epochs)
            steps = steps_of(pictures, train.grpo.prompts_per_step, train.grpo.epochs, train.grpo.max_steps)
            answer = 500 * (TURNS if train.grpo.max_turns else 1)
            passes = 3 if train.grpo.kl else 2  # old and reference policy forwards are a third of a step each
            tokens = drawn * answer + drawn / train.grpo.group_size * (picture + 500)
            seconds = drawn * answer / DRAWN_A_SECOND + tokens * (1 + (passes - 1) / 3) / TRAINED_A_SECOND
        else:
            tuner = train.sft if phase == "sft" else train.cold_start
            pictures = sizes.train
            if phase == "cold_start":
                pictures = sizes.trajectories or _at_most(sizes.train, config.synthesize.max_images)
            steps = steps_of(pictures, tuner.batch_size, tuner.epochs, tuner.max_steps)
            length = picture + (500 if phase == "sft" else 5000)
            seconds = pictures * tuner.epochs * length / TRAINED_A_SECOND
        yield PhasePlan(phase, pictures, steps, seconds / 3600 if is_measured else None)


def _show(config: Config, plan: RecipePlan, changed: Sequence[Setting]) -> None:
    # Wider than most terminals: a line that wraps can be read, a figure that is cut cannot.
    console = Console(highlight=False, soft_wrap=True, width=max(Console().width, 200))
    base = f", base {config.train.base}" if config.train.phases else ""
    console.print(
        f"recipe {config.recipe}, profile {config.profile}, quality {config.quality}{base}, lake {config.lake}"
    )
    for setting in changed:
        console.print(f"  quality ours: {setting.name} {setting.default} becomes {setting.value}", markup=False)
    _show_numbers(console, config, plan.numbers)
    origin = "of the lake" if plan.is_of_lake else "of the paper's experiments, for the lake has none yet"
    console.print(f"\n{plan.sizes.train:,} pictures to train on and {plan.sizes.benchmark:,} to evaluate on: {origin}.")
    table = Table(box=None, header_style="bold")
    for column in ("step", "pictures", "role", "model", "calls", "tokens in", "tokens out", "money", "tokens are"):
        table.add_column(column, justify="left" if column in ("step", "role", "model") else "right", no_wrap=True)
    for step in plan.steps:
        cost = step.cost
        known = f"of {cost.measured:,} calls" if cost.measured else "assumed"
        table.add_row(
            step.step, f"{step.pictures:,}", cost.role, f"{cost.model or 'the one that is trained'} ({cost.endpoint})",
            f"{cost.calls:,.0f}", f"{cost.prompt_tokens:,.0f}", f"{cost.completion_tokens:,.0f}",
            "own GPU" if cost.endpoint == "trained" else _dollars(cost.cost_usd), known,
        )  # fmt: skip
    console.print(table)
    for phase in plan.phases:
        hours = "its hours were not measured" if phase.gpu_hours is None else f"{phase.gpu_hours:,.0f} h of one H200"
        console.print(f"train.{phase.phase}: {phase.samples:,} samples, {phase.steps:,} steps, {hours}")
    if plan.tool_calls:
        console.print(f"tools: {plan.tool_calls:,} calls at most, whose prices are not known here")
    for name, least in plan.hours.items():
        known_hours = "no limit is set, so its hours are not known" if least is None else f"{least:,.0f} h at least"
        console.print(f"endpoint {name}: {known_hours}")
    costs = [step.cost.cost_usd for step in plan.steps]
    console.print(f"An estimate: {_dollars(sum(cost or 0.0 for cost in costs))}", end="")
    unknown = sorted({str(step.cost.model) for step in plan.steps if step.cost.cost_usd is None})
    console.print(f", and what {', '.join(unknown)} cost, whose price is unknown." if unknown else ".")
    if any(step.step == "curate.judge" for step in plan.steps):
        console.print("Pictures of published sets (`geofix ingest` of MP16-Pro, Im2GPS3k …) are not judged.")
    console.print("What is finished is not taken off: `geofix STAGE --dry-run`. No service was asked, nothing written.")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(part) for part in value)
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def _dollars(usd: float | None) -> str:
    return "price unknown" if usd is None else f"${usd:,.0f}" if usd >= 100 else f"${usd:,.2f}"


def _show_numbers(console: Console, config: Config, numbers: Sequence[NumberPair]) -> None:
    if not numbers:
        console.print("No paper's numbers are known of this recipe.")
        return
    table = Table(box=None, header_style="bold")
    for column in ("", "in the paper", "paper", "ours", "where"):
        table.add_column(column, no_wrap=True)
    for number in numbers:
        mark = "" if number.is_same else " *"
        table.add_row(number.of, number.name, _plain(number.printed), f"{_plain(number.ours)}{mark}", number.where)
    console.print(table)
    others = [number for number in numbers if not number.is_same]
    differing = [other for other in others if other.differs]
    named = f", and {len(differing)} that docs/papers.md names" if differing else ""
    console.print(f"{len(numbers)} numbers, {len(others) - len(differing)} different{named}.")
    for other in others:
        console.print(f"  {other.name}: {other.differs or f'set by {config.profile}, a file, --set or quality'}")
