"""Play against the agent: the truth stays hidden until the guess is stored, and the first guess stands."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from schemas.settings.evaluate import EvaluateSettings
from schemas.settings.review import ReviewSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.synthesize import SynthesizeSettings
from tasks.lake import Commit, Lake
from tasks.review.serve import make_app
from tasks.review.site import build_site
from tasks.review.site.page import Source
from tasks.review.site.pages.play import play_page

HOME = {"origin": "http://127.0.0.1:8790"}
NOW = datetime(2026, 3, 2, tzinfo=UTC)


def with_agents(lake: Lake) -> dict[str, Any]:
    """Approved, with an evaluation of the benchmark pictures and kept trajectories on two training pictures."""
    versions = {name: lake.version(name) for name in ("places", "images", "labels", "rejects")}
    row = {
        **{"snapshot_id": "b" * 24, "table_versions_json": json.dumps(versions), "counts_json": "{}"},
        **{"checks_json": "[]", "checks_passed": True, "status": "approved", "created_at": NOW, "stage": "review"},
        **{"report": f"reports/{'b' * 24}/index.html", "item_id": "b" * 24, "made_from": "m", "run_id": "r"},
    }
    lake.upsert("snapshots", [row], Commit("review", 1))
    says = [
        {"role": "user", "content": "Where is this?"},
        {"role": "assistant", "content": "<think>Acacia trees.</think><answer>-1.0, 36.0</answer>"},
    ]
    labels = lake.read("labels").to_dicts()
    told = {"messages_json": json.dumps(says), "answer": "-1.0, 36.0", "lat": -1.0, "lon": 36.0, "written_at": NOW}
    held_out = [one for one in labels if one["split"] == "benchmark"]
    predictions = [
        {**told, "evaluation_id": "e", "image_id": one["image_id"], "policy": "answerer-base", "error_km": 96.0}
        for one in held_out
    ]
    lake.upsert("predictions", predictions, Commit("evaluate", 1))
    trained = [one for one in labels if one["split"] == "train"][:2]
    kept = {
        **told,
        "recipe": "spotagent",
        "verdict": "kept",
        "end_reason": "answered",
        "error_km": 8000.0,
        "reasons": [],
    }
    rows = [{**kept, "trajectory_id": f"t{n}", "image_id": one["image_id"]} for n, one in enumerate(trained)]
    lake.upsert("trajectories", rows, Commit("synthesize", 1))
    stored = lake.read("snapshots").row(0, named=True)
    build_site(lake, stored, ReviewSettings(thumbnail_px=64, look_around=0, sample=6))
    return stored


@pytest.fixture
def played(make_lake: Callable[..., Lake]) -> tuple[Lake, dict[str, Any], TestClient]:
    lake = make_lake()
    row = with_agents(lake)
    client = TestClient(make_app(lake, row["snapshot_id"], "s3cret", "Ada"), base_url="http://127.0.0.1:8790")
    assert client.get("/play/next?player=Ada").status_code == 403
    client.get("/?token=s3cret")
    return lake, row, client


def guess(round_: str, **change: Any) -> dict[str, Any]:
    given = {"round": round_, "player": "Ada", "lat": -1.3, "lon": 36.8, "why": "red earth, left-hand traffic"}
    return {**given, "licence": "CC BY 4.0", "agreed": True, "guessed_at": NOW.isoformat(), **change}


def test_nothing_leads_to_the_truth_before_the_guess_is_stored(played: tuple[Lake, dict[str, Any], TestClient]) -> None:
    lake, _, client = played
    asked = client.get("/play/next?player=Ada")
    round_ = asked.json()["round"]
    picture = client.get(f"/play/picture/{round_}?player=Ada")
    page = client.get("/data/play.js").text
    benchmark = {row["image_id"]: row for row in lake.read("labels").filter(split="benchmark").to_dicts()}
    images = {row["image_id"]: row for row in lake.read("images").to_dicts()}
    shown = [lake.images.read(row["sha256"], "jpg") for row in benchmark.values()]
    assert picture.content in shown, "the first round is of the benchmark"
    before = asked.text + str(asked.headers) + str(picture.headers) + page
    for image_id, row in benchmark.items():
        secret = (image_id, row["sha256"], str(row["lat"]), str(row["lon"]), row["city"], images[image_id]["source_id"])
        assert not [one for one in secret if one in before]
    assert set(asked.json()) == {"done", "left", "round", "kind", "width", "height"}
    assert client.get(f"/play/picture/{round_}?player=Bob").status_code == 404, "a round is one player's"
    told = client.post("/play/guess", json=guess(round_), headers=HOME).json()
    assert told["image"] in benchmark and told["truth"] == [
        benchmark[told["image"]]["lat"],
        benchmark[told["image"]]["lon"],
    ]
    assert told["agent_km"] == 96.0 and told["agent"]["guess"] == [-1.0, 36.0]
    assert [step["kind"] for step in told["agent"]["steps"]] == ["question", "thought", "answer"]
    assert told["error_km"] == pytest.approx(2.5, abs=1.5) and told["credit"].startswith("Image by")


def test_the_first_guess_stands_and_is_stored_once(
    played: tuple[Lake, dict[str, Any], TestClient], serving: Callable[[Lake, str], AbstractContextManager[str]]
) -> None:
    lake, row, _ = played
    with serving(lake, row["snapshot_id"]) as address, httpx.Client(base_url=address, timeout=60) as client:
        home = {"origin": address}
        client.get("/?token=t")
        round_ = client.get("/play/next?player=Ada").json()["round"]

        def guessed(number: int) -> dict[str, Any]:
            given = guess(round_, lat=-1.3 - number, why=f"red earth {number}")
            return dict(client.post("/play/guess", json=given, headers=home).json())

        with ThreadPoolExecutor(4) as pool:  # the same round from several tabs at once
            told = list(pool.map(guessed, range(4)))
        assert all(one == told[0] for one in told) and guessed(40) == told[0], "who knows the truth changes nothing"
        nothing = client.post("/play/guess", json=guess(round_, player="Bob"), headers=home)
        assert nothing.status_code == 404
    [stored] = lake.read("guesses").to_dicts()
    assert (stored["lat"], stored["author"], stored["licence"]) == (told[0]["guess"][0], "Ada", "CC BY 4.0")
    assert lake.read("notes")["notes"].to_list() == [stored["why"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"lat": 91}, "guess: lat"), ({"why": ""}, "guess: why"), ({"licence": "mine"}, "guess: licence"),
     ({"agreed": False}, "guess: agreed"), ({"round": "../names.key"}, "guess: round")],
)  # fmt: skip
def test_a_guess_that_cannot_be_taken_is_refused_with_its_field(
    played: tuple[Lake, dict[str, Any], TestClient], change: dict[str, Any], said: str
) -> None:
    lake, _, client = played
    round_ = client.get("/play/next?player=Ada").json()["round"]
    answer = client.post("/play/guess", json=guess(round_, **change), headers=HOME)
    assert answer.status_code == 400 and answer.text.startswith(said)
    assert lake.read("guesses").is_empty() and lake.read("notes").is_empty()
    assert client.post("/play/guess", json=guess(round_), headers={"origin": "http://elsewhere"}).status_code == 403


def test_rounds_are_of_both_kinds_in_turn_until_all_are_played(played: tuple[Lake, dict[str, Any], TestClient]) -> None:
    lake, row, client = played
    splits = []
    for number in range(10):
        asked = client.get("/play/next?player=Ada").json()
        assert asked["done"] == number
        if asked["round"] is None:
            break
        splits.append(client.post("/play/guess", json=guess(asked["round"]), headers=HOME).json()["split"])
    held_out = lake.read("labels").filter(split="benchmark").height
    assert splits.count("benchmark") == held_out and splits.count("train") == 2
    assert splits[:2] == ["benchmark", "train"] and asked["round"] is None and asked["left"] == 0
    tables = [one for one in play_page.make(Source(lake, row, ReviewSettings())) if one["block"] == "table"]
    assert [line[0] for line in tables[0]["rows"]] == ["people", "answerer-base"]
    assert tables[0]["rows"][0][1].startswith("100 %") and tables[0]["rows"][1][1].startswith("0 %")
    assert tables[1]["rows"][0][:2] == ["Ada", len(splits)]


@pytest.mark.usefixtures("in_process")
def test_guesses_become_a_baseline_in_scores_and_notes_lessons(played: tuple[Lake, dict[str, Any], TestClient]) -> None:
    from tasks.evaluate.people import STAGE
    from tasks.runtime.runner import Context, run
    from tasks.runtime.stage import open_inputs
    from tasks.services import connect
    from tasks.synthesize.trajectories import STAGE as TRAJECTORIES

    lake, _, client = played
    while round_ := client.get("/play/next?player=Ada").json()["round"]:
        client.post("/play/guess", json=guess(round_), headers=HOME)
    run(STAGE, EvaluateSettings(), Context(lake, connect(ServicesSettings(), {}, ())))
    scores = {row["metric"]: row for row in lake.read("scores").to_dicts()}
    held_out = lake.read("labels").filter(split="benchmark").height
    assert scores["acc@25km"]["policy"] == "people" and (scores["acc@25km"]["value"], scores["acc@25km"]["n"]) == (
        1.0,
        held_out,
    )
    wanted = SynthesizeSettings(recipe="geoagent", notes="review")  # type: ignore[call-arg]
    items = TRAJECTORIES.items(open_inputs(TRAJECTORIES, lake), wanted)
    trained = set(lake.read("labels").filter(split="train")["image_id"])
    assert set(items["notes"]) == {"red earth, left-hand traffic"} and set(items["image_id"]) <= trained
    assert items.height == 2, "notes on benchmark pictures teach nobody"
