"""Stages as jobs: the id follows from the work, a running job is followed, a failed one is tried anew."""

import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bench.loopback_cluster import loopback_cluster
from flows.order import STAGES
from schemas.config import Config
from schemas.errors import GeofixError
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from tasks.lake import Lake
from tasks.runtime.items.outcome import StageResult, Tick
from tasks.runtime.on_ray.job import main
from tasks.runtime.on_ray.jobs import RESULT, TICK, job_id, run_as_job, stage_home, stages_in
from tasks.runtime.runner import Context, Inputs, Kept, Row, Stage, WorkerSetup, run
from tasks.runtime.snapshots import approved_snapshot
from tasks.services import connect


def items(inputs: Inputs, settings: PlanSettings) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"n{k}" for k in range(6)]})


def open_nothing(settings: PlanSettings, setup: WorkerSetup) -> None:
    return None


def keep(item: Row, context: None) -> Kept:
    return Kept({"places": [{"place_id": item["id"], "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}]})


STAGE = Stage("plan.numbers", (), ("places",), items, keep, open_nothing)


@dataclass
class Status:
    over: bool

    def is_terminal(self) -> bool:
        return self.over


@dataclass
class Job:
    submission_id: str | None
    status: Status


@dataclass
class FakeJobs:
    """Jobs that print what they are told to and end."""

    lake: Lake
    known: list[Job] = field(default_factory=list)
    prints: str = ""
    submitted: list[dict[str, Any]] = field(default_factory=list)

    def list_jobs(self) -> list[Job]:
        return self.known

    def submit_job(self, **job: Any) -> str:
        self.submitted.append(job)
        return str(job["submission_id"])

    def get_job_status(self, job_id: str) -> Status:
        return Status(True)

    def get_job_logs(self, job_id: str) -> str:
        return self.prints


def context(lake: Lake, address: str | None = None, ticks: list[Tick] | None = None) -> Context:
    config = Config.model_validate({"lake": "elsewhere", "spread": {"address": address}})
    told = ticks.append if ticks is not None else lambda tick: None
    text = config.model_dump_json()
    return Context(lake, connect(ServicesSettings(), {}), config.spread, config_json=text, progress=told)


@pytest.fixture
def done(tmp_path: Path) -> tuple[Lake, StageResult]:
    """A lake in which the stage has run."""
    lake = Lake(tmp_path / "lake")
    none = Stage("plan.numbers", (), ("places",), lambda i, s: items(i, s).clear(), keep, open_nothing)
    return lake, run(none, PlanSettings(), context(lake))


def test_a_new_job_is_submitted_and_its_progress_and_result_come_back(done: tuple[Lake, StageResult]) -> None:
    lake, result = done
    ticks: list[Tick] = []
    prints = f"something of Ray's\n{TICK} {json.dumps(asdict(Tick('plan.numbers', 6, 0)))}\n"
    jobs = FakeJobs(lake, prints=f"{prints}{RESULT} {json.dumps(asdict(result))}\n")
    assert run_as_job(STAGE, context(lake, "http://head:8265", ticks), "hash", {}, jobs) == result
    assert ticks == [Tick("plan.numbers", 6, 0)]
    [job] = jobs.submitted
    assert job["submission_id"] == job_id(lake.uri, "plan.numbers", "hash", {})
    assert f"-m tasks.runtime.on_ray.job {__name__} plan.numbers" in job["entrypoint"]
    sent = json.loads(job["runtime_env"]["env_vars"]["GEOFIX_JOB_CONFIG"])
    assert sent["lake"] == lake.uri, "a relative path would mean another folder on the head"


def test_the_snapshot_that_was_asked_for_goes_to_the_job(
    done: tuple[Lake, StageResult], snapshot_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--snapshot names an older one than the newest approved, which a job would take by itself."""
    lake, result = done
    wanted, _ = snapshot_of(lake), snapshot_of(lake)
    asked = replace(context(lake, "http://head:8265"), snapshot=approved_snapshot(lake, wanted))
    jobs = FakeJobs(lake, prints=f"{RESULT} {json.dumps(asdict(result))}\n")
    run_as_job(STAGE, asked, "hash", {}, jobs)
    for name, value in jobs.submitted[0]["runtime_env"]["env_vars"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    given: list[Context] = []

    def ran(stage: Any, settings: Any, context: Context) -> StageResult:
        given.append(context)
        return result

    monkeypatch.setattr("tasks.runtime.on_ray.job.run", ran)
    assert main(["tasks.train", "train.sft"]) == 0
    assert given[0].snapshot is not None and given[0].snapshot.snapshot_id == wanted


@pytest.mark.parametrize("package", STAGES)
def test_a_job_finds_every_step_of_the_package(package: str) -> None:
    for stage in importlib.import_module(f"tasks.{package}").STAGES:
        if isinstance(stage, Stage):
            assert any(found is stage for found in stages_in(importlib.import_module(stage_home(stage))))


def test_a_running_job_is_followed_and_one_that_is_over_is_tried_anew(done: tuple[Lake, StageResult]) -> None:
    lake, result = done
    name = job_id(lake.uri, "plan.numbers", "hash", {})
    prints = f"{RESULT} {json.dumps(asdict(result))}\n"
    following = FakeJobs(lake, [Job(name, Status(True)), Job(f"{name}-2", Status(False))], prints)
    assert run_as_job(STAGE, context(lake), "hash", {}, following) == result and not following.submitted
    over = FakeJobs(lake, [Job(name, Status(True)), Job(None, Status(False)), Job("other", Status(False))], prints)
    run_as_job(STAGE, context(lake), "hash", {}, over)
    assert [job["submission_id"] for job in over.submitted] == [f"{name}-2"]


def test_the_id_is_that_of_the_work() -> None:
    name = job_id("/lake", "curate.judge", "hash", {"images": 3})
    assert name == job_id("/lake", "curate.judge", "hash", {"images": 3}) and name.startswith("geofix-curate-judge-")
    others = [("/other", "curate.judge", "hash", {"images": 3}), ("/lake", "curate.judge", "h", {"images": 3}),
              ("/lake", "curate.judge", "hash", {"images": 4})]  # fmt: skip
    assert name not in {job_id(*other) for other in others}


def test_a_job_without_a_result_or_on_another_lake_is_an_error(done: tuple[Lake, StageResult], tmp_path: Path) -> None:
    lake, result = done
    with pytest.raises(GeofixError, match=r"ended without a result: geofix: no key.*ray job logs geofix-plan-numbers"):
        run_as_job(STAGE, context(lake), "hash", {}, FakeJobs(lake, prints="geofix: no key\n"))
    elsewhere = FakeJobs(lake, prints=f"{RESULT} {json.dumps(asdict(result))}\n")
    with pytest.raises(GeofixError, match="the cluster needs the same lake"):
        run_as_job(STAGE, context(Lake(tmp_path / "other")), "hash", {}, elsewhere)


def test_a_stage_that_no_module_holds_cannot_be_a_job() -> None:
    assert stage_home(STAGE) == __name__
    with pytest.raises(GeofixError, match=r"ingest cannot run as a job: give spread\.address as host:port"):
        stage_home(Stage("ingest", (), ("places",), items, keep, open_nothing))


@pytest.mark.slow
def test_a_stage_runs_as_a_job_of_a_real_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).read_text().partition("@dataclass\nclass Status")[0]  # the stage, for the cluster to import
    (tmp_path / "own_stages.py").write_text(source.replace("from bench.", "# from bench."))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("GEOFIX_PYTHON", sys.executable)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_stages  # type: ignore[import-not-found]

    lake = Lake(tmp_path / "lake")
    with loopback_cluster(0, tmp_path / "cluster.log", head_cpus=2, dashboard=True) as cluster:
        ticks: list[Tick] = []
        result = run(own_stages.STAGE, PlanSettings(), context(lake, cluster.dashboard, ticks))
        again = run(own_stages.STAGE, PlanSettings(), context(lake, cluster.dashboard))
    assert (result.kept, result.items_in) == (6, 6) and lake.read("places").height == 6
    assert ticks[-1].finished and ticks[-1].kept == 6
    assert again.nothing_to_do, "the second job is a new attempt, and finds all done"


def test_the_entry_point_says_in_one_line_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.model_validate({"lake": str(tmp_path), "services": {"geocoder": {"key_env": "NO_SUCH_KEY"}}})
    monkeypatch.setenv("GEOFIX_JOB_CONFIG", config.model_dump_json())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert main(["tasks.synthesize", "synthesize"]) == 1
    assert capsys.readouterr().out.startswith("geofix: missing keys in the environment: NO_SUCH_KEY")
