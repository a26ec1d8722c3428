"""`--dry-run`: what a stage or a whole recipe would cost, and what fits on the GPUs, without doing any of it."""

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from flows.cli.assumed import PIXELS_A_TOKEN, TURNS, assumed_calls, at_most, calls_of_items, rollouts_of
from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.cli.progress import duration
from flows.offered import refuse_equal_agents
from flows.order import segments, services_of, steps_of
from flows.paper_numbers import NumberPair, compared
from flows.session import Session, check_before
from schemas.config import Config, section_of
from schemas.describe import settings_of
from schemas.errors import GeofixError
from schemas.messages import Usage, money
from schemas.paper_tables import PaperSizes, load_paper, papers
from schemas.settings.models import TRAINED
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.plan.report import COLUMNS as PLAN_COLUMNS
from tasks.plan.report import write_report
from tasks.plan.stage import STAGE as PLAN
from tasks.recipes.recipe import RECIPES, prompt_with, rollout_prompt
from tasks.runtime.calls import spent_usd
from tasks.runtime.estimate import (
    ModelCost,
    StepEstimate,
    estimate,
    history,
    least_hours,
    limits,
    model_cost,
    tokens_before,
)
from tasks.runtime.on_ray.placement import Wanted, nodes_text, place
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import Stage, open_inputs
from tasks.services import connect
from tasks.services.connections import Models
from tasks.train.fitting import forecast
from tasks.train.memory import GIB, Gpu, fit_text, gpus, named_gpu
from tasks.train.opening import base_folder, require_base, training_path
from tasks.train.schedule import steps_of as training_steps

REFUSED = 1


def dry_run(call: Call, stage: str) -> int:
    """Print what is pending in each step of a stage, and what it would cost; no service is queried."""
    config = call.options().resolve()
    check_before(config, [stage])
    lake = existing_lake(call, read_only=True)
    if stage == "collect" and lake.read("places", columns=["place_id"]).is_empty():
        raise GeofixError(f"no places are planned in lake '{lake.uri}': run `geofix plan` first")
    session, declared = Session(config, lake), steps_of(stage)
    if any(step.snapshot for step in declared):
        session.snapshot = approved_snapshot(lake, call.snapshot)
    context = session.context(config, services_of(config, [stage]), session.ready, stages=[stage])
    settings = {step.name: section_of(config, step.section or stage) for step in declared}
    steps = estimate(declared, settings, context, partial(calls_of_items, config))
    requests = sum((Counter(step.requests) for step in steps), Counter[str]())
    budgets, spent, budget = limits(requests, context.connections), spent_usd(lake), config.models.budget_usd
    total = sum((step.usage for step in steps), start=Usage())
    sums = {
        "requests": requests.total(),
        "bytes": sum(sum(step.bytes.values()) for step in steps),
        "calls": sum(step.calls for step in steps),
        "seconds": sum(step.seconds for step in steps),
    }
    if call.as_json:
        limited = [asdict(limit) | {"minutes": limit.minutes, "days": limit.days} for limit in budgets]
        rows = [step.to_dict() for step in steps]
        money_of = {"spent_usd": spent, "budget_usd": budget}
        print_json({"stages": rows, "total": asdict(total) | sums, "budgets": limited, **money_of})
        return DONE
    console = _console()
    columns: dict[str, Callable[[StepEstimate], str]] = {"step": lambda s: s.stage, "pending": lambda s: f"{s.items:,}"}
    if sums["requests"]:
        columns["requests"] = lambda s: f"{sum(s.requests.values()):,.0f}"
        columns["bytes"] = lambda s: decimal(int(sum(s.bytes.values())))
    if sums["calls"]:
        columns["calls"] = lambda s: f"{s.calls:,.0f}"
        columns["tokens in"] = lambda s: f"{s.usage.prompt_tokens:,}"
        columns["tokens out"] = lambda s: f"{s.usage.completion_tokens:,}"
        columns["money"] = lambda s: money(s.usage.cost_usd)
    columns["time"] = lambda s: duration(s.seconds)
    console.print(_table(columns, [[cell(step) for cell in columns.values()] for step in steps], ("step",)))
    for step in steps:
        basis = f"as {step.measured:,} items before" if step.measured else "a default, for it was never measured here"
        for note in (basis if step.items else "nothing to do", *step.notes):
            console.print(f"  {step.stage}: {note}")
    for limit in budgets:
        named = f"{limit.requests:,.0f} requests ({', '.join(limit.kinds)})"
        if limit.per_minute:
            console.print(f"{named} at {limit.per_minute:,.0f} a minute take {duration(60 * limit.minutes)} at least.")
        else:
            more = f"; that takes {limit.days} days, run again after each midnight UTC" if limit.days > 1 else ""
            console.print(f"{named} of {limit.per_day:,} a day{more}.")
    if sums["calls"]:
        console.print(f"Spent on this lake so far: {money(spent)}; this run: {money(total.cost_usd)}.")
        if total.cost_usd is None:
            console.print("A price is not known: set models.roles.<role>.price to see the money.")
        elif budget is not None:
            enough = "is enough" if spent + total.cost_usd <= budget else "is not enough: the run would stop before it"
            console.print(f"The budget of {money(budget)} {enough}.")
    console.print("No service was asked and nothing was written.")
    return DONE


