"""The runner: every item accounted for, finished ones skipped, changed ones redone, workers replaced."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import Field
from ray import cloudpickle

from schemas.errors import AccountingError, GeofixError, LakeUnwritable, StageRefused
from schemas.messages import Usage
from schemas.settings.base import OPERATIONAL, Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Lake
from tasks.runtime.on_ray.start import stop_ray
from tasks.runtime.runner import (
    ColumnStage,
    Context,
    Inputs,
    Kept,
    Rejected,
    Resources,
    Row,
    Stage,
    Tick,
    WorkerSetup,
    run,
)
from tasks.services import ServiceError, connect

# Ray's workers cannot import a test module: its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Numbers(Settings):
    count: int = 20
    reject_every: int = 0
    fail_every: int = 0
    rows_each: int = 1
    speed: int = 0


class Timed(Numbers):
    hurry: bool = Field(False, json_schema_extra=OPERATIONAL)


def numbers(inputs: Inputs, settings: Numbers) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"n{k:05d}" for k in range(settings.count)], "k": range(settings.count)})


def open_settings(settings: Numbers, setup: WorkerSetup) -> Numbers:
    return settings


def place(name: str) -> Row:
    return {"place_id": name, "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}


def sort_out(item: Row, settings: Numbers) -> Kept | Rejected:
    k = item["k"]
    if settings.fail_every and k % settings.fail_every == 0:
        raise ServiceError("numbers", "outage", "no numbers today", retryable=True)
    if settings.reject_every and k % settings.reject_every == 1:
        return Rejected("odd_one", {"k": k}, usage=Usage(1, 2, 0.5, 1))
    return Kept({"places": [place(f"{item['id']}-{n}") for n in range(settings.rows_each)]}, Usage(10, 1, 0.0, 1))


async def sort_out_later(item: Row, settings: Numbers) -> Kept | Rejected:
    await asyncio.sleep(0.01)
    return sort_out(item, settings)


STAGE = Stage("numbers", (), ("places",), numbers, sort_out, open_settings)


@pytest.fixture(scope="module", autouse=True)
def ray_ends() -> Iterator[None]:
    yield
    stop_ray()


@pytest.fixture(params=["in_process", pytest.param("ray", marks=pytest.mark.whole)], autouse=True)
def where(request: pytest.FixtureRequest) -> None:
    """Every test here and, in `make test-all`, with Ray's workers."""
    if request.param == "in_process":
        request.getfixturevalue("in_process")


# What workers share, and how they die. pytest itself would be killed in process.
ONLY_RAY = pytest.mark.parametrize("where", [pytest.param("ray", marks=pytest.mark.whole)], indirect=True)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}), SpreadSettings(workers=2))


def sums(result: Any) -> tuple[int, int, int, int, int]:
    return result.items_in, result.kept, result.rejected, result.failed, result.skipped


def test_every_item_is_kept_rejected_or_failed_and_a_second_run_does_only_the_failed(context: Context) -> None:
    settings = Numbers(count=40, reject_every=4, fail_every=10)
    first = run(STAGE, settings, context)
    assert sums(first) == (40, 26, 10, 4, 0)
    assert first.status == "done_with_failures"
    assert first.rejects == {"odd_one": 10}
    assert first.failures == {"outage": 4}
    assert first.usage == Usage(26 * 10 + 10, 26 + 20, 5.0, 36)
    failures = context.lake.read("failures")
    assert failures["attempts"].to_list() == [1] * 4
    assert failures["message"].str.contains("no numbers today").all()
    second = run(STAGE, settings, context)
    assert sums(second) == (4, 0, 0, 4, 36)
    assert context.lake.read("failures")["attempts"].to_list() == [2] * 4
    mended = run(
        replace(STAGE, identity=lambda s: {**s.identity(), "fail_every": 10}),
        Numbers(count=40, reject_every=4),
        context,
    )
    assert sums(mended) == (4, 4, 0, 0, 36)
    assert context.lake.read("failures").is_empty()
    assert context.lake.read("places").height == 30
    runs = context.lake.read("runs").sort("started_at")
    assert (runs["items_in"] == runs["kept"] + runs["rejected"] + runs["failed"]).all()


