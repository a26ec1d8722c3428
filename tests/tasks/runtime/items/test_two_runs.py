"""Two runs of one stage at once, without the lock that one machine has: every row once, whatever the order."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tasks.runtime.items.committer
import tasks.runtime.runner
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.runtime.items.chunk import ChunkJob, ChunkResult, Failure
from tasks.runtime.items.ledger import Ledger
from tasks.runtime.items.outcome import Kept, Outcome, Rejected
from tasks.runtime.runner import ColumnStage, Context, Inputs, run
from tasks.services import connect

WRITES = ("gaps", "places")


def ledger(lake: Lake, run_id: str, items: pl.DataFrame) -> Ledger:
    made = Ledger(Lake(lake.uri), "s", WRITES, run_id, "h", "{}", "0", {})
    made.plan_run(items)
    return made


def items(*names: str, digest: str = "m") -> pl.DataFrame:
    return pl.DataFrame({"id": list(names), "made_from": [f"{digest}-{name}" for name in names]})


def outcome(name: str, run_id: str) -> Outcome:
    gap = {"place_id": name, "kind": "photo", "wanted": 2, "got": 1, "reason": run_id}
    place = {"place_id": name, "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}
    return Rejected("odd") if name.startswith("r") else Kept({"gaps": [gap], "places": [place]})


def results(run_id: str, wanted: pl.DataFrame) -> list[ChunkResult]:
    job = ChunkJob("s", run_id, "places", WRITES, lambda item, context: None, lambda: None, 1)
    return [job.gather((name, digest, outcome(name, run_id)) for name, digest in wanted.iter_rows())]


def assert_each_row_once(lake: Lake) -> None:
    for name in (*WRITES, "rejects", "failures"):
        rows = lake.scan(name).collect()
        versions = rows.select(*TABLES[name].key, "made_from")
        assert not versions.is_duplicated().any(), f"{name}: a version stands twice"
        live = rows.filter(pl.col("tombstone").is_null())
        assert not live.select(TABLES[name].key).is_duplicated().any(), f"{name}: a key has two live rows"


def test_what_another_run_wrote_since_the_look_is_not_appended_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    wanted = items("a", "b", "c", "r1")
    one, two = ledger(lake, "one", wanted), ledger(lake, "two", wanted)
    one.commit(results("one", wanted.head(2)))
    two.commit(results("two", wanted.tail(3)))
    one.commit(results("one", wanted.tail(2)))
    two.commit(results("two", wanted.head(1)))
    assert_each_row_once(lake)
    assert lake.read("places")["place_id"].sort().to_list() == ["a", "b", "c"]
    assert lake.read("rejects")["item_id"].to_list() == ["r1"]


def test_a_run_that_comes_between_two_tables_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    wanted = items("a", "b")
    one, two = ledger(lake, "one", wanted), ledger(lake, "two", wanted)
    real = Lake.append_new
    visits: list[str] = []

    def interrupted(self: Lake, table: str, *rest: Any) -> Any:
        if table == "places" and not visits:
            visits.append(table)
            two.commit(results("two", wanted))
        return real(self, table, *rest)

    monkeypatch.setattr(Lake, "append_new", interrupted)
    one.commit(results("one", wanted))
    assert visits
    assert_each_row_once(lake)
    assert lake.read("places").height == lake.read("gaps").height == 2


def test_a_commit_that_is_overtaken_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run commits after this one has opened the table and compared the counts."""
    lake = Lake(tmp_path)
    wanted = items("a", "b")
    one, two = ledger(lake, "one", wanted), ledger(lake, "two", wanted)
    visits: list[str] = []

    def meanwhile(name: str) -> None:
        visits.append(name)
        if len(visits) == 1:
            two.commit(results("two", wanted))

    monkeypatch.setattr(one.lake, "_refuse_full_disk", meanwhile)
    one.commit(results("one", wanted))
    assert_each_row_once(lake)
    assert lake.read("gaps")["reason"].to_list() == ["one", "one"], "the later commit stands"


def test_failures_of_two_runs_stand_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    wanted = items("a", "b")
    one, two = ledger(lake, "one", wanted), ledger(lake, "two", wanted)
    for each in (one, two):
        each.commit([ChunkResult(failed=[Failure("a", "outage", "x"), Failure("b", "outage", "x")])])
    assert_each_row_once(lake)
    assert lake.read("failures")["attempts"].to_list() == [1, 1]
    three = ledger(lake, "three", wanted)
    three.commit([ChunkResult(failed=[Failure("a", "outage", "x")])])
    three.sweep(pl.Series(["a"]), keeps_history=False)
    assert lake.read("failures").select("item_id", "attempts").rows() == [("a", 2)]


class Many(Settings):
    count: int = 60
    lat: float = 1.0


def make(inputs: Inputs, settings: Many) -> tuple[pl.DataFrame, pl.DataFrame]:
    names = [f"n{k * 17 % settings.count:03d}" for k in range(settings.count)]
    kept = pl.DataFrame({"id": names, "place_id": names}).with_columns(
        country=pl.lit("FR"), lat=pl.lit(settings.lat), lon=pl.lit(2.0), split=pl.lit("train")
    )
    lost = [f"lost{k:02d}" for k in range(12)]
    return kept, pl.DataFrame({"id": lost, "reason": ["no"] * 12, "evidence_json": ["{}"] * 12})


STAGE = ColumnStage("many", (), ("places",), make)


@pytest.mark.whole
def test_whole_runs_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.runtime.runner, "stage_lock", lambda lake, stage: contextlib.nullcontext())
    monkeypatch.setattr(tasks.runtime.runner, "BATCH_ITEMS", 10)
    monkeypatch.setattr(tasks.runtime.items.committer, "BATCH_ITEMS", 10)
    errors: list[BaseException] = []
    for lat in (1.0, 5.0):  # new items, then redone ones
        begin = threading.Barrier(3)

        def one_run(settings: Many, begin: threading.Barrier = begin) -> None:
            try:
                context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}))
                begin.wait()
                run(STAGE, settings, context)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=one_run, args=(Many(lat=lat),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        lake = Lake(tmp_path / "lake")
        assert_each_row_once(lake)
        assert lake.read("places").height == 60 and set(lake.read("places")["lat"]) == {lat}
        assert lake.read("rejects").height == 12
