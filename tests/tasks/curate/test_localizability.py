"""Curate over a real socket: what the judge is shown, what is kept, and what every bad answer leads to."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import uvicorn
from PIL import Image, ImageDraw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.offline.chat import routes as offline_chat
from schemas.settings.curate import CurateSettings
from schemas.settings.services import ServicesSettings
from tasks.curate.localizability import WorkerContext, items, judge, work
from tasks.curate.verdict import BadVerdict, Scenes, SubScores
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Inputs, Kept, Rejected
from tasks.services import Chat, Geocoder, ServiceError, connect

PARIS = {"country": "France", "country_code": "fr", "state": "Île-de-France", "city": "Paris"}


def verdict(kind: str = "localizable", score: float = 6.0) -> str:
    return json.dumps(
        {
            "class": kind,
            "reason": "A shop sign in French.",
            "score": score,
            "sub_scores": dict.fromkeys(SubScores.model_fields, 5),
            "scenes": dict.fromkeys(Scenes.model_fields, "no"),
        }
    )


@dataclass
class Town:
    """A judge and a geocoder that say what the test wants; the last answer repeats."""

    answers: list[str] = field(default_factory=lambda: [verdict()])
    address: dict[str, str] | None = field(default_factory=lambda: dict(PARIS))
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        if self.status != 200:
            return JSONResponse({"error": {"message": "down"}}, self.status)
        text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    async def reverse(self, request: Request) -> Response:
        if self.address is None:
            return JSONResponse({"error": "Unable to geocode"})
        return JSONResponse({"lat": "48.8", "lon": "2.3", "display_name": "x", "address": self.address})

    def bench(self, path: Path, **settings: Any) -> WorkerContext:
        quick = {"backoff_s": 0, "max_attempts": 2}
        services = ServicesSettings(
            chat={"base_url": f"{self.url}/v1", **quick},  # type: ignore[arg-type]
            geocoder={"base_url": self.url, **quick},  # type: ignore[arg-type]
        )
        connections = connect(services, {})
        return WorkerContext(
            Chat(connections.chat), Geocoder(connections.geocoder), Lake(path / "lake"), CurateSettings(**settings)
        )


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    service = Town()
    routes = [
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/reverse", service.reverse),
        *offline_chat(),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    service.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield service
    server.should_exit = True
    await serving


def street(text: str = "", size: tuple[int, int] = (900, 600)) -> bytes:
    image = Image.new("RGB", size, (150, 190, 230))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, size[1] * 0.6, *size), fill=(90, 90, 92))
    if text:
        draw.rectangle((120, 120, 780, 260), fill="white")
        draw.text((140, 140), text, fill="black", font_size=72)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=92, comment=b"48.8566,2.3522")
    return out.getvalue()


def item(lake: Lake, data: bytes, **changes: Any) -> dict[str, Any]:
    return {
        "id": "image1",
        "place_id": "place1",
        "sha256": lake.images.put(data, "jpg"),
        "extension": "jpg",
        "lat": 48.8566,
        "lon": 2.3522,
        "split": "train",
        "duplicate_of": None,
        "leaks_into": None,
        **changes,
    }


async def test_a_localizable_picture_gets_its_label(town: Town, tmp_path: Path) -> None:
    bench = town.bench(tmp_path)
    outcome = await work(item(bench.lake, street("Boulangerie")), bench)
    assert isinstance(outcome, Kept)
    label = outcome.rows["labels"][0]
    assert (label["country_code"], label["country"], label["region"], label["city"]) == (
        "FR",
        "France",
        "Île-de-France",
        "Paris",
    )
    assert (label["localizability"], label["localizability_score"], label["split"]) == ("localizable", 6.0, "train")
    assert json.loads(label["scenes_json"])["mountains_and_rivers"] == "no"
    assert len(json.loads(label["judge_scores_json"])) == 5
    assert outcome.usage.prompt_tokens == 100 and outcome.usage.requests == 1


async def test_the_judge_sees_the_picture_and_nothing_of_the_truth(town: Town, tmp_path: Path) -> None:
    bench = town.bench(tmp_path)
    await work(item(bench.lake, street("Boulangerie", (3000, 2000))), bench)
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
async def test_other_classes_are_rejected_with_the_judges_reason(town: Town, tmp_path: Path, kind: str) -> None:
    town.answers = [verdict(kind)]
    bench = town.bench(tmp_path)
    outcome = await work(item(bench.lake, street()), bench)
    assert isinstance(outcome, Rejected)
    assert outcome.reason == kind
    assert outcome.evidence["reason"] == "A shop sign in French." and outcome.usage.prompt_tokens == 100


async def test_a_low_score_can_be_rejected(town: Town, tmp_path: Path) -> None:
    bench = town.bench(tmp_path, min_score=7)
    outcome = await work(item(bench.lake, street()), bench)
    assert isinstance(outcome, Rejected) and outcome.reason == "low_score"


async def test_a_malformed_answer_is_asked_for_again_and_paid_for(town: Town, tmp_path: Path) -> None:
    town.answers = ["Surely Paris!", '{"class": "localizable"}', verdict()]
    bench = town.bench(tmp_path)
    outcome = await work(item(bench.lake, street()), bench)
    assert isinstance(outcome, Kept)
    assert outcome.usage.prompt_tokens == 300
    assert [request["seed"] for request in town.asked] == [0, 1, 2]


async def test_a_judge_that_never_answers_in_form_is_a_failure_to_retry(town: Town, tmp_path: Path) -> None:
    town.answers = ["Surely Paris!"]
    bench = town.bench(tmp_path)
    with pytest.raises(BadVerdict):
        await work(item(bench.lake, street()), bench)
    assert len(town.asked) == 3


async def test_an_outage_is_a_failure_to_retry(town: Town, tmp_path: Path) -> None:
    town.status = 503
    bench = town.bench(tmp_path)
    with pytest.raises(ServiceError) as caught:
        await work(item(bench.lake, street()), bench)
    assert caught.value.retryable


async def test_duplicates_and_leaks_cost_no_request(town: Town, tmp_path: Path) -> None:
    bench = town.bench(tmp_path)
    duplicate = await work(item(bench.lake, street(), duplicate_of="image0"), bench)
    leak = await work(item(bench.lake, street(), leaks_into="benchmark"), bench)
    assert isinstance(duplicate, Rejected) and (duplicate.reason, duplicate.evidence) == (
        "exact_duplicate",
        {"of": "image0"},
    )
    assert isinstance(leak, Rejected) and leak.reason == "sequence_leak"
    assert town.asked == []


async def test_the_sea_has_no_address(town: Town, tmp_path: Path) -> None:
    town.address = None
    bench = town.bench(tmp_path)
    outcome = await work(item(bench.lake, street()), bench)
    assert isinstance(outcome, Rejected) and outcome.reason == "no_address"


async def test_a_stored_picture_that_is_no_picture_is_rejected(town: Town, tmp_path: Path) -> None:
    bench = town.bench(tmp_path)
    outcome = await work(item(bench.lake, b"rotten"), bench)
    assert isinstance(outcome, Rejected) and outcome.reason == "corrupt_image"


def test_items_take_the_split_from_the_place(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    places = [
        {"place_id": "p1", "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"},
        {"place_id": "p2", "country": "FR", "lat": 1.0, "lon": 3.0, "split": "benchmark"},
    ]
    common = {
        "kind": "photo",
        "lat": 1.0,
        "lon": 2.0,
        "source": "s",
        "source_id": "1",
        "licence": "l",
        "attribution": "a",
    }
    images = [
        {"image_id": "i1", "place_id": "p1", "sha256": "a" * 64, "extension": "jpg", **common},
        {"image_id": "i2", "place_id": "p2", "sha256": "a" * 64, "extension": "jpg", **common},
        {"image_id": "i3", "place_id": "gone", "sha256": "b" * 64, "extension": "jpg", "split": "train", **common},
        {"image_id": "i4", "place_id": None, "sha256": "c" * 64, "extension": "jpg", "split": "validation", **common},
        {"image_id": "i5", "place_id": "p1", "sha256": "d" * 64, "extension": "jpg", **common, "kind": "satellite"},
    ]
    lake.upsert("places", places, Commit("r", 1))
    lake.upsert("images", images, Commit("r", 2))
    inputs = Inputs(lake, {"places": lake.version("places"), "images": lake.version("images")})
    found = items(inputs, CurateSettings()).sort("id")
    assert found.select("id", "split", "duplicate_of").rows() == [
        ("i1", "train", "i2"),
        ("i2", "benchmark", None),
        ("i4", "validation", None),  # brought in: no place, a split of its own
    ]
    every = items(inputs, CurateSettings(kinds=("panorama", "photo", "satellite"))).sort("id")
    assert every.select("id", "split").rows()[-1] == ("i5", "train")
    assert found.schema["leaks_into"] == pl.String


async def test_the_offline_judge_answers_in_form_from_pixels(town: Town, tmp_path: Path) -> None:
    quick = {"base_url": f"{town.url}/openai/v1"}
    chat = Chat(connect(ServicesSettings(chat=quick), {}).chat)  # type: ignore[arg-type]
    found, usage = await judge(street("Boulangerie"), chat, CurateSettings())
    assert "Boulangerie" in found.reason and found.localizability == "localizable"
    assert found.scenes.sign == "yes" and usage.prompt_tokens > 0
    blank, _ = await judge(street(), chat, CurateSettings())
    assert blank.localizability == "non_localizable"
    assert blank.score < found.score
