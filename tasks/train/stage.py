"""The three training stages: each has one item, the model it is to make."""

import functools
import json
import logging
import os
import time
from dataclasses import dataclass

import polars as pl

from schemas.errors import GeofixError
from schemas.settings.train import TrainingStage, TrainSettings
from tasks.lake import Lake
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup
from tasks.runtime.steps import StepFile
from tasks.train.chain import Link, chain, stage_identity

logger = logging.getLogger(__name__)

MODELS = "models"  # folder of checkpoints inside the lake


@dataclass(frozen=True)
class WorkerContext:
    """What the worker keeps at hand."""

    lake: Lake
    settings: TrainSettings


def items(training_stage: TrainingStage, inputs: Inputs, settings: TrainSettings) -> pl.DataFrame:
    """One item: the model this stage is to make of the samples as they are; none if the stage is not configured."""
    links = [link for link in chain(inputs.frame("samples"), settings) if link.training_stage == training_stage]
    return pl.DataFrame(
        [_item(link, inputs.snapshot_id) for link in links],
        schema={
            "id": pl.String,
            "training_stage": pl.String,
            "parent_id": pl.String,
            "snapshot_id": pl.String,
            "samples": pl.Int64,
            "samples_digest": pl.String,
        },
    )


def open_context(settings: TrainSettings, setup: WorkerSetup) -> WorkerContext:
    # Before the libraries are imported: they read these once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return WorkerContext(setup.lake, settings)


def work(item: Row, context: WorkerContext) -> Outcome:
    """The trained model's row. A killed run goes on from its last whole checkpoint."""
    if not item["samples"]:
        return Rejected("no_samples", {"training_stage": item["training_stage"], "snapshot_id": item["snapshot_id"]})
    from tasks.train.job import RESULT
    from tasks.train.training import train_model  # torch takes seconds to import, and only workers need it

    settings = context.settings
    all_samples = context.lake.read("samples")
    [link] = [link for link in chain(all_samples, settings) if link.training_stage == item["training_stage"]]
    if link.model_id != item["id"]:
        raise GeofixError("the samples were changed while training was starting; run train again")
    started = time.monotonic()
    blobs = context.lake.blobs
    for model_id in (link.model_id, link.parent_id):
        if model_id is not None:
            blobs.pull(f"{MODELS}/{model_id}")
    steps = StepFile(context.lake.state, f"train.{link.training_stage}")
    result = train_model(link, all_samples, settings, blobs.local(MODELS), context.lake.images, steps.write)
    blobs.push(f"{MODELS}/{link.model_id}", last=RESULT)
    logger.info("%s: %d steps in %.1f s", link.training_stage, result.steps, time.monotonic() - started)
    row = {
        "model_id": link.model_id,
        "training_stage": link.training_stage,
        "parent_id": link.parent_id,
        "snapshot_id": item["snapshot_id"],
        "recipe": settings.recipe,
        "base": settings.base,
        "samples": link.samples,
        "samples_digest": link.samples_digest,
        "steps": result.steps,
        "config_json": json.dumps(stage_identity(settings, link.training_stage), sort_keys=True),
        "metrics_json": json.dumps(result.metrics, sort_keys=True),
        "checkpoint": f"{MODELS}/{link.model_id}",
    }
    return Kept({"models": [row]})


def _item(link: Link, snapshot_id: str) -> Row:
    return {
        "id": link.model_id,
        "training_stage": link.training_stage,
        "parent_id": link.parent_id,
        "snapshot_id": snapshot_id,
        "samples": link.samples,
        "samples_digest": link.samples_digest,
    }


def _stage(training_stage: TrainingStage) -> Stage:
    return Stage(
        name=f"train.{training_stage}",
        reads=("samples",),
        writes=("models",),
        items=functools.partial(items, training_stage),
        work=work,
        open=open_context,
        resources=Resources(cpus=2, workers=1, chunk=1),
        keeps_history=True,
        snapshot=True,
        unhashed=("snapshot_id",),
        identity=functools.partial(stage_identity, training_stage=training_stage),
    )


SFT, COLD_START, GRPO = _stage("sft"), _stage("cold_start"), _stage("grpo")
