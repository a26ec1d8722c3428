"""Rows have versions: a redone item's rows stand beside the old ones, which are taken up again when wanted."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tasks.runtime.items.committer
import tasks.runtime.runner
from schemas.errors import LakeError, StageRefused
from schemas.messages import Usage
from schemas.settings.base import Settings
from schemas.settings.run import RunSettings
from schemas.settings.services import ServicesSettings
from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.lake.writes import INPUT_GONE, SUPERSEDED
from tasks.runtime.items.chunk import ChunkJob, ChunkResult
from tasks.runtime.items.ledger import Ledger
from tasks.runtime.items.outcome import Kept, Outcome, Rejected
from tasks.runtime.runner import ColumnStage, Context, Inputs, Redo, run
from tasks.services import connect

NAMES = ("a", "b", "c", "d")


class Choice(Settings):
    names: tuple[str, ...] = NAMES
    lat: float = 1.0
    reject: tuple[str, ...] = ()


def compute(inputs: Inputs, settings: Choice) -> tuple[pl.DataFrame, pl.DataFrame]:
    kept = [name for name in settings.names if name not in settings.reject]
    rows = pl.DataFrame({"id": kept, "place_id": kept}, schema={"id": pl.String, "place_id": pl.String})
    rows = rows.with_columns(country=pl.lit("FR"), lat=pl.lit(settings.lat), lon=pl.lit(2.0), split=pl.lit("train"))
    lost = pl.DataFrame({"id": list(settings.reject)}, schema={"id": pl.String})
    return rows, lost.with_columns(reason=pl.lit("no"), evidence_json=pl.lit("{}"))


class Paid(ColumnStage):
    services = ("chat",)


STAGE = ColumnStage("choice", (), ("places",), compute, identity=lambda settings: settings.lat)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}))


def lats(lake: Lake) -> dict[str, float]:
    rows = lake.read("places")
    assert rows["place_id"].is_unique().all(), "one live row a key"
    return dict(rows.select("place_id", "lat").iter_rows())


def test_old_results_stand_beside_the_new_and_are_taken_up_again(context: Context) -> None:
    first = run(STAGE, Choice(), context)
    made = context.lake.read("places").sort("place_id")
    other = run(STAGE, Choice(lat=5.0), context)
    assert (first.redone, other.kept, other.redone, other.revived) == (0, 4, 4, 0)
    assert lats(context.lake) == dict.fromkeys(NAMES, 5.0)
    assert context.lake.scan("places").collect()["tombstone"].drop_nulls().to_list() == [SUPERSEDED] * 4
    back = run(STAGE, Choice(), context)
    assert (back.items_in, back.skipped, back.revived) == (0, 4, 4)
    assert context.lake.read("places").sort("place_id").equals(made), "the rows that were made, not copies"
    assert run(STAGE, Choice(lat=5.0), context).revived == 4
    assert context.lake.scan("places").collect().height == 8
    runs = context.lake.read("runs").sort("started_at")
    assert runs.select("redone", "revived").rows() == [(0, 0), (4, 0), (0, 4), (0, 4)]


def test_items_that_left_the_input_are_taken_up_again(context: Context) -> None:
    run(STAGE, Choice(), context)
    gone = run(STAGE, Choice(names=("x",)), context)
    assert (gone.kept, gone.redone) == (1, 0)
    assert lats(context.lake) == {"x": 1.0}
    assert set(context.lake.scan("places").collect()["tombstone"].drop_nulls()) == {INPUT_GONE}
    back = run(STAGE, Choice(), context)
    assert (back.items_in, back.revived) == (0, 4)
    assert set(lats(context.lake)) == set(NAMES)


def test_kept_and_rejected_exchange_places_and_come_back(context: Context) -> None:
    stage = replace(STAGE, identity=lambda settings: settings.model_dump())
    run(stage, Choice(), context)
    strict = run(stage, Choice(reject=("a",)), context)
    assert (strict.kept, strict.rejected) == (3, 1)
    assert "a" not in lats(context.lake) and context.lake.read("rejects")["item_id"].to_list() == ["a"]
    back = run(stage, Choice(), context)
    assert (back.items_in, back.revived) == (0, 4)
    assert set(lats(context.lake)) == set(NAMES) and context.lake.read("rejects").is_empty()
    again = run(stage, Choice(reject=("a",)), context)
    assert (again.items_in, again.revived) == (0, 4)
    assert "a" not in lats(context.lake) and context.lake.read("rejects")["item_id"].to_list() == ["a"]
    assert again.totals == {"kept": 3, "rejected": 1}


def test_what_was_ended_for_another_reason_is_not_revived(context: Context) -> None:
    run(STAGE, Choice(), context)
    run(STAGE, Choice(lat=5.0), context)
    withdrawn = pl.DataFrame({"place_id": ["a"]})
    context.lake.tombstone("places", withdrawn, "deleted upstream", Commit("other", 1, "withdraw"))
    back = run(STAGE, Choice(), context)
    assert (back.revived, back.kept) == (3, 1), "made again from what the input says now, not revived"
    reasons = context.lake.scan("places").filter(pl.col("place_id") == "a").collect()["tombstone"]
    assert "deleted upstream" in reasons.to_list()


def test_without_versions_a_redone_item_replaces_its_rows(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "places", replace(TABLES["places"], keeps_versions=False))
    run(STAGE, Choice(), context)
    run(STAGE, Choice(lat=5.0), context)
    assert lats(context.lake) == dict.fromkeys(NAMES, 5.0)
    assert context.lake.scan("places").collect().height == 4


def test_a_key_that_goes_to_another_item_has_one_live_row(context: Context) -> None:
    def under(prefix: str) -> Any:
        def named(inputs: Inputs, settings: Choice) -> tuple[pl.DataFrame, pl.DataFrame]:
            kept, lost = compute(inputs, settings)
            return kept.with_columns(id=prefix + pl.col("id")), lost

        return named

    run(replace(STAGE, compute=under("old-")), Choice(), context)
    new = run(replace(STAGE, compute=under("new-")), Choice(), context)
    assert (new.kept, new.redone) == (4, 0)
    assert lats(context.lake) == dict.fromkeys(NAMES, 1.0)
    assert set(context.lake.read("places")["item_id"]) == {f"new-{name}" for name in NAMES}
    back = run(replace(STAGE, compute=under("old-")), Choice(), context)
    assert back.revived == 4 and lats(context.lake) == dict.fromkeys(NAMES, 1.0)
    assert set(context.lake.read("places")["item_id"]) == {f"old-{name}" for name in NAMES}


def test_two_items_of_different_batches_must_not_write_one_row(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.runtime.items.committer, "BATCH_ITEMS", 1)
    monkeypatch.setattr(tasks.runtime.runner, "BATCH_ITEMS", 1)

    def same(inputs: Inputs, settings: Choice) -> tuple[pl.DataFrame, pl.DataFrame]:
        kept, lost = compute(inputs, settings)
        return kept.with_columns(place_id=pl.lit("one")), lost

    with pytest.raises(LakeError, match=r"items a, b wrote the same places row .place_id=one."):
        run(replace(STAGE, compute=same), Choice(names=("a", "b")), context)
    assert lats(context.lake) == {"one": 1.0}


def test_an_item_must_not_take_the_row_of_a_finished_one(context: Context) -> None:
    def also_e(inputs: Inputs, settings: Choice) -> tuple[pl.DataFrame, pl.DataFrame]:
        kept, lost = compute(inputs, settings)
        return kept.with_columns(place_id=pl.col("id").replace({"e": "a"})), lost

    stage = replace(STAGE, compute=also_e)
    run(stage, Choice(), context)
    with pytest.raises(LakeError, match=r"items a, e wrote the same places row .place_id=a."):
        run(stage, Choice(names=(*NAMES, "e")), context)
    assert set(context.lake.read("places")["item_id"]) == set(NAMES)


# asking ------------------------------------------------------------------------------------------------------

PAID = Paid(**vars(STAGE))
FEW = RunSettings(redo_ask_above=3)


def test_many_items_are_not_paid_for_again_without_a_word(context: Context) -> None:
    context = replace(context, run=FEW)
    run(PAID, Choice(), context)
    with pytest.raises(StageRefused, match=r"choice: 4 finished items would be done again.*--redo to redo them"):
        run(PAID, Choice(lat=5.0), context)
    assert lats(context.lake) == dict.fromkeys(NAMES, 1.0), "nothing was touched"
    asked: list[Redo] = []
    confirmed = replace(context, confirm=lambda redo: not asked.append(redo))
    assert run(PAID, Choice(lat=5.0, names=(*NAMES, "e")), confirmed).redone == 4
    assert [(one.new, one.redone, one.revived) for one in asked] == [(1, 4, 0)]
    assert run(PAID, Choice(), context).revived == 4, "coming back costs nothing, and is not asked about"


def test_always_and_never_are_not_asked(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    run(PAID, Choice(), context)
    never = run(PAID, Choice(lat=5.0, names=(*NAMES, "e")), replace(context, run=RunSettings(redo="never")))
    assert (never.items_in, never.kept, never.redone, never.skipped) == (1, 1, 0, 4)
    assert lats(context.lake) == {**dict.fromkeys(NAMES, 1.0), "e": 5.0}
    with caplog.at_level(logging.WARNING, "geofix.stage"):
        always = run(PAID, Choice(lat=5.0), replace(context, run=RunSettings(redo="always", redo_ask_above=0)))
    assert always.redone == 4
    assert [line for line in caplog.messages if "4 finished items would be done again" in line]


def test_free_work_and_new_input_are_not_asked_about(context: Context) -> None:
    context = replace(context, run=RunSettings(redo_ask_above=0))
    run(STAGE, Choice(), context)
    assert run(STAGE, Choice(lat=5.0), context).redone == 4
    changed = replace(PAID, name="fed", identity=lambda settings: 1)  # the rows differ, the settings do not
    run(changed, Choice(names=("x", "y")), context)
    assert run(changed, Choice(names=("x", "y"), lat=7.0), context).redone == 2


def test_what_redoing_takes_is_told_from_the_runs_that_made_it() -> None:
    redo = Redo("s", new=0, redone=1200, changed=0, revived=0, requests=2400, tokens=36_000, cost_usd=12.5)
    assert str(redo).endswith("(they took 2,400 requests, 36,000 tokens, $12.50)")
    assert str(Redo("s", 0, 1, 0, 0)).endswith("because settings or code changed")


# kills -------------------------------------------------------------------------------------------------------


def ledger(lake: Lake, run_id: str, **options: Any) -> Ledger:
    return Ledger(lake, "s", ("gaps", "places"), run_id, "h", "{}", "0", {}, **options)


def result(run_id: str, *outcomes: tuple[str, str, Outcome]) -> ChunkResult:
    job = ChunkJob("s", run_id, "places", ("gaps", "places"), lambda item, context: None, lambda: None, 1)
    return job.gather(outcomes)


def kept(name: str, lat: float = 1.0) -> Kept:
    gap = {"place_id": name, "kind": "photo", "wanted": 2, "got": 1, "reason": f"lat {lat}"}
    place = {"place_id": name, "country": "FR", "lat": lat, "lon": 2.0, "split": "train"}
    return Kept({"gaps": [gap], "places": [place]})


def items(**digests: str) -> pl.DataFrame:
    return pl.DataFrame({"id": list(digests), "made_from": list(digests.values())})


def live(lake: Lake) -> tuple[list[Any], list[Any]]:
    gaps = lake.read("gaps").select("place_id", "reason").sort("place_id").rows()
    return gaps, lake.read("places").select("place_id", "lat").sort("place_id").rows()


@pytest.mark.parametrize("next_digest", ["m1", "m2"], ids=["same settings", "back to the old ones"])
@pytest.mark.parametrize("started_with", [{}, {"a": "m2"}], ids=["new item", "redone item"])
def test_killed_between_two_tables_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_digest: str, started_with: dict[str, str]
) -> None:
    lake = Lake(tmp_path)
    for name, digest in started_with.items():
        before = ledger(lake, "r0")
        before.plan_run(items(**{name: digest}))
        before.commit([result("r0", (name, digest, kept(name, 2.0)))])
    killed = ledger(lake, "r1")
    plan = killed.plan_run(items(a="m1"))
    assert plan.todo.height == 1
    with monkeypatch.context() as patch:
        for write in ("append_new", "change"):
            real = getattr(Lake, write)

            def die_at_places(self: Lake, table: str, *rest: Any, _real: Any = real) -> Any:
                if table == "places":
                    raise KeyboardInterrupt
                return _real(self, table, *rest)

            patch.setattr(Lake, write, die_at_places)
        with pytest.raises(KeyboardInterrupt):
            killed.commit([result("r1", ("a", "m1", kept("a")))])
    assert live(lake)[0] == [("a", "lat 1.0")], "the first table has it"

    lat = 1.0 if next_digest == "m1" else 2.0
    after = ledger(lake, "r2")
    plan = after.plan_run(items(a=next_digest))
    after.revive(plan.revive)
    if plan.todo.height:
        after.commit([result("r2", ("a", next_digest, kept("a", lat)))])
    after.sweep(pl.Series([], dtype=pl.String), keeps_history=False)
    assert live(lake) == ([("a", f"lat {lat}")], [("a", lat)])
    assert (plan.todo.height == 0) == (next_digest == "m2" and bool(started_with)), "what is there is taken up"
    assert ledger(lake, "r3").plan_run(items(a=next_digest)).todo.is_empty()


def test_a_rejected_item_that_was_kept_and_is_kept_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for run_id, outcome in (("r1", kept("a")), ("r2", Rejected("no", rows=kept("a").rows)), ("r3", kept("a"))):
        one = ledger(lake, run_id)
        one.plan_run(items(a="m"))
        one.commit([result(run_id, ("a", "m", outcome))])
        assert lake.read("rejects").height == (run_id == "r2")
        assert live(lake) == ([("a", "lat 1.0")], [("a", 1.0)])
    assert lake.scan("places").collect().height == 1, "the same digest is the same version"


def test_usage_of_earlier_runs_is_shared_out_over_their_items(tmp_path: Path) -> None:
    from tasks.runtime.items.outcome import Tick
    from tasks.runtime.items.redo import items_to_run
    from tasks.services.meter import Tally

    lake = Lake(tmp_path)
    first = ledger(lake, "r1")
    first.plan_run(items(a="m1", b="m1"))
    first.commit([result("r1", ("a", "m1", kept("a")), ("b", "m1", Rejected("no")))])
    first.close("done", Tick("s", 2, 0, kept=1, rejected=1), 2, Usage(100, 20, 3.0, 4), Tally())
    second = replace(ledger(lake, "r2"), config_hash="other")
    asked: list[Redo] = []
    plan = second.plan_run(items(a="m2", b="m1"))
    items_to_run(plan, second, True, RunSettings(redo_ask_above=0), lambda redo: not asked.append(redo))
    assert asked == [Redo("s", new=0, redone=1, changed=0, revived=0, requests=2, tokens=60, cost_usd=1.5)]
