"""Pictures that are excluded by another picture: exact duplicates, and sequences that reach into two splits.

They are found over the whole table before any picture is judged, so that no request is spent on them.
"""

import polars as pl

from schemas.settings.curate import DuplicatesSettings
from tasks.runtime.runner import ColumnStage, Inputs

# Where two splits share something, the later one keeps it: evaluation data is scarcer than training data.
SPLIT_ORDER = {"train": 0, "validation": 1, "benchmark": 2}
_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}


def compute(inputs: Inputs, settings: DuplicatesSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each picture of the kinds under curation, with its split and what excludes it; no rejects here."""
    places = inputs.frame("places").select("place_id", place_split="split")
    images = inputs.frame("images").filter(pl.col("kind").is_in(settings.kinds))
    # An ingested picture belongs to no place and has a split of its own. One whose place is gone has no split, and can
    # be used neither for training nor for evaluation.
    of_place = pl.when(pl.col("place_id").is_null()).then("split").otherwise("place_split")
    images = images.join(places, on="place_id", how="left").with_columns(split=of_place)
    kept = with_overlaps(images.filter(pl.col("split").is_not_null())).select(
        "image_id", "split", "duplicate_of", "leaks_into", id="image_id", evidence_json=_evidence()
    )
    return kept, pl.DataFrame(schema=_REJECTS)


def with_overlaps(images: pl.DataFrame) -> pl.DataFrame:
    """The images with `duplicate_of` (an image_id) and `leaks_into` (a split), null where there is none.

    Needs the columns image_id, sha256, source, sequence_id and split. Of pictures with equal bytes the one of the
    later split stays, then the one with the smallest image_id. A sequence is one drive: its pictures look alike, so
    it may serve one split only.
    """
    rank = pl.col("split").replace_strict(SPLIT_ORDER, default=None, return_dtype=pl.Int64)
    first = pl.col("image_id").sort_by([rank, "image_id"], descending=[True, False]).first().over("sha256")
    highest = rank.max().over("source", "sequence_id")
    names = {number: name for name, number in SPLIT_ORDER.items()}
    leaks = pl.col("sequence_id").is_not_null() & (rank < highest)
    return images.with_columns(
        duplicate_of=pl.when(pl.col("image_id") != first).then(first),
        leaks_into=pl.when(leaks).then(highest.replace_strict(names, default=None, return_dtype=pl.String)),
    )


def _evidence() -> pl.Expr:
    leak = pl.struct(pl.col("leaks_into").alias("sequence_also_in"), "split")
    return (
        pl.when(pl.col("duplicate_of").is_not_null())
        .then(pl.struct(pl.col("duplicate_of").alias("of")).struct.json_encode())
        .when(pl.col("leaks_into").is_not_null())
        .then(leak.struct.json_encode())
    )


STAGE = ColumnStage(
    name="curate.duplicates",
    section="curate.duplicates",
    reads=("images", "places"),
    writes=("duplicates",),
    compute=compute,
)
