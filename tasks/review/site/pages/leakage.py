"""That no picture of training gives away one of the evaluation sets."""

import polars as pl

from tasks.review.site.blocks import Block, bars, heading, number, table, words
from tasks.review.site.nearest import located, nearest
from tasks.review.site.page import Page, Source
from tasks.review.site.words import distance, evidence, meaning

PAIRS = 10
RULES = (
    ("bytes", "the same bytes in two splits", ("sha256",)),
    ("sequence", "one drive in two splits", ("source", "sequence_id")),
    ("place", "one planned place in two splits", ("place_id",)),
)
EDGES_KM = (0.1, 1, 5, 10, 25, 50, 100, 250, 1000)


def make(source: Source) -> list[Block]:
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
    found, km = nearest(held_out, train, 1)
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
                    others[int(found[at, 0])],
                    distance(float(km[at, 0])),
                    held_out["split"][at],
                    held_out["country"][at],
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


PAGE = Page(
    id="leakage",
    title="Leakage",
    group="Trust",
    about="Training must not see what evaluation asks: by bytes, by drive, by place and by distance.",
    reads=("images", "labels", "rejects"),
    make=make,
    order=10,
)
