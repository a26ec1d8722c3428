"""Synthesize and difficulty through the frame and Ray, over HTTP: accounting, outages, resuming, secrets.

The models here are a few lines that look at a picture's colour; they know nothing but pixels and messages.
"""

import asyncio
import base64
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from schemas.messages import image_references
from schemas.settings.difficulty import DifficultySettings
from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from schemas.settings.synthesize import SynthesizeSettings
from tasks.difficulty import STAGES as DIFFICULTY
from tasks.difficulty import report, table8
from tasks.evaluate import STAGES as EVALUATE
from tasks.lake import Commit, Lake
from tasks.runtime.on_ray.start import stop_ray
from tasks.runtime.runner import Context, StageResult, run
from tasks.runtime.snapshots import approved_snapshot
from tasks.services import connect
from tasks.synthesize import STAGE as SYNTHESIZE
from tasks.synthesize.rejection import judge_trajectory
from tasks.train.rollouts.source import Episode, recipe_scorer
from tasks.train.token_samples import Completion

pytestmark = pytest.mark.usefixtures("in_process")

PICTURES = 8


class World:
    """A server on a thread whose faults are switched by the test."""

    def __init__(self) -> None:
        self.down: set[int] = set()  # numbers of places the geocoder cannot be reached for
        self.requests: list[str] = []
        routes = [
            Route("/nominatim/search", self.geocode),
            Route("/openai/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)

    def start(self) -> "World":
        self.thread.start()
        while not self.server.started:
            time.sleep(0.02)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(120)

    def services(self) -> ServicesSettings:
        quick = {"max_attempts": 2, "backoff_s": 0.0, "timeout_s": 20, "total_timeout_s": 20}
        url = f"http://127.0.0.1:{self.port}"
        return ServicesSettings.model_validate(
            {
                "geocoder": {"base_url": f"{url}/nominatim", **quick},
                "search": {"base_url": f"{url}/tavily", **quick},
                "chat": {
                    "base_url": f"{url}/openai/v1",
                    "prices": {"planner": {"prompt": 1, "completion": 0}},
                    **quick,
                },
            }
        )

    async def geocode(self, request: Request) -> Response:
        number = int(request.query_params["q"].split()[-1])
        if number in self.down:
            return Response("down", 503)
        place = {"lat": str(10.0 + number), "lon": "20.0", "name": f"Place {number}", "display_name": "P"}
        return JSONResponse(
            [{**place, "address": {"country": "Land", "country_code": "la", "city": f"Place {number}"}}]
        )

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(json.dumps(body))
        speak = {"observer": self.observe, "planner": self.plan, "answerer-base": self.answer}.get(
            body["model"], self.answer
        )
        message = {"role": "assistant", **speak(body)}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    def observe(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"content": f"## Environment\n- shade {number_of(body['messages'][-1])}"}

    def plan(self, body: dict[str, Any]) -> dict[str, Any]:
        number = int(re.search(r"shade (\d+)", body["messages"][1]["content"]).group(1))
        results = [m for m in body["messages"] if m["role"] == "tool"]
        if not results:
            arguments = json.dumps({"address": f"Place {number}"})[: -2 if number == 1 else None]  # 1: broken JSON
            function = {"name": "maps_geocode", "arguments": arguments}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            return {"content": "<think>Look it up.</think>", "tool_calls": [call]}
        lat = 10 + number + (0.5 if number == 2 else 0.0)  # 2: 55 km off
        city = "" if number == 3 else "Place"
        return {"content": f"<answer>Country: Land\nCity: {city}\nLatitude: {lat}\nLongitude: 20.0</answer>"}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        number, lucky = number_of(body["messages"][-1]), body["seed"] % 2 == 0
        if number == 0:
            return {"content": "<answer>Latitude: 10.0\nLongitude: 20.0</answer>"}
        if number == 1:
            return {"content": "no idea"}
        lat = 10 + number if lucky else 80
        return {"content": f"<answer>Latitude: {lat}\nLongitude: 20.0</answer>"}


def number_of(message: dict[str, Any]) -> int:
    """The number a picture's shade of grey stands for."""
    url = next(part for part in message["content"] if part["type"] == "image_url")["image_url"]["url"]
    image = Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1])))
    return round(image.convert("L").getpixel((5, 5)) / 20)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World().start()
    yield world
    world.stop()
    stop_ray()


@pytest.fixture
def lake(tmp_path, snapshot_of) -> Lake:
    lake = Lake(tmp_path / "lake")
    images, labels = [], []
    for number in range(PICTURES):
        data = io.BytesIO()
        Image.new("RGB", (300, 200), (number * 20,) * 3).save(data, "PNG")
        sha256 = lake.images.put(data.getvalue(), "png")
        where = {"image_id": f"SECRET-ID-{number}", "sha256": sha256, "lat": 10.0 + number, "lon": 20.0}
        source = {"kind": "photo", "source": "test", "source_id": str(number), "licence": "CC0", "attribution": "me"}
        images.append({**where, **source, "extension": "png"})
        labels.append({**where, "split": "train"})
    labels.append({**labels[0], "image_id": "held-out", "split": "benchmark"})
    commit = Commit("run-0", 0)
    lake.upsert("images", [*images, {**images[0], "image_id": "held-out"}], commit)
    lake.upsert("labels", labels, commit)
    snapshot_of(lake)
    return lake


