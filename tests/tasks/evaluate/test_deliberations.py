"""Scaling and swarm as stages: over a socket, pinned to a snapshot, resumable, and without the truth in any request."""

import asyncio
import base64
import io
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from PIL import Image
from pydantic import ValidationError

from schemas.errors import StageRefused
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ChatEndpoint, ServicesSettings
from tasks.agent.attempt import newest_model, stable_seed
from tasks.evaluate.ensembles import ENSEMBLES, METHODS, method_evaluation
from tasks.evaluate.scores import PAIRS
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.recipes.evaluation import training_steps
from tasks.recipes.smilegeo.evaluation import agent_alone
from tasks.review.site.page import Source
from tasks.review.site.pages.leaderboard import leaderboard_page
from tasks.review.withdraw import trained_on
from tasks.runtime.runner import Context, WorkerSetup, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("in_process")]

# Truth that no prompt has a reason to hold.
TRUTH = {"lat": 12.345678, "lon": 98.765432, "country": "Zubrowka", "region": "Nebelsbad", "city": "Lutz"}
PLANTED = ("12.345", "98.765", "zubrowka", "nebelsbad", "lutz", "error_km", "geoscore", "reward", "truth", "label")
AGENTS = ("a", "b", "c")
SINGLES = [agent_alone(agent) for agent in AGENTS]


