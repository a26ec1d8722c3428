"""`geofix reproduce`: rows become flows with their settings, ours stand beside the paper's, done rows stay done."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.training_lake import fill_lake
from flows import reproduce
from flows.cli import app
from flows.options import RunOptions
from flows.reproduce import Sweep, picture_sets
from schemas.config import Config
from schemas.errors import GeofixError, InputError
from schemas.load import load_config
from schemas.paper_tables import Column, PictureSet, TableRow, load_paper
from schemas.settings.evaluate import EvaluateSettings
from tasks.agent.attempt import TRAINED
from tasks.evaluate.answers import evaluation_id
from tasks.evaluate.reproduction import Answered, measure
from tasks.lake import Commit, Lake
from tasks.runtime.snapshots import approved_snapshot
from tasks.runtime.stage import open_inputs
from tasks.train.chain import chain
from tasks.train.samples import STAGE as SAMPLES
from tasks.train.samples import compute

METRICS = ("acc@1km", "acc@25km", "acc@200km", "acc@750km", "acc@2500km")


class Pipeline:
    """In place of Prefect's flows: notes how they were called, and leaves in the lake what they would."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Config, dict[str, Any]]] = []
        self.broken: Callable[[str, Config], bool] = lambda name, config: False
        self.number = 0

    def __call__(self, name: str) -> Any:
        """A flow, as far as it is run without Prefect."""

        def flow(options: RunOptions, **parameters: Any) -> list[Any]:
            config = options.resolve()
            self.calls.append((name, config, parameters))
            self.number += 1
            if self.broken(name, config):
                raise GeofixError("the world\nis out")
            lake, commit = Lake(config.lake), Commit(f"run-{self.number}", 1)
            if name == "pipeline":
                kept, _ = compute(open_inputs(SAMPLES, lake), config.train)
                lake.tombstone(
                    "samples", lake.read("samples").select("sample_id"), "again", Commit(f"r{self.number}", 0)
                )
                lake.upsert("samples", kept.drop("id").to_dicts(), commit)
                lake.upsert(
                    "models",
                    [
                        {"model_id": link.model_id, "parent_id": link.parent_id, "training_stage": link.phase,
                         "recipe": config.train.recipe, "base": config.train.base, "samples": link.samples, "steps": 7,
                         "checkpoint": f"models/{link.model_id}", "written_at": datetime.now(UTC)}
                        for link in chain(lake.read("samples"), config.train)
                        if link.model_id not in lake.read("models")["model_id"]  # one that is there is not made again
                    ],
                    Commit(f"run-{self.number}", 2),
                )  # fmt: skip
            for policy in config.evaluate.policies if name == "evaluate" else ():
                score = {"evaluation_id": evaluation_id(policy, config.evaluate), "snapshot_id": "snapshot-1"}
                score |= {"policy": policy, "value": 0.25 + 0.25 * bool(config.evaluate.tools), "n": 4}
                rows = [{**score, "metric": metric, "low": 0.01, "high": 0.9} for metric in METRICS]
                lake.upsert("scores", rows, commit)
            return [SimpleNamespace(failed=0)]

        return SimpleNamespace(name=name, fn=flow)

    def phases(self) -> list[tuple[str, ...]]:
        return [config.train.phases for name, config, _ in self.calls if name == "pipeline"]


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    made = Pipeline()
    monkeypatch.setattr(reproduce, "flow_of", made)
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    fill_lake(made)
    return made


def sweep(lake: Lake, number: str = "5", name: str = "spotagent", *overrides: str, **roles: str) -> Sweep:
    paper = load_paper(name)
    options = RunOptions(lake=lake.uri, recipe=name, overrides=["offline.serve=false", *overrides])
    return Sweep(name, paper, paper.find("table", number), options, roles)


def test_rows_are_the_pipelines_own_flows_with_the_rows_settings(lake: Lake, pipeline: Pipeline) -> None:
    found = sweep(lake, base="answerer-base").run()
    assert pipeline.phases() == [("sft", "cold_start"), ("sft", "cold_start", "grpo")]
    assert [one[2] for one in pipeline.calls if one[0] == "pipeline"] == [{"first": "synthesize", "last": "train"}] * 2
    asked = [config.evaluate for name, config, _ in pipeline.calls if name == "evaluate"]
    cold, grpo = (found.rows[name].model_id for name in ("+ SFT & Cold Start", "+ RL"))
    assert [one.policies for one in asked] == [("answerer-base",), (f"{TRAINED}{cold}",), (f"{TRAINED}{grpo}",)]
    assert [one.tools for one in asked] == [(), (), ("all",)], "only + RL has tools (4.2.3)"
    assert not any(one.trained or one.scaling.policies or one.swarm.agents for one in asked)
    assert cold != grpo and dict(lake.read("models").select("model_id", "training_stage").iter_rows())[grpo] == "grpo"