def go(stage, settings, lake: Lake, world: World) -> StageResult:
    context = Context(lake, connect(world.services(), {}), SpreadSettings(workers=1))
    return run(stage, settings, context)


def test_synthesize_accounts_for_every_picture_and_retries_only_outages(world, lake):
    world.down = {5}
    world.requests.clear()
    twice = SynthesizeSettings(samples=2, enough=2)
    first = go(SYNTHESIZE, twice, lake, world)
    assert (first.items_in, first.kept, first.rejected, first.failed) == (8, 4, 3, 1)
    assert dict(first.rejects) == {"malformed_call": 1, "too_far": 1, "wrong_form": 1}
    assert dict(first.failures) == {"outage": 1}

    world.down = set()
    before = len(world.requests)
    second = go(SYNTHESIZE, twice, lake, world)
    # What the failed item had asked already is not asked again, and what it had spent was in the first run's books.
    assert len(set(world.requests)) == len(world.requests) > before
    assert (first.usage.requests, second.usage.requests) == (before, len(world.requests) - before)
    calls = lake.read("calls")
    assert calls.height == len(world.requests) and set(calls["verdict"]) == {"answered"}
    assert (second.items_in, second.kept, second.rejected, second.failed) == (1, 1, 0, 0)
    assert go(SYNTHESIZE, twice, lake, world).nothing_to_do

    rows = lake.read("trajectories")
    assert rows.height == 16 and rows["trajectory_id"].n_unique() == 16
    assert set(rows["snapshot_id"]) == {"snapshot-1"} and rows["prompt_hash"].n_unique() == 1
    assert rows.filter(pl.col("verdict") == "kept").height == 10
    kept = rows.filter(pl.col("verdict") == "kept").row(0, named=True)
    assert kept["reasons"] == [] and kept["error_km"] < 1e-6 and kept["tool_calls"] == 1
    assert (kept["end_reason"], kept["tool_pattern"], kept["writer"]) == ("answered", "maps_geocode", "pair")
    assert (kept["prompt_tokens"], kept["completion_tokens"]) == (30, 15) and kept["cost_usd"] == pytest.approx(20e-6)
    for sha256, extension in image_references(json.loads(kept["messages_json"])):
        assert lake.images.read(sha256, extension)
    far = rows.filter(pl.col("image_id") == "SECRET-ID-2").row(0, named=True)
    assert far["reasons"] == ["too_far"] and 50 < far["error_km"] < 60
    broken = rows.filter(pl.col("image_id") == "SECRET-ID-1").row(0, named=True)
    assert broken["reasons"] == ["malformed_call"] and broken["tool_failures"] == 1
    assert not any("SECRET-ID" in asked or "sha256" in asked for asked in world.requests)


def test_attempts_stop_when_enough_are_kept_and_other_recipes_stand(world, lake):
    world.down = set()
    result = go(SYNTHESIZE, SynthesizeSettings(samples=3), lake, world)
    assert (result.kept, result.rejected) == (5, 3)
    tried = dict(lake.read("trajectories").group_by("image_id").len().iter_rows())
    assert sorted(tried.values()) == [1] * 5 + [3] * 3  # the first kept one is enough; all others were tried
    other = go(SYNTHESIZE, SynthesizeSettings(recipe="spotsft"), lake, world)
    assert (other.kept, other.rejected) == (0, 8) and dict(other.rejects) == {"wrong_form": 8}  # labels without names
    rows = lake.read("trajectories")
    assert dict(rows.group_by("recipe").len().iter_rows()) == {"spotagent": 14, "spotsft": 8}


def test_judging_does_not_hold_up_answers(world, lake, monkeypatch):
    """Loading the names of a country takes a second: in the event loop's thread, paid answers would wait unread."""
    threads = list[str]()

    def judged(*given):
        threads.append(threading.current_thread().name)
        return judge_trajectory(*given)

    monkeypatch.setattr("tasks.synthesize.trajectories.judge_trajectory", judged)
    world.down = set()
    assert go(SYNTHESIZE, SynthesizeSettings(), lake, world).kept == 5
    assert len(threads) == 8 and all(name.startswith("computing") for name in threads)


def measure_difficulty(lake, world, **settings):
    world.requests.clear()
    chosen = DifficultySettings(**{"policy": "answerer-base", **settings})
    return [go(stage, chosen, lake, world) for stage in DIFFICULTY]


