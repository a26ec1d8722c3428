"""`--dry-run` as it is called: a table for a person, JSON for a machine, one line when it cannot."""

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.cli.assumed import calls_of_items
from flows.cli.command import Call, UsageError
from flows.cli.dry_run import dry_run, plan_dry_run, train_dry_run
from flows.cli.lake import maintain_lake
from flows.cli.review_commands import serve_site
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.config import section_of
from schemas.errors import GeofixError
from tasks.lake import Commit, Lake
from tasks.train.memory import Shape

PLACES = 4


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=100, pano_width=512)


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with serving(create_app(world, warm=False)) as address:
        yield address


@pytest.fixture
def call(url: str, world: World, tmp_path: Path) -> Call:
    """A call on a lake with a few planned places, and services with budgets."""
    lake = Lake(tmp_path / "lake")
    spots = [world.place(k) for k in range(PLACES)]
    rows = [
        {"place_id": f"p{k}", "country": "FR", "lat": spot.lat, "lon": spot.lon, "split": "train"}
        for k, spot in enumerate(spots)
    ]
    lake.upsert("places", rows, Commit("plan", 1))
    overrides = [
        "offline.serve=false",
        f"services.mapillary.base_url={url}/mapillary",
        "services.mapillary.search_per_minute=6000",
        "services.mapillary.tiles_per_day=40",
        f"services.stac.base_url={url}/stac/api/stac/v1",
        "collect.photos=0",
        "collect.panorama_min_pixels=1",
        "collect.satellite.enabled=false",
    ]
    return Call(lake=str(lake.root), overrides=overrides, as_json=True, quiet=True)


