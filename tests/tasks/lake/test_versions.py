"""Of several versions of a row the live one counts, else the newest."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from tasks.lake import Commit, Lake
from tasks.lake.trace import trace
from tasks.lake.versions import newest_versions


def test_the_live_version_counts_and_else_the_newest() -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 1, 2)]
    rows = pl.DataFrame(
        {"k": ["a", "a", "a", "b", "b"], "tombstone": ["x", None, "y", "x", "y"], "written_at": times, "n": range(5)}
    )
    assert dict(newest_versions(rows, ["k"]).select("k", "n").iter_rows()) == {"a": 1, "b": 4}


def test_a_trace_follows_the_live_version(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    place = {"place_id": "place-1", "lat": 1.0, "lon": 2.0, "split": "train", "stage": "plan", "item_id": "place-1"}
    versions = [
        ("FR", "m1", "superseded by a newer run"),
        ("DE", "m2", None),
        ("IT", "m3", "superseded by a newer run"),
    ]
    rows = [{**place, "country": country, "made_from": made, "tombstone": why} for country, made, why in versions]
    lake.append("places", rows, Commit("r", 1))
    [step] = trace(lake, "place-1")
    assert step.facts["country"] == "DE"
