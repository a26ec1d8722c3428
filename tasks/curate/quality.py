"""What the pixels of every picture under curation measure, and the marks by which near-duplicates are found.

Nothing is rejected here: thresholds belong to the step that makes the labels, so that another one measures nothing
again.
"""

import json
from dataclasses import asdict

import polars as pl

from schemas.settings.curate import QualitySettings
from tasks.imaging.decode import BadImage, Encoded
from tasks.imaging.hashes import marks_of
from tasks.imaging.patches import patches_of
from tasks.imaging.quality import measure
from tasks.lake import Lake
from tasks.runtime.runner import Inputs, Kept, Resources, Row, Stage, WorkerSetup


def items(inputs: Inputs, settings: QualitySettings) -> pl.DataFrame:
    """One item for each picture of the curated kinds: its bytes, and nothing else the figures depend on."""
    images = inputs.frame("images", "image_id", "sha256", "extension", "kind").filter(
        pl.col("kind").is_in(settings.kinds)
    )
    return images.select("sha256", "extension", id="image_id")


def open_context(settings: QualitySettings, setup: WorkerSetup) -> Lake:
    return setup.lake


async def work(item: Row, lake: Lake) -> Kept:
    """The figures and marks of one picture, or why there are none.

    Async although it waits for nothing: the workers of the steps around it are kept.
    """
    row: Row = {"image_id": item["id"], "sha256": item["sha256"]}
    try:
        quality, pixels = measure(Encoded.open(lake.images.read(item["sha256"], item["extension"])))
    except BadImage as error:
        evidence = json.dumps({"kind": error.kind, "detail": error.detail}, sort_keys=True)
        return Kept({"quality": [row | {"problem": "corrupt_image", "evidence_json": evidence}]})
    marks = asdict(marks_of(pixels)) | asdict(patches_of(pixels))
    return Kept({"fingerprints": [row | marks], "quality": [row | asdict(quality)]})


STAGE = Stage(
    name="curate.quality",
    section="curate.quality",
    reads=("images",),
    writes=("fingerprints", "quality"),
    items=items,
    work=work,
    open=open_context,
    resources=Resources(cpus=1, chunk=8),
    version=2,  # parts of the picture are hashed too
)
