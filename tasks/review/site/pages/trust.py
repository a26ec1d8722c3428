"""Why the data can be trusted: checks, leakage, judges and licences."""

import json
from collections import defaultdict

import polars as pl

from tasks.review.site.blocks import Block, bars, commands, figure, figures, heading, number, table, words
from tasks.review.site.nearest import located, nearest
from tasks.review.site.page import Source, page
from tasks.review.site.words import distance, evidence, meaning


@page(
    "checks",
    "Checks",
    "Trust",
    ("snapshots",),
    about="Great Expectations holds every table to its contract; a snapshot is made after all suites have run.",
    order=0,
)
def checks_page(source: Source) -> list[Block]:
    """One table of checks for each table of the lake, failing ones first."""
    checks = sorted(source.checks, key=lambda check: check["passed"])
    failing = sum(not check["passed"] for check in checks)
    some, none = f"{failing} of {len(checks)} checks fail.", f"All {len(checks)} checks pass."
    blocks = [words(some, "bad") if failing else words(none, "good")]
    for name in dict.fromkeys(check["table"] for check in checks):
        mine = [check for check in checks if check["table"] == name]
        rows = [
            (
                "holds" if check["passed"] else "FAILS",
                check["says"],
                *(number(check[name]) for name in ("checked", "unexpected")),
                ", ".join(check["examples"]),
            )
            for check in mine
        ]
        blocks += [
            heading(name),
            table(["", "promise", "rows", "breaches", "such as"], rows, ["text", "text", "number", "number", "code"]),
        ]
    blocks.append({"block": "files", "items": [["Great Expectations' Data Docs", "data-docs/index.html"]]})
    return [*blocks, commands(source.command("verify"))]


PAIRS = 10
RULES = (
    ("bytes", "the same bytes in two splits", ("sha256",)),
    ("sequence", "one drive in two splits", ("source", "sequence_id")),
    ("place", "one planned place in two splits", ("place_id",)),
)
EDGES_KM = (0.1, 1, 5, 10, 25, 50, 100, 250, 1000)


@page(
    "leakage",
    "Leakage",
    "Trust",
    ("images", "labels", "rejects"),
    about="Training must not see what evaluation asks: by bytes, by drive, by place and by distance.",
    order=10,
)
def leakage_page(source: Source) -> list[Block]:
    """Each rule with what was compared and found, then the closest pairs across splits."""
    labels = source.read("labels").select("image_id", "place_id", "sha256", "lat", "lon", "split", "country")
    rows = labels.join(source.read("images").select("image_id", "source", "sequence_id", "creator"), on="image_id")
    lines = []
    for _, says, columns in RULES:
        compared = rows.drop_nulls(list(columns))
        groups = compared.group_by(*columns).agg(splits=pl.col("split").n_unique())
        bad = groups.filter(pl.col("splits") > 1).height
        lines.append((says, groups.height, compared.height, bad, "none" if bad == 0 else "LEAKS"))
    shared = rows.drop_nulls("creator").group_by("creator").agg(splits=pl.col("split").n_unique())
    in_two = shared.filter(pl.col("splits") > 1).height
    lines.append(
        ("one creator in two splits (told, not refused by itself)", shared.height, rows.height, in_two, "see pairs")
    )
    return [
        table(
            ["rule", "groups compared", "pictures", "in two splits", "leaks"],
            lines,
            ["text", "number", "number", "number", "text"],
        ),
        *_distances(rows),
        *_removed(source),
    ]


def _distances(rows: pl.DataFrame) -> list[Block]:
    """How far each evaluation picture is from the nearest training picture."""
    points = located(rows)
    train, held_out = points.filter(pl.col("split") == "train"), points.filter(pl.col("split") != "train")
    nearest_rows, km = nearest(held_out, train, 1)
    if not km.size:
        return [
            heading("Distance to training"),
            words("There is no pair of training and evaluation pictures.", "muted"),
        ]
    closest = sorted(range(len(km)), key=lambda at: float(km[at, 0]))[:PAIRS]
    labels = [f"< {edge:g} km" for edge in EDGES_KM] + [f"≥ {EDGES_KM[-1]:g} km"]
    counts, low = [], 0.0
    for edge in (*EDGES_KM, float("inf")):
        counts.append(int(((km[:, 0] >= low) & (km[:, 0] < edge)).sum()))
        low = edge
    ids, others = held_out["image_id"], train["image_id"]
    return [
        heading("Distance to training", "of every evaluation picture to the nearest training picture"),
        words(f"The closest pair is {distance(float(km.min()))} apart."),
        bars("Evaluation pictures by distance to the nearest training picture", labels, {"pictures": counts}),
        heading("Closest pairs"),
        table(
            ["evaluation", "training", "apart", "split", "country"],
            [
                (
                    ids[at],
                    others[int(nearest_rows[at, 0])],
                    distance(float(km[at, 0])),
                    *held_out.select("split", "country").row(at),
                )
                for at in closest
            ],
            ["picture", "picture", "text", "text", "text"],
        ),
    ]


