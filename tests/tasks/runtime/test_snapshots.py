"""The stages after the review read the approved snapshot at its versions, or refuse and say what to do."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.order import STAGES, steps_of
from schemas.errors import NotFound, StageRefused
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from tasks.lake import Commit, Lake
from tasks.runtime.runner import ColumnStage, Context, Inputs, run
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import open_inputs
from tasks.services import connect

MakeSnapshot = Callable[..., str]
WHEN = datetime(2026, 3, 9, 8, 30, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    write_label(lake, "Paris")
    return lake


def write_label(lake: Lake, city: str) -> None:
    row = {"image_id": "i", "sha256": "0" * 64, "lat": 1.0, "lon": 2.0, "split": "train", "city": city}
    lake.upsert("labels", [row], Commit(f"label-{city}", 1))


def cities(inputs: Inputs, settings: Settings) -> tuple[pl.DataFrame, pl.DataFrame]:
    found = inputs.frame("labels").select(
        "image_id", id="image_id", trajectory_id="image_id", messages_json="city", recipe=pl.lit("r"),
        verdict=pl.lit("kept"), end_reason=pl.lit("answered"), snapshot_id=pl.lit(inputs.snapshot_id),
    )  # fmt: skip
    return found, pl.DataFrame(schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String})


AFTER = ColumnStage(
    "after", ("labels",), ("trajectories",), cities, snapshot=True, unhashed=("snapshot_id",), keeps_history=False
)


def go(lake: Lake, wanted: str | None = None) -> Any:
    chosen = approved_snapshot(lake, wanted) if wanted else None
    return run(AFTER, Settings(), Context(lake, connect(ServicesSettings(), {}), snapshot=chosen))


def test_every_stage_after_the_review_works_on_a_snapshot_and_none_before() -> None:
    after = STAGES.index("review") + 1
    assert all(step.snapshot for name in STAGES[after:] for step in steps_of(name))
    assert not any(step.snapshot for name in STAGES[:after] for step in steps_of(name))


def test_what_comes_after_the_approval_is_not_read(lake: Lake, snapshot_of: MakeSnapshot) -> None:
    first = snapshot_of(lake)
    write_label(lake, "Rome")
    result = go(lake)
    assert result.input_versions["labels"] == lake.version("labels") - 1
    row = lake.read("trajectories").row(0, named=True)
    assert (row["messages_json"], row["snapshot_id"]) == ("Paris", first)
    assert lake.read("runs")["snapshot_id"].to_list() == [first]

    second = snapshot_of(lake)
    assert go(lake).kept == 1
    assert lake.read("trajectories").row(0, named=True)["snapshot_id"] == second
    go(lake, first)
    assert lake.read("trajectories")["messages_json"].to_list() == ["Paris"]


def test_the_same_data_in_a_newer_snapshot_is_not_redone(lake: Lake, snapshot_of: MakeSnapshot) -> None:
    first = snapshot_of(lake)
    go(lake)
    snapshot_of(lake)
    assert go(lake).nothing_to_do
    assert lake.read("trajectories")["snapshot_id"].to_list() == [first]


def test_the_newest_approved_counts_not_the_one_approved_last(lake: Lake, snapshot_of: MakeSnapshot) -> None:
    snapshot_of(lake, reviewed_at=WHEN)
    newest = snapshot_of(lake)
    snapshot_of(lake, status="rejected")
    snapshot_of(lake, status="pending")
    assert approved_snapshot(lake).snapshot_id == newest
    assert open_inputs(AFTER, lake).snapshot_id == newest


def test_without_an_approved_snapshot_the_line_says_who_when_why_and_what_to_do(
    lake: Lake, snapshot_of: MakeSnapshot
) -> None:
    with pytest.raises(StageRefused, match="there is no snapshot to work on; run: geofix review"):
        go(lake)
    waiting = snapshot_of(lake, status="pending", reviewer=None, reviewed_at=None)
    with pytest.raises(StageRefused) as caught:
        go(lake)
    assert str(caught.value) == (
        f"no snapshot is approved; the newest, {waiting} is pending since 2026-03-01 13:00 UTC; "
        f"read reports/{waiting}/index.html, then run: geofix approve {waiting}, "
        f"or geofix reject {waiting} --why REASON"
    )
    refused = snapshot_of(lake, status="rejected", reviewed_at=WHEN, why="blurred signs")
    for wanted in (None, refused):
        with pytest.raises(StageRefused) as caught:
            go(lake, wanted)
        said = str(caught.value)
        assert f"{refused} is rejected by Ada on 2026-03-09 08:30 UTC: blurred signs" in said
        assert "geofix approve" not in said and "geofix refresh" in said and "\n" not in said
    assert lake.version("trajectories") == -1


def test_a_snapshot_is_chosen_by_the_beginning_of_its_id(lake: Lake, snapshot_of: MakeSnapshot) -> None:
    snapshot_of(lake, snapshot_id="abcdef1")
    snapshot_of(lake, snapshot_id="abcdef2")
    assert approved_snapshot(lake, "abcdef1").snapshot_id == "abcdef1"
    with pytest.raises(NotFound, match="snapshot 'abcdef' is ambiguous: abcdef2, abcdef1"):
        approved_snapshot(lake, "abcdef")
    with pytest.raises(NotFound, match="at least 6 letters"):
        approved_snapshot(lake, "abcde")
    with pytest.raises(NotFound, match=r"there is no snapshot 'zzzzzz'; known: abcdef2 \(approved\), abcdef1"):
        approved_snapshot(lake, "zzzzzz")
