"""Scaling and swarm as stages: over a socket, pinned to a snapshot, resumable, and without the truth in any request."""

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

from schemas.errors import InputError
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ChatEndpoint, ServicesSettings
from tasks.agent.attempt import stable_seed
from tasks.evaluate.ensembles import ENSEMBLES, METHODS, method_evaluation
from tasks.evaluate.scores import PAIRS
from tasks.evaluate.scores import STAGE as SCORES
from tasks.lake import Commit, Lake
from tasks.recipes.smilegeo.outcomes import agent_alone, learn
from tasks.review.site.page import Source
from tasks.review.site.pages.leaderboard import leaderboard_page
from tasks.runtime.runner import Context, WorkerSetup, run
from tasks.runtime.stage import open_inputs
from tasks.services import connect

pytestmark = pytest.mark.usefixtures("in_process")

# Truth that no prompt has a reason to hold.
TRUTH = {"lat": 12.345678, "lon": 98.765432, "country": "Zubrowka", "region": "Nebelsbad", "city": "Lutz"}
PLANTED = ("12.345", "98.765", "zubrowka", "nebelsbad", "lutz", "error_km", "geoscore", "reward", "truth", "label")
AGENTS = ("a", "b", "c")


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


async def test_the_swarm_stands_beside_its_baselines_and_is_learned_from_outcomes(
    lake: Lake, url: str, tmp_path: Path
) -> None:
    right, wrong = "<answer>12.3, 98.7</answer> Confidence: 90%", "<answer>-30.0, 20.0</answer> Confidence: 90%"
    Model.says = {"a": wrong, "b": right, "c": right}
    plain: dict[str, Any] = {"policies": [], "trained": False, "swarm": {"agents": AGENTS, "rounds": 2}}
    with pytest.raises(InputError, match="geofix swarm a b c"):
        learn(lake, AGENTS, "train", 50.0, tmp_path / "none.pt")
    rows = await ask_all(ENSEMBLES["swarm"], lake, EvaluateSettings.model_validate({**plain, "split": "train"}), url)
    by_policy = {(row["policy"], row["image_id"]): row for row in rows["predictions"]}
    assert {policy for policy, _ in by_policy} == {"swarm", "swarm vote", "swarm debate", *map(agent_alone, AGENTS)}
    assert by_policy["swarm", "i1"]["error_km"] > 1000, "the first elected agent is wrong, and the two do not agree"
    assert by_policy["swarm vote", "i1"]["error_km"] < 50
    debate, swarm = (by_policy[name, "i1"]["prompt_tokens"] for name in ("swarm debate", "swarm"))
    assert debate == 9 * 7 and swarm > 0

    found = learn(lake, AGENTS, "train", 50.0, tmp_path / "election.pt", steps=60, rate=1e-3)
    assert found.pictures == 2 and found.right == {"a": 0.0, "b": 1.0, "c": 1.0}
    assert found.last_loss < found.first_loss
    learned = {**plain, "swarm": {**plain["swarm"], "network": str(tmp_path / "election.pt")}}
    settings = EvaluateSettings.model_validate(learned)
    rows = await ask_all(ENSEMBLES["swarm"], lake, settings, url)
    by_policy = {(row["policy"], row["image_id"]): row for row in rows["predictions"]}
    assert by_policy["swarm", "i0"]["error_km"] < 50, "the learned election leaves the wrong agent out"
    assert "a (answer)" not in by_policy["swarm", "i0"]["messages_json"]
    assert scored(lake, settings, url)["swarm", "acc@50km"]["value"] == 1
    two = {**plain, "swarm": {"agents": AGENTS[:2], "network": str(tmp_path / "election.pt")}}
    with pytest.raises(InputError, match="learned with 3 agents"):
        await ask_all(ENSEMBLES["swarm"], lake, EvaluateSettings.model_validate(two), url)
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
