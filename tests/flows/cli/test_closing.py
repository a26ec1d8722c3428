"""The last words of a command."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from flows.cli.closing import closing_words
from flows.cli.command import Call
from schemas.messages import Usage
from tasks.evaluate.score_report import side_by_side
from tasks.lake import Commit, Lake
from tasks.runtime.items.outcome import StageResult


def result(stage: str, rejects: dict[str, int]) -> StageResult:
    refused = sum(rejects.values())
    return StageResult(
        stage=stage,
        run_id="r",
        status="done",
        input_versions={},
        output_versions={},
        total=50,
        skipped=0,
        items_in=50,
        kept=50 - refused,
        rejected=refused,
        failed=0,
        rejects=rejects,
        failures={},
        totals={},
        total_rejects={},
        usage=Usage(),
        seconds=1.0,
    )


def test_what_was_rejected_is_told_with_reasons_and_where_to_look(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    words = closing_words(
        [result("plan", {"no_place_near_other_split": 2, "no_place_too_close": 12}), result("curate", {})],
        lake,
        Call(lake="here"),
    )
    assert "geofix show rejects --lake here" in words
    line = next(line for line in words.splitlines() if line.startswith("  plan"))
    assert line.split(None, 1)[1] == "14: 12 no_place_too_close, 2 no_place_near_other_split"
    assert "curate" not in words


def test_failures_are_told_with_an_example_each(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    used_up = "the day's 300 requests are used up (services.mapillary.requests_per_day); they renew at 00:00 UTC"
    rows = [{"stage": "collect", "item_id": f"p{n}", "kind": "rate_limit", "message": used_up} for n in range(3)]
    rows.append({"stage": "collect", "item_id": "q", "kind": "timeout", "message": "no answer\nin time"})
    lake.upsert("failures", rows, Commit("collect", 1))
    failed = replace(result("collect", {}), failed=4, failures={"timeout": 1, "rate_limit": 3})
    lines = closing_words([failed], lake, Call()).splitlines()
    at = lines.index("4 items failed and are retried by the next run: geofix show failures")
    assert lines[at + 1].split(None, 1) == ["collect", f"3 rate_limit: {used_up}"]
    assert lines[at + 2].split(None, 1) == ["collect", "1 timeout: no answer in time"]


def test_a_plan_names_its_splits_and_seed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    splits = ["train"] * 3 + ["benchmark"]
    rows = [
        {"place_id": f"p{n}", "country": "FR" if n else "DE", "lat": 1.0, "lon": 2.0, "split": split, "seed": 12}
        for n, split in enumerate(splits)
    ]
    assert "The plan" not in closing_words([result("plan", {})], lake, Call())
    lake.upsert("places", rows, Commit("plan", 1))
    told = "The plan: 4 places in 2 countries: 3 train, 1 benchmark (seed 12; geofix settings plan)"
    assert told in closing_words([result("plan", {})], lake, Call()).splitlines()
    assert "The plan" not in closing_words([result("collect", {})], lake, Call())


def test_places_that_got_nothing_are_not_a_heading_with_nothing_under_it(tmp_path: Path) -> None:
    words = closing_words([result("collect", {})], Lake(tmp_path / "lake"), Call()).splitlines()
    assert words[words.index("What the places got:") + 1] == "  nothing yet: no picture, and no reason why not"


def test_many_reasons_are_cut_and_none_is_no_line(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    many = {f"reason_{n}": 10 - n for n in range(6)}
    assert "7 reason_3 and 2 more" in closing_words([result("curate", many)], lake, Call())
    assert "rejects" not in closing_words([result("curate", {})], lake, Call())


def test_figures_are_formatted_as_by_score(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    values = {"acc@25km": 0.125, "geoscore_mean": 1380.4, "parse_failure_rate": 0.0}
    scores = [
        {"evaluation_id": "e", "snapshot_id": "s", "metric": name, "policy": "base", "value": value, "n": 16}
        for name, value in values.items()
    ]
    lake.upsert("scores", scores, Commit("evaluate", 1))
    model = {"checkpoint": "models/m", "samples": 21, "steps": 1200, "base": "tiny", "recipe": "spotagent"}
    asked = [{"step": n, "loss": 7.183 - n, "unread": 1 - n / 4, "images": 8.0} for n in range(3)]
    curves = {"grpo": {"reward": [0.0, 0.0], "loss": [0.0, 0.0]}, "sft": {"loss": [9.6, 1.234], "validations": asked}}
    rows = [
        {"model_id": name, "training_stage": name, **model, "metrics_json": json.dumps(curve)}
        for name, curve in curves.items()
    ]
    other = {**rows[0], "model_id": "foreign", "training_stage": "cold_start", "recipe": "geovista"}
    lake.upsert("models", [*rows, other], Commit("train", 1))
    strange = {"policy": "trained:foreign pass@1", "evaluation_id": "f"}
    lake.upsert("scores", [{**scores[0], **strange}], Commit("evaluate", 2))
    words = closing_words([result("evaluate.scores", {})], lake, Call())
    assert "1,380.4" in words and "12.50 %" in words and "e+" not in words
    assert "1,200 steps, no completion earned a reward" in words
    assert "foreign" not in words, "a model of another recipe is not this run's"
    went = "loss 9.60 -> 1.23; on 8 held-out pictures loss 7.18 -> 5.18, answers that can be read 0% -> 50%"
    assert went in words and went in closing_words([result("train.sft", {})], lake, Call())


def test_scores_of_two_splits_stand_apart(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for batch, (split, value) in enumerate({"benchmark": 0.25, "validation": 0.75}.items(), 1):
        row = {"evaluation_id": split, "snapshot_id": "s", "split": split, "policy": "base", "n": 8 * batch}
        lake.upsert("scores", [{**row, "metric": "acc@25km", "value": value}], Commit("evaluate", batch))
    lines = closing_words([result("evaluate.scores", {})], lake, Call()).splitlines()
    for split, figures in (("benchmark", ["base", "8", "25.00", "%"]), ("validation", ["base", "16", "75.00", "%"])):
        at = lines.index(f"  scores on the {split} split:")
        assert lines[at + 2].split() == figures
    table = side_by_side(lake.read("scores").with_columns(pl.lit("acc@1km").alias("metric")), lake.read("models"))
    assert table.select("split", "policy", "n").rows() == [("benchmark", "base", 8), ("validation", "base", 16)]


def test_a_policy_asked_with_tools_and_without_has_two_lines(tmp_path: Path) -> None:
    """The control of a phase is the same model without tools: it must not take the place of the phase's own score."""
    lake = Lake(tmp_path / "lake")
    asked = {"with": ("grpo", "all", 0.25), "without": ("grpo", "none", 0.0), "alone": ("sft", "none", 0.5)}
    for batch, (name, (policy, tools, value)) in enumerate(asked.items(), 1):
        row = {"evaluation_id": name, "snapshot_id": "s", "policy": policy}
        score = {**row, "split": "benchmark", "metric": "acc@25km", "value": value, "n": 8}
        lake.upsert("scores", [score], Commit("evaluate", batch))
        lake.upsert("predictions", [{**row, "image_id": "i", "tools": tools}], Commit("evaluate.answers", batch))
    lines = closing_words([result("evaluate.scores", {})], lake, Call()).splitlines()
    at = lines.index("  scores on the benchmark split:")
    shown = {" ".join(line.split()) for line in lines[at + 2 : at + 5]}
    assert shown == {"grpo with tools 8 25.00 %", "grpo no tools 8 0.00 %", "sft 8 50.00 %"}