def test_difficulty_measures_pass_at_k_and_regimes(world, lake):
    tried, found = measure_difficulty(lake, world, k=4)
    assert (tried.items_in, tried.kept, tried.failed) == (32, 32, 0) and found.kept == 8
    tried, found = measure_difficulty(lake, world)
    assert (tried.kept, len(world.requests)) == (32, 32), "k = 4 to 8 only adds"
    assert not any("SECRET-ID" in asked for asked in world.requests)
    attempts, regimes = lake.read("attempts"), lake.read("regimes").sort("image_id")
    assert attempts.height == 64 and attempts.group_by("image_id").len()["len"].to_list() == [8] * 8
    assert regimes["learnable"].to_list() == [False, False] + [True] * 6
    assert regimes["reason"].to_list()[:2] in (["mastered", "intractable"], ["intractable", "mastered"])
    misses = attempts.filter(pl.col("image_id") == "SECRET-ID-1")
    assert misses["error_km"].null_count() == 8 and misses["parse_error"].unique().to_list() == ["no_answer"]
    for row in regimes.iter_rows(named=True):
        mine = attempts.filter(pl.col("image_id") == row["image_id"])
        assert row["passes"] == [mine.filter(pl.col("error_km") < limit).height for limit in row["threshold_km"]]
        assert row["reward_varies"] == (mine["reward"].n_unique() > 1)
        assert row["kept"] == (row["learnable"] and row["reward_varies"]) and (row["phase"] is None) != row["kept"]
    # The trainer's own reward of the same answers: before the filter groups without variance, after it none.
    labels = {row["image_id"]: row for row in lake.read("labels").to_dicts()}
    judged = recipe_scorer("spotagent")(
        [(Episode(Completion([], []), True, row["answer"]), labels[row["image_id"]]) for row in attempts.to_dicts()]
    )
    earned = attempts.select("image_id", reward=pl.Series([one.reward for one in judged], dtype=pl.Float64))
    flat = set(earned.group_by("image_id").agg(pl.col("reward").n_unique() == 1).filter("reward")["image_id"])
    kept = set(regimes.filter("kept")["image_id"])
    assert flat == set(regimes.filter(~pl.col("reward_varies"))["image_id"]) and kept and flat and not flat & kept
    assert set(attempts["snapshot_id"]) == set(regimes["snapshot_id"]) == {"snapshot-1"}
    assert table8(regimes)["total"].to_list() == [8] * 4
    assert all(result.nothing_to_do for result in measure_difficulty(lake, world))
    text = report(lake, DifficultySettings()).markdown
    assert "Street (1km)" in text and "rewards differ" in text
    share = f"{len(flat)} of 8 ({100 * len(flat) / 8:.1f} %) before the filter, 0 of {len(kept)} (0.0 %) after it"
    assert f"Groups without reward variance: {share}." in text
    tried, found = measure_difficulty(lake, world, keep="learnable")
    assert tried.nothing_to_do and found.kept == 8, "another rule asks no model again"
    assert lake.read("regimes")["kept"].sum() == 6
    tried, found = measure_difficulty(lake, world, policy="answerer-large", k=2)
    assert tried.kept == 16 and dict(lake.read("regimes").group_by("policy").len().iter_rows()) == {
        "answerer-base": 8,
        "answerer-large": 8,
    }, "policies never mix"


def test_a_policy_that_nobody_serves_is_refused_in_one_line(world, lake):
    with pytest.raises(Exception, match=r"services\.trained names no server"):
        measure_difficulty(lake, world, endpoint="trained")
    with pytest.raises(Exception, match="newest cold_start model of recipe spotagent, and the lake has none"):
        measure_difficulty(lake, world, policy="cold_start")
    assert DifficultySettings().policy == "sft", "by default the model that is trained"


def test_scores_of_a_snapshot_stay_the_same_after_refreshes_and_cost_nothing_again(world, lake, snapshot_of):
    settings = EvaluateSettings(split="train", trained=False)

    def evaluate(snapshot: str) -> tuple[int, dict[str, float]]:
        world.requests.clear()
        context = Context(
            lake, connect(world.services(), {}), SpreadSettings(workers=1), snapshot=approved_snapshot(lake, snapshot)
        )
        for stage in EVALUATE:
            run(stage, settings, context)
        mine = lake.read("scores").filter(pl.col("snapshot_id") == snapshot)
        return len(world.requests), dict(mine.select("metric", "value").iter_rows())

    asked, first = evaluate("snapshot-1")
    assert asked == PICTURES and first["acc@1km"] > 0
    # A refresh: one picture goes, another is found to lie elsewhere.
    labels = lake.read("labels").filter(pl.col("split") == "train").sort("image_id")
    lake.upsert("labels", [{**labels.row(0, named=True), "lat": -40.0}], Commit("refresh", 1))
    lake.tombstone("labels", labels[1:2].select("image_id"), "deleted upstream", Commit("refresh", 2))
    newer = snapshot_of(lake)
    asked, second = evaluate(newer)
    assert asked == 0 and second != first, "the same question about a picture found elsewhere is answered by `calls`"
    again = evaluate("snapshot-1")
    assert again == (0, first)
    assert evaluate(newer) == (0, second)
    assert lake.read("scores").height == len(first) + len(second)