def test_json_holds_what_is_pending_and_what_it_costs(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(call, "collect") == 0
    found = json.loads(capsys.readouterr().out)
    stages = {stage["stage"]: stage for stage in found["stages"]}
    street = stages["collect"]
    assert stages["collect.recheck"]["items"] == 0
    assert (street["items"], street["measured"]) == (PLACES, 0)
    assert found["total"]["requests"] == sum(street["requests"].values()) > 0
    assert found["total"]["seconds"] == street["seconds"] > 0
    lake = Lake(call.lake or "")
    assert lake.existing() == ["places"] and not (lake.root / "images").exists()


def test_a_person_sees_a_table_and_what_is_only_a_default(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(replace(call, as_json=False), "collect") == 0
    shown = capsys.readouterr().out
    assert "collect.recheck" in shown and "nothing to do" in shown
    assert "collect: a default, for it was never measured here" in shown
    assert "No service was asked and nothing was written." in shown


def test_measured_runs_and_limits_are_told(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    began = datetime(2027, 1, 1, tzinfo=UTC)
    sent = json.dumps({"mapillary search": [6_000, 4_000_000], "mapillary tiles": [30, 3]})
    run = {"run_id": "r", "stage": "collect", "status": "done", "kept": 2, "rejected": 0, "failed": 0}
    times = {"started_at": began, "finished_at": began + timedelta(seconds=8)}
    Lake(call.lake or "").append("runs", [{**run, **times, "sent_json": sent}], Commit("run", 1))
    assert dry_run(replace(call, as_json=False), "collect") == 0
    shown = capsys.readouterr().out
    assert "as 2 items before" in shown and "12,060" in shown and "8.0 MB" in shown
    assert "12,000 requests (mapillary search) at 6,000 a minute take 2 min 0 s at least." in shown
    assert "60 requests (mapillary tiles) of 40 a day; that takes 2 days" in shown


def test_without_a_plan_it_says_what_to_do(call: Call, tmp_path: Path) -> None:
    Lake(tmp_path / "empty")
    with pytest.raises(GeofixError, match="run `geofix plan` first"):
        dry_run(replace(call, lake=str(tmp_path / "empty")), "collect")
    with pytest.raises(UsageError, match="there is no lake"):
        dry_run(replace(call, lake=str(tmp_path / "nowhere")), "collect")
    assert not (tmp_path / "nowhere").exists()


def test_training_is_fitted_to_a_gpu_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    picture = {"role": "user", "content": [{"type": "image", "image": "i"}, {"type": "text", "text": "Where?" * 60}]}
    asked = json.dumps([picture, {"role": "assistant", "content": "There." * 60}])
    row = {"image_id": "i", "sha256": "0" * 64, "licence": "l", "attribution": "a", "messages_json": asked}
    rows = [{**row, "sample_id": phase, "training_stage": phase} for phase in ("sft", "grpo")]
    lake.upsert("samples", rows, Commit("train.samples", 1))
    seven = Shape(3584, 28, 18_944, 512, 152_064, False, 1280, 32, 3456, 4)
    monkeypatch.setattr("tasks.train.fitting.shape_of", lambda settings: seven)
    wanted = ["offline.serve=false", "train.precision=bf16", "train.image_max_pixels=2000000"]
    wanted += ["train.grpo.max_completion_tokens=128", "train.pack_tokens=auto"]
    call = Call(lake=str(lake.root), overrides=wanted, quiet=True)
    assert train_dry_run(call, "24GB") == 1
    shown = capsys.readouterr().out
    assert "sft does not fit: it takes " in shown and "of 22.4 GiB with pack_tokens=" in shown
    assert train_dry_run(replace(call, overrides=[*wanted, "train.lora.rank=64"]), "24GB") == 0
    shown = capsys.readouterr().out
    assert "sft fits, " in shown and "grpo fits, " in shown and "gradient_checkpointing=all" in shown
    assert train_dry_run(replace(call, as_json=True), "80GB") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["fits"] for one in found["stages"]] == [True, True] and found["gpus"][0]["total"] == 80e9
    assert "grpo.reference=offload" in found["stages"][1]["settings"]
    with pytest.raises(GeofixError, match="is no size of a GPU's memory"):
        train_dry_run(call, "large")


def test_training_says_which_nodes_its_workers_go_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path / "lake")
    asked = json.dumps([{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "There."}])
    row = {"sample_id": "s", "training_stage": "sft", "image_id": "i", "sha256": "0" * 64, "licence": "l"}
    lake.upsert("samples", [{**row, "attribution": "a", "messages_json": asked}], Commit("train.samples", 1))
    judge = "{endpoint: eyes}"
    wanted = [
        "offline.serve=false", "train.workers=3", "train.threads=2", "spread.address=head:6379",
        "models.pools.eyes={model: m, gpus: 2, tensor_parallel: 2, replicas: [1, 1], usd_per_gpu_second: 0}",
        f"models.roles.embedder={judge}", f"models.roles.consistency={judge}",
    ]  # fmt: skip
    call = Call(recipe="geoagent", lake=str(lake.root), overrides=wanted, as_json=True, quiet=True)
    nodes = {"10.0.0.1": {"CPU": 5.0, "GPU": 4.0}, "10.0.0.2": {"CPU": 16.0, "GPU": 2.0}}
    monkeypatch.setattr("flows.cli.dry_run.cluster_of", lambda spread: (nodes, []))
    assert train_dry_run(call) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == nodes, "the cluster's, whatever this machine has"
    # A worker needs 2 CPUs beside its GPU, so the first node holds two of them.
    assert found["placement"]["train.workers"] == {"10.0.0.1": 2, "10.0.0.2": 1}
    assert sum(found["placement"]["models.pools.eyes"].values()) == 2, "a replica's two workers, beside them"
    assert train_dry_run(replace(call, as_json=False)) == 0
    shown = capsys.readouterr().out
    assert "train.workers: 2 on 10.0.0.1, 1 on 10.0.0.2" in shown and "whether a phase fits is not known" in shown
    with pytest.raises(GeofixError, match=r"9 x train\.workers need 2 CPUs and 1 GPU each.*there is room for 4"):
        train_dry_run(replace(call, overrides=[*wanted, "train.workers=9"]))


def test_a_lake_that_can_only_be_read_is_looked_at(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Root may write everywhere: what opens a lake for writing fails here instead."""
    monkeypatch.setattr(Lake, "_refuse_unwritable", lambda self: pytest.fail("it was opened for writing"))
    assert dry_run(call, "collect") == 0
    assert maintain_lake(call, dry_run=True) == 0
    with pytest.raises(GeofixError, match="no training samples yet"):
        train_dry_run(call)
    make = Path.mkdir

    def refuse(self: Path, *arguments: Any, **options: Any) -> None:
        if "plan-dry-run" in self.parts:
            raise OSError(errno.EROFS, "Read-only file system")
        make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    capsys.readouterr()
    assert plan_dry_run(replace(call, overrides=[*(call.overrides or []), "plan.places=5"])) == 0
    files = json.loads(capsys.readouterr().out)["files"].values()
    assert files and all(Path(file).is_file() and "geofix-plan-" in file for file in files)


def test_a_site_that_cannot_be_renewed_is_served(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"snapshot_id": "s", "table_versions_json": "{}", "status": "pending"}
    Lake(str(call.lake)).upsert("snapshots", [row], Commit("r", 1))
    monkeypatch.setattr(Lake, "_refuse_unwritable", lambda self: pytest.fail("it was opened for writing"))
    served: list[str] = []
    monkeypatch.setattr("tasks.review.serve.serve", lambda lake, snapshot_id, *_: served.append(snapshot_id))

    def renew_site(lake: Lake, row: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tasks.review.renew_site", renew_site)
    assert serve_site(call, "Ada", 8790, "127.0.0.1", None) == 0 and served == ["s"]
    assert "shown as it was made, and no mark is taken: [Errno 30] Read-only" in capsys.readouterr().err


def test_what_was_never_run_is_estimated_by_what_its_agents_do(
    call: Call, capsys: pytest.CaptureFixture[str], snapshot_of: Callable[..., str]
) -> None:
    """Not by one call a role: a trajectory of SpotAgent is seven, most of them the planner's."""
    lake = Lake(call.lake or "")
    seen = {"image_id": "i", "sha256": "0" * 64, "lat": 1.0, "lon": 2.0}
    picture = {**seen, "extension": "jpg", "kind": "panorama", "source": "s", "source_id": "1", "place_id": "p0"}
    label = {**seen, "country": "FR", "split": "train"}
    lake.upsert("images", [{**picture, "licence": "l", "attribution": "a"}], Commit("collect", 2))
    lake.upsert("labels", [label], Commit("curate.labels", 3))
    snapshot_of(lake)
    spotagent = replace(call, recipe="spotagent")
    assert dry_run(spotagent, "synthesize") == 0
    [step] = json.loads(capsys.readouterr().out)["stages"]
    calls = {cost["role"]: cost["calls"] for cost in step["models"]}
    tries = step["items"] * spotagent.options().resolve().synthesize.samples
    assert tries and (calls["observer"], calls["planner"]) == (2 * tries, 5 * tries)


@pytest.mark.parametrize(
    ("step", "chosen", "items_a_picture", "calls_a_picture"),
    [
        ("difficulty.attempts", ["difficulty.k=4", "difficulty.policy=answerer-base"], 4, {"answerer-base": 4}),
        ("evaluate.answers", ["evaluate.policies=[a, b]", "evaluate.trained=false"], 2, {"a": 1, "b": 1}),
        ("evaluate.scaling", ["evaluate.scaling={policies: [a, b], n: 4, verifier: v}"], 2, {"a": 4, "b": 4, "v": 2}),
    ],
)
def test_items_are_pictures_as_often_as_the_step_asks_about_one(
    step: str, chosen: list[str], items_a_picture: int, calls_a_picture: dict[str, int]
) -> None:
    models = [f"models.roles.{role}={{endpoint: chat}}" for role in ("a", "b", "v")]
    tools = ["difficulty.tools=[]", "evaluate.tools=[]", "offline.serve=false"]
    config = Call(recipe="spotagent", overrides=[*chosen, *models, *tools]).options().resolve()
    settings = section_of(config, step.partition(".")[0])
    calls: dict[str, float] = {}
    for role, number, _ in calls_of_items(config, step, settings, 10 * items_a_picture):
        calls[role] = calls.get(role, 0) + number
    assert {role: calls[role] for role in calls_a_picture} == {role: 10 * n for role, n in calls_a_picture.items()}