def _console() -> Console:
    """Wider than most terminals: a line that wraps can be read, a figure that is cut cannot."""
    return Console(highlight=False, soft_wrap=True, width=max(Console().width, 200))


def _table(columns: Iterable[str], rows: Iterable[Sequence[str]], texts: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def cluster_of(spread: SpreadSettings) -> tuple[dict[str, dict[str, float]], list[Gpu]]:
    """The nodes that training would run on, and their GPUs: the cluster's, or this machine's where none is named."""
    if spread.address is None:
        seen = gpus()
        return {"this machine": {"CPU": float(os.cpu_count() or 1), "GPU": float(len(seen))}}, seen
    if spread.submits_jobs:
        raise GeofixError("spread.address: --dry-run asks the cluster's nodes by host:port or ray://host:port")
    from tasks.runtime.on_ray.start import start_ray
    from tasks.runtime.on_ray.watch import named_nodes, on_gpu_nodes

    start_ray(spread)
    return named_nodes(), [Gpu(*gpu) for gpu in on_gpu_nodes(described_gpus)]


def described_gpus() -> list[tuple[int, str, float, float]]:
    """The GPUs of the node that this runs on, as plain values."""
    return [(gpu.index, gpu.name, gpu.total, gpu.free) for gpu in gpus()]


def training_plan(config: Config, nodes: dict[str, dict[str, float]]) -> dict[str, dict[str, int]]:
    """Which nodes the training workers go to, and the pools that answer while they train."""
    from flows.pools import asked_pools  # with these comes Ray
    from tasks.train.on_workers import workers_wanted

    pool_names = sorted(asked_pools(config, ["train"]))
    pools = [(name, config.models.pools[name]) for name in pool_names]
    beside = [
        Wanted(
            f"models.pools.{name}", pool.tensor_parallel * pool.replicas[0], pool.bundle, "lower its replicas or gpus"
        )
        for name, pool in pools
    ]
    return place([workers_wanted(config.train, nodes), *beside], nodes)


def plan_dry_run(call: Call) -> int:
    """Draw the plan without writing it, and show it: quotas and the maps."""
    config = call.options().resolve()
    check_before(config, ["plan"])
    lake = Lake(config.lake, read_only=True)
    inputs, settings = open_inputs(PLAN, lake), config.plan
    places, refusals = PLAN.compute(inputs, settings)
    known = lake.read("places", columns=["place_id"])
    new = places.filter(~pl.col("id").is_in(known["place_id"].implode())).height
    shown = places.with_columns(
        pl.lit(None, pl.String).alias(name) for name in PLAN_COLUMNS if name not in places.columns
    )
    folder = lake.blobs.local("reports/plan-dry-run")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a lake that can only be read
        folder = Path(tempfile.mkdtemp(prefix="geofix-plan-"))
    made = write_report(shown.select(PLAN_COLUMNS), settings, folder)
    if call.as_json:
        counts = {"places": places.height, "new": new, "refused": refusals.height}
        print_json({**counts, "files": {name: str(path) for name, path in made.files.items()}})
        return DONE
    print(made.markdown)
    print(
        f"{places.height:,} places, {new:,} of them new, {refusals.height:,} slots without one. No table was written."
    )
    return DONE


def train_dry_run(call: Call, size: str | None = None) -> int:
    """Print samples, steps, GPU memory and what `auto` stands for in each phase; exit code 1 where one does not fit.

    `size` is the memory of a GPU to plan for, in place of those that are there.
    """
    config = call.options().resolve()
    check_before(config, ["train"])
    lake = existing_lake(call, read_only=True)
    samples = lake.read("samples")
    if samples.is_empty():
        raise GeofixError(
            f"lake '{lake.uri}' has no training samples yet: run `geofix run --to difficulty` and the first train first"
        )
    if size:
        seen = [named_gpu(size)]
        nodes = {seen[0].name: {"CPU": float(os.cpu_count() or 1), "GPU": 1.0}}
        plan = {}
    else:
        nodes, seen = cluster_of(config.spread)
        plan = training_plan(config, nodes)
    gpu = max(seen, key=lambda gpu_seen: gpu_seen.total, default=None)
    forecasts = forecast(samples, config.train, gpu)
    fits = [gpu is None or planned.fits(gpu) for planned in forecasts]
    if call.as_json:
        phases = [
            {
                "training_stage": planned.phase,
                "samples": planned.samples,
                "steps": planned.steps,
                "longest_text_tokens": planned.text_tokens,
                "bytes": {name: round(size) for name, size in planned.memory.to_dict().items()},
                "fits": None if gpu is None else fit,
                "settings": fit_text(planned.settings, planned.phase),
                "advice": None if fit else planned.advice,
            }
            for planned, fit in zip(forecasts, fits, strict=True)
        ]
        print_json(
            {"stages": phases, "gpus": [asdict(gpu_seen) for gpu_seen in seen], "nodes": nodes, "placement": plan}
        )
        return DONE if all(fits) else REFUSED
    console = _console()
    columns = ("phase", "samples", "steps", "weights", "grads", "states", "ref.", "activ.", "cache", "total GiB")
    sizes = [(f"{size / GIB:,.1f}" for size in planned.memory.to_dict().values()) for planned in forecasts]
    rows = [
        (planned.phase, f"{planned.samples:,}", f"{planned.steps:,}", *size)
        for planned, size in zip(forecasts, sizes, strict=True)
    ]
    console.print(_table(columns, rows, ("phase",)))
    for device in seen:
        free, total_gib = device.free / GIB, device.total / GIB
        console.print(f"GPU {device.index}: {device.name}, {free:.0f} of {total_gib:.0f} GiB free")
    for name, places in plan.items():
        console.print(f"{name}: " + ", ".join(f"{count} on {node}" for node, count in places.items()))
    if not any(node.get("GPU", 0) >= 1 for node in nodes.values()):
        console.print(f"No GPU in {nodes_text(nodes)}: training would run on the CPU.")
    elif gpu is None:
        console.print("The nodes' GPUs do not say how much memory they have: whether a phase fits is not known.")
    for planned, fit in zip(forecasts, fits, strict=True):
        if gpu is None:
            continue
        taken = f"{planned.wanted(gpu.total) / GIB:.1f} of {gpu.total / GIB:.1f} GiB"
        if fit:
            console.print(f"{planned.phase} fits, {taken}: {fit_text(planned.settings, planned.phase)}")
        else:
            chosen = fit_text(planned.settings, planned.phase)
            console.print(f"{planned.phase} does not fit: it takes {taken} with {chosen}; set {planned.advice}")
        if fit and planned.memory.total > gpu.free:
            console.print(f"{planned.phase} fits GPU {gpu.index} once other processes leave it")
    if config.train.base != "tiny" and training_path(base_folder(config.train.base)) == "plain":
        console.print("train.base has no packed path: it would train by transformers' own forward pass, slower.")
    console.print("Nothing was loaded and nothing written.")
    return DONE if all(fits) else REFUSED


# A whole recipe ----------------------------------------------------------------------------------------------

# docs/train-gpu.md, one H200, Qwen2.5-VL-7B's shape: tokens trained on, and tokens drawn, in a second.
TRAINED_A_SECOND, DRAWN_A_SECOND = 9_000, 4_000
MEASURED_BASE = "Qwen2.5-VL-7B"


def recipe_dry_run(call: Call, stages: Sequence[str]) -> int:
    """Print the paper's numbers beside ours and the cost of a whole recipe; the exit code is 0 whatever it costs.

    Items are the lake's pictures, or those of the paper where the lake has none. Tokens of a call are those of earlier
    calls to the same model, else the assumptions above. Nothing is queried and no key is needed.
    """
    config = call.options().resolve()
    if "train" in stages:
        require_base(config.train)
    refuse_equal_agents(config, stages)
    lake = Lake(config.lake, read_only=True)
    paper = load_paper(config.recipe) if config.recipe in papers() else None
    in_lake, shares = _sizes_of(lake), config.plan.split
    planned = config.plan.places * (config.collect.panoramas + config.collect.photos)
    of_plan = PaperSizes(train=round(planned * shares.train), benchmark=round(planned * shares.benchmark))
    sizes = in_lake or (paper.sizes if paper else None) or of_plan
    models = connect(config.services, {}, (), config.models, ()).chat.models
    steps = list(_recipe_costs(config, stages, lake, sizes, models))
    hours = least_hours([cost for *_, cost in steps], models)
    phases = list(_phases(config, sizes)) if "train" in stages else []
    numbers = compared(paper, config) if paper else []
    tool_calls = _tool_calls(config, sizes, stages)
    as_paper = dataclasses.replace(call, overrides=[*(call.overrides or []), "quality=paper"]).options().resolve()
    changed = [
        setting
        for setting in settings_of(as_paper, config)
        if setting.value != setting.default and setting.name != "quality"
    ]
    prices = [cost.cost_usd for *_, cost in steps]
    known_usd = sum(usd or 0.0 for usd in prices)
    if call.as_json:
        print_json({
            "quality": config.quality, "quality_changes": {setting.name: setting.value for setting in changed},
            "base": config.train.base, "numbers": [asdict(number) for number in numbers], "sizes": sizes.model_dump(),
            "is_of_lake": in_lake is not None, "hours": hours, "tool_calls": tool_calls,
            "steps": [{"step": step, "pictures": count, "cost": asdict(cost)} for step, count, cost in steps],
            "phases": phases, "total": {"cost_usd": None if None in prices else known_usd, "known_usd": known_usd},
        })  # fmt: skip
        return DONE
    console = _console()
    base = f", base {config.train.base}" if config.train.phases else ""
    console.print(
        f"recipe {config.recipe}, profile {config.profile}, quality {config.quality}{base}, lake {config.lake}"
    )
    for setting in changed:
        console.print(f"  quality ours: {setting.name} {setting.default} becomes {setting.value}", markup=False)
    _show_numbers(console, config, numbers)
    origin = "of the lake" if in_lake else "of the paper's experiments, for the lake has none yet"
    console.print(f"\n{sizes.train:,} pictures to train on and {sizes.benchmark:,} to evaluate on: {origin}.")
    columns = ("step", "pictures", "role", "model", "calls", "tokens in", "tokens out", "money", "tokens are")
    rows = [
        (
            step, f"{count:,}", cost.role, f"{cost.model or 'the one that is trained'} ({cost.endpoint})",
            f"{cost.calls:,.0f}", f"{cost.prompt_tokens:,.0f}", f"{cost.completion_tokens:,.0f}",
            "own GPU" if cost.endpoint == TRAINED else _dollars(cost.cost_usd),
            f"of {cost.measured:,} calls" if cost.measured else "assumed",
        )
        for step, count, cost in steps
    ]  # fmt: skip
    console.print(_table(columns, rows, ("step", "role", "model")))
    for phase in phases:
        spent = phase["gpu_hours"]
        known = "its hours were not measured" if spent is None else f"{spent:,.0f} h of one H200"
        console.print(f"train.{phase['phase']}: {phase['samples']:,} samples, {phase['steps']:,} steps, {known}")
    if tool_calls:
        console.print(f"tools: {tool_calls:,} calls at most, whose prices are not known here")
    for name, least in hours.items():
        known = "no limit is set, so its hours are not known" if least is None else f"{least:,.0f} h at least"
        console.print(f"endpoint {name}: {known}")
    unpriced = sorted({str(cost.model) for *_, cost in steps if cost.cost_usd is None})
    unknown = f", and what {', '.join(unpriced)} cost, whose price is unknown" if unpriced else ""
    console.print(f"An estimate: {_dollars(known_usd)}{unknown}.")
    if any(step == "curate.judge" for step, *_ in steps):
        console.print("Pictures of published sets (`geofix ingest` of MP16-Pro, Im2GPS3k …) are not judged.")
    console.print("What is finished is not taken off: `geofix STAGE --dry-run`. No service was asked, nothing written.")
    return DONE


def _recipe_costs(
    config: Config, stages: Sequence[str], lake: Lake, sizes: PaperSizes, models: Models
) -> Iterator[tuple[str, int, ModelCost]]:
    """(step, pictures, cost) for each model that a step asks."""
    for stage, declared in segments(config, stages):
        for step in declared:
            if isinstance(step, Stage) and step.roles is not None:
                planned = list(assumed_calls(step.name, section_of(config, step.section or stage), config, sizes))
                before = history(lake, step.name, models, [role for role, *_ in planned])
                for role, pictures, calls, tokens in planned:
                    known, count = tokens_before(before, role, models)
                    yield step.name, pictures, model_cost(models, role, calls, known if count else tokens, count)


def _sizes_of(lake: Lake) -> PaperSizes | None:
    """The lake's pictures; None where it has no labels yet."""
    counts = dict(lake.read("labels", columns=["split"]).group_by("split").len().iter_rows())
    if not counts:
        return None
    kept = lake.read("regimes", columns=["kept"]).filter(pl.col("kept")).height
    return PaperSizes(train=counts.get("train", 0), benchmark=counts.get("benchmark", 0), learnable=kept or None)


def _tool_calls(config: Config, sizes: PaperSizes, stages: Sequence[str]) -> int:
    calls = 0
    if "synthesize" in stages and "cold_start" in config.train.phases:
        prompt = RECIPES[config.synthesize.recipe].prompt
        calls += at_most(sizes.train, config.synthesize.max_images) * (prompt.budgets.calls if prompt.tools else 0)
    if "train" in stages and "grpo" in config.train.phases:
        prompt = rollout_prompt(config.train.recipe, config.train.grpo.max_turns)
        calls += rollouts_of(config, sizes) * (prompt.budgets.calls if prompt.tools else 0)
    if "evaluate" in stages:
        prompt = prompt_with(config.evaluate.agent_recipe, config.evaluate.tools)
        policies = len(config.evaluate.policies) + config.evaluate.trained
        scaled = config.evaluate.scaling.n * len(config.evaluate.scaling.policies)
        calls += sizes.benchmark * (policies + scaled) * (prompt.budgets.calls if prompt.tools else 0)
    return calls


def _phases(config: Config, sizes: PaperSizes) -> Iterator[dict[str, Any]]:
    """Samples, steps and, where this base was measured, hours of one GPU."""
    train = config.train
    picture = train.image_max_pixels / PIXELS_A_TOKEN
    is_measured = MEASURED_BASE in train.base
    for phase in train.phases:
        if phase == "grpo":
            drawn = rollouts_of(config, sizes)
            pictures = round(drawn / train.grpo.group_size / train.grpo.epochs)
            steps = training_steps(pictures, train.grpo.prompts_per_step, train.grpo.epochs, train.grpo.max_steps)
            answer = 500 * (TURNS if train.grpo.max_turns else 1)
            passes = 3 if train.grpo.kl else 2  # old and reference policy forwards are a third of a step each
            tokens = drawn * answer + drawn / train.grpo.group_size * (picture + 500)
            seconds = drawn * answer / DRAWN_A_SECOND + tokens * (1 + (passes - 1) / 3) / TRAINED_A_SECOND
        else:
            tuner = train.sft if phase == "sft" else train.cold_start
            pictures = sizes.train
            if phase == "cold_start":
                pictures = sizes.trajectories or at_most(sizes.train, config.synthesize.max_images)
            steps = training_steps(pictures, tuner.batch_size, tuner.epochs, tuner.max_steps)
            length = picture + (500 if phase == "sft" else 5000)
            seconds = pictures * tuner.epochs * length / TRAINED_A_SECOND
        hours = seconds / 3600 if is_measured else None
        yield {"phase": phase, "samples": pictures, "steps": steps, "gpu_hours": hours}


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
    columns = ("", "in the paper", "paper", "ours", "where")
    rows = [
        (
            number.of,
            number.name,
            _plain(number.printed),
            f"{_plain(number.ours)}{'' if number.is_same else ' *'}",
            number.where,
        )
        for number in numbers
    ]
    console.print(_table(columns, rows, columns))
    others = [number for number in numbers if not number.is_same]
    explained = [number for number in others if number.differs]
    named = f", and {len(explained)} that docs/papers.md names" if explained else ""
    console.print(f"{len(numbers)} numbers, {len(others) - len(explained)} different{named}.")
    for number in others:
        console.print(f"  {number.name}: {number.differs or f'set by {config.profile}, a file, --set or quality'}")