def test_ours_stand_beside_the_papers_with_intervals_and_what_differs(lake: Lake, pipeline: Pipeline) -> None:
    found = sweep(lake, base="answerer-base").run()
    page = found.markdown()
    assert "| + RL | paper | 14.12 | 40.36 | 57.8 | 73.43 | 85.75 |" in page
    assert (
        "|  | ours | 50.0 [1.0, 90] |" in page and "Im2GPS3k (ours: 4 pictures of the lake's benchmark split)" in page
    )
    said = " ".join(found.sentences())
    assert "Qwen2.5-VL-7B-Instruct; here a Qwen2.5-VL of 2 layers with random weights is trained" in said
    assert "role answerer-base (model answerer-base) answers for Qwen2.5-VL-7B" in said
    assert "grpo 5 samples in 7 steps" in said and "Im2GPS3k is not in the lake" in said and "95 % intervals" in said
    steps = load_config(profile="offline").train.sft.max_steps
    assert f"train.sft.max_steps={steps}" in said
    assert "All of ours overlap" in said and not found.has_differences()
    folder = Path(lake.uri) / "reports/reproduce/spotagent-table-5"
    assert (folder / "table.md").read_text() == page
    stored = json.loads((folder / "table.json").read_text())
    row = stored["rows"]["+ RL"]
    assert row["printed"][0] == 14.12 and row["cells"][0]["value"] == 0.5 and row["model_id"] in row["policy"]
    assert stored["settings"]["train.precision"] == "fp32"
    lines = found.plain().splitlines()
    assert len({len(line) for line in lines[4:10]}) == 1, "columns stand below each other"


def test_rows_that_are_done_are_not_run_again(lake: Lake, pipeline: Pipeline) -> None:
    first = sweep(lake, base="answerer-base").run()
    pipeline.calls.clear()
    again = sweep(lake, base="answerer-base").run()
    assert pipeline.calls == [] and again.markdown() == first.markdown()
    sweep(lake, "5", "spotagent", "evaluate.max_images=2", base="answerer-base").run()
    assert len([name for name, *_ in pipeline.calls if name == "evaluate"]) == 3, "other settings are other rows"


@pytest.mark.whole
def test_a_row_that_fails_leaves_the_others_and_is_run_next_time(lake: Lake, pipeline: Pipeline) -> None:
    pipeline.broken = lambda name, config: name == "evaluate" and config.evaluate.tools == ("all",)
    one = sweep(lake, base="answerer-base")
    found = one.run()
    assert one.failed == 1 and found.rows["+ RL"].not_run == "the world is out"
    assert "Not run: + RL: the world is out." in found.sentences() and found.rows["+ SFT & Cold Start"].cells
    pipeline.broken = lambda name, config: False
    pipeline.calls.clear()
    assert sweep(lake, base="answerer-base").run().rows["+ RL"].cells
    assert [config.evaluate.tools for name, config, _ in pipeline.calls if name == "evaluate"] == [("all",)]


@pytest.mark.whole
def test_pass_at_k_of_another_model_is_not_taken_for_the_rows(lake: Lake, pipeline: Pipeline) -> None:
    """Difficulty asks the newest SFT model: one of other settings must not choose this table's pictures."""
    sweep(lake, "4").run()
    other = sweep(lake, "4", "spotagent", "train.sft.max_steps=3")
    assert other.run().rows["Dynamic Filtering"].not_run is None, "it is the newest itself"
    again = sweep(lake, "4", "spotagent", "train.grpo.clip=0.1").run()
    assert "use another lake" in (again.rows["Random Sampling"].not_run or "")


@pytest.mark.whole
def test_random_and_filtered_pictures_train_two_models(lake: Lake, pipeline: Pipeline) -> None:
    found = sweep(lake, "4").run()
    assert [config.train.grpo.pictures for name, config, _ in pipeline.calls if name == "pipeline"] == [
        "random",
        "learnable",
    ]
    assert len({row.model_id for row in found.rows.values()}) == 2