class Model(BaseHTTPRequestHandler):
    """Answers by model name, or by seed where one is named."""

    asked: ClassVar[list[dict[str, Any]]] = []
    says: ClassVar[dict[str, str]] = {}
    by_seed: ClassVar[dict[int, str]] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        text = self.by_seed.get(body.get("seed")) or self.says[body["model"]]
        reply = {
            "choices": [{"message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Model.asked, Model.says, Model.by_seed = [], {}, {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def lake(tmp_path: Path, snapshot_of: Callable[..., str]) -> Lake:
    lake = Lake(tmp_path / "lake")
    labels, images = [], []
    for number, split in enumerate(["benchmark", "train", "train"]):
        out = io.BytesIO()
        Image.new("RGB", (64, 48), (number, 90, 90)).save(out, "JPEG")
        where = {"image_id": f"i{number}", "sha256": lake.images.put(out.getvalue(), "jpg")}
        point = {"lat": TRUTH["lat"], "lon": TRUTH["lon"]}
        names = {name: TRUTH[name] for name in ("country", "region", "city")}
        labels.append({**where, **point, **names, "split": split})
        known = {"kind": "photo", "source": "s", "source_id": f"s{number}", "licence": "CC0", "attribution": "a"}
        images.append({**where, **point, **known, "extension": "jpg"})
    lake.upsert("labels", labels, Commit("test", 1))
    lake.upsert("images", images, Commit("test", 2))
    snapshot_of(lake)
    return lake


BATCHES = itertools.count(10)


def requests() -> str:
    """The texts of all requests so far, without the bytes of pictures."""
    told = json.dumps([body["messages"] for body in Model.asked]).casefold()
    return "".join(piece for piece in told.split('"') if not piece.startswith("data:image"))


async def ask_all(stage: Any, lake: Lake, settings: EvaluateSettings, url: str) -> dict[str, list[dict[str, Any]]]:
    """The stage's work on each of its items, and its rows in the lake."""
    services = ServicesSettings(chat=ChatEndpoint(base_url=url, max_attempts=1))
    context = stage.open(settings, WorkerSetup(lake, connect(services, {})))
    rows: dict[str, list[dict[str, Any]]] = {}
    for item in stage.items(open_inputs(stage, lake), settings).iter_rows(named=True):
        for table, made in (await stage.work(item, context)).rows.items():
            rows.setdefault(table, []).extend(made)
    for table, made in rows.items():
        lake.upsert(table, made, Commit("test", next(BATCHES)))
    return rows


def scored(lake: Lake, settings: EvaluateSettings, url: str) -> dict[tuple[str, str], dict[str, Any]]:
    services = ServicesSettings(chat=ChatEndpoint(base_url=url, max_attempts=1))
    for stage in (SCORES, PAIRS):
        run(stage, settings, Context(lake, connect(services, {})))
    return {(row["policy"], row["metric"]): row for row in lake.read("scores").to_dicts()}


async def test_scaling_gives_three_policies_and_no_request_holds_the_truth(lake: Lake, url: str) -> None:
    far, near = "<answer>40.0, 10.0</answer>", "<answer>12.0, 98.5</answer>"
    Model.says = {"verifier": '{"lat": 13.0, "lon": 99.0}'}
    [sha256] = lake.read("labels").filter(pl.col("split") == "benchmark")["sha256"]
    told_of = {
        stable_seed("scaling", sha256, "policy", at): text for at, text in enumerate((far, near, far, "no idea"))
    }
    Model.by_seed = told_of
    settings = EvaluateSettings.model_validate(
        {"policies": [], "trained": False, "scaling": {"policies": ["policy"], "n": 4}}
    )
    rows = await ask_all(ENSEMBLES["scaling"], lake, settings, url)
    by_policy = {row["policy"]: row for row in rows["predictions"]}
    first, verified, best = METHODS["scaling"].evaluations("policy", settings)
    assert list(by_policy) == [first, verified, best]
    assert by_policy[first]["error_km"] > 3000 > by_policy[verified]["error_km"] > by_policy[best]["error_km"]
    tokens = {name: row["prompt_tokens"] + row["completion_tokens"] for name, row in by_policy.items()}
    assert tokens == {first: 10, verified: 50, best: 40}, "the verifier is paid for beside the attempts"

    kept = {row["policy"]: row for row in rows["deliberations"]}[verified]
    [sent] = [body["messages"] for body in Model.asked if body["model"] == "verifier"]
    stored = json.loads(kept["verifier_input_json"])
    assert [part["text"] for part in stored[0]["content"] if part["type"] == "text"] == [
        part["text"] for part in sent[0]["content"] if part["type"] == "text"
    ], "what is kept is what was sent"
    assert stored[0]["content"][0]["image_url"]["url"].startswith("sha256:")
    assert json.loads(kept["answers_json"])[1] == near and kept["verifier_answer"] == Model.says["verifier"]
    assert not [word for word in PLANTED if word in requests()]

    found = scored(lake, settings, url)
    assert found[verified, "acc@200km"]["value"] == 1
    # One of the four attempts is right and one cannot be read; the first alone would be 0 and 0.
    assert found[first, "acc@200km"]["value"] == 0.25 and found[first, "parse_failure_rate"]["value"] == 0.25
    assert found[first, "acc@200km"]["n"] == 1, "pictures, not attempts"
    assert found[first, "tokens_mean"]["value"] == 10 and found[best, "tokens_mean"]["value"] == 40
    assert {row["split"] for row in found.values()} == {"benchmark"}
    [pair] = (
        lake.read("score_pairs")
        .filter(
            (pl.col("metric") == "acc@200km")
            & (pl.concat_list("policy", "other_policy").list.sort() == pl.lit([first, verified]).list.sort())
        )
        .to_dicts()
    )
    assert abs(pair["difference"]) == 0.75 and pair["p"] is None, "McNemar's test is of one answer a picture"


def test_the_swarm_stands_beside_its_baselines_and_learns_whom_to_elect(lake: Lake, url: str) -> None:
    right, wrong = "<answer>12.3, 98.7</answer> Confidence: 90%", "<answer>-30.0, 20.0</answer> Confidence: 90%"
    Model.says = {"a": wrong, "b": right, "c": right}
    learning = {
        "rounds": 6, "encoder_steps": 1, "side": 32, "width": 16, "epochs": 60, "average_epochs": 5,
        "learning_rate": 0.01,
    }  # fmt: skip
    every = ["single", "vote", "debate", "blender", "php", "reflexion", "dylan", "fixed"]
    swarm: dict[str, Any] = {"agents": AGENTS, "rounds": 2, "baselines": every, "learning": learning}
    plain: dict[str, Any] = {"policies": [], "trained": False, "swarm": swarm}
    settings = EvaluateSettings.model_validate({**plain, "swarm": {**swarm, "election": "learned"}})
    context = Context(lake, connect(ServicesSettings(chat=ChatEndpoint(base_url=url, max_attempts=1)), {}))
    with pytest.raises(StageRefused, match="has no election network of a, b, c: learn it first with `geofix train"):
        ENSEMBLES["swarm"].items(open_inputs(ENSEMBLES["swarm"], lake), settings)
    rounds, election = training_steps()
    nothing = EvaluateSettings.model_validate(plain)
    assert [run(step, nothing, context).total for step in (rounds, election)] == [0, 0], "a fixed election learns none"
    result = run(rounds, settings, context)
    assert (result.kept, result.failed) == (2, 0), "the pictures of the train split"
    assert all(json.loads(one) == [0.0, 1.0, 1.0] for one in lake.read("swarm_rounds")["election_json"])
    assert run(election, settings, context).kept == 1
    assert run(election, settings, context).nothing_to_do and run(rounds, settings, context).nothing_to_do
    [model] = lake.read("models").to_dicts()
    assert (model["training_stage"], model["samples"], model["steps"]) == ("election", 2, 60)
    losses = json.loads(model["metrics_json"])["loss"]
    assert losses[-1] < losses[0] and lake.read("training_steps").height == 60
    assert [one.model_id for one in trained_on(lake, ["i1"])] == [model["model_id"]], "named when i1 is withdrawn"
    assert trained_on(lake, ["i0"]) == []
    assert newest_model(lake.read("models"), settings.agent_recipe) is None, "an election is no policy"

    rows = asyncio.run(ask_all(ENSEMBLES["swarm"], lake, settings, url))
    by_policy = {(row["policy"], row["image_id"]): row for row in rows["predictions"]}
    assert {policy for policy, _ in by_policy} == {"swarm", *(f"swarm {name}" for name in every[1:]), *SINGLES}
    assert by_policy["swarm", "i0"]["error_km"] < 50, "the learned election leaves the wrong agent out"
    assert "a (answer)" not in by_policy["swarm", "i0"]["messages_json"]
    assert by_policy["swarm vote", "i0"]["error_km"] < 50 < by_policy[SINGLES[0], "i0"]["error_km"]
    debate, own = (by_policy[name, "i0"]["prompt_tokens"] for name in ("swarm debate", "swarm"))
    assert debate == 9 * 7 > own == 8 * 7
    found = scored(lake, settings, url)
    assert found["swarm", "acc@50km"]["value"] == 1
    # Eq. 6: the one city of the benchmark is the one city of the train split.
    assert [found["swarm", name]["value"] for name in ("coverage", "consistency")] == [1.0, 1.0]
    two = EvaluateSettings.model_validate({**plain, "swarm": {**swarm, "agents": AGENTS[:2], "election": "learned"}})
    with pytest.raises(StageRefused, match="no election network of a, b:"):
        ENSEMBLES["swarm"].items(open_inputs(ENSEMBLES["swarm"], lake), two)
    assert not [word for word in PLANTED if word in requests()]


def test_settings_say_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match="two different agents"):
        EvaluateSettings.model_validate({"swarm": {"agents": ["a"]}})
    with pytest.raises(ValidationError, match="two different agents"):
        EvaluateSettings.model_validate({"swarm": {"agents": ["a", "a"]}})


def test_evaluations_of_other_settings_have_other_names() -> None:
    scaling = METHODS["scaling"]
    four, eight = (EvaluateSettings.model_validate({"scaling": {"policies": ["p"], "n": n}}) for n in (4, 8))
    name = scaling.evaluations("p", four)[0]
    assert method_evaluation(scaling, name, four) != method_evaluation(scaling, name, eight)
    more = EvaluateSettings.model_validate({"scaling": {"policies": ["p", "q"], "n": 4}})
    assert method_evaluation(scaling, name, four) == method_evaluation(scaling, name, more)


async def test_a_policy_is_asked_again_without_each_cue(lake: Lake, url: str) -> None:
    Model.says = {
        "policy": "<answer>12.3, 98.7</answer>",
        "observer": '{"boxes": [[8, 8, 40, 30], [60, 1, 900, 9], [3]]}',
    }
    settings = EvaluateSettings.model_validate(
        {"policies": [], "trained": False, "masking": {"policies": ["policy"], "cues": ["text", "poles"]}}
    )
    rows = await ask_all(ENSEMBLES["masking"], lake, settings, url)
    names = METHODS["masking"].evaluations("policy", settings)
    assert names == ("policy whole", "policy without text", "policy without poles")
    assert [row["policy"] for row in rows["predictions"]] == list(names)
    boxes = [json.loads(row["answers_json"])["boxes"] for row in rows["deliberations"][1:]]
    width = rows["predictions"][0]["view_width"]
    assert boxes == [[[8, 8, 40, 30], [60, 1, width, 9]]] * 2, "within the picture, and only boxes"

    shown = [
        base64.b64decode(part["image_url"]["url"].partition(",")[2])
        for body in Model.asked
        if body["model"] == "policy"
        for part in body["messages"][-1]["content"]
        if part["type"] == "image_url"
    ]
    whole, covered = (np.asarray(Image.open(io.BytesIO(one)).convert("RGB")).astype(int) for one in shown[:2])
    assert abs(covered[12:26, 12:36] - 127).mean() < 6 < 30 < abs(whole[12:26, 12:36] - 127).mean()
    assert abs(covered[60:] - whole[60:]).mean() < 2, "the rest is as it was"
    [view] = {row["sha256"] for row in rows["derived"]}
    stored = json.loads(rows["predictions"][1]["messages_json"])
    assert view in json.dumps(stored) and lake.images.read(view, "jpg") == shown[1], "withdrawn with the picture"
    assert not [word for word in PLANTED if word in requests()]

    found = scored(lake, settings, url)
    assert found["policy without text", "acc@25km"]["value"] == found["policy whole", "acc@25km"]["value"] == 1
    blocks = leaderboard_page.make(Source(lake, lake.read("snapshots").row(0, named=True), ReviewSettings()))
    [table] = [one for one in blocks if one["block"] == "table" and one["columns"][:2] == ["policy", "without"]]
    same = "100 % (2 to 100) → 100 % (2 to 100)"
    assert [row[:3] for row in table["rows"]] == [["policy", cue, same] for cue in ("poles", "text")]
