"""The model card: what a model was trained on, under which licences, how well it does, how to make it again."""

import json

import polars as pl

from schemas.settings.train import TrainSettings
from tasks.train.chain import Link, phase_identity
from tasks.train.result import Result


def model_card(link: Link, samples: pl.DataFrame, snapshot_id: str, settings: TrainSettings, result: Result) -> str:
    """Markdown with the front matter that model hubs read; `samples` are the phase's own."""
    licences = samples.group_by("licence").len().sort("len", "licence", descending=[True, False])
    first, last = (result.validations[n] if result.validations else {} for n in (0, -1))
    shown = [name for name in last if name not in ("step", "images") and name in first]
    return "\n".join(
        [
            "---",
            "pipeline_tag: image-text-to-text",
            "library_name: transformers",
            f"tags: [geo-localization, {settings.recipe}, {link.phase}]",
            "---",
            "",
            f"# {link.model_id}",
            "",
            f"Phase `{link.phase}` of the recipe `{settings.recipe}`: tells where a picture was taken.",
            f"Starts from {f'model `{link.parent_id}`' if link.parent_id else f'base `{settings.base}`'}.",
            "",
            "## Data",
            "",
            f"{link.samples:,} samples of {samples['sha256'].n_unique():,} pictures, snapshot `{snapshot_id}`. The "
            "creator and source of each picture stand in the column `attribution` of the table `samples`.",
            "",
            "| licence | samples |",
            "|---|---|",
            *(f"| {licence} | {count:,} |" for licence, count in licences.iter_rows()),
            "",
            "## Scores on held-out pictures",
            "",
            *_scores(first, last, shown),
            "",
            "## Use",
            "",
            "```python",
            "from transformers import AutoModelForImageTextToText, AutoProcessor",
            "model = AutoModelForImageTextToText.from_pretrained(folder)",
            "processor = AutoProcessor.from_pretrained(folder)  # without torchvision: trust_remote_code=True",
            "```",
            "",
            "## How to make it again",
            "",
            f"`geofix train --snapshot {snapshot_id}` with these settings of `train` ({result.steps:,} steps):",
            "",
            "```json",
            json.dumps(phase_identity(settings, link.phase), indent=2, sort_keys=True),
            "```",
            "",
        ]
    )


def _scores(first: dict[str, float], last: dict[str, float], shown: list[str]) -> list[str]:
    if not shown:
        return ["No pictures were held out."]
    rows = [f"| {name} | {first[name]:.3f} | {last[name]:.3f} |" for name in shown]
    return [
        f"{last['images']:.0f} pictures of the validation split.",
        "",
        "| figure | before | after |",
        "|---|---|---|",
        *rows,
    ]
