"""The human baseline: what people guessed in the review site on pictures of the split, scored like a policy.

People guess the pictures they like to, so it stands beside policies with its own n; the site's page “Play” compares it
with them on the same pictures.
"""

import polars as pl

from schemas.settings.evaluate import EvaluateSettings
from tasks.evaluate.scores import score_rows
from tasks.reward.metrics import summarize
from tasks.runtime.runner import ColumnStage, Inputs, digest

PEOPLE = "people"


def compute(inputs: Inputs, settings: EvaluateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every metric of the distances of all guesses on pictures of the split."""
    labels = inputs.frame("labels").filter(split=settings.split).select("image_id", "sha256")
    guesses = inputs.frame("guesses").join(labels, on=["image_id", "sha256"], how="semi").sort("guess_id")
    metrics = summarize(guesses["error_km"].to_numpy(), None, settings.resamples, settings.seed) if len(guesses) else []
    about = {"snapshot_id": inputs.snapshot_id, "split": settings.split}
    return score_rows(metrics, {"evaluation_id": digest(PEOPLE, settings.split), "policy": PEOPLE, **about})


STAGE = ColumnStage(
    name="evaluate.people",
    reads=("guesses", "labels"),
    writes=("scores",),
    compute=compute,
    identity=lambda settings: {"split": settings.split, "resamples": settings.resamples, "seed": settings.seed},
    snapshot=True,
    keeps_history=True,
)
