"""Two snapshots compared: kept pictures by id, and how far distributions moved."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tasks.review.site.page import Source
from tasks.review.site.pictures import picture_rows

COMPARED = ("sha256", "country", "region", "city", "split")


@dataclass(frozen=True)
class Changes:
    """Rows of labels; of those that changed also the columns before, with the suffix `_old`."""

    added: pl.DataFrame
    removed: pl.DataFrame
    changed: pl.DataFrame
    same: int
    withdrawn: pl.DataFrame  # of those before: country, region, city, why and withdrawn_at; no id, for it is gone


def changes(source: Source) -> Changes | None:
    """Against the snapshot that was approved last before this one; None where there is none."""
    if source.before is None:
        return None
    then, now = (side.read("labels").select("image_id", *COMPARED) for side in (source.before, source))
    both = now.join(then, on="image_id", suffix="_old")
    differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_old")) for name in COMPARED)
    changed = both.filter(differs)
    order = ["country", "image_id"]
    return Changes(
        added=now.join(then, on="image_id", how="anti").sort(order, nulls_last=True),
        removed=then.join(now, on="image_id", how="anti").sort(order, nulls_last=True),
        changed=changed.sort(order, nulls_last=True),
        same=both.height - changed.height,
        withdrawn=_withdrawn(source.before),
    )


def _withdrawn(before: Source) -> pl.DataFrame:
    ended = before.lake.read("withdrawals", columns=["image_id", "why", "withdrawn_at"]).drop_nulls("image_id")
    labels = before.lake.read("labels", before.versions.get("labels"), ["image_id", "country", "region", "city"])
    first = ended.sort("withdrawn_at").unique("image_id", keep="first")
    return labels.join(first, on="image_id").sort("withdrawn_at", "country", "city").drop("image_id")


MOST_LABELS = 12
# title, column of picture_rows, and whether only kept pictures count
DISTRIBUTIONS = (
    ("Country", "country", True),
    ("Split", "split", True),
    ("Kind of picture", "kind", False),
    ("Status", "status", False),
    ("Reason of rejection", "reason", False),
    ("Judge's score", "score", True),
    ("Scene category", "categories", True),
    ("Year taken", "taken", True),
    ("Month taken", "month", True),
    ("Licence", "licence", True),
    ("Creator", "creator", True),
    ("Source", "source", True),
)


@dataclass(frozen=True)
class Drift:
    """One distribution now and then."""

    title: str
    moved: float  # total variation distance: half the sum of absolute differences of shares, 0 to 1
    labels: list[str]
    before: list[float]  # shares
    now: list[float]
    most: str  # which value moved most


def values_of(rows: pl.DataFrame, column: str) -> pl.Series:
    """The values of a distribution as text, one for each picture (or each category of it)."""
    if column == "score":
        return (rows["score"].drop_nulls().floor().clip(0, 9).cast(pl.Int64)).cast(pl.String)
    if column == "categories":
        return rows["categories"].explode().drop_nulls()
    if column == "taken":
        return rows["taken"].drop_nulls().str.slice(0, 4)
    if column == "month":
        return rows["taken"].drop_nulls().str.slice(5, 2)
    return rows[column].drop_nulls()


def drifts(source: Source) -> list[Drift]:
    """Every distribution against the last approved snapshot; empty when there is none."""
    if source.before is None:
        return []
    then, now = picture_rows(source.before), picture_rows(source)
    drifted = []
    for title, column, kept in DISTRIBUTIONS:
        before, other = (rows.filter(pl.col("status") == "kept") if kept else rows for rows in (then, now))
        drifted.append(drift(title, values_of(before, column), values_of(other, column)))
    return drifted


def drift(title: str, then: pl.Series, now: pl.Series) -> Drift:
    """The distance between two samples of one distribution."""
    old, new = _shares(then), _shares(now)
    names = sorted({*old, *new}, key=lambda name: (-max(old.get(name, 0), new.get(name, 0)), name))
    apart = {name: new.get(name, 0.0) - old.get(name, 0.0) for name in names}
    most = max(names, key=lambda name: abs(apart[name]), default="")
    largest = f"{most} {old.get(most, 0):.1%} → {new.get(most, 0):.1%}" if most and apart[most] else "unchanged"
    shown = _in_order(names[:MOST_LABELS])
    return Drift(
        title=title,
        moved=sum(map(abs, apart.values())) / 2 if old and new else float(bool(old) != bool(new)),
        labels=shown,
        before=[round(old.get(name, 0.0), 4) for name in shown],
        now=[round(new.get(name, 0.0), 4) for name in shown],
        most=largest,
    )


def _shares(values: pl.Series) -> dict[str, float]:
    counted = values.value_counts()
    return {str(value): count / len(values) for value, count in counted.iter_rows()} if len(values) else {}


def _in_order(names: Sequence[str]) -> list[str]:
    """Numbers by size, words as they come."""
    return sorted(names, key=int) if all(name.isdigit() for name in names) else list(names)
