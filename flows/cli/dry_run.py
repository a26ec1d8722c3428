"""`--dry-run`: what a stage of the pipeline would cost, and what fits on the GPUs, without doing any of it."""

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from flows.cli.command import DONE, Call
from flows.cli.lake import existing_lake
from flows.cli.printing import print_json
from flows.cli.progress import duration
from flows.order import services_of, steps_of
from flows.session import Session, check_before
from schemas.config import Config, section_of
from schemas.errors import GeofixError
from schemas.messages import Usage, money
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.plan.report import COLUMNS as PLAN_COLUMNS
from tasks.plan.report import write_report
from tasks.plan.stage import STAGE as PLAN
from tasks.runtime.calls import spent_usd
from tasks.runtime.estimate import Limit, StepEstimate, estimate, limits
from tasks.runtime.placement import Wanted, nodes_text, place
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import open_inputs
from tasks.train.fitting import Forecast, forecast
from tasks.train.memory import GIB, Gpu, fit_text, gpus, named_gpu
from tasks.train.opening import base_folder, training_path

REFUSED = 1
TABLE_WIDTH = 110


def dry_run(call: Call, stage: str) -> int:
    """Print what is pending in each step of a stage, and what it would cost; no service is asked."""
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
    steps = estimate(declared, settings, context)
    requests = Counter[str]()
    for step in steps:
        requests.update(step.requests)
    budgets, spent, budget = limits(requests, context.connections), spent_usd(lake), config.models.budget_usd
    if call.as_json:
        limited = [asdict(budget) | {"minutes": budget.minutes, "days": budget.days} for budget in budgets]
        money_of = {"spent_usd": spent, "budget_usd": budget}
        total = asdict(_total(steps)) | _sums(steps)
        print_json({"stages": [asdict(step) for step in steps], "total": total, "budgets": limited, **money_of})
    else:
        _show(steps, budgets, spent, budget)
    return DONE


def _sums(steps: Sequence[StepEstimate]) -> dict[str, float]:
    return {
        "requests": sum(sum(step.requests.values()) for step in steps),
        "bytes": sum(sum(step.bytes.values()) for step in steps),
        "calls": sum(step.calls for step in steps),
        "seconds": sum(step.seconds for step in steps),
    }


def _total(steps: Sequence[StepEstimate]) -> Usage:
    usages = (Usage(round(step.prompt_tokens), round(step.completion_tokens), step.cost_usd) for step in steps)
    return sum(usages, start=Usage())


def _show(steps: Sequence[StepEstimate], budgets: Sequence[Limit], spent: float, budget: float | None) -> None:
    # Wider than a narrow terminal: a line that wraps can be read, a figure that is cut cannot.
    console = Console(highlight=False, soft_wrap=True, width=max(Console().width, TABLE_WIDTH))
    total, sums = _total(steps), _sums(steps)
    columns: list[tuple[str, Any]] = [("step", lambda one: one.stage), ("pending", lambda one: f"{one.items:,}")]
    if sums["requests"]:
        columns.append(("requests", lambda one: f"{sum(one.requests.values()):,.0f}"))
        columns.append(("bytes", lambda one: _size(sum(one.bytes.values()))))
    if sums["calls"]:
        columns.append(("calls", lambda one: f"{one.calls:,.0f}"))
        columns.append(("tokens in", lambda one: f"{one.prompt_tokens:,.0f}"))
        columns.append(("tokens out", lambda one: f"{one.completion_tokens:,.0f}"))
        columns.append(("money", lambda one: money(one.cost_usd)))
    columns.append(("time", lambda one: duration(one.seconds)))
    table = Table(box=None, header_style="bold")
    for name, _ in columns:
        table.add_column(name, justify="left" if name == "step" else "right", no_wrap=True)
    for step in steps:
        table.add_row(*(cell(step) for _, cell in columns))
    console.print(table)
    for step in steps:
        for note in (_basis(step), *step.notes):
            console.print(f"  {step.stage}: {note}")
    for limit in budgets:
        named = f"{limit.requests:,.0f} requests ({', '.join(limit.kinds)})"
        if limit.per_minute:
            console.print(f"{named} at {limit.per_minute:,.0f} a minute take {duration(60 * limit.minutes)} at least.")
        else:
            more = f"; that takes {limit.days} days, run again after each midnight UTC" if limit.days > 1 else ""
            console.print(f"{named} of {limit.per_day:,} a day{more}.")
    if not any(step.items for step in steps):
        console.print("Nothing to do: everything is finished, and nothing is due to be looked at again.")
    if sums["calls"]:
        console.print(f"Spent on this lake so far: {money(spent)}; this run: {money(total.cost_usd)}.")
        if total.cost_usd is None:
            console.print("A price is not known: set models.roles.<role>.price to see the money.")
        elif budget is not None:
            enough = "is enough" if spent + total.cost_usd <= budget else "is not enough: the run would stop before it"
            console.print(f"The budget of {money(budget)} {enough}.")
    console.print("No service was asked and nothing was written.")


