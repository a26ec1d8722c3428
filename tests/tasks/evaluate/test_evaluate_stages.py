import io
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from PIL import Image
from pydantic import ValidationError

from schemas.errors import StageRefused
from schemas.messages import image_references
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ChatEndpoint, ServicesSettings, TrainedEndpoint
from tasks.agent.attempt import PACKAGED
from tasks.evaluate import STAGES, report
from tasks.evaluate.answers import STAGE as ANSWERS
from tasks.evaluate.answers import evaluation_id, items, judge_point
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.lake.verify import verify
from tasks.recipes import spotmini
from tasks.review.site.page import Source
from tasks.review.site.pages.leaderboard import files as leaderboard_files
from tasks.review.site.pages.leaderboard import leaderboard_page
from tasks.runtime.runner import ColumnStage, Context, Inputs, WorkerSetup, run
from tasks.runtime.snapshots import Snapshot, approved_snapshot
from tasks.runtime.stage import open_inputs
from tasks.services import ServiceError, connect

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("in_process")]

MakeSnapshot = Callable[..., str]
SCORED = [stage for stage in STAGES if isinstance(stage, ColumnStage)]  # what follows from the answers at hand


class Model(BaseHTTPRequestHandler):
    """Answers as told: text by model name; a model that zooms does so once before it answers."""

    zooms: ClassVar[set[str]] = {"zoomer"}
    asked: ClassVar[list[dict[str, Any]]] = []
    says: ClassVar[dict[str, str]] = {}
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        message: dict[str, Any] = {"role": "assistant", "content": self.says.get(body["model"], "")}
        if body["model"] in self.zooms and not any(one["role"] == "tool" for one in body["messages"]):
            call = {"name": "image_zoom_in_tool", "arguments": json.dumps({"bbox_2d": [30, 20, 150, 100]})}
            message["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
        reply = {
            "choices": [{"message": message}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
        data = json.dumps(reply).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[tuple[type[Model], str]]:
    Model.asked, Model.status = [], 200
    Model.says = {"answerer-base": "<answer>10.0, 20.0</answer>", "m2": "<answer>France; Normandy; Rouen</answer>"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Model, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def lake(tmp_path: Path, snapshot_of: MakeSnapshot) -> Lake:
    lake = Lake(tmp_path / "lake")
    out = io.BytesIO()
    Image.new("RGB", (300, 200), "teal").save(out, "JPEG")
    sha256 = lake.images.put(out.getvalue(), "jpg")
    labels, images = [], []
    for number, split in enumerate(["benchmark", "benchmark", "train", "benchmark"]):
        key = {"image_id": f"i{number}", "sha256": sha256, "lat": 10.0, "lon": 20.0 + number}
        labels.append({**key, "split": split, "country": "Chad", "region": None, "city": "Bitkine"})
        known = {"kind": "photo", "source": "s", "source_id": "x", "licence": "CC0", "attribution": "a"}
        images.append({**key, **known, "extension": "jpg"})
    write(lake, "labels", labels)
    write(lake, "images", images)
    snapshot_of(lake)
    return lake


BATCHES = itertools.count(1)


def write(lake: Lake, table: str, rows: list[dict[str, Any]]) -> None:
    lake.upsert(table, rows, Commit("test", next(BATCHES)))


def see(lake: Lake, snapshot: Snapshot | None = None) -> Inputs:
    return open_inputs(SCORES, lake, snapshot)


def setup(lake: Lake, url: str, trained: bool = False) -> WorkerSetup:
    services = ServicesSettings(
        chat=ChatEndpoint(base_url=url, max_attempts=1),
        trained=TrainedEndpoint(base_url=url, max_attempts=1) if trained else None,
    )
    return WorkerSetup(lake, connect(services, {}))


async def answer_all(lake: Lake, settings: EvaluateSettings, shop: WorkerSetup, only: int = 1000) -> None:
    bench = ANSWERS.open(settings, shop)
    rows: list[dict[str, Any]] = []
    for item in items(see(lake), settings).head(only).iter_rows(named=True):
        made = (await ANSWERS.work(item, bench)).rows
        rows += made["predictions"]
        if made["derived"]:
            write(lake, "derived", made["derived"])
    write(lake, "predictions", rows)


def add_models(lake: Lake) -> None:
    for day, name in enumerate(("m9", "m2"), 1):  # m2 is the newer one
        row = {"model_id": name, "training_stage": "grpo", "checkpoint": f"models/{name}", "recipe": "spotagent"}
        write(lake, "models", [{**row, "written_at": datetime(2026, 1, day, tzinfo=UTC)}])


def test_items_are_policies_times_benchmark_pictures(lake: Lake) -> None:
    found = items(see(lake), EvaluateSettings(policies=("a", "b")))
    assert found.height == 6 and found["id"].is_unique().all()
    assert set(found["image_id"]) == {"i0", "i1", "i3"}
    assert items(see(lake), EvaluateSettings(max_images=2)).height == 2
    add_models(lake)
    found = items(see(lake), EvaluateSettings(policies=("a",)))
    assert set(found["policy"]) == {"a", "trained:m2"}
    assert set(items(see(lake), EvaluateSettings(policies=("a",), trained=False))["policy"]) == {"a"}


def test_an_evaluation_keeps_its_name_while_answers_would_be_the_same() -> None:
    name = evaluation_id("a", EvaluateSettings())
    assert name == evaluation_id("a", EvaluateSettings(policies=("a", "b"), resamples=500, max_images=3))
    assert name != evaluation_id("a", EvaluateSettings(temperature=1.0))
    assert name != evaluation_id("b", EvaluateSettings())


async def test_the_packaged_agent_is_asked_in_its_own_words_with_its_own_tools(
    lake: Lake, model: tuple[type[Model], str]
) -> None:
    model[0].says |= {"plain": "10.0, 20.0", "finds-2": "<answer>Latitude: 10.0\nLongitude: 20.0</answer>"}
    settings = EvaluateSettings(policies=("plain", PACKAGED), trained=False, tools=())
    assert evaluation_id(PACKAGED, settings) == evaluation_id(PACKAGED, EvaluateSettings(agent_recipe="geovista"))
    assert "geocoder" in ANSWERS.services(settings) and "geocoder" not in ANSWERS.services(EvaluateSettings())
    model[0].asked.clear()
    await answer_all(lake, settings, setup(lake, model[1], trained=True))
    with_tools = [body for body in model[0].asked if body.get("tools")]
    assert len(with_tools) == 3 and len(model[0].asked) == 6
    assert {tool["function"]["name"] for tool in with_tools[0]["tools"]} == set(spotmini.PROMPT.tools)
    assert with_tools[0]["messages"][0]["content"] == spotmini.PROMPT.opening({})[0]["content"]
    tools = dict(lake.read("predictions").select("policy", "tools").iter_rows())
    assert tools == {"plain": "none", PACKAGED: "all"}


async def test_answers_become_scores(lake: Lake, model: tuple[type[Model], str], snapshot_of: MakeSnapshot) -> None:
    asked, url = model[0].asked, model[1]
    add_models(lake)
    settings, shop = EvaluateSettings(), setup(lake, url, trained=True)
    await answer_all(lake, settings, shop)
    assert sorted({body["model"] for body in asked}) == ["answerer-base", "m2"]
    content = asked[0]["messages"][-1]["content"]
    assert any(part.get("image_url", {}).get("url", "").startswith("data:image/jpeg;base64,") for part in content)

    result = run(SCORES, settings, Context(lake, shop.connections))
    assert result.rejected == 0 and result.kept == result.items_in
    scores = lake.read("scores")
    found = {(row["policy"], row["metric"]): row for row in scores.iter_rows(named=True)}
    assert found["answerer-base", "acc@1km"]["value"] == pytest.approx(1 / 3)
    assert found["answerer-base", "acc@200km"]["value"] == pytest.approx(2 / 3)
    assert found["answerer-base", "parse_failure_rate"]["value"] == 0
    assert found["trained:m2", "parse_failure_rate"]["value"] == 1
    assert found["trained:m2", "country_accuracy"]["value"] == 0
    assert ("trained:m2", "mean_km") in found and found["trained:m2", "mean_km"]["value"] is None
    assert run(SCORES, settings, Context(lake, shop.connections)).nothing_to_do

    # What changes after the approval changes nothing, until a snapshot of it is approved.
    write(lake, "labels", [{**lake.read("labels").row(0, named=True), "split": "train"}])
    assert run(SCORES, settings, Context(lake, shop.connections)).nothing_to_do
    snapshot_of(lake, status="pending")
    assert run(SCORES, settings, Context(lake, shop.connections)).nothing_to_do
    newest = snapshot_of(lake)
    assert run(SCORES, settings, Context(lake, shop.connections)).kept > 10
    # Scores of both snapshots stand: the picture that left the benchmark counts in the first one only.
    sizes = lake.read("scores").filter(pl.col("metric") == "acc@1km").group_by("snapshot_id").agg(pl.col("n").unique())
    assert dict(sizes.iter_rows()) == {"snapshot-1": [3], newest: [2]}
    first = Context(lake, shop.connections, snapshot=approved_snapshot(lake, "snapshot-1"))
    assert run(SCORES, settings, first).nothing_to_do
    assert lake.read("scores").height == 2 * scores.height


async def test_an_unfinished_evaluation_has_no_score(lake: Lake, model: tuple[type[Model], str]) -> None:
    settings, shop = EvaluateSettings(), setup(lake, model[1])
    await answer_all(lake, settings, shop, only=2)
    result = run(SCORES, settings, Context(lake, shop.connections))
    assert result.kept == 0 and dict(result.rejects) == {"incomplete": 1}
    assert json.loads(lake.read("rejects")["evidence_json"][0])["answered"] == 2
    await answer_all(lake, settings, shop)
    assert run(SCORES, settings, Context(lake, shop.connections)).kept > 10
    assert lake.read("rejects").is_empty()


async def test_a_service_that_fails_is_no_answer(lake: Lake, model: tuple[type[Model], str]) -> None:
    model[0].status = 503
    with pytest.raises(ServiceError):
        await answer_all(lake, EvaluateSettings(), setup(lake, model[1]))
    add_models(lake)
    model[0].status = 200
    with pytest.raises(StageRefused, match=r"services\.trained"):
        await answer_all(lake, EvaluateSettings(policies=()), setup(lake, model[1]))


async def test_judge(lake: Lake, model: tuple[type[Model], str]) -> None:
    context = ANSWERS.open(EvaluateSettings(), setup(lake, model[1]))
    assert await judge_point("<answer>1.0, 2.0</answer>", 1.0, 2.0, context) == {
        "lat": 1.0,
        "lon": 2.0,
        "parse_error": None,
        "error_km": 0.0,
        "geoscore": 5000.0,
    }
    lost = await judge_point("no idea", 1.0, 2.0, context)
    assert (lost["lat"], lost["error_km"], lost["geoscore"], lost["parse_error"]) == (None, None, 0.0, "no_answer")


def test_nothing_to_evaluate(tmp_path: Path) -> None:
    empty = Lake(tmp_path / "empty")
    assert items(see(empty, Snapshot("none", {})), EvaluateSettings()).is_empty()
    kept, rejects = SCORES.compute(see(empty, Snapshot("none", {})), EvaluateSettings())
    assert kept.is_empty() and rejects.is_empty()
    names = [
        "evaluate.answers",
        "evaluate.masking",
        "evaluate.scaling",
        "evaluate.swarm",
        "evaluate.grounding",
        "evaluate.calibrations",
        "evaluate.radii",
        "evaluate.scores",
        "evaluate.people",
        "evaluate.slices",
        "evaluate.pairs",
        "evaluate.cues",
    ]
    assert [stage.name for stage in STAGES] == names


@pytest.mark.parametrize(
    "wrong", [{"policies": ("a", "a")}, {"policies": ("trained:",)}, {"policies": ("",)}, {"split": "x"}]
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EvaluateSettings(**wrong)


async def test_slices_pairs_and_the_report(lake: Lake, model: tuple[type[Model], str]) -> None:
    model[0].says["second"] = "<answer>Latitude: 10.0\nLongitude: 21.0</answer>"
    settings, shop = EvaluateSettings(policies=("answerer-base", "second"), trained=False), setup(lake, model[1])
    await answer_all(lake, settings, shop)
    for stage in SCORED:
        assert run(stage, settings, Context(lake, shop.connections)).failed == 0
    row = lake.read("predictions").row(0, named=True)
    assert row["tool_calls"] == 0 and row["tools"] == row["tool_pattern"] == "none" and row["seconds"] >= 0
    assert json.loads(row["messages_json"])[-1]["role"] == "assistant"
    slices = lake.read("score_slices")
    kinds = slices.filter((pl.col("slice_by") == "kind") & (pl.col("metric") == "acc@1km"))
    assert kinds["slice"].to_list() == ["photo", "photo"] and kinds["n"].to_list() == [3, 3]
    cities = slices.filter((pl.col("slice_by") == "kind") & (pl.col("metric") == "city_accuracy"))
    assert cities["n"].to_list() == [3, 3], "GeoVista's Table 2 has the city by kind"
    pairs = lake.read("score_pairs").filter(pl.col("metric") == "acc@1km").row(0, named=True)
    assert {pairs["policy"], pairs["other_policy"]} == {"answerer-base", "second"} and pairs["p"] == 1.0
    text = report(lake, settings).markdown
    assert "Paired comparisons" in text and "second" in text

    # The same policy on another split: neither takes the other's place, in the table, the report or the site.
    other = EvaluateSettings(policies=("answerer-base",), trained=False, split="train")
    await answer_all(lake, other, shop)
    for stage in SCORED:
        run(stage, other, Context(lake, shop.connections))
    for table in ("scores", "score_slices"):
        assert set(lake.read(table)["split"]) == {"benchmark", "train"}
    rows = [
        line.split(" | ")[:4] for line in report(lake, other).markdown.splitlines() if " | answerer-base | " in line
    ]
    assert [(split.strip("| "), n) for split, _, _, n in rows][:2] == [("benchmark", "3"), ("train", "1")]
    snapshot = lake.read("snapshots").row(0, named=True)
    blocks = leaderboard_page.make(Source(lake, snapshot, ReviewSettings()))
    boards = [block for block in blocks if block["block"] == "leaderboard"]
    assert [board["policies"] for board in boards] == [["answerer-base", "second"], ["answerer-base"]]
    assert [block["text"] for block in blocks if block["block"] == "heading" and "Split" in block["text"]] == [
        "Split: benchmark",
        "Split: train",
    ]
    countries = next(b for b in blocks if b["block"] == "table" and b["columns"][0] == "country")
    assert countries["columns"][-4:] == ["country", "province or state", "city", "n"], "levels by country"


async def test_a_conversation_names_only_stored_pictures_and_its_page_draws_the_boxes(
    lake: Lake, model: tuple[type[Model], str]
) -> None:
    model[0].says["zoomer"] = "<answer>10.0, 20.0</answer>"
    tools = ("image_zoom_in_tool",)
    settings = EvaluateSettings(policies=("zoomer",), trained=False, tools=tools, view_max_pixels=41_000)
    shop = setup(lake, model[1])
    await answer_all(lake, settings, shop)
    original = lake.read("images")["sha256"][0]
    row = lake.read("predictions").filter(pl.col("image_id") == "i0").row(0, named=True)
    assert row["tool_pattern"] == "image_zoom_in_tool" and row["tool_successes"] == 1
    width, height = row["view_width"], row["view_height"]
    assert width * height <= 41_000 < 300 * 200 and width > height
    named = image_references(json.loads(row["messages_json"]))
    assert [sha256 == original for sha256, _ in named] == [True, False]  # the picture, then what the zoom showed
    assert [one for one in verify(lake) if one.table in ("predictions", "derived")] == []
    crops = lake.read("derived")
    assert set(crops["sha256"]) == {named[1][0]} and set(crops["image_id"]) == {"i0", "i1", "i3"}  # withdrawn with them
    assert set(crops["kind"]) == {"crop"}
    lake.blobs.delete(lake.images.key(*named[1]))
    assert {one.table for one in verify(lake, quick=True)} >= {"predictions"}  # the check can fail

    for stage in SCORED:
        run(stage, settings, Context(lake, shop.connections))
    snapshot = lake.read("snapshots").row(0, named=True)
    [(_, answers)] = leaderboard_files(Source(lake, snapshot, ReviewSettings()))
    assert len(answers) == 3
    [rate] = lake.read("scores").filter(pl.col("metric") == "tool_rate/image_zoom_in_tool").to_dicts()
    assert rate["value"] == 1 and rate["n"] == 3, "SpotAgent, figure 7a"
    blocks = leaderboard_page.make(Source(lake, snapshot, ReviewSettings()))
    [by_tool] = [block for block in blocks if block.get("title") == "Answers that called a tool, by tool"]
    assert by_tool["labels"] == ["image_zoom_in_tool"] and by_tool["series"] == {"zoomer": [1.0]}
    for found in answers.values():
        [box] = [step["box"] for step in found["steps"] if "box" in step]
        assert box == [round(share, 4) for share in (30 / width, 20 / height, 120 / width, 80 / height)]


async def test_a_policy_with_tools_and_its_control_without_stand_beside_each_other(
    lake: Lake, model: tuple[type[Model], str]
) -> None:
    model[0].says["zoomer"] = "<answer>10.0, 20.0</answer>"
    with_tools = EvaluateSettings(policies=("zoomer",), trained=False, tools=("image_zoom_in_tool",))
    shop = setup(lake, model[1])
    for settings in (with_tools, with_tools.model_copy(update={"tools": ()})):
        await answer_all(lake, settings, shop)
        for stage in SCORED:
            run(stage, settings, Context(lake, shop.connections))
    names = ["zoomer no tools", "zoomer with image_zoom_in_tool"]
    text = report(lake, with_tools).markdown
    assert all(f"| {name} " in text for name in names)
    blocks = leaderboard_page.make(Source(lake, lake.read("snapshots").row(0, named=True), ReviewSettings()))
    [board] = [block for block in blocks if block["block"] == "leaderboard"]
    assert board["policies"] == names
    kinds = next(block for block in blocks if block["block"] == "table" and block["columns"][0] == "kind")
    assert [row[1] for row in kinds["rows"]] == names, "a slice of each, not of the newest alone"


async def test_ten_refreshes_leave_a_snapshots_scores_as_they_are(
    lake: Lake, model: tuple[type[Model], str], snapshot_of: MakeSnapshot
) -> None:
    settings, shop = EvaluateSettings(), setup(lake, model[1])
    await answer_all(lake, settings, shop)
    first = approved_snapshot(lake, "snapshot-1")

    def score() -> list[tuple[Any, ...]]:
        for stage in SCORED:
            run(stage, settings, Context(lake, shop.connections, snapshot=first))
        rows = lake.read("scores").filter(pl.col("snapshot_id") == "snapshot-1").sort("metric")
        return rows.select("metric", "value", "low", "high", "n").rows()

    before = score()
    for number in range(10):  # pictures come, go and move, and each time a snapshot is approved
        labels = lake.read("labels").sort("image_id")
        write(lake, "labels", [{**labels.row(0, named=True), "lat": 10.0 + number}])
        write(lake, "labels", [{**labels.row(1, named=True), "image_id": f"new{number}", "split": "benchmark"}])
        snapshot_of(lake)
    assert score() == before and len(before) > 10
