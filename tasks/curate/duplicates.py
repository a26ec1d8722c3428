"""Pictures that are excluded by another picture, of this lake or of an evaluation set of others.

They are found over the whole table before any picture is judged, so that no request is spent on them. A picture whose
pixels are not measured yet, because that failed, waits: it could be a near-duplicate of any other. One that is unfit by
itself (position, quality, rights) takes no part: it excludes none.
"""

import json
from typing import Any

import polars as pl

from schemas.settings.curate import CurateSettings
from tasks.curate.external import read_external, with_digests
from tasks.curate.fitness import READS, with_own_faults
from tasks.curate.leaks import Exclusion, exclusions
from tasks.imaging.alike import Alike, look_alikes
from tasks.runtime.runner import ColumnStage, Inputs

_REJECTS = {"id": pl.String, "reason": pl.String, "evidence_json": pl.String}
_FOUND = dict.fromkeys(("image_id", "reason", "duplicate_of", "leaks_into", "evidence_json"), pl.String)
COPIES = ("exact_duplicate", "near_duplicate", "mirrored_duplicate")  # reasons: the same picture again


def compute(inputs: Inputs, settings: CurateSettings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each measured picture, with its split and what excludes it; no rejects here."""
    pictures = measured_pictures(inputs)
    faults = with_own_faults(pictures.select("image_id"), inputs, settings.labels).select("image_id", "unfit")
    pictures = pictures.join(faults, on="image_id", how="left")
    marks = inputs.frame("fingerprints").drop("phash")
    fit = pictures.filter(pl.col("unfit").is_null()).join(marks, on=["image_id", "sha256"], how="left")
    alike = look_alikes(fit, settings.duplicates)
    excluded = exclusions(fit, settings.duplicates, alike, read_external(settings.duplicates.external))
    kept = pictures.select("image_id", "split", "unfit").join(exclusion_rows(excluded), on="image_id", how="left")
    return kept.join(_partners(alike), on="image_id", how="left").with_columns(id="image_id"), pl.DataFrame(
        schema=_REJECTS
    )


def exclusion_rows(excluded: dict[str, Exclusion]) -> pl.DataFrame:
    """What excludes each picture that leaves, as columns of the table."""
    rows = [
        {
            "image_id": image_id,
            "reason": exclusion.reason,
            "duplicate_of": exclusion.duplicate_of,
            "leaks_into": exclusion.leaks_into,
            "evidence_json": json.dumps(exclusion.evidence, ensure_ascii=False),
        }
        for image_id, exclusion in excluded.items()
    ]
    return pl.DataFrame(rows, schema=_FOUND)


def _partners(alike: list[Alike]) -> pl.DataFrame:
    """The pairs that look alike, in the row of the first of each."""
    of: dict[str, list[dict[str, Any]]] = {}
    for pair in alike:
        of.setdefault(pair.one, []).append({"of": pair.two, "reason": pair.reason, "evidence": pair.evidence})
    rows = [(image_id, json.dumps(others)) for image_id, others in of.items()]
    return pl.DataFrame(rows, {"image_id": pl.String, "alike_json": pl.String}, orient="row")


def read_partners(duplicates: pl.DataFrame) -> list[Alike]:
    """The pairs that look alike, from the table."""
    rows = duplicates.select("image_id", "alike_json").drop_nulls().iter_rows()
    return [
        Alike(image_id, entry["of"], entry["reason"], entry["evidence"])
        for image_id, text in rows
        for entry in json.loads(text)
    ]


def measured_pictures(inputs: Inputs) -> pl.DataFrame:
    """The pictures under curation that have a split, with what two of them may share."""
    places = inputs.frame("places", "place_id", "split").rename({"split": "place_split"})
    images = inputs.frame(
        *("images", "image_id", "place_id", "sha256", "kind", "source", "sequence_id", "creator", "lat", "lon"),
        *("captured_at", "split", "purpose"),
    )
    # An ingested picture belongs to no place and has a split of its own. One whose place is gone has no split, and can
    # be used neither for training nor for evaluation.
    of_place = pl.when(pl.col("place_id").is_null()).then("split").otherwise("place_split")
    images = images.join(places, on="place_id", how="left").with_columns(split=of_place)
    measured = inputs.frame("quality", "image_id", "sha256")
    marks = inputs.frame("fingerprints").select("image_id", "sha256", "phash")
    pictures = images.join(measured, on=["image_id", "sha256"]).join(marks, on=["image_id", "sha256"], how="left")
    return pictures.filter(pl.col("split").is_not_null())


def identity(settings: CurateSettings) -> dict[str, object]:
    """What the step depends on: its own section, and the limits by which a picture is unfit."""
    labels = settings.labels
    limits = {"off_plan_km": labels.off_plan_km, "least_year": labels.least_year}
    return with_digests(settings.duplicates) | limits | labels.quality.model_dump(mode="json")


STAGE = ColumnStage(
    name="curate.duplicates",
    section="curate",
    reads=(*READS, "fingerprints"),
    writes=("duplicates",),
    compute=compute,
    identity=identity,
)
