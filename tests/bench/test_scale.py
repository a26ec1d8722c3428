"""The benches of scale: sums checked by hand, and the simulation itself at a small size."""

import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from bench import scale_simulation, scale_table
from bench.goals import judge
from bench.scale_simulation import CommitCost, Simulated, growth, planned, simulate
from bench.scale_table import ANSWER_S, SAMPLE_S, StepCost, size_table, unit_costs
from schemas.load import load_config
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Inputs

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Ten pictures, and what they took."""
    lake = Lake(tmp_path / "lake")
    same = {"kind": "photo", "lat": 1.0, "lon": 2.0, "source": "mapillary", "licence": "CC0", "attribution": "x"}
    images = [{"image_id": f"i{k}", "source_id": f"s{k}", "sha256": f"{k}", "bytes": 200, **same} for k in range(10)]
    lake.append("images", images, Commit("fill", 1))

    def run(run_id: str, stage: str, items: int, sent: dict[str, tuple[int, int]]) -> dict[str, object]:
        counts = {"items_in": items, "kept": items, "rejected": 0, "failed": 0, "status": "done"}
        return {"run_id": run_id, "stage": stage, "started_at": NOW, "sent_json": json.dumps(sent), **counts}

    runs = [
        run("r1", "collect", 10, {"mapillary search": (20, 1_000), "mapillary picture": (10, 9_000)}),
        run("r2", "collect", 1, {"mapillary search": (500, 1)}),  # a smaller run later does not count
        run("r3", "curate.judge", 10, {"chat": (10, 500)}),
        run("r4", "difficulty.attempts", 40, {"chat": (40, 100)}),
    ]
    lake.append("runs", runs, Commit("fill", 1))
    asked = [("r3", "curate.judge", "judge", 10), ("r4", "difficulty.attempts", "answerer-base", 40)]
    calls = [
        {
            "call_id": f"{run_id}-{k}", "request_hash": "h", "role": role, "model": role, "verdict": "ok",
            "stage": stage, "item_id": f"i{k}", "run_id": run_id, "prompt_tokens": 2_000, "completion_tokens": 100,
            "asked_at": NOW, "endpoint": "chat", "requests": 1,
        }
        for run_id, stage, role, number in asked for k in range(number)
    ]  # fmt: skip
    lake.append("calls", calls, Commit("fill", 1))
    phases = [("sft", 5), ("grpo", 1)]
    samples = [
        {"sample_id": f"{phase}{k}", "training_stage": phase, "image_id": f"i{k}", "messages_json": "[]"}
        for phase, number in phases for k in range(number)
    ]  # fmt: skip
    lake.append("samples", [{**one, **_PLACED} for one in samples], Commit("fill", 1))
    return lake


_PLACED = {"snapshot_id": "s", "lat": 1.0, "lon": 2.0, "sha256": "0", "licence": "CC0", "attribution": "x"}


def test_unit_costs_are_what_the_largest_runs_took_for_a_picture(lake: Lake) -> None:
    config = load_config(profile="production")
    costs = {one.step: one for one in unit_costs(lake, config)}
    assert list(costs) == ["collect", "curate.judge", "difficulty.attempts", "train.grpo", "train.sft"]
    assert costs["collect"].requests == {"mapillary search": 2.0, "mapillary picture": 1.0}
    assert costs["collect"].received == 1_000
    assert costs["curate.judge"].tokens == 2_100
    assert costs["curate.judge"].usd == pytest.approx((2_000 * 2.0 + 100 * 8.0) / 1e6)  # gpt-4.1's price
    assert costs["difficulty.attempts"].usd == 0 and costs["difficulty.attempts"].tokens == 0  # one's own GPUs
    assert costs["difficulty.attempts"].gpu_s == pytest.approx(4 * 100 * ANSWER_S)
    assert costs["train.sft"].gpu_s == pytest.approx(0.5 * SAMPLE_S)
    own = {one.step: one for one in unit_costs(lake, config, own_models=True)}
    assert own["curate.judge"].usd == 0 and own["curate.judge"].gpu_s == pytest.approx(100 * ANSWER_S)


def test_days_follow_from_the_tightest_limit() -> None:
    config = load_config(profile="production")
    slow = StepCost("collect.satellite", {"stac search": 600 * 1440.0})  # 600 a minute: a day for each picture
    days, why = slow.days(config, 8)
    assert days == pytest.approx(1.0) and why == "stac search, 600 a minute"
    assert StepCost("train.sft", gpu_s=8 * 86_400.0).days(config, 8) == (1.0, "8 GPUs")
    last = size_table([slow], 500_000.0, config, 8).splitlines()[-1]
    assert (
        "| 100,000,000 | 86,400,000,000,000 | 0 B | 50.0 TB |" in last and "| 100,000,000 | collect.satellite" in last
    )


def test_the_page_gets_the_tables_between_its_markers(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "scale.md"
    page.write_text(f"before\n{scale_table.BEGIN}\nold\n{scale_table.END}\nafter\n")
    assert scale_table.main(["--lake", lake.uri, "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert capsys.readouterr().out.strip() in text
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="lacks the lines"):
        scale_table.main(["--lake", lake.uri, "--page", str(page)])


def test_the_documented_table_is_between_the_markers() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    inside = text.partition(scale_table.BEGIN)[2].partition(scale_table.END)[0]
    assert all(f"| {size:,} |" in inside for size in scale_table.SIZES)


def test_growth_compares_a_row_of_the_last_part_with_one_of_the_first() -> None:
    costs = [CommitCost(before=k * 10, rows=10, seconds=1.0 + (k > 7)) for k in range(10)]
    assert growth(costs, 20) == 2.0
    assert growth([*costs[:8], *(CommitCost(80, 20, 2.0), CommitCost(100, 5, 0.5))], 21) == 1.0


def test_planned_places_repeat_no_name_and_stay_when_more_are_planned(lake: Lake) -> None:
    few, _ = planned(Inputs(lake, {}), Simulated(places=20_000))
    more, _ = planned(Inputs(lake, {}), Simulated(places=20_100))
    assert more["id"].n_unique() == 20_100 and set(more["id"].str.len_chars()) == {22}
    assert more.head(20_000).equals(few)
    last = few["id"].str.slice(-3).cast(pl.Int64)
    assert 10 < (last == 0).sum() < 30, "about one of 1,000 fails"


@pytest.mark.slow
def test_a_small_simulation_accounts_for_every_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_simulation, "MOST_GROWTH", float("inf"))  # so few commits say nothing of it
    assert judge(simulate(tmp_path / "lake", 5_000)) == 0