def test_images_to_learn_from_are_counted_for_one_policy(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for day, (policy, kept) in enumerate({"trained:m": [True, False, False], "answerer-base": [True] * 5}.items(), 1):
        row = {"policy": policy, "k": 8, "written_at": datetime(2026, 1, 3 - day, tzinfo=UTC)}
        rows = [{**row, "image_id": f"i{n}", "kept": one} for n, one in enumerate(kept)]
        lake.upsert("regimes", rows, Commit("difficulty", day))
    words = closing_words([result("evaluate.scores", {})], lake, Call())
    assert "  1 of 3 images to learn from by Pass@K of trained:m" in words, "the policy measured last, alone"


def test_of_failures_the_earlier_stage_stands_first(tmp_path: Path) -> None:
    results = [
        replace(result(stage, {}), failed=1, failures={"GeofixError": 1}) for stage in ("train.sft", "train.cold_start")
    ]
    words = closing_words(results, Lake(tmp_path / "lake"), Call())
    assert words.index("train.sft") < words.index("train.cold_start")


@pytest.mark.parametrize("on_path", [True, False])
def test_commands_it_names_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool) -> None:
    """A user who has not activated the environment gets the path of the command."""
    folder = tmp_path / "a checkout" / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("geofix", "python", "activate"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder) if on_path else "/nowhere")
    monkeypatch.chdir(folder.parent.parent)
    words = closing_words([result("plan", {})], Lake(tmp_path / "lake"), Call(lake="my lake"))
    name = "geofix" if on_path else ".venv/bin/geofix"
    assert f"  tables     {name} tables --lake 'my lake'" in words.splitlines()
    assert ("source .venv/bin/activate" in words) is not on_path


def test_a_demo_names_a_panorama_that_the_packaged_agent_can_be_watched_on(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    told = {"lat": 1.0, "lon": 2.0, "source": "mapillary", "licence": "CC BY-SA 4.0", "attribution": "a"}
    kinds = {"i1": "satellite", "i2": "panorama", "i3": "panorama"}
    sha256 = {name: lake.images.put(name.encode(), "jpg") for name in kinds}
    images = [
        {"image_id": name, "kind": kind, "source_id": name, "sha256": sha256[name], "extension": "jpg", **told}
        for name, kind in kinds.items()
    ]
    lake.upsert("images", images, Commit("collect", 1))
    assert "finds-2" not in closing_words([], lake, Call(demo=True)), "nothing was curated"
    label = {"lat": 1.0, "lon": 2.0, "split": "train"}
    labels = [{"image_id": name, "sha256": sha256[name], **label} for name in kinds]
    lake.upsert("labels", labels, Commit("curate", 1))

    def named() -> list[bytes]:
        [line] = [one for one in closing_words([], lake, Call(demo=True)).splitlines() if one.startswith("  agent")]
        assert line.endswith("--model trained:finds-2")
        return [Path(file).read_bytes() for file in line.partition("locate ")[2].partition(" --model")[0].split()]

    assert named() == [b"i2", b"i3"]
    # What a kept trajectory placed to the street with tools has a plate that can be read: it comes first.
    tried = {"recipe": "spotagent", "sample": 0, "messages_json": "[]", "end_reason": "answered"}
    row = {"trajectory_id": "t", "image_id": "i3", "verdict": "kept", "tool_calls": 2, "error_km": 0.01, **tried}
    lake.upsert("trajectories", [row], Commit("synthesize", 1))
    assert named() == [b"i3", b"i2"]
    found = {"evaluation_id": "e", "image_id": "i2", "policy": "trained:finds-2", "error_km": 2.0, "snapshot_id": "s"}
    lake.upsert("predictions", [{**found, "answer": "", "end_reason": "answered"}], Commit("evaluate", 1))
    assert named() == [b"i2", b"i3"], "what it found itself comes first"
    assert "finds-2" not in closing_words([], lake, Call())
