"""Withdrawal: the picture, its crops and rows go, nothing else does, models are named, and it never comes back."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli.application import app
from schemas.errors import InputError, NotFound
from schemas.messages import image_part
from tasks.lake import Commit, Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.review.withdraw import withdraw
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import Inputs

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((64, 48), 10 + seed).save(out, "JPEG")
    return out.getvalue()


def system(stage: str, item: str) -> dict[str, Any]:
    return {"stage": stage, "item_id": item, "made_from": f"of {item}", "run_id": f"run-{stage}", "written_at": NOW}


@pytest.fixture
def lake(make_lake: Callable[..., Lake]) -> Lake:
    return make_lake()


@pytest.fixture
def trained(lake: Lake) -> tuple[Lake, str, str, str]:
    """The lake, a picture of it, and the digests of its crop and of another picture's crop."""
    images = lake.read("images").sort("source_id", "kind")
    mine, other = images["image_id"][0], images["image_id"][4]
    crops = [lake.images.put(picture(90 + n), "jpg") for n in range(2)]
    for n, image_id in enumerate((mine, other)):
        messages = [{"role": "user", "content": [image_part(crops[n])]}]
        row = {"trajectory_id": f"t{n}", "image_id": image_id, "recipe": "spotagent", "verdict": "kept",
               "end_reason": "answered", "messages_json": json.dumps(messages),
               **system("synthesize", f"t{n}")}  # fmt: skip
        lake.append("trajectories", [row], Commit(f"s{n}", 1))
        file = {"derived_id": f"d{n}", "sha256": crops[n], "extension": "jpg", "image_id": image_id, "kind": "crop",
                **system("synthesize", f"t{n}")}  # fmt: skip
        lake.append("derived", [file], Commit(f"d{n}", 1))
        sample = {"sample_id": f"x{n}", "training_stage": "sft", "image_id": image_id, "sha256": crops[n],
                  "licence": "CC BY-SA 4.0", "attribution": "walker", **system("train.samples", f"x{n}")}  # fmt: skip
        lake.append("samples", [sample], Commit(f"x{n}", 1))
    run: dict[str, Any] = {"status": "done", **system("train.sft", "run"), "run_id": "run-1"}
    run["input_versions_json"] = json.dumps({"samples": lake.version("samples")})
    lake.append("runs", [run], Commit("r", 1))
    for model_id, stage, parent in (("m1", "sft", None), ("m2", "grpo", "m1"), ("m3", "cold_start", None)):
        row = {"model_id": model_id, "training_stage": stage, "parent_id": parent, "checkpoint": f"models/{model_id}",
               **system(f"train.{stage}", model_id), "run_id": "run-1"}  # fmt: skip
        lake.append("models", [row], Commit(model_id, 1))
    return lake, mine, crops[0], crops[1]


def test_everything_of_the_picture_goes_and_nothing_else(trained: tuple[Lake, str, str, str]) -> None:
    lake, mine, crop, other_crop = trained
    before = {name: lake.read(name).height for name in lake.existing()}
    row = lake.read("images").filter(pl.col("image_id") == mine).row(0, named=True)
    same_source = lake.read("images").filter(pl.col("source_id") == row["source_id"])["image_id"].to_list()

    done = withdraw(lake, mine[:12], "a face", "Ada")

    assert set(done.image_ids) == set(same_source), "the other rows of the same photo go with it"
    assert not lake.images.exists(row["sha256"], "jpg") and not lake.images.exists(crop, "jpg")
    assert lake.images.exists(other_crop, "jpg")
    for table in ("images", "labels", "trajectories", "samples"):
        left = lake.read(table)
        assert not set(left["image_id"]) & set(same_source) and left.height == before[table] - done.rows[table]
    ended = lake.collect("images", lake.scan("images").filter(pl.col("image_id") == mine))
    assert ended["tombstone"].to_list() == ["withdrawn: a face"]
    assert [(m.model_id, m.samples) for m in done.models] == [("m1", 1), ("m2", 0)]
    kept = lake.read("withdrawals").row(0, named=True)
    assert (kept["why"], kept["who"], kept["rule"], kept["value"]) == ("a face", "Ada", "image", mine)

    again = withdraw(lake, mine, "a face", "Ada")  # as after a kill: nothing is left to do
    assert (again.rows, again.files) == ({}, 0) and [m.model_id for m in again.models] == ["m1", "m2"]
    assert lake.read("withdrawals").height == len(same_source)


def test_an_older_snapshot_no_longer_shows_it(
    trained: tuple[Lake, str, str, str], snapshot_of: Callable[..., str]
) -> None:
    lake, mine, *_ = trained
    snapshot_of(lake)
    withdraw(lake, mine, "a face", "Ada")
    snapshot = approved_snapshot(lake)
    pinned = Inputs(lake, snapshot.versions, snapshot)
    assert mine in set(lake.read("images", snapshot.versions["images"])["image_id"])
    assert mine not in set(pinned.frame("images")["image_id"]) | set(pinned.frame("labels")["image_id"])
    assert pinned.frame("images").height > 0 and pinned.frame("places").height > 0


def test_a_creator_or_licence_keeps_out_what_comes_later(lake: Lake) -> None:
    theirs = lake.read("images").filter(pl.col("creator") == "walker1")["image_id"].to_list()
    done = withdraw(lake, "creator:walker1", "asked by the creator", "Ada")
    assert set(done.image_ids) == set(theirs) and len(theirs) > 1
    rules = Withdrawn.of(lake)
    assert rules.why({"image_id": "new", "source": "mapillary", "source_id": "7", "creator": "walker1"})
    assert rules.why({"image_id": theirs[0]}) and rules.why({"sha256": next(iter(rules.digests))})
    assert rules.why({"image_id": "new", "creator": "walker2", "licence": "CC BY-SA 4.0"}) is None
    withdraw(lake, "licence:CC BY-SA 4.0", "not ours", "Ada")
    assert lake.read("images").is_empty() and Withdrawn.of(lake).why({"licence": "CC BY-SA 4.0"})


def test_a_picture_that_is_stored_again_is_deleted_again(lake: Lake) -> None:
    row = lake.read("images").row(0, named=True)
    withdraw(lake, row["image_id"], "a face", "Ada")
    lake.blobs.put(lake.images.key(row["sha256"], "jpg"), b"the same bytes, by name")
    assert "same bytes" in str(Withdrawn.of(lake).discarded({"sha256": row["sha256"], "extension": "jpg"}, lake))
    assert not lake.images.exists(row["sha256"], "jpg")


def test_what_is_not_there_or_not_clear_is_refused(lake: Lake) -> None:
    with pytest.raises(NotFound, match="creator:NAME"):
        withdraw(lake, "ffffffffffff", "a face", "Ada")
    with pytest.raises(InputError, match="creator:walker1"):
        withdraw(lake, "walker1", "a face", "Ada")
    with pytest.raises(InputError, match="--why"):
        withdraw(lake, "creator:walker1", "  ", "Ada")
    assert lake.read("withdrawals").is_empty() and lake.read("images").height > 0


def test_the_command_says_what_went(trained: tuple[Lake, str, str, str], tmp_path: Path) -> None:
    lake, mine, *_ = trained
    asked = ["withdraw", mine[:10], "--why", "a face", "--who", "Ada", "--lake", lake.uri]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0, said.output
    assert "m1" in said.output and "deleted" in said.output and "1 of samples" in said.output
    missing = CliRunner().invoke(app, ["withdraw", "ffffffff", "--why", "x", "--lake", lake.uri])
    assert missing.exit_code != 0
