"""Withdrawal: the picture, its crops and rows go, nothing else does, models are named, and it never comes back."""

import io
import json
import time
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
from schemas.settings.collect import CollectSettings
from schemas.settings.review import ReviewSettings
from tasks.collect import street_view
from tasks.lake import Commit, Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.review.evidence import funnel, gather
from tasks.review.export import export
from tasks.review.site import build_site
from tasks.review.withdraw import withdraw
from tasks.runtime.calls import call_store, commit_calls, load_calls
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import Inputs
from tasks.services.call_store import COLUMNS, End
from tasks.services.response_store import Keep

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


def answered(item_id: str, reply: str) -> End:
    """A model's reply to a call of an item."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"call_id": f"call {item_id}", "item_id": item_id, "role": "judge"}
    row |= {"request_hash": "h", "model": "m", "verdict": "answered", "stage": "curate.judge", "requests": 1}
    return End(row["call_id"], item_id, row | {"asked_at": 1.0, "cost_usd": 0.5, "reply_json": reply})


def test_what_models_and_tools_said_of_it_goes(trained: tuple[Lake, str, str, str]) -> None:
    lake, mine, *_ = trained
    other, secret = lake.read("images")["image_id"].sort()[-1], "call 0151 2345678"
    items = (mine, f"recipe:{mine}", f"{mine}|policy|3", f"evaluation|{mine}", other)
    store = call_store(lake)
    store.apply([answered(item, secret if item != other else "a road") for item in items])
    store.apply([Keep("tool", "k", secret.encode(), 1.0, item_id=f"recipe:{mine}"), Keep("tool", "o", b"x", 1.0)])
    store.apply([Keep("collect.picture", "p", secret.encode(), time.time(), time.time() + 999)])
    said = {
        "rejects": {"reason": "unsure", "evidence_json": secret},
        "failures": {"kind": "bad_response", "message": secret, "attempts": 1},
    }
    for table, told in said.items():
        lake.upsert(table, [{**system("synthesize", f"recipe:{mine}"), **told}], Commit(f"said {table}", 1))
    commit_calls(lake)
    store.apply([answered(f"late|{mine}", secret)])  # not in the table yet
    assert lake.read("calls").height == 5

    done = withdraw(lake, mine, "a telephone number", "Ada")

    assert done.rows["calls"] == 5 and done.rows["failures"] == 1 and done.rows["rejects"] >= 1
    assert lake.read("calls")["item_id"].to_list() == [other]
    ended = lake.collect("calls", lake.scan("calls").filter(pl.col("tombstone").is_not_null()))
    assert set(ended["reply_json"]) == {None} and ended["cost_usd"].sum() == 2.5, "what it cost is still known"
    for table in ("rejects", "failures"):
        assert not lake.read(table).filter(pl.col("item_id").str.contains(mine, literal=True)).height
    assert (found := store.find("chat", f"call {other}")) is not None and found.value == "a road"
    assert store.find("tool", "k") is None and store.find("tool", "o") is not None
    for path in lake.state.rglob("responses*"):
        assert secret.encode() not in path.read_bytes(), path
    assert load_calls(lake, store) == 0 and store.find("chat", f"call {mine}") is None


def test_earlier_exports_that_hold_it_are_named(lake: Lake, snapshot_of: Callable[..., str], tmp_path: Path) -> None:
    snapshot_id = snapshot_of(lake)
    first, second = lake.read("labels").sort("country")["image_id"].unique(maintain_order=True).to_list()[:3:2]
    export(lake, snapshot_id, "geoparquet", tmp_path / "one")
    assert [Path(copy.folder) for copy in withdraw(lake, first, "a face", "Ada").exports] == [tmp_path / "one"]
    export(lake, snapshot_id, "webdataset", tmp_path / "two")
    again = CliRunner().invoke(app, ["withdraw", first, "--why", "a face", "--lake", lake.uri])
    assert str(tmp_path / "one") in again.output and str(tmp_path / "two") not in again.output
    named = withdraw(lake, second, "a face", "Ada").exports
    assert [(Path(copy.folder).name, copy.form) for copy in named] == [("one", "geoparquet"), ("two", "webdataset")]
    assert all(copy.pictures > 0 and copy.snapshot_id == snapshot_id for copy in named)


def test_a_later_review_counts_it_as_withdrawn_and_says_so(
    lake: Lake, snapshot_of: Callable[..., str], tmp_path: Path
) -> None:
    snapshot_of(lake)
    mine = lake.read("labels")["image_id"][0]
    ended = withdraw(lake, mine, "a face", "Ada").rows["labels"]
    counts = funnel(gather(lake))
    assert [one.stage for one in counts if one.withdrawn] == ["collect", "curate.labels"]
    assert not any(one.lost for one in counts), "no row is lost"
    versions = {name: lake.version(name) for name in ("places", "images", "labels", "rejects")}
    row = {"snapshot_id": "e" * 24, "table_versions_json": json.dumps(versions), "status": "pending",
           "checks_json": "[]", "checks_passed": True, "report": "r", "created_at": datetime.now(UTC)}  # fmt: skip
    page = build_site(lake, row, ReviewSettings(thumbnail_px=64, look_around=0))
    changes = (page.parent / "data" / "changes.js").read_text()
    assert f"Withdrawn: {ended}" in changes and "a face" in changes and mine not in changes


def test_its_place_is_collected_again(lake: Lake) -> None:
    def news() -> dict[str, int]:
        read = {name: lake.version(name) for name in street_view.STAGE.reads}
        found = street_view.items(Inputs(lake, read), CollectSettings())
        return dict(found.select("id", "news").iter_rows())

    before, mine = news(), lake.read("images").row(0, named=True)
    withdraw(lake, mine["image_id"], "a face", "Ada")
    after = news()
    assert [place for place in before if after[place] != before[place]] == [mine["place_id"]]
    withdraw(lake, mine["image_id"], "a face", "Ada")
    assert news() == after, "once"


def test_a_rule_that_meets_nothing_says_so(lake: Lake) -> None:
    said = CliRunner().invoke(app, ["withdraw", "creator:Walker", "--why", "asked", "--lake", lake.uri])
    assert said.exit_code == 0 and "nothing matched: no picture in the lake has the creator 'Walker'" in said.output
    assert "alike       walker" in said.output and "come later are not taken" in said.output
    assert Withdrawn.of(lake).creators == {"Walker"} and lake.read("images").height == 16


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
    few = pinned.frame("images", "kind")
    assert few.columns == ["kind"] and few.height == pinned.frame("images").height, "withdrawn ones are left out too"


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


def test_on_a_full_disk_the_pictures_go_first(
    trained: tuple[Lake, str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, image_id, *_ = trained
    row = lake.read("images").filter(pl.col("image_id") == image_id).row(0, named=True)
    path = lake.root / lake.images.key(row["sha256"], row["extension"])
    assert path.exists()
    monkeypatch.setattr("tasks.lake.tables.is_full", lambda where: path.exists())
    monkeypatch.setattr(Lake, "_refuse_unwritable", lambda self: pytest.fail("no space is needed to free some"))
    done = CliRunner().invoke(app, ["withdraw", image_id, "--why", "asked", "--lake", lake.uri, "--json"])
    assert done.exit_code == 0, done.output
    assert not path.exists() and json.loads(done.stdout)["files"] >= 2
    assert image_id in lake.read("withdrawals")["image_id"].to_list()
