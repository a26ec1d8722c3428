"""Items that end rows of other stages, and planning a stage without running it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas.errors import GeofixError
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from tasks.lake import Commit, Lake
from tasks.runtime.items.chunk import ChunkJob, ChunkResult
from tasks.runtime.items.ledger import Ledger
from tasks.runtime.runner import Context, Inputs, Kept, Row, Stage, pending
from tasks.services import connect


def place(name: str) -> Row:
    return {"place_id": name, "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train", "stage": "plan"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.upsert("places", [place(name) for name in ("a", "b", "c")], Commit("plan", 1))
    return lake


def ledger(lake: Lake, **options: Any) -> Ledger:
    options = {"stage": "again", "writes": ("places", "gaps"), "run_id": "r1", **options}
    return Ledger(lake, config_hash="h", config_json="{}", code_version="0", input_versions={}, **options)


def test_rows_end_with_their_own_reasons_in_one_commit(lake: Lake) -> None:
    results = [
        ChunkResult(gone={"places": {"a": "moved", "c": "closed"}}),
        ChunkResult(gone={"places": {"x": "moved"}}),
    ]
    before = lake.version("places")
    ledger(lake).commit(results)
    rows = lake.scan("places").collect()
    assert dict(rows.select("place_id", "tombstone").iter_rows()) == {"a": "moved", "b": None, "c": "closed"}
    assert dict(rows.select("place_id", "run_id").iter_rows())["a"] == "r1"
    assert set(rows["stage"]) == {"plan"}  # they stay the rows of the stage that made them
    assert lake.read("places", before).height == 3  # and at the older version they live


def test_ending_comes_before_what_says_that_it_is_done(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("append_new", "change", "tombstone"):
        real = getattr(Lake, name)

        def noting(self: Lake, table: str, *rest: Any, _real: Any = real, _name: str = name) -> Any:
            order.append(f"{_name} {table}")
            return _real(self, table, *rest)

        monkeypatch.setattr(Lake, name, noting)
    job = ChunkJob("again", "r1", "gaps", ("places", "gaps"), lambda item, bench: None, lambda: None, 1)
    gap = {"place_id": "a", "kind": "photo", "wanted": 1, "got": 0, "reason": "x"}
    outcome = Kept({"gaps": [gap]}, gone={"places": {"a": "moved"}})
    ledger(lake).commit([job.gather([("a", "m", outcome)])])
    assert order == ["tombstone places", "append_new gaps"]


def test_only_declared_tables_may_be_touched(lake: Lake) -> None:
    job = ChunkJob("again", "r1", "gaps", ("gaps",), lambda item, bench: None, lambda: None, 1)
    gap = {"place_id": "a", "kind": "photo", "wanted": 1, "got": 0, "reason": "x"}
    with pytest.raises(GeofixError, match="'places', which it does not declare"):
        job.gather([("a", "m", Kept({"gaps": [gap]}, gone={"places": {"a": "moved"}}))])


def test_what_is_pending_is_told_and_nothing_written(lake: Lake) -> None:
    def items(inputs: Inputs, settings: Settings) -> pl.DataFrame:
        return inputs.frame("places").select(id="place_id", unhashed="lat")

    stage = Stage("again", ("places",), ("gaps",), items, lambda i, b: None, lambda s, w: None, unhashed=("unhashed",))
    context = Context(lake, connect(ServicesSettings(), {}))
    versions = {name: lake.version(name) for name in lake.existing()}
    todo = pending(stage, Settings(), context)
    assert todo["id"].sort().to_list() == ["a", "b", "c"] and "unhashed" in todo.columns
    done = todo.filter(pl.col("id") == "b").row(0, named=True)
    row = {"place_id": "b", "kind": "photo", "wanted": 1, "got": 0, "reason": "x", "stage": "again", "item_id": "b"}
    assert {name: lake.version(name) for name in lake.existing()} == versions
    lake.upsert("gaps", [{**row, "made_from": done["made_from"]}], Commit("r0", 1))
    assert pending(stage, Settings(), context)["id"].sort().to_list() == ["a", "c"]


def test_views_live_while_any_version_of_their_picture_does(lake: Lake) -> None:
    def image(digest: str, day: int) -> Row:
        return {
            "image_id": "i", "kind": "panorama", "lat": 1.0, "lon": 2.0, "source": "s", "source_id": "1",
            "licence": "l", "attribution": "a", "sha256": "0" * 64, "stage": "again", "item_id": "i",
            "made_from": digest, "written_at": datetime(2026, 1, day, tzinfo=UTC),
        }  # fmt: skip

    view = {
        "view_id": "v", "image_id": "i", "yaw_deg": 0.0, "pitch_deg": 0.0, "fov_deg": 90.0, "width": 8, "height": 8,
        "sha256": "0" * 64, "licence": "l", "attribution": "a",
    }  # fmt: skip
    lake.append(
        "images", [{**image("m1", 1), "tombstone": "superseded by a newer run"}, image("m2", 2)], Commit("r0", 1)
    )
    lake.upsert("views", [view], Commit("r0", 1))
    one = ledger(lake, writes=("images",))
    one.plan_run(pl.DataFrame({"id": ["i"], "made_from": ["m2"]}))
    one.sweep(pl.Series([], dtype=pl.String), keeps_history=False)
    assert lake.read("views").height == 1
    one.plan_run(pl.DataFrame(schema={"id": pl.String, "made_from": pl.String}))
    one.sweep(pl.Series([], dtype=pl.String), keeps_history=False)
    assert lake.scan("views").collect()["tombstone"].to_list() == ["its row in images is gone: its input is gone"]
