"""The held-out pictures that validation asks about: the question as training asks it, and the true answer."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from schemas.messages import image_part
from schemas.settings.train import TrainSettings
from tasks.agent.recipes.spotsft import answer_lines, direct_messages
from tasks.lake import Lake
from tasks.reward.score import TRUTH_COLUMNS

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