def test_rows_of_other_systems_take_a_role_or_stay_printed(lake: Lake, pipeline: Pipeline) -> None:
    given = {"base": "answerer-base", "Qwen2.5-VL-72B": "answerer-large"}
    found = sweep(lake, "9", **given).run()
    asked = [config.evaluate.policies for name, config, _ in pipeline.calls if name == "evaluate"]
    assert asked == [("answerer-base",), ("answerer-large",)]
    assert "--model 'InternVL3-8B=ROLE'" in (found.rows["InternVL3-8B"].not_run or "")
    with pytest.raises(InputError, match="no row of that name takes a model; those that do: InternVL3-8B"):
        sweep(lake, "9", GPT="judge")


def test_a_share_is_of_the_lakes_own_number(lake: Lake, pipeline: Pipeline) -> None:
    paper = load_paper("geovista")
    options = RunOptions(lake=lake.uri, overrides=["offline.serve=false"])
    figure = Sweep("geovista", paper, paper.find("figure", "7-left"), options)
    assert [figure._settings(row, None)["train.grpo.max_pictures"] for row in figure.table.rows] == [1, 2, 4, 7]
    maps = load_paper("thinking-with-map")
    steps = Sweep("thinking-with-map", maps, maps.find("figure", "5"), options)
    parts = [steps._settings(row, None).get("train.grpo.max_steps") for row in steps.table.rows[:4]]
    assert parts == [None, 2, 4, None], "of the profile's eight"


@pytest.mark.whole
def test_parallel_scaling_is_of_the_rows_model(lake: Lake, pipeline: Pipeline) -> None:
    paper = load_paper("thinking-with-map")
    options = RunOptions(lake=lake.uri, overrides=["offline.serve=false"])
    one = Sweep("thinking-with-map", paper, paper.find("table", "6"), options, {"Verifier@2, GPT-5": "judge"})
    one.run()
    asked = [config.evaluate.scaling for name, config, _ in pipeline.calls if name == "evaluate"]
    assert [(scaling.n, scaling.verifier) for scaling in asked] == [(2, "verifier"), (2, "judge"), (4, "verifier")]
    assert all(scaling.policies[0].startswith(TRAINED) for scaling in asked)


def test_the_papers_pictures_are_used_where_the_lake_has_them(lake: Lake) -> None:
    table = load_paper("spotagent").find("table", "1")
    sets, words = picture_sets(table, lake)
    assert sets == [PictureSet(name="Im2GPS3k"), None]
    assert "the lake's own benchmark stands for it" in words[0] and "its columns are empty" in words[1]
    image = lake.read("images").row(0, named=True)
    lake.upsert("images", [{**image, "source": "yfcc4k"}], Commit("later", 1))
    assert picture_sets(table, lake)[0][1] == PictureSet(name="YFCC4K", source="yfcc4k")
    tiers, said = picture_sets(load_paper("thinking-with-map").find("table", "3"), lake)
    assert tiers == [PictureSet(name="MAPBench easy"), None] and any("needs tiers" in one for one in said)


def test_every_kind_of_column_is_read_from_the_lake(lake: Lake) -> None:
    settings = EvaluateSettings(tools=("all",), policies=("trained:m",), trained=False, split="train")
    mine, snapshot = evaluation_id("trained:m", settings), approved_snapshot(lake)
    head = {
        "evaluation_id": mine,
        "snapshot_id": snapshot.snapshot_id,
        "policy": "trained:m",
        "low": 0.1,
        "high": 0.3,
        "n": 9,
    }
    lake.upsert("scores", [{**head, "metric": "median_km", "value": 12.0}], Commit("a", 1))
    part = {**head, "slice_by": "kind", "slice": "photo", "metric": "city_accuracy", "value": 0.2}
    lake.upsert("score_slices", [part], Commit("a", 2))
    patterns = ["maps_geocode", "maps_geocode", "image_zoom_in_tool > maps_geocode", "none"]
    answers = [
        {"evaluation_id": mine, "image_id": f"image-{n}", "policy": "trained:m", "tool_pattern": one, "tool_calls": n}
        for n, one in enumerate(patterns)
    ]
    answers.append({**answers[0], "image_id": "asked about before", "tool_calls": 100})
    lake.upsert("predictions", answers, Commit("a", 3))
    regimes = [
        {"image_id": f"i{n}", "policy": "trained:m", "k": 8, "kept": True, "threshold_km": [1.0, 25.0],
         "passes": [0, n], "regimes": ["intractable", "learnable" if n else "intractable"]}
        for n in range(4)
    ]  # fmt: skip
    lake.upsert("regimes", regimes, Commit("a", 4))
    steps = [
        {"model_id": "m", "kind": "step", "number": n, "step": n, "training_stage": "grpo", "reward": n / 10,
         "figures_json": json.dumps({"reward/spatial": n})}
        for n in range(20)
    ]  # fmt: skip
    lake.upsert("training_steps", steps, Commit("a", 5))
    found, row = Answered(lake, "trained:m", settings, snapshot, "m"), TableRow(name="r", of={"km": 25})

    def value(of: str, part: str | None = None, times: float = 1.0) -> float:
        return measure(Column(of=of, times=times), row, part, found).value

    assert value("median_km") == 12 and value("median_km", times=1000) == 12_000
    assert value("city_accuracy kind=photo") == value("city_accuracy", "kind=photo") == 0.2
    assert value("city_accuracy kind=panorama") != value("city_accuracy kind=panorama"), "none: not a number"
    assert value("pattern maps_geocode") == 0.5 and value("used search_web,image_zoom_in_tool") == 0.25
    assert value("calls") == 1.5
    assert value("passk {km} learnable") == 0.75 and value("passk 1 intractable") == 1 and value("passes 25 3") == 0.25
    assert value("training reward first") == pytest.approx(0.05) and value("training reward last") == 1.85
    assert value("training reward/spatial last") == 18.5
    scaled = EvaluateSettings(scaling={"policies": ["agent"], "n": 2})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no evaluation gives an answer 'agent best@8'"):
        measure(Column(of="acc@1km"), row, None, Answered(lake, "agent", scaled, snapshot, None, "best@8"))


