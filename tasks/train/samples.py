"""Training rows: what the trainer sees, each with its snapshot, its picture's licence and its attribution.

SFT has a question and the true answer for every labelled picture of the train split; cold start has the kept
trajectories, rendered as the served model is prompted (`tasks/agent/render.py`), with boxes in pixels of the size the
trainer shows; GRPO has the question alone for every picture, or for those that Pass@K calls learnable. Words, form and
kinds of pictures are the recipe's. The reward needs the address levels beside the point, so each row carries them.
"""

import json
from typing import Any

import polars as pl

from schemas.errors import InputError
from schemas.messages import Message, image_part
from schemas.settings.train import TrainSettings
from schemas.tables import TABLES
from tasks.agent.prompt import Prompt
from tasks.agent.render import training_messages
from tasks.agent.stored import shown_size, with_size
from tasks.agent.tagged import NotTaggable
from tasks.lake import Lake
from tasks.recipes.recipe import RECIPES, Recipe, rollout_prompt
from tasks.reward.outcome import TRUTH_COLUMNS, truth_of
from tasks.runtime.runner import ColumnStage, Inputs, digest

Row = dict[str, Any]

_OF_LABEL = ("lat", "lon", "country", "region", "city", "sha256", "licence", "attribution")
REJECTS_SCHEMA = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}


