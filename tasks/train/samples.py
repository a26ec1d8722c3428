"""Training rows: what the trainer sees, each with its snapshot, its picture's licence and its attribution.

SFT has a question and the true answer for every labelled picture of the train split; cold start has the kept
trajectories, rendered as the served model is prompted (`tasks/agent/render.py`), with boxes in pixels of the size the
trainer shows; GRPO has the question alone for every picture that Pass@K calls learnable. The reward needs the address
levels beside the point, so each row carries them.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from schemas.messages import Message, image_part
from schemas.settings.train import TrainSettings
from schemas.tables import TABLES
from tasks.agent.prompt import answer_lines, direct_messages
from tasks.agent.render import training_messages
from tasks.agent.stored import shown_size, with_size
from tasks.agent.tagged import NotTaggable
from tasks.lake import Lake
from tasks.reward.outcome import TRUTH_COLUMNS
from tasks.runtime.runner import ColumnStage, Inputs, digest

Row = dict[str, Any]

_OF_LABEL = ("lat", "lon", "country", "region", "city", "sha256", "licence", "attribution")
REJECTS_SCHEMA = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}


def compute(inputs: Inputs, settings: TrainSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The samples of all phases, and what cannot be one, with the reason."""
    images = inputs.frame("images").select("image_id", "kind", "extension", "licence", "attribution")
    labels = (
        inputs.frame("labels")
        .filter(pl.col("split") == "train")
        .join(images, on="image_id", how="left")
        # Satellite scenes are labelled too; the recipes train on pictures taken on the ground.
        .filter(pl.col("kind").fill_null("") != "satellite")
        .sort("image_id")
    )
    known = {row["image_id"]: row for row in labels.to_dicts()}
    # The snapshot holds what was approved; a picture that has ended since is left out.
    live = set(inputs.lake.read("images", columns=["image_id"])["image_id"])

    kept: list[Row] = []
    rejects: list[Row] = []
    for phase, found in (
        ("sft", [{"image_id": image_id} for image_id in known]),
        ("cold_start", _kept_trajectories(inputs, settings)),
        ("grpo", _learnable(inputs)),
    ):
        for row in found:
            sample_id = digest(phase, row["image_id"], row.get("trajectory_id"))
            label = known.get(row["image_id"])
            reason = "not_in_snapshot" if label is None else "image_withdrawn" if row["image_id"] not in live else None
            if reason is None and phase == "sft" and not (label and label["country"] and label["city"]):
                reason = "missing_address"  # the prompt asks for four lines; fewer would teach another form
            try:
                messages = [] if label is None or reason else _messages(phase, row, label, settings)
            except NotTaggable as error:
                reason, messages = "not_taggable", []
                row = {**row, "error": str(error)}
            if label is None or reason is not None:
                evidence = {"training_stage": phase, "snapshot_id": inputs.snapshot_id}
                evidence |= {name: row[name] for name in ("image_id", "trajectory_id", "error") if name in row}
                rejects.append(
                    {"id": sample_id, "reason": reason, "evidence_json": json.dumps(evidence, sort_keys=True)}
                )
                continue
            kept.append(
                {
                    "id": sample_id,
                    "sample_id": sample_id,
                    "training_stage": phase,
                    "snapshot_id": inputs.snapshot_id,
                    "image_id": row["image_id"],
                    "trajectory_id": row.get("trajectory_id"),
                    "phase": row.get("phase"),
                    "messages_json": json.dumps(messages, ensure_ascii=False),
                    **{name: label[name] for name in _OF_LABEL},
                }
            )
    columns = ["id", *TABLES["samples"].columns]
    texts = {
        name: pl.Float64 if name in ("lat", "lon") else pl.Int64 if name == "phase" else pl.String for name in columns
    }
    return pl.DataFrame(kept, schema=texts), pl.DataFrame(rejects, schema=REJECTS_SCHEMA)


def _messages(phase: str, row: Row, label: Row, settings: TrainSettings) -> list[Message]:
    if phase == "cold_start":
        view = row["view_width"], row["view_height"]
        trained = shown_size(view, settings.image_max_pixels, settings.image_min_pixels)
        stored = with_size(json.loads(row["messages_json"]), view, trained)
        return training_messages(stored, json.loads(row["tools_json"]))
    question = direct_messages(image_part(label["sha256"], label["extension"]))
    if phase == "grpo":
        return question
    point = label["lat"], label["lon"]
    answer = answer_lines(label["country"], label["city"], *point, settings.answer_decimals)
    return [*question, {"role": "assistant", "content": answer}]


def _kept_trajectories(inputs: Inputs, settings: TrainSettings) -> list[Row]:
    return (
        inputs.frame("trajectories")
        .filter((pl.col("verdict") == "kept") & (pl.col("recipe") == settings.recipe))
        .select("trajectory_id", "image_id", "messages_json", "tools_json", "view_width", "view_height")
        .sort("trajectory_id")
        .to_dicts()
    )


def _learnable(inputs: Inputs) -> list[Row]:
    """Pictures to learn from, by the policy that was measured last: policies are not mixed."""
    regimes = inputs.frame("regimes")
    if regimes.is_empty():
        return []
    policy = regimes.sort("written_at")["policy"][-1]
    return (
        regimes.filter(pl.col("kept") & (pl.col("policy") == policy))
        .select("image_id", "phase")
        .sort("phase", "image_id")
        .to_dicts()
    )


def identity(settings: TrainSettings) -> Any:
    """Of the settings, what decides the samples."""
    return {
        "recipe": settings.recipe,
        "answer_decimals": settings.answer_decimals,
        "pixels": [settings.image_min_pixels, settings.image_max_pixels],
    }


STAGE = ColumnStage(
    name="train.samples",
    reads=("labels", "images", "trajectories", "regimes"),
    writes=("samples",),
    compute=compute,
    version=2,
    identity=identity,
    snapshot=True,
    unhashed=("snapshot_id",),
)


SPLIT = "validation"


def held_out(lake: Lake, settings: TrainSettings) -> list[dict[str, Any]]:
    """Pictures of the validation split, the same ones in every lake that holds them, as many as are asked about."""
    images = lake.read("images", columns=["image_id", "extension"])
    labels = (
        lake.read("labels").filter(pl.col("split") == SPLIT).drop_nulls(["country", "city"]).join(images, on="image_id")
    )
    rows = []
    for label in labels.sort("sha256", "image_id").head(settings.validation_images).to_dicts():
        prompt = direct_messages(image_part(label["sha256"], label["extension"]))
        answer = answer_lines(label["country"], label["city"], label["lat"], label["lon"], settings.answer_decimals)
        gold = [*prompt, {"role": "assistant", "content": answer}]
        truth = {name: label.get(name) for name in TRUTH_COLUMNS}
        rows.append(
            {**truth, "image_id": label["image_id"], "prompt_json": json.dumps(prompt), "gold_json": json.dumps(gold)}
        )
    return rows
