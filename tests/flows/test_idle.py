"""A run with nothing to do is known before anything starts, and any reason to run is seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.cli.application import app
from flows.idle import idle_results
from flows.options import RunOptions
from schemas.config import Config
from schemas.settings.base import Settings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.lake import Commit, Lake
from tasks.plan import STAGES as PLAN
from tasks.runtime.runner import Context, Inputs, Kept, Rejected, Row, Stage, WorkerSetup, idle_result, run
from tasks.services import ServiceError, connect

pytestmark = pytest.mark.usefixtures("in_process")


class Numbers(Settings):
    count: int = 6
    fails: int = -1


def numbers(inputs: Inputs, settings: Numbers) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"n{k}" for k in range(settings.count)], "k": range(settings.count)})


def sort_out(item: Row, settings: Numbers) -> Kept | Rejected:
    if item["k"] == settings.fails:
        raise ServiceError("numbers", "outage", "none today", retryable=True)
    if item["k"] == 1:
        return Rejected("one")
    return Kept({"places": [{"place_id": item["id"], "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}]})


def open_settings(settings: Numbers, setup: WorkerSetup) -> Numbers:
    return settings


STAGE = Stage("numbers", (), ("places",), numbers, sort_out, open_settings)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}), SpreadSettings(workers=1))


def test_a_finished_step_is_idle_and_says_what_a_run_says(context: Context) -> None:
    assert idle_result(STAGE, Numbers(), context) is None, "it never ran"
    run(STAGE, Numbers(), context)
    before = context.lake.version("runs")
    idle = idle_result(STAGE, Numbers(), context)
    assert context.lake.version("runs") == before, "nothing is written"
    again: Any = run(STAGE, Numbers(), context)
    assert idle is not None
    for name in ("stage", "status", "total", "skipped", "items_in", "kept", "failed", "totals", "total_rejects"):
        assert getattr(idle, name) == getattr(again, name), name


def test_every_reason_to_run_is_seen(context: Context) -> None:
    run(STAGE, Numbers(), context)
    assert idle_result(STAGE, Numbers(count=7), context) is None, "another setting"
    assert idle_result(replace(STAGE, version=2), Numbers(), context) is None, "another version"
    context.lake.tombstone("places", pl.DataFrame({"place_id": ["n3"]}), "gone", Commit("by hand", 1))
    assert idle_result(STAGE, Numbers(), context) is None, "a row is missing"
    run(STAGE, Numbers(fails=2), context)
    assert idle_result(STAGE, Numbers(fails=2), context) is None, "an item failed"


def test_an_item_that_left_the_input_is_seen(context: Context) -> None:
    def counted(inputs: Inputs, settings: Numbers) -> pl.DataFrame:
        return numbers(inputs, settings).head(size)

    stage, size = replace(STAGE, items=counted), 6
    run(stage, Numbers(), context)
    size = 5
    assert idle_result(stage, Numbers(), context) is None, "its rows are to be ended"
    assert idle_result(replace(stage, keeps_history=True), Numbers(), context) is not None


def configured(tmp_path: Path, *overrides: str) -> Config:
    return RunOptions(lake=str(tmp_path / "lake"), overrides=["plan.places=6", *overrides]).resolve()


def test_an_unchanged_plan_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path)
    lake = Lake(config.lake)
    assert idle_results(config, ["plan"], lake, None) is None
    run(PLAN[0], config.plan, Context(lake, connect(config.services, {})))
    monkeypatch.setattr("tasks.plan.stage.plan_places", lambda settings: pytest.fail("it is drawn again"))
    results = idle_results(config, ["plan"], lake, None)
    assert results is not None and [(one.stage, one.total, one.items_in) for one in results] == [("plan", 6, 0)]
    assert idle_results(configured(tmp_path, "flows.record_idle=true"), ["plan"], lake, None) is None
    assert idle_results(configured(tmp_path, "plan.seed=8"), ["plan"], lake, None) is None
    assert idle_results(config, ["plan", "collect"], lake, None) is None, "its pictures were never looked for"
    lake.tombstone("places", lake.read("places").head(1).select("place_id"), "by hand", Commit("by hand", 1))
    assert idle_results(config, ["plan"], lake, None) is None


def test_an_idle_command_starts_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path)
    run(PLAN[0], config.plan, Context(Lake(config.lake), connect(config.services, {})))
    monkeypatch.setattr("flows.cli.running.prefect_ready", lambda *_: pytest.fail("Prefect is started"))
    with pytest.raises(SystemExit) as ended:
        app(["plan", "--lake", config.lake, "--set", "plan.places=6"])
    printed = capfd.readouterr()
    assert ended.value.code == 0
    assert "nothing to do: all 6 done before" in printed.err and "Nothing to redo: all 6 items" in printed.out