def compute(inputs: Inputs, settings: TrainSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The samples of all phases, and what cannot be one, with the reason."""
    images = known_recipe(settings).pictures.apply(inputs.frame("images"))
    images = images.select("image_id", "extension", "licence", "attribution")
    labels = inputs.frame("labels").filter(pl.col("split") == "train").join(images, on="image_id").sort("image_id")
    known = {row["image_id"]: row for row in labels.to_dicts()}
    # The snapshot holds what was approved; a picture that has ended since is left out.
    live = set(inputs.lake.read("images", columns=["image_id"])["image_id"])

    kept: list[Row] = []
    rejects: list[Row] = []
    every: list[Row] = [{"image_id": image_id} for image_id in known]
    for phase, rows in (
        ("sft", every),
        ("cold_start", _kept_trajectories(inputs, settings)),
        ("grpo", _grpo_pictures(inputs, settings, known)),
    ):
        for row in rows:
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
    picture = image_part(label["sha256"], label["extension"])
    if phase == "grpo":
        return opened(rollout_prompt(settings.recipe, settings.grpo.max_turns, settings.prompt), picture)
    recipe = known_recipe(settings)
    answer = recipe.gold(truth_of(label), settings.answer_decimals)
    return [*opened(recipe.at_once(settings.prompt), picture), {"role": "assistant", "content": answer}]


def known_recipe(settings: TrainSettings) -> Recipe:
    """The recipe that is trained; InputError in one line if there is none of its name."""
    if settings.recipe not in RECIPES:
        raise InputError(f"train.recipe: there is no recipe '{settings.recipe}'; there are {', '.join(RECIPES)}")
    return RECIPES[settings.recipe]


def opened(prompt: Prompt, picture: dict[str, Any]) -> list[Message]:
    """The opening as a model is trained on it: its tools stand in the system's message."""
    return training_messages(prompt.opening(picture), prompt.tool_schemas())


def _kept_trajectories(inputs: Inputs, settings: TrainSettings) -> list[Row]:
    return (
        inputs.frame("trajectories")
        .filter((pl.col("verdict") == "kept") & (pl.col("recipe") == settings.recipe))
        .select("trajectory_id", "image_id", "messages_json", "tools_json", "view_width", "view_height")
        .sort("trajectory_id")
        .to_dicts()
    )


def _grpo_pictures(inputs: Inputs, settings: TrainSettings, known: dict[str, Row]) -> list[Row]:
    """The pictures of GRPO: learnable ones, as many at random (SpotAgent Table 4), or all; `max_pictures` of them."""
    grpo = settings.grpo
    every: list[Row] = [{"image_id": image_id} for image_id in known]
    if grpo.pictures == "by_teacher":
        pictures = _by_teacher(inputs, settings)
    else:
        pictures = every if grpo.pictures == "all" else _learnable(inputs, settings)

    def drawn(rows: list[Row], count: int) -> list[Row]:
        """Some of the rows, by the pictures' bytes and the seed; a larger count holds those of a smaller one."""
        names = sorted(
            (row["image_id"] for row in rows),
            key=lambda name: digest("drawn", settings.seed, known[name]["sha256"] if name in known else name),
        )
        chosen = set(names[:count])
        return [row for row in rows if row["image_id"] in chosen]

    if grpo.pictures == "random":
        pictures = drawn(every, len(pictures))
    return pictures if grpo.max_pictures is None else drawn(pictures, grpo.max_pictures)


def _by_teacher(inputs: Inputs, settings: TrainSettings) -> list[Row]:
    """Pictures that the recipe's trajectories tried, by the nearest answer: phase 1 easy, 2 medium, 3 hard."""
    easy_km, medium_km = settings.grpo.teacher_km
    error = pl.col("error_km")
    return (
        inputs.frame("trajectories")
        .filter(pl.col("recipe") == settings.recipe)
        .group_by("image_id")
        .agg(error.min())
        .select("image_id", phase=pl.when(error <= easy_km).then(1).when(error <= medium_km).then(2).otherwise(3))
        .sort("phase", "image_id")
        .to_dicts()
    )


def _learnable(inputs: Inputs, settings: TrainSettings) -> list[Row]:
    """Pictures to learn from, by the policy that was measured last: policies are not mixed.

    Of trained models only the recipe's own count.
    """
    models = inputs.frame("models").filter(pl.col("recipe") != settings.recipe)["model_id"]
    regimes = inputs.frame("regimes")
    regimes = regimes.filter(~pl.col("policy").str.strip_prefix("trained:").is_in(models.implode()))
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
    grpo = settings.grpo
    is_drawn = grpo.pictures == "random" or grpo.max_pictures is not None
    by_error = [list(grpo.teacher_km)] if grpo.pictures == "by_teacher" else []
    return {
        "recipe": settings.recipe,
        "grpo": [grpo.pictures, grpo.max_pictures, grpo.max_turns, settings.seed if is_drawn else None, *by_error],
        "prompt": settings.prompt,
        "answer_decimals": settings.answer_decimals,
        "pixels": [settings.image_min_pixels, settings.image_max_pixels],
    }


STAGE = ColumnStage(
    name="train.samples",
    reads=("labels", "images", "trajectories", "regimes", "models"),
    writes=("samples",),
    compute=compute,
    version=3,
    identity=identity,
    snapshot=True,
    unhashed=("snapshot_id",),
)


SPLIT = "validation"


def held_out(lake: Lake, settings: TrainSettings) -> list[dict[str, Any]]:
    """Pictures of the validation split, the same ones in every lake that holds them, as many as are answered."""
    recipe, prompt = known_recipe(settings), rollout_prompt(settings.recipe, settings.grpo.max_turns, settings.prompt)
    images = recipe.pictures.apply(lake.read("images")).select("image_id", "extension")
    labels = (
        lake.read("labels").filter(pl.col("split") == SPLIT).drop_nulls(["country", "city"]).join(images, on="image_id")
    )
    rows = []
    for label in labels.sort("sha256", "image_id").head(settings.validation_images).to_dicts():
        messages = opened(prompt, image_part(label["sha256"], label["extension"]))
        answer = recipe.gold(truth_of(label), settings.answer_decimals)
        gold = [*messages, {"role": "assistant", "content": answer}]
        truth = {name: label.get(name) for name in TRUTH_COLUMNS}
        written = {"messages_json": json.dumps(messages), "gold_json": json.dumps(gold)}
        rows.append({**truth, "image_id": label["image_id"], **written})
    return rows
