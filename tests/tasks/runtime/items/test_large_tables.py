"""Tables of many rows go through the frame in parts: the same rows come out, and no part reads what is not its own."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tasks.runtime.items.committer
import tasks.runtime.items.identity
import tasks.runtime.items.ledger
import tasks.runtime.runner
from schemas.errors import AccountingError
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Commit, Lake
from tasks.runtime.items.identity import with_made_from
from tasks.runtime.items.stage_table import StageTable
from tasks.runtime.runner import ColumnStage, Context, Inputs, run
from tasks.services import connect


class Rows(Settings):
    count: int = 35
    lat: float = 1.0


def make(inputs: Inputs, settings: Rows) -> tuple[pl.DataFrame, pl.DataFrame]:
    # Not in the order of their keys: sorting is the frame's business.
    names = [f"n{k * 17 % settings.count:03d}" for k in range(settings.count)]
    kept = pl.DataFrame({"id": names, "place_id": names}).with_columns(
        country=pl.lit("FR"), lat=pl.lit(settings.lat), lon=pl.lit(2.0), split=pl.lit("train")
    )
    lost = [f"lost{k:02d}" for k in range(12)]
    return kept, pl.DataFrame({"id": lost, "reason": ["no"] * 12, "evidence_json": ["{}"] * 12})


STAGE = ColumnStage("many", (), ("places",), make, identity=lambda settings: 1)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(tasks.runtime.runner, "BATCH_ITEMS", 10)
    monkeypatch.setattr(tasks.runtime.items.committer, "BATCH_ITEMS", 10)
    monkeypatch.setattr(tasks.runtime.items.ledger, "SLICE", 10)
    return Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}), SpreadSettings(workers=1))


def files_read(lake: Lake) -> list[tuple[int, int]]:
    """For each merge, oldest first: files of the table that it read, and that it passed over."""
    made = [entry["operationMetrics"] for entry in reversed(lake.history("places")) if "MERGE" in entry["operation"]]
    return [(int(one["num_target_files_scanned"]), int(one["num_target_files_skipped_during_scan"])) for one in made]


def test_a_column_stage_commits_in_parts_that_do_not_read_each_other(context: Context) -> None:
    first = run(STAGE, Rows(), context)
    assert (first.items_in, first.kept, first.rejected, first.failed) == (47, 35, 12, 0)
    assert context.lake.read("places").height == 35 and context.lake.read("rejects").height == 12
    assert files_read(context.lake) == [], "what is new is appended"
    assert run(STAGE, Rows(), context).nothing_to_do

    changed = run(STAGE, Rows(lat=5.0), context)
    assert (changed.kept, changed.rejected, changed.skipped) == (35, 0, 12)
    assert context.lake.read("places").select("place_id", "lat").sort("place_id").rows() == [
        (f"n{k:03d}", 5.0) for k in range(35)
    ]
    assert files_read(context.lake) == [(1, 3)] * 4, "a changed part rewrites its own file"

    run(STAGE, Rows(count=4, lat=5.0), context)
    assert context.lake.read("places")["place_id"].sort().to_list() == ["n000", "n001", "n002", "n003"]
    assert context.lake.scan("places").collect().height == 35 * 2, "both versions of each row"


def test_a_part_that_gets_lost_is_an_error(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tasks.runtime.items.ledger.Ledger.column_results

    def all_but_one(self: Any, *given: Any) -> Any:
        return list(parts(self, *given))[1:]

    monkeypatch.setattr(tasks.runtime.items.ledger.Ledger, "column_results", all_but_one)
    with pytest.raises(AccountingError, match="47 in, 25 kept, 12 rejected, 0 failed: 10 lost, 0 unexpected, 0 twice"):
        run(STAGE, Rows(), context)


def test_keys_that_no_predicate_should_hold_are_merged_all_the_same(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    odd = ["it's", "a\\b", "naïve", "", "two\nlines", "' OR 1=1 --", "x" * 500]
    for number, lat in enumerate((1.0, 2.0)):
        rows = [{"place_id": key, "country": "FR", "lat": lat, "lon": 2.0, "split": "train"} for key in odd]
        lake.upsert("places", rows, Commit("r", number + 1))
    assert dict(lake.read("places").select("place_id", "lat").iter_rows()) == dict.fromkeys(odd, 2.0)
    lake.tombstone("places", pl.DataFrame({"place_id": odd[:3]}), "gone", Commit("r", 3))
    assert set(lake.read("places")["place_id"]) == set(odd[3:])


@pytest.mark.parametrize("key", ["a2", "x1"], ids=["of an old key", "of a new key"])
def test_two_writers_at_once_leave_one_row(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes between the first one's look at the table and its commit: the range hides it from nobody."""
    lake, other = Lake(tmp_path / "lake"), Lake(tmp_path / "lake")

    def rows(*keys: str, lat: float) -> list[dict[str, Any]]:
        return [{"place_id": key, "country": "FR", "lat": lat, "lon": 2.0, "split": "train"} for key in keys]

    lake.upsert("places", rows("a1", "a2", "a3", lat=1.0), Commit("before", 1))
    visits = []

    def meanwhile(name: str) -> None:
        visits.append(name)
        if len(visits) == 1:
            other.upsert("places", rows(key, lat=2.0), Commit("other", 1))

    monkeypatch.setattr(lake, "_refuse_full_disk", meanwhile)
    lake.upsert("places", rows(key, lat=3.0), Commit("own", 1))
    assert len(visits) == 2, "the first look was too old, the second was not"
    found = lake.read("places").select("place_id", "lat").sort("place_id").rows()
    assert found == sorted({"a1": 1.0, "a2": 1.0, "a3": 1.0, key: 3.0}.items())


def test_digests_do_not_depend_on_how_many_rows_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pl.DataFrame({"id": [f"n{k}" for k in range(11)], "text": ["a\nb", "é", None, "\u2028", '"'] * 2 + ["x"]})
    whole = with_made_from(rows, "hash", "many")
    monkeypatch.setattr(tasks.runtime.items.identity, "SLICE", 4)
    assert with_made_from(rows, "hash", "many").equals(whole)
    assert whole["made_from"].n_unique() == 11 and whole["made_from"].str.len_chars().unique().to_list() == [24]
    assert with_made_from(rows.head(0), "hash", "many").schema["made_from"] == pl.String


def test_what_is_finished_is_found_without_holding_its_texts(context: Context) -> None:
    run(STAGE, Rows(), context)
    stored = context.lake.read("places").sort("place_id")
    some = stored.select("made_from", id="item_id").head(20)
    changed = some.with_columns(made_from=pl.when(pl.col("id") == "n003").then(pl.lit("x")).otherwise("made_from"))
    table = StageTable(context.lake, "places", STAGE.name, "another run")
    rows, others = table.read_rows(pl.concat([changed, pl.DataFrame({"made_from": ["m"], "id": ["new"]})]))
    assert pl.String not in rows.dtypes
    assert (rows.height, others) == (20, 15)
    assert rows.filter(~pl.col("same"))["item"].to_list() == [3]
    assert table.holds(pl.Series(["n003", "new"])).to_list() == [True, False]


def test_columns_that_are_not_named_are_not_read(context: Context) -> None:
    run(STAGE, Rows(), context)
    inputs = Inputs(context.lake, {"places": context.lake.version("places")})
    assert inputs.frame("places", "lat", "place_id").columns == ["lat", "place_id"]
    whole = inputs.frame("places")
    assert inputs.frame("places") is whole
    inputs.release()
    assert inputs.frame("places") is not whole