def test_work_without_workers_is_done_here(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the review's is: Ray is not even imported, and every item is accounted for as elsewhere."""
    monkeypatch.setitem(sys.modules, "tasks.runtime.on_ray.pool", None)  # an import fails
    here = replace(STAGE, resources=Resources(workers=0))
    result = run(here, Numbers(reject_every=5, fail_every=10), context)
    assert sums(result) == (20, 14, 4, 2, 0)
    assert sums(run(here, Numbers(reject_every=5, fail_every=10), context)) == (2, 0, 0, 2, 18)


def test_nothing_is_redone_and_a_changed_setting_redoes_all(context: Context) -> None:
    run(STAGE, Numbers(), context)
    version = context.lake.version("places")
    again = run(STAGE, Numbers(), context)
    assert again.nothing_to_do
    assert sums(again) == (0, 0, 0, 0, 20)
    assert context.lake.version("places") == version
    assert sums(run(STAGE, Numbers(speed=1), context)) == (20, 20, 0, 0, 0)
    assert sums(run(replace(STAGE, version=2), Numbers(speed=1), context)) == (20, 20, 0, 0, 0)


def test_other_words_for_a_model_redo_all(context: Context) -> None:
    def stage_saying(words: str) -> Stage:
        return replace(STAGE, words=lambda settings: [words])

    assert run(stage_saying("Where is it?"), Numbers(count=5), context).kept == 5
    assert run(stage_saying("Where is it?"), Numbers(count=5), context).nothing_to_do
    assert run(stage_saying("Where was it?"), Numbers(count=5), context).redone == 5


def test_an_unhashed_column_redoes_nothing_and_reaches_the_work(context: Context) -> None:
    def with_hint(inputs: Inputs, settings: Numbers) -> pl.DataFrame:
        return numbers(inputs, settings).with_columns(hint=pl.lit(f"speed {settings.speed}"))

    def use_hint(item: Row, settings: Numbers) -> Kept:
        return Kept({"places": [{**place(item["id"]), "admin1": item["hint"]}]})

    stage = replace(STAGE, items=with_hint, work=use_hint, unhashed=("hint",), identity=lambda settings: {})
    assert run(stage, Numbers(speed=1), context).kept == 20
    assert set(context.lake.read("places")["admin1"]) == {"speed 1"}
    assert run(stage, Numbers(speed=2), context).nothing_to_do
    assert run(replace(stage, unhashed=()), Numbers(speed=2), context).kept == 20


def test_an_operational_setting_redoes_nothing(context: Context) -> None:
    run(STAGE, Timed(), context)
    assert run(STAGE, Timed(hurry=True), context).nothing_to_do


def test_rows_left_behind_are_tombstoned_with_a_reason(context: Context) -> None:
    run(STAGE, Numbers(count=6, rows_each=2), context)
    run(STAGE, Numbers(count=6, rows_each=1), context)
    assert context.lake.read("places").height == 6
    run(STAGE, Numbers(count=4), context)
    assert sorted(context.lake.read("places")["item_id"]) == ["n00000", "n00001", "n00002", "n00003"]
    run(STAGE, Numbers(count=4, reject_every=2), context)
    assert context.lake.read("places")["item_id"].sort().to_list() == ["n00000", "n00002"]
    why = set(context.lake.scan("places").collect()["tombstone"].drop_nulls())
    assert why == {"superseded by a newer run", "its input is gone"}
    run(STAGE, Numbers(count=4), context)
    assert context.lake.read("rejects").is_empty(), "what is kept now is no reject any more"


def test_history_is_left_standing_where_a_stage_asks_for_it(context: Context) -> None:
    stage = replace(STAGE, keeps_history=True)
    run(stage, Numbers(count=6), context)
    run(stage, Numbers(count=4), context)
    assert context.lake.read("places").height == 6


def test_a_rejected_item_may_leave_rows_but_is_finished_only_by_its_reject(context: Context) -> None:
    def refuse(item: Row, settings: Numbers) -> Rejected:
        return Rejected("no", rows={"places": [place(item["id"])]})

    stage = replace(STAGE, work=refuse)
    assert sums(run(stage, Numbers(count=3), context)) == (3, 0, 3, 0, 0)
    assert run(stage, Numbers(count=3), context).nothing_to_do
    from tasks.lake import Commit

    context.lake.tombstone("rejects", context.lake.read("rejects").head(1), "lost", Commit("test", 1))
    assert sums(run(stage, Numbers(count=3), context)) == (1, 0, 1, 0, 2)


def test_async_work_overlaps(context: Context) -> None:
    stage = replace(STAGE, work=sort_out_later, resources=Resources(concurrency=50, chunk=50, workers=1))
    run(stage, Numbers(count=1), context)
    start = time.monotonic()
    result = run(stage, Numbers(count=400, reject_every=7), context)
    assert sums(result) == (400, 343, 57, 0, 0)
    assert time.monotonic() - start < 400 * 0.01 + 6, "400 waits of 10 ms do not stand in line"


@ONLY_RAY
def test_a_short_list_is_shared_by_all_workers(context: Context) -> None:
    async def say_who(item: Row, settings: Numbers) -> Kept:
        await asyncio.sleep(0.2)
        return Kept({"places": [{**place(item["id"]), "admin1": str(os.getpid())}]})

    stage = replace(STAGE, work=say_who, resources=Resources(cpus=0.5, workers=2, concurrency=64, chunk=2))
    assert run(stage, Numbers(count=12), context).kept == 12
    assert context.lake.read("places")["admin1"].value_counts()["count"].to_list() == [6, 6]


@ONLY_RAY
def test_a_worker_that_dies_is_replaced_and_its_items_run_again(context: Context, tmp_path: Path) -> None:
    def die_once(item: Row, folder: Path) -> Kept:
        mark = folder / "died"
        if item["k"] == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Kept({"places": [place(item["id"])]})

    stage = replace(STAGE, work=die_once, open=lambda settings, setup: tmp_path)
    assert sums(run(stage, Numbers(count=60), context)) == (60, 60, 0, 0, 0)


@ONLY_RAY
def test_an_item_that_kills_every_worker_fails_alone(context: Context) -> None:
    def poison(item: Row, settings: Numbers) -> Kept:
        if item["k"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return Kept({"places": [place(item["id"])]})

    stage = replace(STAGE, work=poison, resources=Resources(chunk=4))
    result = run(stage, Numbers(count=8), context)
    assert sums(result) == (8, 7, 0, 1, 0)
    assert result.failures == {"worker_died": 1}


def test_a_wrong_key_stops_the_stage_at_once_with_one_line(context: Context) -> None:
    def locked(item: Row, settings: Numbers) -> Kept:
        raise ServiceError("mapillary", "auth", "the token is not valid; check MAPILLARY_TOKEN", status=401)

    with pytest.raises(GeofixError, match=r"stopped: mapillary does not accept services\.mapillary\.public_key"):
        run(replace(STAGE, work=locked, resources=Resources(chunk=1)), Numbers(count=500), context)
    assert context.lake.read("runs")["status"].to_list() == ["failed"]
    assert context.lake.read("runs")["failed"][0] < 50


def test_a_refused_opening_comes_back_as_itself(context: Context) -> None:
    def no_bench(settings: Numbers, setup: WorkerSetup) -> None:
        raise StageRefused("there is no model to open")

    with pytest.raises(StageRefused, match="there is no model to open"):
        run(replace(STAGE, open=no_bench), Numbers(), context)


def test_an_unexpected_error_is_a_failure_without_secrets(context: Context) -> None:
    token = context.connections.street_view["mapillary"].key
    assert token is not None
    secret = token.get_secret_value()

    def leak(item: Row, settings: Numbers) -> Kept:
        raise ValueError(f"could not use {secret} at https://example.org/x?access_token={secret}")

    result = run(replace(STAGE, work=leak), Numbers(count=2), context)
    assert result.failures == {"ValueError": 2}
    assert not context.lake.read("failures")["message"].str.contains(secret, literal=True).any()


def test_a_lake_that_takes_nothing_more_stops_the_stage(context: Context) -> None:
    def full(item: Row, settings: Numbers) -> Kept:
        raise LakeUnwritable("image store '/x' cannot be written: No space left on device")

    with pytest.raises(GeofixError, match=r"numbers stopped: .*No space left on device"):
        run(replace(STAGE, work=full), Numbers(count=200), context)
    assert context.lake.read("failures").is_empty(), "no item is to blame"


def test_two_items_that_write_one_row_are_named(context: Context) -> None:
    def same(item: Row, settings: Numbers) -> Kept:
        return Kept({"places": [place("one")]})

    with pytest.raises(GeofixError, match=r"items n00000, n00001.* wrote the same places row .place_id=one."):
        run(replace(STAGE, work=same), Numbers(count=2), context)
    assert context.lake.read("places").is_empty()


def test_a_kept_item_must_leave_a_mark(context: Context) -> None:
    def nothing(item: Row, settings: Numbers) -> Kept:
        return Kept({})

    with pytest.raises(GeofixError, match=r"kept item n0000. without a row for 'places'"):
        run(replace(STAGE, work=nothing), Numbers(count=2), context)


def test_a_stage_that_loses_a_row_is_an_error(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.runtime.on_ray import pool

    def lossy(*arguments: Any, **more: Any) -> Iterator[Any]:
        results = list(real(*arguments, **more))
        for result in results:
            result.kept = result.kept[1:]
        yield from results

    real = pool.spread
    monkeypatch.setattr(pool, "spread", lossy)
    with pytest.raises(AccountingError, match=r"20 in, 1\d kept, 0 rejected, 0 failed: \d lost"):
        run(STAGE, Numbers(), context)


def test_bad_items_are_refused(context: Context) -> None:
    for frame, message in (
        (pl.DataFrame({"k": [1]}), "need a text column 'id'"),
        (pl.DataFrame({"id": [1]}), "need a text column 'id'"),
        (pl.DataFrame({"id": ["a", "a"]}), "item id 'a' occurs 2 times"),
    ):
        with pytest.raises(GeofixError, match=message):
            run(replace(STAGE, items=lambda inputs, settings, frame=frame: frame), Numbers(), context)


def test_progress_counts_up_to_the_end(context: Context) -> None:
    ticks: list[Tick] = []
    run(replace(STAGE, resources=Resources(chunk=10)), Numbers(count=200), replace(context, progress=ticks.append))
    assert [t.done for t in ticks] == sorted(t.done for t in ticks)
    assert ticks[0].todo == 200
    assert ticks[-1].finished
    assert any(0 < t.done < 200 for t in ticks)


def test_a_column_stage_writes_only_what_changed(context: Context) -> None:
    def double(inputs: Inputs, settings: Numbers) -> tuple[pl.DataFrame, pl.DataFrame]:
        everyone = pl.DataFrame([{"id": f"n{k}", **place(f"n{k}"), "seed": k * settings.speed} for k in range(10)])
        odd = pl.col("id").is_in(["n1", "n3"])
        rejects = everyone.filter(odd).select("id", reason=pl.lit("odd"), evidence_json=pl.lit("{}"))
        return everyone.filter(~odd), rejects

    stage = ColumnStage("columns", (), ("places",), double, identity=lambda settings: 1)
    assert sums(run(stage, Numbers(speed=0), context)) == (10, 8, 2, 0, 0)
    assert sums(run(stage, Numbers(speed=0), context)) == (0, 0, 0, 0, 10)
    assert sums(run(stage, Numbers(speed=1), context)) == (7, 7, 0, 0, 3), "n0 stays 0, rejects are the same"


ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


@ONLY_RAY
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how == signal.SIGKILL else pytest.mark.slow) for how in ENDS]
)
def test_a_run_that_is_stopped_or_killed_is_finished_by_the_next(tmp_path: Path, how: signal.Signals) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        textwrap.dedent(
            """
            import pathlib, sys, time
            import polars as pl
            from flows.cli.command import Call, run_command
            from schemas.settings.base import Settings
            from schemas.settings.services import ServicesSettings
            from tasks.runtime.runner import Context, Kept, Resources, Stage, run
            from tasks.lake import Lake
            from tasks.services import connect

            def items(inputs, settings):
                return pl.DataFrame({"id": [f"i{k}" for k in range(60)]})

            def work(item, bench):
                # The later ones wait until they may, so that the run is under way however late the signal comes.
                while int(item["id"][1:]) >= 20 and not pathlib.Path("GO").exists():
                    time.sleep(0.05)
                row = {"place_id": item["id"], "country": "FR", "lat": 1.0, "lon": 1.0, "split": "train"}
                return Kept({"places": [row]})

            def main():
                stage = Stage("slow", (), ("places",), items, work, lambda s, w: None, resources=Resources(chunk=2))
                tell = lambda tick: print(tick.done, flush=True)
                context = Context(Lake(sys.argv[1]), connect(ServicesSettings(), {}), progress=tell)
                result = run(stage, Settings(), context)
                print("result", result.items_in, result.kept, result.skipped, flush=True)
                return 0

            if __name__ == "__main__":
                run_command(Call(), main)
            """
        ).replace("GO", str(tmp_path / "go"))
    )
    command = [sys.executable, str(program), str(tmp_path / "lake")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    done = 0
    for line in process.stdout:
        done = int(line)
        if done >= 6:
            process.send_signal(how)
            break
    process.communicate(timeout=600)
    assert process.returncode == ENDS[how]
    saved = Lake(tmp_path / "lake").read("places").height
    if how is not signal.SIGKILL:
        assert done <= saved < 60, "all that was done is saved"
        assert Lake(tmp_path / "lake").read("runs")["status"].to_list() == ["interrupted"]
    (tmp_path / "go").touch()
    after = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    assert after.stdout.splitlines()[-1] == f"result {60 - saved} {60 - saved} {saved}"
    assert Lake(tmp_path / "lake").read("places")["place_id"].n_unique() == 60
