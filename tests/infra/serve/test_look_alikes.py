"""The lake's own search by pictures, over a socket: what is found, and that nothing tells where a picture was taken."""

import base64
import io
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import uvicorn
from PIL import Image, ImageOps

from infra.serve.look_alikes import PictureSearch
from schemas.messages import ToolCall
from schemas.settings.services import ServicesSettings
from tasks.agent.look_alikes import LookAlikes, UnknownPicture
from tasks.agent.picture import open_picture
from tasks.agent.service_tools import open_toolbox
from tasks.geo.distance import distance_km
from tasks.imaging.decode import Encoded
from tasks.imaging.hashes import marks_of
from tasks.lake import Commit, Lake
from tasks.review.withdraw import withdraw
from tasks.runtime.snapshots import approved_snapshot
from tasks.services import connect
from tasks.services.errors import ServiceError
from tasks.services.image_search import ImageSearch

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KEY = "a-key-of-ours"
PARIS = (48.8566, 2.3522)


def scene(seed: int, mirrored: bool = False, quality: int = 90) -> bytes:
    """Blocks of colours, of which no two seeds have the same."""
    small = Image.frombytes("RGB", (8, 4), random.Random(seed).randbytes(96))
    large = small.resize((640, 320), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    (ImageOps.mirror(large) if mirrored else large).save(out, "JPEG", quality=quality)
    return out.getvalue()


def picture(name: str, data: bytes, at: tuple[float, float], **changes: Any) -> dict[str, Any]:
    facts = {"place_id": f"place of {name}", "sequence_id": f"drive of {name}", "split": "train", "city": "Lyon"}
    return {"image_id": name, "data": data, "lat": at[0], "lon": at[1], **facts, **changes}


# What the asked one must not be told by, and what it may be told.
ASKED = picture("asked", scene(1), PARIS, city="Paris")
HIDDEN = [
    picture("sameplace", scene(2), (48.95, 2.5), place_id="place of asked", city="Paris"),
    picture("nearby", scene(3), (48.8600, 2.3522), city="Paris"),
    picture("samedrive", scene(4), (48.6, 2.0), sequence_id="drive of asked", city="Orly"),
    picture("copy", scene(1, quality=60), (43.6, 1.44), city="Toulouse"),
    picture("mirrored", scene(1, mirrored=True), (43.3, 5.4), city="Marseille"),
    picture("benchmark", scene(5), (50.6, 3.06), split="benchmark"),
    picture("validation", scene(6), (47.2, -1.55), split="validation"),
    picture("unlabelled", scene(7), (44.8, -0.58), split=None),
]
SHOWN = [
    picture("acrosstown", scene(9), (48.89, 2.39), city="Paris"),
    picture("faraway", scene(10), (35.01, 135.77), city="Kyoto", country="Japan", region="Kyoto"),
    picture("nodrive", scene(11), (45.75, 4.85), sequence_id=None),
]


def fill(lake: Lake, pictures: list[dict[str, Any]]) -> None:
    tables: dict[str, list[dict[str, Any]]] = {"images": [], "labels": [], "fingerprints": []}
    for row in pictures:
        sha256 = lake.images.put(row["data"], "jpg")
        system = {"stage": "test", "item_id": row["image_id"], "run_id": "r", "written_at": NOW}
        both = {"image_id": row["image_id"], "sha256": sha256, "place_id": row["place_id"], **system}
        at = {"lat": row["lat"], "lon": row["lon"]}
        tables["images"].append(
            {**both, **at, "kind": "photo", "source": "mapillary", "source_id": row["image_id"],
             "sequence_id": row["sequence_id"], "licence": "CC BY-SA 4.0",
             "creator": row["image_id"], "attribution": f"Image by {row['image_id']}", "extension": "jpg"}
        )  # fmt: skip
        if row["split"]:
            names = {name: row.get(name, "France") for name in ("country", "region")}
            tables["labels"].append({**both, **at, **names, "city": row["city"], "split": row["split"]})
        marks = marks_of(Encoded.open(row["data"]).pixels())
        tables["fingerprints"].append({**both, **vars(marks)})
    for name, rows in tables.items():
        known = set(lake.read(name).columns)
        lake.upsert(name, [{k: v for k, v in row.items() if k in known} for row in rows], Commit(name, 1))


@pytest.fixture
def lake(tmp_path: Any, snapshot_of: Callable[..., str]) -> Lake:
    lake = Lake(tmp_path / "lake")
    fill(lake, [ASKED, *HIDDEN, *SHOWN])
    snapshot_of(lake)
    return lake


def digest_of(lake: Lake, image_id: str = "asked") -> str:
    return dict(lake.read("images").select("image_id", "sha256").iter_rows())[image_id]


def index_of(lake: Lake) -> LookAlikes:
    return LookAlikes(lake, approved_snapshot(lake))


@pytest.fixture
def server(lake: Lake) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(PictureSearch(index_of(lake), KEY).app(), log_level="error")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    running.should_exit = True
    thread.join()
    listening.close()


def settings_at(url: str, **changes: Any) -> ServicesSettings:
    fields = {"protocol": "lake", "base_url": url, "key_env": "OUR_KEY", "max_attempts": 1, **changes}
    return ServicesSettings.model_validate({"image_search": fields})


def client_at(url: str, key: str = KEY) -> ImageSearch:
    return ImageSearch(connect(settings_at(url), {"OUR_KEY": key}).image_search)


def names(found: list[Any]) -> list[str]:
    return [page.url.removeprefix("geofix:") for page in found]


@pytest.mark.parametrize("crop", [scene(1), scene(3), scene(9), scene(42)])
def test_nothing_that_tells_the_place_of_the_asked_picture_is_found(lake: Lake, crop: bytes) -> None:
    """Not even for a crop that is all of a picture which has to stay hidden."""
    found = index_of(lake).find(crop, digest_of(lake), 20)
    assert sorted(names(found)) == sorted(row["image_id"] for row in SHOWN)


def test_the_most_alike_comes_first(lake: Lake) -> None:
    for row in SHOWN:
        assert names(index_of(lake).find(row["data"], digest_of(lake), 1)) == [row["image_id"]]
    assert names(index_of(lake).find(scene(5), digest_of(lake, "faraway"), 20))[-1] != "benchmark"


def test_a_picture_that_the_lake_does_not_have_is_refused(lake: Lake) -> None:
    for of in ("", "0" * 64, "asked"):
        with pytest.raises(UnknownPicture):
            index_of(lake).find(scene(1), of, 5)


def test_random_lakes_never_answer_with_what_is_near(tmp_path: Any, snapshot_of: Callable[..., str]) -> None:
    """Every picture asked about in a crowded town, against the rule written out pair by pair."""
    chance = random.Random(4)
    lake = Lake(tmp_path / "crowded")
    pictures = [
        picture(f"p{n}", scene(100 + n // 2 if n % 9 == 0 else 200 + n),
                (48.85 + chance.gauss(0, 0.02), 2.35 + chance.gauss(0, 0.02)),
                place_id=f"place {chance.randrange(25)}", sequence_id=chance.choice([None, "a", "b", "c"]),
                split=chance.choice(["train"] * 5 + ["validation", "benchmark"]))
        for n in range(60)
    ]  # fmt: skip
    fill(lake, pictures)
    snapshot_of(lake)
    index, digests = index_of(lake), {row["image_id"]: digest_of(lake, row["image_id"]) for row in pictures}

    def may_be_told(one: dict[str, Any], other: dict[str, Any]) -> bool:
        apart = distance_km(one["lat"], one["lon"], other["lat"], other["lon"]) >= 1.0
        drives = one["sequence_id"] is not None and one["sequence_id"] == other["sequence_id"]
        alike = one["data"] == other["data"]
        return other["split"] == "train" and apart and one["place_id"] != other["place_id"] and not drives and not alike

    for one in pictures:
        found = index.find(one["data"], digests[one["image_id"]], 60)
        twins = [row for row in pictures if digests[row["image_id"]] == digests[one["image_id"]]]
        wanted = {row["image_id"] for row in pictures if all(may_be_told(twin, row) for twin in twins)}
        assert set(names(found)) == wanted, one["image_id"]


async def test_the_tool_asks_it_over_a_socket_and_learns_titles_alone(lake: Lake, server: str) -> None:
    toolbox = open_toolbox(connect(settings_at(server), {"OUR_KEY": KEY}), None)
    call = ToolCall("c", "image_search", json.dumps({"bbox_2d": [0, 0, 1000, 1000]}))
    result = await toolbox.call(call, open_picture(ASKED["data"]), ("image_search",))
    assert result.record.succeeded, result.text
    rows = json.loads(result.text)["results"]
    assert {(row["title"], row["url"]) for row in rows} == {
        ("A picture taken in Paris, France", "geofix:acrosstown"),
        ("A picture taken in Kyoto, Japan", "geofix:faraway"),
        ("A picture taken in Lyon, France", "geofix:nodrive"),
    }
    assert all(set(row) == {"number", "title", "url"} for row in rows)
    assert digest_of(lake) not in result.text and "48.8" not in result.text and "place of" not in result.text


def body_of(of: str, crop: bytes = scene(9), **changes: Any) -> dict[str, Any]:
    request = {"image": {"content": base64.b64encode(crop).decode()}, "features": [{"maxResults": 2}]}
    return {"requests": [request], "labels": {"picture": of}, **changes}


def test_licence_and_attribution_go_along_and_the_number_is_kept(lake: Lake, server: str) -> None:
    url, headers = f"{server}/v1/images:annotate", {"X-Goog-Api-Key": KEY}
    answer = httpx.post(url, json=body_of(digest_of(lake)), headers=headers).json()
    pages = answer["responses"][0]["webDetection"]["pagesWithMatchingImages"]
    assert len(pages) == 2
    assert pages[0] == {
        "pageTitle": "A picture taken in Paris, France",
        "url": "geofix:acrosstown",
        "licence": "CC BY-SA 4.0",
        "attribution": "Image by acrosstown",
    }


async def test_a_withdrawn_picture_is_found_no_more_while_the_server_runs(lake: Lake, server: str) -> None:
    client, of = client_at(server), digest_of(lake)
    assert "faraway" in names(await client.look_alikes(scene(10), 20, of))
    withdraw(lake, "faraway", "a face", "Ada")
    assert names(await client.look_alikes(scene(10), 20, of)) and "faraway" not in names(
        await client.look_alikes(scene(10), 20, of)
    )
    assert index_of(lake).count == len([row for row in [ASKED, *HIDDEN, *SHOWN] if row["split"] == "train"]) - 1


async def test_a_kept_answer_that_names_a_withdrawn_picture_leaves_with_it(lake: Lake, server: str) -> None:
    toolbox = open_toolbox(connect(settings_at(server), {"OUR_KEY": KEY}), lake.state)
    call = ToolCall("c", "image_search", json.dumps({"bbox_2d": [0, 0, 1000, 1000]}))
    before = await toolbox.call(call, open_picture(ASKED["data"]), ("image_search",))
    withdraw(lake, "faraway", "a face", "Ada")
    after = await toolbox.call(call, open_picture(ASKED["data"]), ("image_search",))
    assert "geofix:faraway" in before.text and "geofix:faraway" not in after.text and "geofix:nodrive" in after.text


@pytest.mark.parametrize(
    ("of", "key", "crop", "kind"),
    [
        ("asked", "another", scene(9), "auth"),
        ("0" * 64, KEY, scene(9), "auth"),  # no mistake of a model: this lake is not the one that is trained on
        ("asked", KEY, b"no picture", "rejected"),
        ("asked", KEY, scene(9)[:500], "rejected"),
    ],
)
async def test_what_cannot_be_answered_is_one_error(
    lake: Lake, server: str, of: str, key: str, crop: bytes, kind: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        await client_at(server, key).look_alikes(crop, 5, digest_of(lake) if of == "asked" else of)
    assert caught.value.kind == kind and KEY not in str(caught.value)


def test_odd_requests_are_refused(lake: Lake, server: str) -> None:
    url, of = f"{server}/v1/images:annotate", digest_of(lake)

    def status(**request: Any) -> int:
        headers = {"X-Goog-Api-Key": KEY} | request.pop("headers", {})
        return httpx.post(url, headers=headers, **request).status_code

    good = body_of(of)
    assert status(json=good) == 200
    for odd in ({}, [], {**good, "labels": None}, {"requests": good["requests"]}, {**good, "requests": [{}]}):
        assert status(json=odd) == 400, odd
    assert status(content=b"{") == 400
    assert status(json={**good, "requests": good["requests"] * 17}) == 400
    assert status(json=good, headers={"Host": "evil.example"}) == 403
    assert status(json=good, headers={"Origin": "https://evil.example"}) == 403
    assert httpx.get(f"{server}/nothing").status_code == 404
    assert httpx.get(f"{server}/health").json()["service"] == "geofix-pictures"


async def test_a_server_that_is_down_is_an_outage() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ServiceError) as caught:
        await ImageSearch(connect(settings_at(url, outage_patience_s=0, key_env=None), {}).image_search).look_alikes(
            scene(1), 5, "x"
        )
    assert caught.value.kind == "outage"


async def test_the_command_serves_the_newest_approved_snapshot(lake: Lake) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "flows.cli", "serve", "pictures", "--lake", lake.uri, "--port", str(port)]
    key = {**os.environ, "OUR_KEY": KEY}
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([*command, "--key-env", "OUR_KEY"], stdout=subprocess.PIPE, text=True, env=key)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"9 pictures of snapshot snapshot-1 at {url}, until Ctrl-C\n"
        client = ImageSearch(connect(settings_at(url, max_attempts=8), {"OUR_KEY": KEY}).image_search)
        assert names(await client.look_alikes(scene(10), 1, digest_of(lake))) == ["faraway"]
    finally:
        process.kill()
        process.wait()


def test_its_settings_need_no_key_and_know_its_port() -> None:
    endpoint = ServicesSettings.model_validate({"image_search": {"protocol": "lake"}}).image_search
    assert (endpoint.base_url, endpoint.key_env, endpoint.public_key) == ("http://127.0.0.1:8762", None, None)
