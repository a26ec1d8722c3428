"""The precision of the labels, from people's marks on a random sample, with its exact interval."""

from dataclasses import dataclass
from hashlib import sha256

import polars as pl

from tasks.review.site.page import Source

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Precision:
    """How many of the marked labels are right."""

    right: int
    marked: int
    low: float  # Clopper-Pearson, exact for any number of marks
    high: float

    @property
    def share(self) -> float:
        return self.right / self.marked

    @property
    def sentence(self) -> str:
        return (
            f"Label precision {self.share:.1%} ({self.right:,} of {self.marked:,} marked pictures right; "
            f"95 % interval {self.low:.1%} to {self.high:.1%})"
        )


def precision(right: int, marked: int) -> Precision:
    """Clopper and Pearson 1934: the bounds are quantiles of beta distributions."""
    if not 0 <= right <= marked or marked < 1:
        raise ValueError(f"{right} right of {marked} marked is not a count")
    tail = (1 - CONFIDENCE) / 2
    from scipy.special import betaincinv

    low = 0.0 if right == 0 else float(betaincinv(right, marked - right + 1, tail))
    high = 1.0 if right == marked else float(betaincinv(right + 1, marked - right, 1 - tail))
    return Precision(right, marked, low, high)


def label_text() -> pl.Expr:
    """A label in one line, as people mark it: country; region; city."""
    return pl.concat_str([pl.col(name).fill_null("") for name in ("country", "region", "city")], separator="; ")


def precision_of(source: Source) -> Precision | None:
    """Of marks on pictures drawn at random whose bytes and label are still the marked ones; None without any.

    A picture marked by several people counts once: right if more than half say so.
    """
    marks = source.read("marks").filter(pl.col("sampled"))
    if marks.is_empty():
        return None
    labels = source.read("labels").select("image_id", "sha256", label=label_text())
    valid = marks.join(labels, on=["image_id", "sha256", "label"], how="semi")
    if valid.is_empty():
        return None
    votes = valid.group_by("image_id").agg(share=(pl.col("mark") == "right").mean())
    return precision(int((votes["share"] > 0.5).sum()), votes.height)


def sampled_ids(source: Source) -> list[str]:
    """Image ids drawn at random from the kept pictures; which ones follows from the snapshot's id alone."""
    salt = f"sample {source.snapshot_id} "
    kept = sorted(source.read("labels")["image_id"], key=lambda name: sha256((salt + name).encode()).hexdigest())
    return kept[: source.settings.sample]
