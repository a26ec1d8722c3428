"""The three phases of training: each has one item, the model it is to make."""

import functools
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from schemas.settings.train import TrainingPhase, TrainSettings
from tasks.agent.service_tools import tool_services
from tasks.lake import Lake
from tasks.recipes.recipe import rollout_prompt
from tasks.recipes.rewards import reward_roles, reward_services
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup
from tasks.runtime.steps import StepFile
from tasks.services import Connections
from tasks.train.chain import Link, chain, phase_identity, samples_of
from tasks.train.opening import training_path
from tasks.train.result import CLOCK, Result, finished_result
from tasks.train.samples import held_out
from tasks.train.stored import StoredJob

logger = logging.getLogger(__name__)

MODELS = "models"  # folder of checkpoints inside the lake
UNLISTED = ("step", *CLOCK)  # have columns of their own, or are the clock's: they differ between equal runs


@dataclass(frozen=True)
class WorkerContext:
    """What the worker keeps at hand."""

    lake: Lake
    settings: TrainSettings
    connections: Connections | None = None


def items(phase: TrainingPhase, inputs: Inputs, settings: TrainSettings) -> pl.DataFrame:
    """One item: the model this phase is to make of the samples as they are; none if the phase is not configured."""
    links = [link for link in chain(inputs.frame("samples"), settings) if link.phase == phase]
    names = ("id", "training_stage", "parent_id", "snapshot_id", "samples_digest")
    rows = [
        (link.model_id, link.phase, link.parent_id, inputs.snapshot_id, link.samples_digest, link.samples)
        for link in links
    ]
    return pl.DataFrame(rows, {**dict.fromkeys(names, pl.String), "samples": pl.Int64}, orient="row")


def open_context(settings: TrainSettings, setup: WorkerSetup) -> WorkerContext:
    # Before the libraries are imported: they read these once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Packs differ in size: fixed blocks of memory would leave gigabytes reserved and unused between them.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return WorkerContext(setup.lake, settings, setup.connections)


def work(item: Row, context: WorkerContext) -> Outcome:
    """The trained model's row. A killed run goes on from its last whole checkpoint."""
    if not item["samples"]:
        return Rejected("no_samples", {"training_stage": item["training_stage"], "snapshot_id": item["snapshot_id"]})
    settings = context.settings
    all_samples = context.lake.read("samples")
    [link] = [link for link in chain(all_samples, settings) if link.phase == item["training_stage"]]
    if link.model_id != item["id"]:
        raise GeofixError("the samples were changed while training was starting; run train again")
    started = time.monotonic()
    blobs = context.lake.blobs
    stored = StoredJob(blobs, MODELS, link.model_id, link.parent_id)
    blobs.pull(f"{MODELS}/{link.model_id}")
    steps = StepFile(context.lake.state, f"train.{link.phase}")
    mine = samples_of(all_samples, link.phase, settings)

    def finish(folder: Path, result: Result) -> None:
        from tasks.train.card import model_card

        card = model_card(link, mine, item["snapshot_id"], settings, result)
        (folder / "README.md").write_text(card, encoding="utf-8")

    arguments: dict[str, Any] = {
        "link": link, "all_samples": all_samples, "settings": settings, "models": blobs.local(MODELS),
        "store": context.lake.images, "held_out": held_out(context.lake, settings), "state": context.lake.state,
        "connections": context.connections, "report": steps.write, "finish": finish, "stored": stored,
    }  # fmt: skip
    folder = blobs.local(MODELS) / link.model_id
    if settings.workers > 1 and finished_result(folder) is None:
        from tasks.train.on_workers import run_on_workers

        run_on_workers(arguments, settings)
        blobs.pull(f"{MODELS}/{link.model_id}")  # rank 0 may have been on another node
    result = finished_result(folder)
    if result is None:
        from tasks.train.training import train_model  # torch takes seconds to import: not where workers train

        result = train_model(**arguments)
    stored.publish()
    logger.info("%s: %d steps in %.1f s", link.phase, result.steps, time.monotonic() - started)
    row = {
        "model_id": link.model_id,
        "training_stage": link.phase,
        "parent_id": link.parent_id,
        "snapshot_id": item["snapshot_id"],
        "recipe": settings.recipe,
        "base": settings.base,
        "path": training_path(folder),
        "samples": link.samples,
        "samples_digest": link.samples_digest,
        "steps": result.steps,
        "config_json": json.dumps(phase_identity(settings, link.phase), sort_keys=True),
        "metrics_json": json.dumps(result.metrics, sort_keys=True),
        "checkpoint": f"{MODELS}/{link.model_id}",
    }
    return Kept({"training_steps": step_rows(link, result), "models": [row]})


def step_rows(link: Link, result: Result) -> list[Row]:
    """Every step, validation and warning of a run, in order."""
    rows: list[Row] = []
    for kind, entries in (
        ("step", result.history),
        ("validation", result.validations),
        ("warning", result.warnings),
    ):
        for number, entry in enumerate(entries):
            figures = {name: value for name, value in entry.items() if isinstance(value, int | float)}
            rows.append(
                {
                    "model_id": link.model_id,
                    "training_stage": link.phase,
                    "kind": kind,
                    "number": number,
                    "step": int(entry["step"]),
                    **{name: entry.get(name) for name in ("loss", "reward", "text", "seconds", "tokens_per_s")},
                    "figures_json": json.dumps(
                        {name: value for name, value in figures.items() if name not in UNLISTED}, sort_keys=True
                    ),
                }
            )
    return rows


def services(phase: TrainingPhase, settings: TrainSettings) -> tuple[str, ...]:
    """The services that rewards and tools ask, in GRPO and in the validation of every phase."""
    if phase not in settings.phases or (phase != "grpo" and not settings.validation_images):
        return ()
    tools = rollout_prompt(settings.recipe, settings.grpo.max_turns, settings.prompt).tools
    names = (*reward_services(settings.recipe, settings.grpo.reward), *tool_services(tools))
    return tuple(dict.fromkeys(names))


def roles(phase: TrainingPhase, settings: TrainSettings) -> tuple[str, ...]:
    """The models that the reward asks."""
    is_asked = "chat" in services(phase, settings)
    return reward_roles(settings.recipe, settings.grpo.reward) if is_asked else ()


def _stage(phase: TrainingPhase) -> Stage:
    return Stage(
        name=f"train.{phase}",
        reads=("samples",),
        writes=("training_steps", "models"),
        items=functools.partial(items, phase),
        work=work,
        open=open_context,
        resources=Resources(
            cpus=2, gpu_where_any=True, workers=1, chunk=1, only_waits=lambda settings: settings.workers > 1
        ),
        services=functools.partial(services, phase),
        roles=functools.partial(roles, phase),
        keeps_history=True,
        snapshot=True,
        unhashed=("snapshot_id",),
        identity=functools.partial(phase_identity, phase=phase),
    )


SFT, COLD_START, GRPO = _stage("sft"), _stage("cold_start"), _stage("grpo")
