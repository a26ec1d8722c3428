"""Pictures that are excluded by another picture, of this lake or of an evaluation set of others.

They are found over the whole table before any picture is judged, so that no request is spent on them. A picture whose
pixels are not measured yet, because that failed, waits: it could be a near-duplicate of any other.
"""

import json

import polars as pl

from schemas.settings.curate import DuplicatesSettings
from tasks.curate.external import read_external, with_digests
from tasks.curate.leaks import exclusions
from tasks.runtime.runner import ColumnStage, Inputs

_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}
_FOUND = dict.fromkeys(("image_id", "reason", "duplicate_of", "leaks_into", "evidence_json"), pl.String)


def compute(inputs: Inputs, settings: DuplicatesSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each measured picture, with its split and what excludes it; no rejects here."""
    pictures = measured_pictures(inputs)
    found = exclusions(pictures, settings, read_external(settings.external))
    rows = [
        {
            "image_id": image_id,
            "reason": one.reason,
            "duplicate_of": one.duplicate_of,
            "leaks_into": one.leaks_into,
            "evidence_json": json.dumps(one.evidence, ensure_ascii=False),
        }
        for image_id, one in found.items()
    ]
    kept = pictures.select("image_id", "split").join(pl.DataFrame(rows, schema=_FOUND), on="image_id", how="left")
    return kept.with_columns(id="image_id"), pl.DataFrame(schema=_REJECTS)


def measured_pictures(inputs: Inputs) -> pl.DataFrame:
    """The pictures under curation that have a split, with their marks."""
    places = inputs.frame("places").select("place_id", place_split="split")
    images = inputs.frame("images").select(
        "image_id", "place_id", "sha256", "kind", "source", "sequence_id", "creator", "lat", "lon", "split"
    )
    # An ingested picture belongs to no place and has a split of its own. One whose place is gone has no split, and can
    # be used neither for training nor for evaluation.
    of_place = pl.when(pl.col("place_id").is_null()).then("split").otherwise("place_split")
    images = images.join(places, on="place_id", how="left").with_columns(split=of_place)
    measured = inputs.frame("quality").select("image_id", "sha256")
    marks = inputs.frame("fingerprints").select("image_id", "sha256", "phash", "phash_mirrored", "embedding")
    pictures = images.join(measured, on=["image_id", "sha256"]).join(marks, on=["image_id", "sha256"], how="left")
    return pictures.filter(pl.col("split").is_not_null())


STAGE = ColumnStage(
    name="curate.duplicates",
    section="curate.duplicates",
    reads=("images", "places", "quality", "fingerprints"),
    writes=("duplicates",),
    compute=compute,
    identity=with_digests,
)
