"""`geofix run --dry-run`: the paper's numbers beside ours, and money and hours of a whole recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli.application import app
from flows.paper_numbers import compared
from schemas.load import load_config
from schemas.paper_tables import load_paper
from tasks.lake import Commit, Lake

RECIPES = ("spotagent", "geovista", "geoagent", "thinking-with-map", "smilegeo")
PAGE = (Path(__file__).parents[3] / "docs/papers.md").read_text()


def planned(lake: Path, recipe: str, *arguments: str) -> dict[str, Any]:
    options = ["run", "--recipe", recipe, "--profile", "production", "--dry-run", "--lake", str(lake), "--json"]
    done = CliRunner().invoke(app, [*options, *arguments])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_production_has_every_number_of_the_paper_but_those_the_page_names(recipe: str) -> None:
    pairs = compared(load_paper(recipe), load_config(recipe=recipe, profile="production"))
    assert len(pairs) >= 13
    assert [one for one in pairs if not one.is_same and not one.differs] == []
    for one in pairs:
        assert one.differs is None or (not one.is_same and one.differs in PAGE), one.name


@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_money_and_hours_are_said_of_an_empty_lake(recipe: str, tmp_path: Path) -> None:
    options = ["run", "--recipe", recipe, "--profile", "production", "--dry-run", "--lake", str(tmp_path / "lake")]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert f"{len(load_paper(recipe).numbers)} numbers, 0 different" in done.stdout
    assert "of the paper's experiments, for the lake has none yet" in done.stdout
    assert "An estimate: $" in done.stdout and "endpoint chat: " in done.stdout and " h at least" in done.stdout
    assert "…" not in done.stdout.replace("Im2GPS3k …", ""), "no figure is cut"
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_trajectories_and_judgements_of_spotagent_are_hours_and_dollars(tmp_path: Path) -> None:
    found = planned(tmp_path / "lake", "spotagent")
    steps = {(one["step"], one["cost"]["role"]): one for one in found["steps"]}
    judge, planner = steps["curate.judge", "judge"], steps["synthesize", "planner"]
    assert judge["pictures"] > 200_000 and planner["pictures"] == 20_000
    chat = [one["cost"] for one in found["steps"] if one["cost"]["endpoint"] == "chat"]
    tokens = sum(one["prompt_tokens"] + one["completion_tokens"] for one in chat)
    assert found["hours"]["chat"] == pytest.approx(tokens / 27_000 / 60), "of a new account"
    own = judge["cost"]
    assert own["cost_usd"] == pytest.approx((2 * own["prompt_tokens"] + 8 * own["completion_tokens"]) / 1e6)
    assert planner["cost"]["endpoint"] == "anthropic" and found["hours"]["anthropic"] > 0
    assert {phase["phase"]: phase["steps"] for phase in found["phases"]}["sft"] == 6250
    assert steps["evaluate.answers", "answerer-base"]["cost"]["cost_usd"] is None
    assert found["total"]["cost_usd"] is None and found["total"]["known_usd"] > 1000, "unknown is not nothing"


def test_what_the_offline_world_took_says_nothing_of_production(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    call: dict[str, Any] = {
        "request_hash": "h",
        "role": "judge",
        "endpoint": "chat",
        "verdict": "answered",
        "stage": "curate.judge",
    }
    call |= {"item_id": "i", "run_id": "r", "cost_usd": 0.0}
    call |= {"prompt_tokens": 10, "completion_tokens": 1}
    lake.append("calls", [{**call, "call_id": "a", "model": "judge"}], Commit("a", 1))

    def judge() -> dict[str, Any]:
        steps = planned(tmp_path / "lake", "spotagent", "--to", "curate")["steps"]
        (found,) = [one["cost"] for one in steps if one["step"] == "curate.judge"]
        assert isinstance(found, dict)
        return found

    assert judge()["measured"] == 0 and judge()["cost_usd"] > 1000
    lake.append("calls", [{**call, "call_id": "b", "model": "gpt-4.1", "prompt_tokens": 4000}], Commit("b", 1))
    assert judge()["measured"] == 1 and judge()["prompt_tokens"] == pytest.approx(4000 * judge()["calls"])


def test_quality_says_what_it_changes(tmp_path: Path) -> None:
    found = planned(tmp_path / "lake", "spotagent", "--set", "quality=ours")
    assert found["quality"] == "ours" and found["quality_changes"]["difficulty.keep"] == "reward_variance"
    differing = [one["name"] for one in found["numbers"] if one["printed"] != one["ours"]]
    assert {"what is kept", "template without tools", "tools in evaluation"} <= {*differing}
    assert planned(tmp_path / "lake", "spotagent")["quality_changes"] == {}


@pytest.mark.parametrize("command", [["run"], ["run", "--dry-run"], ["train"], ["train", "--dry-run"]])
def test_no_base_is_refused_in_one_line(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAPILLARY_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TAVILY_API_KEY", "GOOGLE_MAPS_KEY"):
        monkeypatch.setenv(name, "key")
    options = ["--profile", "production", "--lake", str(tmp_path / "lake"), "--set", "train.base=''"]
    done = CliRunner().invoke(app, [*command, *options])
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("geofix: ")]
    assert "train.base: recipe spotagent names no model to train" in line and "train.base=tiny" in line


def test_lake_s_own_pictures_go_before_the_paper_s(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    label = {"sha256": "0" * 64, "lat": 1.0, "lon": 2.0, "split": "train"}
    lake.upsert("labels", [{**label, "image_id": f"i{n}"} for n in range(5)], Commit("labels", 1))
    found = planned(tmp_path / "lake", "geoagent")
    assert found["is_of_lake"] and found["sizes"]["train"] == 5
    assert {one["pictures"] for one in found["steps"] if one["step"] == "synthesize"} == {5}
