"""Training rows: what the trainer sees, each with its snapshot, its picture's licence and its attribution.

SFT has a question and the true answer for every labelled picture of the train split; cold start has the kept
trajectories in tagged form; GRPO has the question alone for every picture that Pass@K calls learnable.
"""

import json
from typing import Any

import polars as pl

from schemas.messages import Message, image_part
from schemas.settings.train import TrainSettings
from schemas.tables import TABLES
from tasks.agent.prompts.spotagent import direct_messages
from tasks.agent.tagged import NotTaggable, render
from tasks.runtime.runner import ColumnStage, Inputs, digest

Row = dict[str, Any]

REJECTS_SCHEMA = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}


def compute(inputs: Inputs, settings: TrainSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The samples of all training stages, and what cannot be one, with the reason."""
    images = inputs.frame("images").select("image_id", "extension", "licence", "attribution")
    labels = (
        inputs.frame("labels")
        .filter(pl.col("split") == "train")
        .join(images, on="image_id", how="left")
        .sort("image_id")
    )
    known = {row["image_id"]: row for row in labels.to_dicts()}
    # The snapshot holds what was approved; a picture that has ended since is not trained on all the same.
    live = set(inputs.lake.read("images", columns=["image_id"])["image_id"])

    kept: list[Row] = []
    rejects: list[Row] = []
    for training_stage, found in (
        ("sft", [{"image_id": image_id} for image_id in known]),
        ("cold_start", _kept_trajectories(inputs, settings)),
        ("grpo", _learnable(inputs)),
    ):
        for row in found:
            sample_id = digest(training_stage, row["image_id"], row.get("trajectory_id"))
            label = known.get(row["image_id"])
            reason = "not_in_snapshot" if label is None else "image_withdrawn" if row["image_id"] not in live else None
            try:
                messages = [] if label is None else _messages(training_stage, row, label, settings)
            except NotTaggable as error:
                reason, messages = "not_taggable", []
                row = {**row, "error": str(error)}
            if label is None or reason is not None:
                evidence = {"training_stage": training_stage, "snapshot_id": inputs.snapshot_id}
                evidence |= {name: row[name] for name in ("image_id", "trajectory_id", "error") if name in row}
                rejects.append(
                    {"id": sample_id, "reason": reason, "evidence_json": json.dumps(evidence, sort_keys=True)}
                )
                continue
            kept.append(
                {
                    "id": sample_id,
                    "sample_id": sample_id,
                    "training_stage": training_stage,
                    "snapshot_id": inputs.snapshot_id,
                    "image_id": row["image_id"],
                    "trajectory_id": row.get("trajectory_id"),
                    "phase": row.get("phase"),
                    "messages_json": json.dumps(messages, ensure_ascii=False),
                    **{name: label[name] for name in ("lat", "lon", "sha256", "licence", "attribution")},
                }
            )
    columns = ["id", *TABLES["samples"].columns]
    texts = {
        name: pl.Float64 if name in ("lat", "lon") else pl.Int64 if name == "phase" else pl.String for name in columns
    }
    return pl.DataFrame(kept, schema=texts), pl.DataFrame(rejects, schema=REJECTS_SCHEMA)


def answer_text(label: Row, decimals: int) -> str:
    """The true answer in the form the prompt asks for (SpotAgent A.3)."""
    lines = [f"Country: {label['country']}"] if label["country"] else []
    lines += [f"City: {label['city']}"] if label["city"] else []
    lines += [f"Latitude: {label['lat']:.{decimals}f}", f"Longitude: {label['lon']:.{decimals}f}"]
    return "<answer>\n" + "\n".join(lines) + "\n</answer>"


def _messages(training_stage: str, row: Row, label: Row, settings: TrainSettings) -> list[Message]:
    if training_stage == "cold_start":
        return render(_shortened(json.loads(row["messages_json"]), settings.cold_start.tool_text_chars))
    question = direct_messages(image_part(label["sha256"], label["extension"]))
    if training_stage == "grpo":
        return question
    return [*question, {"role": "assistant", "content": answer_text(label, settings.answer_decimals)}]


def _shortened(messages: list[Message], tool_text_chars: int | None) -> list[Message]:
    """The conversation with long tool responses cut; what the assistant wrote is never touched."""

    def cut(text: str) -> str:
        return text if tool_text_chars is None or len(text) <= tool_text_chars else text[:tool_text_chars] + "…"

    def cut_content(content: Any) -> Any:
        if isinstance(content, str):
            return cut(content)
        return [{**part, "text": cut(part["text"])} if part["type"] == "text" else part for part in content]

    return [
        {**message, "content": cut_content(message["content"])} if message["role"] == "tool" else message
        for message in messages
    ]


def _kept_trajectories(inputs: Inputs, settings: TrainSettings) -> list[Row]:
    return (
        inputs.frame("trajectories")
        .filter((pl.col("verdict") == "kept") & (pl.col("recipe") == settings.recipe))
        .select("trajectory_id", "image_id", "messages_json")
        .sort("trajectory_id")
        .to_dicts()
    )


def _learnable(inputs: Inputs) -> list[Row]:
    """Pictures that some policy finds learnable, in the earliest phase in which one does."""
    return (
        inputs.frame("regimes")
        .filter(pl.col("kept"))
        .group_by("image_id")
        .agg(pl.col("phase").min())
        .sort("phase", "image_id")
        .to_dicts()
    )


def identity(settings: TrainSettings) -> Any:
    """Of the settings, what decides the samples."""
    return {
        "recipe": settings.recipe,
        "answer_decimals": settings.answer_decimals,
        "tool_text_chars": settings.cold_start.tool_text_chars,
    }


STAGE = ColumnStage(
    name="train.samples",
    reads=("labels", "images", "trajectories", "regimes"),
    writes=("samples",),
    compute=compute,
    identity=identity,
    snapshot=True,
    unhashed=("snapshot_id",),
)
