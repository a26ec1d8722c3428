"""The chain of the miniature: each command once, GRPO within the time, a failed command ends it."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import miniature
from bench.miniature import EVALUATION_S, LEAST_STEPS, PHASES, STEP_S, Chain, sampled, sampled_gain
from tasks.lake import Commit, Lake
from tasks.train.packaged import FILES, NAME


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is called, instead of being run; a command that names `broken` fails."""
    called: list[list[str]] = []

    def run(command: list[str], stdout: Any, **options: Any) -> "subprocess.CompletedProcess[str]":
        called.append(command[3:])
        stdout.write("why it failed\n")
        return subprocess.CompletedProcess(command, int("broken" in command))

    monkeypatch.setattr(miniature.subprocess, "run", run)
    monkeypatch.setattr(Chain, "take", lambda self: None)
    return called


def chain(folder: Path, seconds: float = 1000.0) -> Chain:
    return Chain(folder, ["--profile", "miniature"], time.monotonic() + seconds)


def test_a_command_is_done_once(tmp_path: Path, commands: list[list[str]]) -> None:
    for _ in range(2):
        assert chain(tmp_path).run("data", "run --to review", "plan.places=7")
    lake = str(tmp_path / "lake")
    assert commands == [["run", "--to", "review", "--lake", lake, "--profile", "miniature", "--set", "plan.places=7"]]


def test_one_that_fails_shows_its_last_lines_and_is_tried_again(
    tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not chain(tmp_path).run("Pass@K", "broken")
    assert "Pass@K: exit code 1" in (said := capsys.readouterr().out) and "why it failed" in said
    assert not chain(tmp_path).run("Pass@K", "broken") and len(commands) == 2


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path, commands: list[list[str]]) -> None:
    assert not chain(tmp_path, -1.0).run("GRPO", "train") and not commands


@pytest.mark.parametrize(("left_s", "steps"), [(0.0, LEAST_STEPS), (EVALUATION_S + STEP_S * 60, 60), (1e6, 250)])
def test_grpo_takes_the_steps_that_fit_and_the_same_when_begun_again(tmp_path: Path, left_s: float, steps: int) -> None:
    assert chain(tmp_path, left_s + 1.0).grpo_steps() == steps
    assert chain(tmp_path, 500.0).grpo_steps() == steps


def test_data_and_trajectories_can_be_prepared_on_a_machine_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    ports = []

    @contextmanager
    def world(*options: str, shared: bool, port: int) -> Iterator[None]:
        ports.append(port)
        yield

    monkeypatch.setenv("GEOFIX_MINIATURE", str(tmp_path))
    monkeypatch.setattr(miniature, "offline_server", world)
    monkeypatch.setattr(miniature, "_rehearse", lambda file: None)
    monkeypatch.setattr(miniature, "approve_newest", lambda lake: None)
    assert miniature.main(["--prepare"]) == 0
    assert [" ".join(one[:3]) for one in commands] == [
        "run --to review",
        "synthesize --lake " + str(tmp_path / "product" / "lake"),
    ]
    assert ports == [miniature.PORT] and f"offline.port={miniature.PORT}" in commands[0]


def test_sft_is_asked_without_tools_alone(tmp_path: Path, commands: list[list[str]]) -> None:
    assert chain(tmp_path).evaluate("all", PHASES)
    with_tools, without = (" ".join(one) for one in commands)
    assert "evaluate.policies=[cold_start, grpo]" in with_tools and "evaluate.tools" not in with_tools
    assert "evaluate.scaling.policies=[cold_start, grpo]" in with_tools and "scaling" not in without
    assert "evaluate.policies=[sft, cold_start, grpo]" in without and "evaluate.tools=[]" in without


def test_sampled_replies_are_compared_place_by_place(tmp_path: Path) -> None:
    """Two of four replies of GRPO are right everywhere, one of four of the cold start."""
    lake, places = Lake(tmp_path / "lake"), [f"i{n}" for n in range(30)]
    there, elsewhere, unread = {"lat": 10.0, "lon": 20.0}, {"lat": -10.0, "lon": 20.0}, {"lat": None, "lon": None}
    said = {"cold_start": [there, elsewhere, unread, unread], "grpo": [there, there, elsewhere, unread]}
    model = {"checkpoint": "models/m", "samples": 1, "steps": 1, "base": "tiny", "recipe": "spotmini"}
    lake.upsert("models", [{"model_id": one, "training_stage": one, **model} for one in said], Commit("train", 1))
    about = {"sha256": "0" * 64, "split": "benchmark"}
    lake.upsert("labels", [{"image_id": one, **there, **about} for one in places], Commit("curate", 1))
    rows = [
        {
            **{"evaluation_id": phase, "snapshot_id": "s", "image_id": image, "method": "pass@1"},
            **{"policy": f"trained:{phase} pass@1", "attempts_json": json.dumps(replies)},
        }
        for phase, replies in said.items()
        for image in places
    ]
    lake.upsert("deliberations", rows, Commit("evaluate", 1))
    found = sampled(lake)
    assert found["grpo"]["reward"].to_list() == [0.5] * 30 and found["cold_start"]["found"].to_list() == [0.25] * 30
    assert not sampled_gain("cold_start", found), "SFT is not sampled"
    [goal] = sampled_gain("grpo", found)
    assert goal.held and goal.found == pytest.approx(0.25) and not sampled_gain("sft", found)