@pytest.mark.whole
def test_the_base_of_a_tiny_row_is_built_of_the_samples_and_served(
    lake: Lake, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Path, str]] = []

    def server(folder: Path, log: Path, name: str) -> Any:
        started.append((folder, name))
        stop = partial(started.append, (folder, "stopped"))
        return SimpleNamespace(url="http://127.0.0.1:9/v1", ensure=lambda: None, stop=stop)

    monkeypatch.setattr(reproduce, "model_server", server)
    found = sweep(lake, "5", "spotagent", "train.image_max_pixels=12544").run()
    assert [name for name, *_ in pipeline.calls][:2] == ["synthesize", "evaluate"], "no phase is trained for it"
    (folder, name), (_, last) = started
    assert (folder / "config.json").is_file() and (folder / "model.safetensors").is_file() and last == "stopped"
    assert found.rows["Qwen2.5-VL-7B"].policy == name
    config = next(config for kind, config, _ in pipeline.calls if kind == "evaluate")
    assert config.models.role(name).model == name and config.models.endpoints[name].base_url == "http://127.0.0.1:9/v1"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_the_list_names_every_table_and_what_cannot_be_run() -> None:
    done = run("--list")
    assert done.exit_code == 0 and "table  5        runs  Post-training stages" in done.output
    assert "figure 12       –     A failure on a confusing scene (a single case)" in done.output
    rows = json.loads(run("--list", "--json").stdout)
    assert sum(row["cannot"] is None for row in rows) >= 20 and len({row["paper"] for row in rows}) == 6
    assert {row["paper"] for row in json.loads(run("geovista", "--list", "--json").stdout)} == {"geovista"}


def test_a_dry_run_names_rows_and_settings(lake: Lake, pipeline: Pipeline) -> None:
    done = run("geoagent", "--table", "4", "--dry-run", "--lake", lake.uri)
    assert "base tiny, quality paper" in done.stdout, "also under the offline profile"
    own = run("geoagent", "--table", "4", "--dry-run", "--lake", lake.uri, "--set", "quality=ours")
    assert "base tiny, quality ours" in own.stdout
    assert done.exit_code == 0 and "train.grpo.reward.terms=['judge']" in done.output and pipeline.calls == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody", "--table", "1"], "there is no paper 'nobody'; there are geoagent, geovista"),
        (["spotagent"], "give a paper and one --table N or --figure N"),
        (["spotagent", "--table", "1", "--figure", "1"], "one --table N or --figure N"),
        (["spotagent", "--table", "40"], "--table 40: the paper has 1, 2"),
        (["spotagent", "--figure", "1"], "Figure 1 of spotagent cannot be run: an illustration"),
        (["spotagent", "--table", "9", "--model", "InternVL3-8B"], "must look like ROW=ROLE"),
        (["nobody", "--list"], "there is no paper 'nobody'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and words in done.output and len(done.output.strip().splitlines()) == 1
