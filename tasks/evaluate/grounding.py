"""The step that asks of every answer whether its reasons hold: signs, statements and what tools gave."""

import asyncio
import json
from typing import Any

import numpy as np
import polars as pl

from schemas.messages import Usage, image_references
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.environment import Trajectory
from tasks.agent.grounding import ground
from tasks.agent.readings import READ, quotes_pictures, read_pictures
from tasks.evaluate.answers import WorkerContext, open_context, picture_of, single_evaluations
from tasks.evaluate.ensembles import method_evaluations
from tasks.reward.metrics import Metric, share
from tasks.reward.outcome import truth_of
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage

RIGHT_KM = 25.0


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """One row for each answer of the evaluations, with its conversation and the truth it is held against."""
    named = [name for _, name in (*single_evaluations(inputs, settings), *method_evaluations(inputs, settings))]
    labels = inputs.frame("labels").filter(pl.col("split") == settings.split)
    truths = labels.select("image_id", "sha256", "lat", "lon", "country", "region", "city")
    files = inputs.frame("images").select("image_id", "extension")
    answers = inputs.frame("predictions").filter(pl.col("evaluation_id").is_in(named))
    answers = answers.select("evaluation_id", "image_id", "policy", "answer", "messages_json").drop_nulls(
        "messages_json"
    )
    return (
        answers.join(truths, on="image_id")
        .join(files, on="image_id")
        .select(pl.format("{}|{}", "evaluation_id", "image_id").alias("id"), pl.all())
    )


async def work(item: Row, context: WorkerContext) -> Kept:
    """What speaks for and against one answer. Pictures are read only where a sign is quoted."""
    reader, usage = context.settings.grounding.reader, Usage()
    trajectory = Trajectory(tuple(json.loads(item["messages_json"])), final_text=item["answer"] or "")
    readings: tuple[str, ...] | None = None
    if reader and quotes_pictures(trajectory):
        pictures = await _pictures(trajectory, item, context)
        shown = Trajectory(trajectory.messages, final_text=trajectory.final_text, pictures=pictures)
        readings, usage = await read_pictures(shown, context.chat, reader, context.settings.max_tokens)
    grounding = ground(trajectory, truth_of(item), readings)
    row = {
        **{name: item[name] for name in ("evaluation_id", "image_id", "policy")},
        "quoted": grounding.quoted,
        "unseen_json": None if grounding.unseen is None else json.dumps(grounding.unseen, ensure_ascii=False),
        "contradicted_json": json.dumps(grounding.contradicted, ensure_ascii=False),
        "supported": grounding.supported,
        "grounded": grounding.is_grounded,
    }
    return Kept({"groundings": [row]}, usage)


async def _pictures(trajectory: Trajectory, item: Row, context: WorkerContext) -> dict[str, bytes]:
    """The pictures of a stored conversation; the original stands for the view that was shown of it."""
    pictures = {}
    for sha256, extension in image_references(list(trajectory.messages)):
        if sha256 == item["sha256"]:
            pictures[sha256] = (await picture_of(item, context)).view
        else:
            pictures[sha256] = await asyncio.to_thread(context.images.read, sha256, extension)
    return pictures


def grounding_metrics(groundings: pl.DataFrame, error_km: dict[str, float]) -> list[Metric]:
    """Shares of answers that hold; `error_km` is of every picture's answer, NaN for one without a point."""
    if groundings.is_empty():
        return []
    read = groundings.filter((pl.col("quoted") > 0) & pl.col("unseen_json").is_not_null())
    helped = groundings.drop_nulls("supported")
    near = np.array([error_km.get(image, np.nan) <= RIGHT_KM for image in groundings["image_id"]])
    right = int((near & groundings["grounded"].to_numpy()).sum())
    return [
        share("grounded_rate", int(groundings["grounded"].sum()), groundings.height),
        share("signs_seen_rate", int((read["unseen_json"] == "[]").sum()), read.height),
        share("tool_supported_rate", int(helped["supported"].sum()), helped.height),
        share("grounded_acc@25km", right, groundings.height),
    ]


def identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The reader and what it is shown; the answers themselves are items."""
    sizes = ("view_max_pixels", "view_min_pixels", "max_tokens")
    reader = settings.grounding.reader
    reading = {"words": READ, **{name: getattr(settings, name) for name in sizes}}
    return {"reader": reader, **(reading if reader else {})}


STAGE = Stage(
    name="evaluate.grounding",
    reads=("predictions", "labels", "images", "models"),
    writes=("groundings",),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, concurrency=8, chunk=8),
    services=lambda settings: ("chat",) if settings.grounding.reader else (),
    roles=lambda settings: (settings.grounding.reader,) if settings.grounding.reader else (),
    identity=identity,
    snapshot=True,
    keeps_history=True,
)