def test_tables_that_were_taken_away_are_judged_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cold start finds half of the places, GRPO all; the base, SFT and those without tools none."""
    lake, results = Lake(tmp_path / "lake"), tmp_path / "results"
    places = [{"lat": -40.0 + n, "lon": 3.0 * n} for n in range(40)]
    model = {"checkpoint": "models/m", "samples": 1, "steps": 1, "base": "tiny", "recipe": "spotmini"}
    phases = (miniature.BASE, *PHASES)
    lake.upsert("models", [{"model_id": one, "training_stage": one, **model} for one in phases], Commit("train", 1))
    labels = [
        {"image_id": f"i{n}", "sha256": "0" * 64, "split": "benchmark", **place} for n, place in enumerate(places)
    ]
    lake.upsert("labels", labels, Commit("curate", 1))
    step = {"model_id": "grpo", "kind": "step", "training_stage": "grpo"}
    lake.upsert(
        "training_steps",
        [{**step, "number": n, "step": n + 1, "reward": 0.4 + n / 100} for n in range(20)],
        Commit("train", 1),
    )
    asked = [(one, tools) for one in PHASES[1:] for tools in ("all", "none")] + [(one, "none") for one in phases[:2]]
    rows, drawn = [], []
    for phase, tools in asked:
        for n, place in enumerate(places):
            is_right = tools == "all" and (phase == "grpo" or n % 2 == 0)
            answer = place if is_right else {"lat": None, "lon": None}
            about = {"snapshot_id": "s", "image_id": f"i{n}", "policy": f"trained:{phase}"}
            error = {"error_km": 0.0 if is_right else None, "tools": tools}
            rows.append({**about, **answer, **error, "evaluation_id": f"{phase} {tools}"})
            if tools == "all" and (phase == "cold_start" or n < 7):  # GRPO was drawn at fewer
                replies = json.dumps([answer] * 4)
                scaled = {**about, "policy": f"trained:{phase} pass@1", "method": "pass@1", "attempts_json": replies}
                drawn.append({**scaled, "evaluation_id": phase})
    lake.upsert("predictions", rows, Commit("evaluate", 1))
    lake.upsert("deliberations", drawn, Commit("evaluate", 1))
    results.mkdir()
    for name in ("trajectories", "labels", "models", "predictions", "deliberations", "training_steps"):
        lake.read(name).write_parquet(results / f"{name}.parquet")
    figure = tmp_path / "figure.svg"
    code = miniature.main(["--report", str(results), "--figure", str(figure)])
    printed = capsys.readouterr().out
    assert code == 1, "40 places are too few"
    assert "grpo: within 25 km 100.0%" in printed and "cold_start: within 25 km 50.0%" in printed
    assert "reward over the phase before: +0.500" in printed and "pictures of other places: 0.0%" in printed
    drawing = figure.read_text()
    assert drawing.startswith("<?xml") and drawing.count("<!-- (7) -->") == 2, "sampled bars are of the same places"
    assert "<!-- 57.1 % -->" in drawing, "of the cold start: four of these seven"


def test_a_figure_is_of_tables_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        miniature.main(["--figure", "f.svg"])
    assert "--figure wants --report RESULTS" in capsys.readouterr().err


@pytest.mark.parametrize("taught", ["elsewhere", "held"])
def test_models_of_an_earlier_run_are_brought_unless_they_know_the_pictures(tmp_path: Path, taught: str) -> None:
    begun, results = chain(tmp_path), tmp_path / "earlier"
    lake, there = Lake(begun.lake), {"lat": 1.0, "lon": 2.0}
    held = {"image_id": "i", "sha256": "0" * 64, "split": "benchmark"}
    lake.upsert("labels", [{**held, **there}], Commit("curate", 1))
    earlier = Lake(tmp_path / "other")
    known = {"image_id": "by another address", "sha256": ("0" if taught == "held" else "1") * 64, "split": "train"}
    earlier.upsert("labels", [{**known, **there}], Commit("curate", 1))
    about = {"samples": 1, "steps": 1, "base": "sees-2", "recipe": "spotmini", "training_stage": "grpo"}
    earlier.upsert("models", [{"model_id": "g", "checkpoint": "models/g", **about}], Commit("train", 1))
    results.mkdir()
    for name in ("labels", "models"):
        earlier.read(name).write_parquet(results / f"{name}.parquet")
    shutil.copy(FILES[NAME], results / "grpo.safetensors")
    if taught == "held":
        with pytest.raises(SystemExit, match="1 held-out pictures of this lake were among its training pictures"):
            begun.bring(results)
        assert not lake.read("models").height
        return
    begun.bring(results)
    [row] = lake.read("models").to_dicts()
    assert row["training_stage"] == "grpo" and (lake.blobs.pull(row["checkpoint"]) / "model.safetensors").is_file()
