"""A picture withdrawn while a stage works on it: what the stage writes of it afterwards ends at once."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from tasks.lake import Commit, Lake
from tasks.runtime.calls import call_store
from tasks.runtime.items.withdrawals import end_withdrawn
from tasks.runtime.runner import ColumnStage, Context, Inputs, run
from tasks.services import connect
from tasks.services.call_store import COLUMNS, End

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PICTURES = ["picture-one", "picture-two"]


def withdraw_rule(lake: Lake, rule: str, value: str, image_id: str | None) -> None:
    row = {"withdrawal_id": f"w-{value}-{image_id}", "rule": rule, "value": value, "image_id": image_id, "why": "asked",
           "who": "me", "withdrawn_at": NOW, "stage": "review.withdraw", "item_id": "w", "run_id": "w",
           "written_at": NOW}  # fmt: skip
    lake.append("withdrawals", [row], Commit(f"withdraw-{value}-{image_id}", 1))


def stage_that(meanwhile: Callable[[Lake], None], digests: list[str]) -> ColumnStage:
    def crops(inputs: Inputs, settings: Settings) -> tuple[pl.DataFrame, pl.DataFrame]:
        meanwhile(inputs.lake)
        kept = pl.DataFrame(
            {"id": PICTURES, "derived_id": ["d1", "d2"], "image_id": PICTURES, "sha256": digests, "kind": "crop"}
        ).with_columns(extension=pl.lit("jpg"))
        return kept, pl.DataFrame(schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String})

    return ColumnStage("test.crops", reads=(), writes=("derived",), compute=crops)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def context(lake: Lake) -> Context:
    return Context(lake, connect(ServicesSettings(), {}))


def test_rows_and_files_of_a_picture_withdrawn_meanwhile_are_gone(lake: Lake) -> None:
    digests = [lake.images.put(f"bytes {n}".encode(), "jpg") for n in range(2)]
    call = dict.fromkeys(COLUMNS) | {"call_id": "c1", "asked_at": 1.0, "request_hash": "h", "stage": "test.crops",
            "item_id": "picture-one:3", "run_id": "r", "role": "judge", "endpoint": "e", "model": "m",
            "sampling_json": "{}", "reply_json": '"a street in Bergen"', "verdict": "ok"}  # fmt: skip

    def meanwhile(lake: Lake) -> None:
        withdraw_rule(lake, "image", "picture-one", "picture-one")
        call_store(lake).apply([End("c1", "h", call)])  # an answer that was under way

    result = run(stage_that(meanwhile, digests), Settings(), context(lake))
    assert result.items_in == 2
    assert lake.read("derived")["image_id"].to_list() == ["picture-two"]
    ended = lake.scan("derived").filter(pl.col("tombstone").is_not_null()).collect()
    assert ended["tombstone"].to_list() == ["withdrawn"]
    assert not lake.blobs.exists(lake.images.key(digests[0], "jpg"))
    assert lake.blobs.exists(lake.images.key(digests[1], "jpg"))
    assert lake.read("calls").is_empty()
    assert lake.scan("calls").collect()["reply_json"].to_list() == [None]


def test_a_creator_withdrawn_meanwhile_keeps_out_pictures_that_had_no_row(lake: Lake) -> None:
    def pictures(inputs: Inputs, settings: Settings) -> tuple[pl.DataFrame, pl.DataFrame]:
        withdraw_rule(inputs.lake, "creator", "walker", None)
        kept = pl.DataFrame(
            {"id": PICTURES, "image_id": PICTURES, "kind": "photo", "source": "test", "source_id": ["1", "2"],
             "creator": ["walker", "runner"],
             "attribution": "by them", "licence": "CC0-1.0", "lat": 1.0, "lon": 2.0, "sha256": ["a" * 64, "b" * 64],
             "extension": "jpg"}
        )  # fmt: skip
        return kept, pl.DataFrame(schema={"id": pl.String, "reason": pl.String, "evidence_json": pl.String})

    run(ColumnStage("test.pictures", reads=(), writes=("images",), compute=pictures), Settings(), context(lake))
    assert lake.read("images")["creator"].to_list() == ["runner"]


def test_what_a_killed_run_left_is_ended_by_maintenance(lake: Lake) -> None:
    digests = [lake.images.put(f"bytes {n}".encode(), "jpg") for n in range(2)]
    run(stage_that(lambda lake: None, digests), Settings(), context(lake))
    # As a commit that was killed after its rows, before its look at the rules.
    withdraw_rule(lake, "image", "picture-two", "picture-two")
    assert end_withdrawn(lake, Commit("maintain", 1, stage="review.withdraw")) == 1
    assert lake.read("derived")["image_id"].to_list() == ["picture-one"]
    assert not lake.blobs.exists(lake.images.key(digests[1], "jpg"))