def _basis(step: StepEstimate) -> str:
    if not step.items:
        return "nothing to do"
    return f"as {step.measured:,} items before" if step.measured else "a default, for it was never measured here"


def _size(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,.0f} B"


def _sizes(one: Forecast) -> dict[str, float]:
    return asdict(one.memory) | {"total": one.memory.total}


def cluster_of(spread: SpreadSettings) -> tuple[dict[str, dict[str, float]], list[Gpu]]:
    """The nodes that training would run on, and their GPUs: the cluster's, or this machine's where none is named."""
    if spread.address is None:
        seen = gpus()
        return {"this machine": {"CPU": float(os.cpu_count() or 1), "GPU": float(len(seen))}}, seen
    if spread.submits_jobs:
        raise GeofixError("spread.address: --dry-run asks the cluster's nodes by host:port or ray://host:port")
    from tasks.runtime.ray_start import start_ray
    from tasks.runtime.ray_watch import named_nodes, on_gpu_nodes

    start_ray(spread)
    return named_nodes(), [Gpu(*gpu) for gpu in on_gpu_nodes(described_gpus)]


def described_gpus() -> list[tuple[int, str, float, float]]:
    """The GPUs of the node that this runs on, as plain values."""
    return [(one.index, one.name, one.total, one.free) for one in gpus()]


def training_plan(config: Config, nodes: dict[str, dict[str, float]]) -> dict[str, dict[str, int]]:
    """Which nodes the training workers go to, and the pools that are asked while they train."""
    from flows.pools import asked_pools  # with these comes Ray
    from tasks.train.on_workers import workers_wanted

    asked = sorted(asked_pools(config, ["train"]))
    pools = [(name, config.models.pools[name]) for name in asked]
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
    gpu = max(seen, key=lambda one: one.total, default=None)
    found = forecast(samples, config.train, gpu)
    fits = [gpu is None or one.fits(gpu) for one in found]
    if call.as_json:
        phases = [
            {
                "training_stage": one.phase,
                "samples": one.samples,
                "steps": one.steps,
                "longest_text_tokens": one.text_tokens,
                "bytes": {name: round(size) for name, size in _sizes(one).items()},
                "fits": None if gpu is None else fit,
                "settings": fit_text(one.settings, one.phase),
                "advice": None if fit else one.advice,
            }
            for one, fit in zip(found, fits, strict=True)
        ]
        print_json({"stages": phases, "gpus": [asdict(one) for one in seen], "nodes": nodes, "placement": plan})
        return DONE if all(fits) else REFUSED
    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for column in ("phase", "samples", "steps", "weights", "grads", "states", "ref.", "activ.", "cache", "total GiB"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for one in found:
        sizes = (f"{size / GIB:,.1f}" for size in _sizes(one).values())
        table.add_row(one.phase, f"{one.samples:,}", f"{one.steps:,}", *sizes)
    console.print(table)
    for device in seen:
        free, whole = device.free / GIB, device.total / GIB
        console.print(f"GPU {device.index}: {device.name}, {free:.0f} of {whole:.0f} GiB free")
    for name, places in plan.items():
        console.print(f"{name}: " + ", ".join(f"{count} on {node}" for node, count in places.items()))
    if not any(node.get("GPU", 0) >= 1 for node in nodes.values()):
        console.print(f"No GPU in {nodes_text(nodes)}: training would run on the CPU.")
    elif gpu is None:
        console.print("The nodes' GPUs do not say how much memory they have: whether a phase fits is not known.")
    for one, fit in zip(found, fits, strict=True):
        if gpu is None:
            continue
        taken = f"{one.wanted(gpu.total) / GIB:.1f} of {gpu.total / GIB:.1f} GiB"
        if fit:
            console.print(f"{one.phase} fits, {taken}: {fit_text(one.settings, one.phase)}")
        else:
            console.print(f"{one.phase} does not fit: it takes {taken} with {fit_text(one.settings, one.phase)}; set "
                          f"{one.advice}")  # fmt: skip
        if fit and one.memory.total > gpu.free:
            console.print(f"{one.phase} fits GPU {gpu.index} once other processes leave it")
    if config.train.base != "tiny" and training_path(base_folder(config.train.base)) == "plain":
        console.print("train.base has no packed path: it would train by transformers' own forward pass, slower.")
    console.print("Nothing was loaded and nothing written.")
    return DONE if all(fits) else REFUSED
