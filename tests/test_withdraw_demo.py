"""A picture of a trained demo is withdrawn: no byte of it or of its crops is in the lake or the next snapshot."""

import io
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from schemas.messages import image_references
from tasks.lake import Lake

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = [
    *("plan.places=12", "plan.countries=[DE, FR, GB]", "offline.port=8789", "collect.satellite.size_px=256"),
    *("synthesize.also_images=1", "difficulty.k=4"),
    *("train.sft.max_steps=4", "train.cold_start.max_steps=2", "train.grpo.max_steps=1"),
]


def geofix(*arguments: str) -> str:
    sets = [word for option in OPTIONS for word in ("--set", option)]
    command = [sys.executable, "-m", "flows.cli", *arguments]
    command += sets if arguments[0] in ("demo", "refresh", "review") else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def look(data: bytes) -> np.ndarray:
    """What a picture looks like, whatever its size and compression: 16 x 16 greys without their mean."""
    small = np.asarray(Image.open(io.BytesIO(data)).convert("L").resize((16, 16), Image.Resampling.BOX), float)
    grey: np.ndarray = (small - small.mean()) / (small.std() + 1e-6)
    return grey


@pytest.mark.slow
def test_no_byte_of_a_withdrawn_picture_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    geofix("demo", "--lake", str(folder))
    withdraw_one(folder)


def withdraw_one(folder: Path) -> None:
    """Withdraw a picture that models were trained on, and search what is left for it."""
    lake = Lake(folder)
    trained = lake.read("samples").filter(pl.col("training_stage") == "cold_start")
    image_id = trained["image_id"][0]
    mine = lake.read("images").filter(pl.col("image_id") == image_id).row(0, named=True)
    told = lake.read("trajectories").filter(pl.col("image_id") == image_id)["messages_json"]
    crops = {reference for text in told for reference in image_references(json.loads(text))}
    looks = [look(lake.images.read(*one)) for one in {(mine["sha256"], mine["extension"]), *crops}]
    assert crops and len(looks) > 1
    published = folder.parent / "published"
    approved = lake.read("snapshots").filter(pl.col("status") == "approved")["snapshot_id"][0]
    geofix("export", approved, "--as", "geoparquet", "--out", str(published), "--lake", str(folder))

    said = json.loads(geofix("withdraw", image_id, "--why", "a face", "--json", "--lake", str(folder)))
    assert {model["training_stage"] for model in said["models"]} == {"sft", "cold_start", "grpo"}
    assert [Path(copy["folder"]) for copy in said["exports"]] == [published]
    assert said["rows"]["calls"] > 0
    assert not lake.read("calls").filter(pl.col("item_id").str.contains(image_id, literal=True)).height
    with sqlite3.connect(lake.state / "responses.sqlite") as answers:
        assert answers.execute("SELECT count(*) FROM responses WHERE item_id LIKE ?", [f"%{image_id}%"]).fetchone() == (
            0,
        )
    geofix("maintain", "--lake", str(folder))
    geofix("verify", "--lake", str(folder))
    geofix("review", "--lake", str(folder))
    reviewed = lake.read("snapshots").sort("created_at").row(-1, named=True)
    assert reviewed["checks_passed"], "no row is lost"
    geofix("refresh", "--lake", str(folder))
    again = lake.read("runs").filter(pl.col("stage") == "collect").sort("started_at").row(-1, named=True)
    assert mine["stage"] != "collect" or again["items_in"] > 0, "its place is collected again"

    newest = lake.read("snapshots").sort("created_at").row(-1, named=True)
    versions = json.loads(newest["table_versions_json"])
    for table, version in versions.items():
        rows = lake.read(table, version)
        if "image_id" in rows.columns:
            assert image_id not in set(rows["image_id"]), table
    gone = {mine["sha256"], *(sha256 for sha256, _ in crops)}
    others = {row["sha256"] for row in lake.read("images").iter_rows(named=True)}
    for blob in lake.images.list():
        path = Path(blob.key)
        assert path.stem not in gone, "by hash"
        if path.stem in others:  # an original: two of them may show the same street
            continue
        closest = max(float((look(lake.blobs.get(blob.key)) * one).mean()) for one in looks)
        assert closest < 0.999, f"{blob.key} shows the withdrawn picture"
    report = folder / Path(newest["report"]).parent
    assert "Withdrawn: 1" in (report / "data" / "changes.js").read_text()
    texts = [path.read_bytes() for path in report.rglob("*") if path.is_file()]
    assert texts and not any(image_id.encode() in text for text in texts)