def _removed(source: Source) -> list[Block]:
    """Pictures taken out as duplicates or leaks, with the evidence of each."""
    rejects = source.read("rejects").filter(pl.col("reason").str.contains("duplicate|leak"))
    known = set(source.read("images")["image_id"])
    rows = rejects.sort("reason", "item_id").head(500).to_dicts()
    return [
        heading("Removed", f"{number(rejects.height)} pictures were taken out as duplicates or leaks"),
        table(
            ["picture", "reason", "evidence"],
            [(row["item_id"], meaning(row["reason"]), evidence(row["evidence_json"])) for row in rows],
            ["picture", "text", "text"],
            [f"picture/{row['item_id']}" if row["item_id"] in known else "" for row in rows],
            empty="None had to be.",
        ),
    ]


CLASSES = ("localizable", "non_localizable", "landmark")


@page(
    "judge",
    "Judges",
    "Trust",
    ("judgements", "images", "marks"),
    about="Every verdict, of rejected pictures too.",
    order=20,
)
def judge_page(source: Source) -> list[Block]:
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
    for at, model in enumerate(models):
        for other in models[at + 1 :]:
            pair = judged.filter(pl.col("model") == model).join(
                judged.filter(pl.col("model") == other), on="image_id", suffix="_2"
            )
            pair = pair.drop_nulls(["localizability", "localizability_2"])
            if pair.height:
                same, kappa = cohen_kappa(pair["localizability"].to_list(), pair["localizability_2"].to_list())
                lines.append((model, other, pair.height, f"{same:.1%}", f"{kappa:.2f}"))
    if not lines:
        return [heading("Agreement of judges"), words("One judge was queried; agreement needs two.", "muted")]
    return [
        heading("Agreement of judges", "kappa: 0 is chance, 1 is always the same"),
        table(
            ["judge", "judge", "pictures", "same class", "kappa"], lines, ["text", "text", "number", "number", "number"]
        ),
    ]


def _people(source: Source) -> list[Block]:
    marks = source.read("marks")
    if marks.is_empty():
        sentence = "No marks of people have been brought in; the page “Mark a sample” collects them."
        return [heading("People"), words(sentence, "muted")]
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


def cohen_kappa(first: list[str], other: list[str]) -> tuple[float, float]:
    """The share of equal verdicts, and Cohen's kappa: (observed - chance) / (1 - chance)."""
    total = len(first)
    same = sum(a == b for a, b in zip(first, other, strict=True)) / total
    chance = sum((first.count(name) / total) * (other.count(name) / total) for name in {*first, *other})
    return same, 1.0 if chance == 1 else (same - chance) / (1 - chance)


CREATORS = 200


@page("licences", "Licences", "Trust", ("images", "labels"), about="What may be published, and whom to name.", order=30)
def licences_page(source: Source) -> list[Block]:
    """Licences, sources and creators, each leading to its pictures."""
    images = source.read("images")
    kept = images.join(source.read("labels").select("image_id"), on="image_id", how="semi")
    without = images.filter(pl.col("licence").fill_null("").str.strip_chars() == "").height
    uncredited = images.filter(pl.col("attribution").fill_null("").str.strip_chars() == "").height
    creators = images.group_by("creator").agg(pictures=pl.len(), licences=pl.col("licence").unique().sort())
    ranked = creators.drop_nulls("creator").sort(["pictures", "creator"], descending=[True, False])
    return [
        figures(
            figure(without, "pictures without a licence", "bad" if without else "good"),
            figure(uncredited, "without an attribution", "bad" if uncredited else "good"),
            figure(ranked.height, "creators"),
        ),
        _counted("Licences", "licence", images, kept),
        _counted("Sources", "source", images, kept),
        heading("Creators", f"the {CREATORS} with most pictures" if ranked.height > CREATORS else ""),
        table(
            ["creator", "pictures", "licences"],
            [(name, count, ", ".join(map(str, sources))) for name, count, sources in ranked.head(CREATORS).iter_rows()],
            ["text", "number", "text"],
            [f"pictures?creator={name}" for name in ranked.head(CREATORS)["creator"]],
            empty="No source named a creator.",
        ),
        words("The attribution of every picture stands under it and goes with it into views, samples and exports."),
    ]


def _counted(title: str, column: str, images: pl.DataFrame, kept: pl.DataFrame) -> Block:
    of_kept = dict(kept.group_by(column).len().iter_rows())
    counted = images.group_by(column).len().sort(["len", column], descending=[True, False])
    rows = [(name or "none", count, of_kept.get(name, 0)) for name, count in counted.iter_rows()]
    links = [f"pictures?{column}={row[0]}" for row in rows]
    return table([title, "pictures", "kept"], rows, ["text", "number", "number"], links)
