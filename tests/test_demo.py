"""The demo as a newcomer runs it: once, again, and then looked at from every side."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import polars as pl
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner, Result

from flows.cli import app
from tasks.geo.distance import distance_km
from tasks.lake import Commit, Lake
from tasks.lake.names import KEY_FILE

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parent.parent
PLACES = 6
NOW = datetime(2026, 3, 1, tzinfo=UTC)
STAGES = ("plan", "collect", "curate", "review", "synthesize", "difficulty", "train", "evaluate")


def asked(*arguments: str) -> Result:
    """A command that only looks, in this process."""
    return CliRunner().invoke(app, arguments)


def geofix(*arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, cwd=ROOT)


def demo(lake: Path, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    steps = ["train.sft.max_steps=6", "train.cold_start.max_steps=3", "train.grpo.max_steps=2"]
    options = [
        f"plan.places={PLACES}",
        "plan.countries=[DE, FR, GB]",
        "offline.port=8791",
        "plan.split={train: 0.5, validation: 0, benchmark: 0.5}",  # few places, but some of both
        "collect.satellite.size_px=256",
        "curate.quality.kinds=[panorama, photo]",  # the judge takes a second for a picture
        "curate.judge.view_max_pixels=300000",
        "spread.workers=1",  # each worker of each stage takes four seconds of CPU to start
        "synthesize.also_images=1",
        "difficulty.k=4",
        "difficulty.policy=answerer-base",  # a model of six steps finds no picture that it could learn from
        "evaluate.split=train",  # of so few places none for the benchmark may be localizable
        "evaluate.max_images=1",
        *steps,
    ]
    sets = [word for option in options for word in ("--set", option)]
    return geofix("demo", "--lake", str(lake), *sets, before=before)


def unreachable(log: str | Path) -> list[str]:
    """What to put before a command so that every packet to the outside is lost, and noted in the log."""
    program = str(ROOT / "tests" / "unreachable.py")
    return ["unshare", "--map-root-user", "--net", sys.executable, program, str(log)]


def can_lose_packets() -> bool:
    """Whether this machine lets us: Linux with namespaces, `unshare`, `ip` and /dev/net/tun."""
    if not (shutil.which("unshare") and shutil.which("ip") and Path("/dev/net/tun").exists()):
        return False
    probe = [*unreachable(os.devnull), "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def lost_packets(lake: Path) -> Path:
    return lake.with_name("packets.log")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, subprocess.CompletedProcess[str]]]:
    folder = tmp_path_factory.mktemp("demo") / "lake"
    Lake(folder).blobs.put(KEY_FILE, b"5eed" * 16)  # the same pictures every time
    # Where it can be, on a network that loses every packet to the outside.
    first = demo(folder, unreachable(lost_packets(folder)) if can_lose_packets() else ())
    assert first.returncode == 0, first.stderr[-3000:]
    yield Lake(folder), first


@pytest.fixture(scope="module")
def lake(made: tuple[Lake, subprocess.CompletedProcess[str]]) -> Lake:
    return made[0]


def test_it_ends_by_saying_what_it_made_and_where_to_look(
    made: tuple[Lake, subprocess.CompletedProcess[str]],
) -> None:
    _, first = made
    assert "What it made:" in first.stdout
    report = next(line.split()[1] for line in first.stdout.splitlines() if line.strip().startswith("report"))
    assert "<html" in Path(report).read_text()
    assert "Traceback" not in first.stderr


def test_nothing_asks_the_outside(lake: Lake) -> None:
    log = lost_packets(lake.root)
    if not log.exists():
        pytest.skip("a network of its own needs Linux with namespaces, `unshare`, `ip` and /dev/net/tun")
    assert log.read_text() == ""


def test_every_part_did_real_work(lake: Lake) -> None:
    runs = lake.read("runs")
    assert {stage.split(".")[0] for stage in runs["stage"]} == set(STAGES)
    assert (runs["items_in"] == runs["kept"] + runs["rejected"] + runs["failed"]).all()
    assert lake.read("places").height == PLACES
    for table in ("images", "labels", "trajectories", "attempts", "regimes", "samples", "scores"):
        assert lake.read(table).height > 0, table
    assert lake.read("failures").is_empty()


def test_three_models_in_a_chain(lake: Lake) -> None:
    models = {row["training_stage"]: row for row in lake.read("models").iter_rows(named=True)}
    assert set(models) == {"sft", "cold_start", "grpo"}
    assert models["cold_start"]["parent_id"] == models["sft"]["model_id"]
    assert models["grpo"]["parent_id"] == models["cold_start"]["model_id"]
    for model in models.values():
        assert (lake.root / model["checkpoint"]).is_dir()
        losses = json.loads(model["metrics_json"])["loss"]
        assert len(losses) == model["steps"]


def test_licence_and_attribution_reach_the_training_row(lake: Lake) -> None:
    samples = lake.read("samples").join(lake.read("images"), on="image_id", suffix="_image")
    assert samples.height == lake.read("samples").height
    assert (samples["licence"] == samples["licence_image"]).all()
    assert samples["attribution"].str.contains("CC BY-SA 4.0").all()


def test_pictures_are_whole_and_near_their_place(lake: Lake) -> None:
    images = lake.read("images").join(lake.read("places"), on="place_id", suffix="_place")
    for row in images.iter_rows(named=True):
        assert lake.images.read(row["sha256"], row["extension"])
        assert distance_km(row["lat"], row["lon"], row["lat_place"], row["lon_place"]) < 8
    panoramas = images.filter(pl.col("kind") == "panorama")
    assert set(panoramas.select("width", "height").iter_rows()) == {(4096, 2048)}


def test_no_split_shares_a_picture_or_a_cell(lake: Lake) -> None:
    places = lake.read("places")
    assert places.group_by("cell").agg(pl.col("split").n_unique())["split"].max() == 1
    assert lake.read("labels").group_by("sha256").agg(pl.col("split").n_unique())["split"].max() == 1


def test_a_second_run_redoes_nothing_and_says_so(lake: Lake) -> None:
    versions = {name: lake.version(name) for name in lake.existing() if name != "runs"}
    again = demo(lake.root)
    assert again.returncode == 0
    assert "Nothing to redo" in again.stdout
    assert "nothing to do" in again.stderr
    assert {name: lake.version(name) for name in lake.existing() if name != "runs"} == versions


def test_a_training_row_is_traced_back_to_the_request(lake: Lake) -> None:
    sample = lake.read("samples").filter(pl.col("trajectory_id").is_not_null()).sort("sample_id")["sample_id"][0]
    traced = asked("trace", sample, "--lake", str(lake.root), "--json")
    assert traced.exit_code == 0, traced.stderr
    steps = {step["table"]: step for step in json.loads(traced.stdout)}
    assert list(steps) == ["samples", "snapshots", "trajectories", "labels", "images", "places"]
    image = steps["images"]["facts"]
    assert image["request_url"].startswith("http://127.0.0.1:8791/mapillary-cdn/")
    assert image["http_status"] == 200
    assert "sig=" not in image["request_url"]
    assert all(step["run"]["run_id"] for step in steps.values())


def test_no_key_is_in_anything_that_was_written(lake: Lake) -> None:
    from schemas.settings.services import OFFLINE_MAPILLARY_TOKEN

    secret = OFFLINE_MAPILLARY_TOKEN.rpartition("|")[2].encode()
    for path in lake.root.rglob("*"):
        # The resolved configuration holds the offline world's public key; a real key is only ever named there.
        if path.is_file() and path.suffix in (".parquet", ".html", ".log") and "/runs/" not in str(path):
            assert secret not in path.read_bytes(), path


def test_the_lake_is_listed_and_shown(lake: Lake) -> None:
    listed = asked("tables", "--lake", str(lake.root), "--json")
    assert {row["table"] for row in json.loads(listed.stdout)} >= {"places", "images", "labels", "models", "runs"}
    wanted = ("--where", "kind=panorama", "--columns", "image_id,licence", "--limit", "2")
    shown = asked("show", "images", *wanted, "--lake", str(lake.root))
    assert shown.exit_code == 0
    assert "CC BY-SA 4.0" in shown.stdout


@pytest.mark.slow
def test_an_unapproved_snapshot_is_not_trained_on(lake: Lake) -> None:
    snapshot = lake.read("snapshots")["snapshot_id"][0]
    again = geofix("reject", snapshot, "--why", "only a test", "--lake", str(lake.root))
    assert again.returncode == 1 and "already approved by rule: auto_approve" in again.stderr
    by = ("--lake", str(lake.root), "--reviewer", "tester", "--force")
    rejected = geofix("reject", snapshot, "--why", "only a test", *by)
    assert rejected.returncode == 0, rejected.stderr
    for part in ("synthesize", "train"):
        refused = geofix(part, "--lake", str(lake.root), "--set", "train.seed=99")
        assert refused.returncode == 1
        assert "rejected by tester" in refused.stderr and "only a test" in refused.stderr
        assert "geofix approve" not in refused.stderr
    approved = geofix("approve", snapshot, "--why", "tested", *by)
    assert approved.returncode == 0, approved.stderr
    assert lake.read("snapshots").row(0, named=True)["why"] == "tested"
    assert lake.read("decisions")["decision"].to_list().count("approved") == 2


def test_the_notebook_runs_on_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOFIX_LAKE", str(lake.root))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    interrupted = {"run_id": "cut-short", "stage": "collect", "status": "interrupted", "items_in": 9, "kept": 2}
    lake.upsert("runs", [{**interrupted, "rejected": 0, "failed": 0, "started_at": NOW}], Commit("cut-short", 1))
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    named = re.findall(r"\.venv/bin/(jupyter|geofix) (\w+)", notebook.cells[0].source)
    assert named and all((Path(sys.executable).parent / "-".join(words)).exists() for words in named)
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(ROOT / "notebooks")}})
    client.execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown), "the picture is shown"
