"""The verdicts of several judges on one picture, combined into one."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import polars as pl

from tasks.runtime.stage import Inputs

Rule = Literal["majority", "all", "any"]
LOCALIZABLE = "localizable"
SCHEMA = {
    "image_id": pl.String, "sha256": pl.String, "problem": pl.String, "problem_json": pl.String,
    "localizability": pl.String, "localizability_score": pl.Float64, "judge_model": pl.String,
    "judge_reason": pl.String, "judge_scores_json": pl.String, "scenes_json": pl.String,
}  # fmt: skip


def localizable_pictures(inputs: Inputs) -> pl.DataFrame:
    """`image_id` of the pictures that a judge calls localizable, and of those that nothing excludes and none judged."""
    judgements = inputs.frame("judgements").select("image_id", "localizability")
    fit_pictures = inputs.frame("duplicates").filter(pl.col("unfit").is_null(), pl.col("reason").is_null())
    unjudged = fit_pictures.select("image_id").join(judgements, on="image_id", how="anti")
    judged = judgements.filter(pl.col("localizability") == LOCALIZABLE).select("image_id")
    return pl.concat([judged, unjudged]).unique()


def combined(judgements: pl.DataFrame, rule: Rule) -> pl.DataFrame:
    """One row a picture and its bytes. A judge without a verdict has no vote; a problem stands if none has one."""
    alone = judgements.filter(pl.len().over("image_id", "sha256") == 1)
    several = judgements.filter(pl.len().over("image_id", "sha256") > 1)
    single = alone.select(
        "image_id", "sha256", "problem", "localizability", "scenes_json", problem_json="evidence_json",
        localizability_score="score", judge_model="model", judge_reason="reason", judge_scores_json="sub_scores_json",
    )  # fmt: skip
    rows = [
        {"image_id": image_id, "sha256": sha256, **_combine(group.sort("model").to_dicts(), rule)}
        for (image_id, sha256), group in several.group_by("image_id", "sha256", maintain_order=True)
    ]
    return pl.concat([single.select(list(SCHEMA)), pl.DataFrame(rows, schema=SCHEMA)], how="vertical")


def _combine(judged: Sequence[dict[str, Any]], rule: Rule) -> dict[str, Any]:
    votes = [vote for vote in judged if vote["problem"] is None]
    if not votes:
        return {"problem": judged[0]["problem"], "problem_json": judged[0]["evidence_json"]}
    label = class_of([vote["localizability"] for vote in votes], rule)
    # The reason of a judge that says what was decided; the decision is always somebody's verdict.
    spoken = next(vote for vote in votes if vote["localizability"] == label)
    scores = [json.loads(vote["sub_scores_json"] or "{}") for vote in votes]
    scenes = [json.loads(vote["scenes_json"] or "{}") for vote in votes]
    return {
        "localizability": label,
        "localizability_score": sum(vote["score"] for vote in votes) / len(votes),
        "judge_model": ",".join(vote["model"] for vote in votes),
        "judge_reason": spoken["reason"],
        "judge_scores_json": json.dumps(
            {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}, sort_keys=True
        ),
        "scenes_json": json.dumps(
            {name: _most([scene[name] for scene in scenes]) for name in scenes[0]}, sort_keys=True
        ),
    }


def class_of(classes: Sequence[str], rule: Rule) -> str:
    """The class that the votes give: localizable if more than half, all, or any of them say so."""
    agreeing = sum(label == LOCALIZABLE for label in classes)
    needed = {"majority": len(classes) // 2 + 1, "all": len(classes), "any": 1}[rule]
    if agreeing >= needed:
        return LOCALIZABLE
    return _most([label for label in classes if label != LOCALIZABLE])


def _most(values: Sequence[str]) -> str:
    """The most frequent value, `maybe` where two are equally frequent categories, else the first by name."""
    counts = Counter(values).most_common()
    best = sorted(value for value, count in counts if count == counts[0][1])
    return "maybe" if len(best) > 1 and set(best) <= {"yes", "no", "maybe"} else best[0]
