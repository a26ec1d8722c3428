"""Of several versions of a row the live one counts, else the newest."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from schemas.tables import TABLES, Table
from tasks.lake import Commit, Lake
from tasks.lake.reading import newest_versions
from tasks.lake.table_schema import to_arrow
from tasks.lake.trace import trace
from tasks.runtime.items.stage_table import StageTable, items_of


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


def _value(kind: pa.DataType, name: str, number: int) -> Any:
    if pa.types.is_list(kind):
        return [_value(kind.value_type, name, number)]
    if pa.types.is_timestamp(kind):
        return datetime(2026, 1, 1, tzinfo=UTC)
    if pa.types.is_string(kind):
        return f"{name}-{number}"
    return kind.to_pandas_dtype()(number)


def test_rows_of_every_table_can_be_exchanged_and_revived(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    def rows(table: Table, digest: str) -> pa.Table:
        own = [{name: _value(kind, name, k) for name, kind in table.columns.items()} for k in range(3)]
        system = [{"stage": "s", "item_id": f"i{k}", "made_from": f"{digest}{k}", "run_id": f"r{k}"} for k in range(3)]
        return to_arrow(table, [one | two for one, two in zip(own, system, strict=True)])

    for name, table in TABLES.items():
        made = {digest: items_of([rows(table, digest)]) for digest in "ab"}
        for digest, items in made.items():
            run = StageTable(lake, name, "s", digest)
            run.read_rows(items.rename({"item_id": "id"}))
            run.write(rows(table, digest), items.filter(run.holds(items["item_id"])), Commit(digest, 1, "s"))
        stored = 6 if table.keeps_versions else 3
        assert (lake.scan(name).collect().height, lake.read(name).height) == (stored, 3), name
        if not table.keeps_versions:
            continue
        run = StageTable(lake, name, "s", "c")
        run.read_rows(made["a"].rename({"item_id": "id"}))
        run.revive(made["a"], Commit("c", 1, "s"))
        assert lake.read(name).sort("item_id").equals(pl.DataFrame(rows(table, "a"))), name
