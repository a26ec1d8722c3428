"""The judge over a real socket: what it is shown, and what every bad answer leads to."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from schemas.settings.curate import ConfirmSettings, JudgeSettings, TiersSettings
from schemas.settings.services import ServicesSettings
from tasks.curate import confirm, tiers
from tasks.curate.judge import WorkerContext, judge, work
from tasks.curate.verdict import Verdict
from tasks.lake import Lake
from tasks.services import Chat, Geocoder, ServiceError, connect


def judging(town: Any, path: Path, **settings: Any) -> WorkerContext:
    return WorkerContext(Chat(town.connections().chat), Lake(path / "lake"), JudgeSettings(**settings))


def item(lake: Lake, data: bytes) -> dict[str, Any]:
    return {"id": "image1", "sha256": lake.images.put(data, "jpg"), "extension": "jpg", "kind": "photo"}


async def test_a_verdict_is_kept_whole_with_its_model(town: Any, tmp_path: Path) -> None:
    context = judging(town, tmp_path)
    outcome = await work(item(context.lake, town.street("Boulangerie")), context)
    [row] = outcome.rows["judgements"]
    assert (row["localizability"], row["score"], row["model"]) == ("localizable", 6.0, "judge")
    assert row["reason"] == "A shop sign in French."
    assert json.loads(row["scenes_json"])["mountains_and_rivers"] == "no"
    assert len(json.loads(row["sub_scores_json"])) == 5
    assert outcome.usage.prompt_tokens == 100 and outcome.usage.requests == 1


async def test_the_judge_sees_the_picture_and_nothing_of_the_truth(town: Any, tmp_path: Path) -> None:
    context = judging(town, tmp_path)
    await work(item(context.lake, town.street("Boulangerie", (3000, 2000))), context)
    request = town.asked[0]
    picture, _ = request["messages"][1]["content"]
    shown = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
    width, height = Image.open(io.BytesIO(shown)).size
    assert width * height <= 2_000_000
    assert b"48.8566" not in shown
    text = json.dumps({**request, "messages": [request["messages"][0], request["messages"][1]["content"][1]]})
    for secret in ("48.85", "2.352", "image1", "place1", "train", "France", "Paris"):
        assert secret not in text
    assert request["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("kind", ["non_localizable", "landmark"])
async def test_verdicts_of_other_classes_are_kept_too(town: Any, tmp_path: Path, kind: str) -> None:
    town.answers = [town.verdict(kind, 1.5)]
    context = judging(town, tmp_path)
    outcome = await work(item(context.lake, town.street()), context)
    [row] = outcome.rows["judgements"]
    assert (row["localizability"], row["score"]) == (kind, 1.5)


async def test_a_malformed_answer_is_asked_for_again_and_paid_for(town: Any, tmp_path: Path) -> None:
    town.answers = ["Surely Paris!", '{"class": "localizable"}', town.verdict()]
    context = judging(town, tmp_path)
    outcome = await work(item(context.lake, town.street()), context)
    assert outcome.rows["judgements"][0]["localizability"] == "localizable"
    assert outcome.usage.prompt_tokens == 300
    assert [request["seed"] for request in town.asked] == [0, 1, 2]


async def test_a_judge_that_never_answers_in_form_gives_no_verdict_once_and_for_all(town: Any, tmp_path: Path) -> None:
    town.answers = ["Surely Paris!"]
    context = judging(town, tmp_path)
    outcome = await work(item(context.lake, town.street()), context)
    [row] = outcome.rows["judgements"]
    assert row["problem"] == "no_verdict" and "localizability" not in row
    assert json.loads(row["evidence_json"]) == {
        "detail": "the judge's answer is not JSON",
        "model": "judge",
        "tries": 3,
    }
    assert len(town.asked) == 3 and outcome.usage.prompt_tokens == 300


async def test_an_outage_is_a_failure_to_retry(town: Any, tmp_path: Path) -> None:
    town.status = 503
    context = judging(town, tmp_path)
    with pytest.raises(ServiceError) as caught:
        await work(item(context.lake, town.street()), context)
    assert caught.value.retryable


async def test_a_stored_picture_that_is_no_picture_is_a_problem_without_a_request(town: Any, tmp_path: Path) -> None:
    context = judging(town, tmp_path)
    outcome = await work(item(context.lake, b"rotten"), context)
    assert outcome.rows["judgements"][0]["problem"] == "corrupt_image"
    assert town.asked == []


async def test_the_offline_judge_answers_in_form_from_pixels(town: Any) -> None:
    quick = {"base_url": f"{town.url}/openai/v1"}
    chat = Chat(connect(ServicesSettings(chat=quick), {}).chat)  # type: ignore[arg-type]
    found, usage = await judge(town.street("Boulangerie"), chat, JudgeSettings())
    assert isinstance(found, Verdict)
    assert "Boulangerie" in found.reason and found.localizability == "localizable"
    assert found.scenes.sign == "yes" and usage.prompt_tokens > 0
    blank, _ = await judge(town.street(), chat, JudgeSettings())
    assert isinstance(blank, Verdict) and blank.localizability == "non_localizable"
    assert blank.score < found.score


async def test_a_geocoder_confirms_by_names_and_the_sea_has_none(town: Any) -> None:
    context = confirm.WorkerContext(Geocoder(town.connections().geocoder), ConfirmSettings(enabled=True, zoom=14))
    ours = {"country": "France", "country_code": "FR", "region": "Ile de France", "city": "Lutetia"}
    point = {"id": "image1", "lat": 48.8566, "lon": 2.3522, **ours}
    [row] = (await confirm.work(point, context)).rows["confirmations"]
    assert (row["country_code"], row["region"], row["city"]) == ("FR", "Île-de-France", "Paris")
    assert (row["same_country"], row["same_region"]) == (True, True)
    assert town.located[0]["zoom"] == "14"
    [row] = (await confirm.work(point | {"country_code": "BE"}, context)).rows["confirmations"]
    assert row["same_country"] is False
    town.address = None
    [row] = (await confirm.work(point, context)).rows["confirmations"]
    assert (row["country"], row["same_country"], row["lat"]) == (None, None, 48.8566)


async def test_base_models_are_shown_the_picture_alone(town: Any, tmp_path: Path) -> None:
    town.answers = ["<answer>Latitude: 48.85\nLongitude: 2.35</answer>", "no idea"]
    lake = Lake(tmp_path / "lake")
    context = tiers.WorkerContext(Chat(town.connections().chat), lake, TiersSettings(models=("one", "two")))
    outcome = await tiers.work({**item(lake, town.street("Bar")), "lat": 48.8566, "lon": 2.3522}, context)
    rows = {row["model"]: row for row in outcome.rows["tiers"]}
    placed = [row for row in rows.values() if row.get("error_km") is not None]
    assert len(placed) == 1 and placed[0]["error_km"] < 1
    assert [row["parse_error"] for row in rows.values() if "parse_error" in row] != []
    for request in town.asked:
        assert "48.85" not in json.dumps(
            [part for part in request["messages"][-1]["content"] if part["type"] == "text"]
        )


async def test_a_satellite_scene_is_asked_about_what_is_seen_from_above(town: Any, tmp_path: Path) -> None:
    context = judging(town, tmp_path)
    await work(item(context.lake, town.street("x")) | {"kind": "satellite"}, context)
    assert "seen straight from above" in town.asked[0]["messages"][1]["content"][1]["text"]
