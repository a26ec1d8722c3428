"""What the judges said, and how far they agree with each other and with people."""

import json
from collections import defaultdict

import polars as pl

from tasks.review.site.blocks import Block, bars, heading, number, table, words
from tasks.review.site.page import Page, Source

CLASSES = ("localizable", "non_localizable", "landmark")


def make(source: Source) -> list[Block]:
    """Verdicts by model, scores, agreement."""
    judged = source.read("judgements").join(source.read("images").select("image_id"), on="image_id", how="semi")
    if judged.is_empty():
        return [words("Nothing has been judged.", "muted")]
    by_model = judged.group_by("model").agg(
        pictures=pl.len(),
        **{name: (pl.col("localizability") == name).sum() for name in CLASSES},
        problems=pl.col("problem").is_not_null().sum(),
        mean=pl.col("score").mean(),
    )
    scores = judged["score"].drop_nulls().floor().clip(0, 9).cast(pl.Int64)
    counts = dict(scores.value_counts().iter_rows())
    return [
        table(
            ["judge", "pictures", "localizable", "not localizable", "landmark", "no verdict", "mean score"],
            [(*row[:-1], "–" if row[-1] is None else f"{row[-1]:.2f}") for row in by_model.sort("model").rows()],
            ["text", "number", "number", "number", "number", "number", "number"],
        ),
        bars("Scores", [f"{n}–{n + 1}" for n in range(10)], {"pictures": [counts.get(n, 0) for n in range(10)]}),
        *_parts(judged),
        *_agreement(judged),
        *_people(source),
    ]


def _parts(judged: pl.DataFrame) -> list[Block]:
    """The five parts of the score, on average."""
    sums: dict[str, list[float]] = defaultdict(list)
    for text in judged["sub_scores_json"].drop_nulls():
        for name, value in json.loads(text).items():
            if isinstance(value, int | float):
                sums[name].append(float(value))
    if not sums:
        return []
    names = sorted(sums)
    means = [round(sum(sums[name]) / len(sums[name]), 2) for name in names]
    return [bars("Parts of the score, on average", [name.replace("_", " ") for name in names], {"mean": means})]


def _agreement(judged: pl.DataFrame) -> list[Block]:
    """Cohen's kappa of every pair of judges on the pictures both saw."""
    models = judged["model"].unique().sort().to_list()
    lines = []
    for at, one in enumerate(models):
        for other in models[at + 1 :]:
            pair = judged.filter(pl.col("model") == one).join(
                judged.filter(pl.col("model") == other), on="image_id", suffix="_2"
            )
            pair = pair.drop_nulls(["localizability", "localizability_2"])
            if pair.height:
                same, kappa = cohen_kappa(pair["localizability"].to_list(), pair["localizability_2"].to_list())
                lines.append((one, other, pair.height, f"{same:.1%}", f"{kappa:.2f}"))
    if not lines:
        return [heading("Agreement of judges"), words("One judge was asked; agreement needs two.", "muted")]
    return [
        heading("Agreement of judges", "kappa: 0 is chance, 1 is always the same"),
        table(
            ["judge", "judge", "pictures", "same class", "kappa"], lines, ["text", "text", "number", "number", "number"]
        ),
    ]


def _people(source: Source) -> list[Block]:
    marks = source.read("marks")
    if marks.is_empty():
        said = "No marks of people have been brought in; the page “Mark a sample” collects them."
        return [heading("People"), words(said, "muted")]
    wrong = marks.filter(pl.col("mark") == "wrong")
    return [
        heading("People", f"{number(marks.height)} marks, {number(wrong.height)} of them wrong"),
        table(
            ["picture", "label", "note", "by"],
            wrong.select("image_id", "label", "note", "reviewer").rows(),
            ["picture", "text", "text", "text"],
            empty="No label was marked wrong.",
        ),
    ]


def cohen_kappa(one: list[str], other: list[str]) -> tuple[float, float]:
    """The share of equal verdicts, and Cohen's kappa: (observed - chance) / (1 - chance)."""
    total = len(one)
    same = sum(a == b for a, b in zip(one, other, strict=True)) / total
    chance = sum((one.count(name) / total) * (other.count(name) / total) for name in {*one, *other})
    return same, 1.0 if chance == 1 else (same - chance) / (1 - chance)


PAGE = Page(
    id="judge",
    title="Judges",
    group="Trust",
    about="Every verdict, of rejected pictures too.",
    reads=("judgements", "images", "marks"),
    make=make,
    order=20,
)
