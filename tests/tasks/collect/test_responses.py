"""Answers that were not committed: what a killed run left is used, what an ended run left is not."""

import sqlite3
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.collect import CollectSettings
from schemas.settings.services import ServicesSettings
from tasks.collect import responses as responses_module
from tasks.collect import street_view
from tasks.collect.boxes import Box
from tasks.collect.providers.mapillary.client import MAX_TILE_ZOOM, Mapillary
from tasks.collect.providers.mapillary.streets import MapillaryStreets
from tasks.collect.responses import VALID_S, FetchedImage, RecalledBoxes, StageResponses
from tasks.collect.tile_cache import TileCache
from tasks.collect.tiles import tiles_of
from tasks.lake import Commit, Lake
from tasks.runtime.runner import WorkerSetup, run
from tasks.services import connect
from tasks.services.response_store import ResponseStore, unpack

# Tiles, which are not kept, are not asked for: the offline world has few pictures at a place, and boxes tell all.
SETTINGS = CollectSettings(panorama_width=512, panorama_min_pixels=1, photo_min_pixels=1, short_rows=0)
IMAGE = FetchedImage.now(b"bytes\nof a picture\n", '"e1"', "https://host/picture.jpg")


def kept(folder: Path, stage: str = "collect", since_s: float = 0.0, later_s: float = 0.0) -> StageResponses:
    """The answers as another process finds them."""
    store = ResponseStore(folder / "responses.sqlite", clock=lambda: time.time() + later_s)
    return StageResponses(store, stage, since_s)


def of_stage(lake: Lake, stage: str = "collect") -> StageResponses:
    return StageResponses.of(WorkerSetup(lake, connect(ServicesSettings(), {})), stage)


def entries(folder: Path, namespace: str = "%") -> list[tuple[str, bytes]]:
    with sqlite3.connect(folder / "responses.sqlite") as file:
        found = file.execute("SELECT namespace, value FROM responses WHERE namespace LIKE ?", (namespace,))
        return found.fetchall()


async def settled(responses: StageResponses) -> None:
    """Everything that was to be written is in the file."""
    await responses.keep("end", "end")


def ended(lake: Lake, status: str, when: datetime) -> None:
    row = {"run_id": f"r{when}", "stage": "collect", "status": status, "finished_at": when}
    lake.append("runs", [row], Commit(status, 1))


async def test_what_was_kept_is_found_by_the_next_worker_for_a_while(tmp_path: Path) -> None:
    await kept(tmp_path).keep({"a": [1, 2.5, "é"]}, "box", 1.25, None, ["id"])
    assert kept(tmp_path).find("box", 1.25, None, ["id"]) == {"a": [1, 2.5, "é"]}
    assert kept(tmp_path).find("box", 1.25, True, ["id"]) is None
    assert kept(tmp_path, "other").find("box", 1.25, None, ["id"]) is None
    assert kept(tmp_path, later_s=VALID_S + 1).find("box", 1.25, None, ["id"]) is None
    nowhere = StageResponses()
    await nowhere.keep(1, "box")
    nowhere.forget_image("7")
    assert nowhere.find("box") is None and nowhere.find_image("7") is None


async def test_only_what_came_after_the_last_ended_run_counts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    await of_stage(lake).keep("answer", "one")
    ended(lake, "interrupted", datetime.now(UTC) + timedelta(seconds=5))
    assert of_stage(lake).find("one") == "answer", "an interrupted run left places unfinished"
    ended(lake, "done", datetime.now(UTC) + timedelta(seconds=5))
    assert of_stage(lake).find("one") is None


async def test_only_what_was_said_since_a_moment_counts(tmp_path: Path) -> None:
    await kept(tmp_path).keep("before", "one")
    moment = time.time()
    assert kept(tmp_path).find("one", since_s=moment + 1) is None
    assert kept(tmp_path).find("one", since_s=moment - 60) == "before"
    await kept(tmp_path).keep("later", "one")
    assert kept(tmp_path).find("one", since_s=moment) == "later"


def test_on_a_cluster_every_node_has_its_own_file(tmp_path: Path) -> None:
    lake, connections = Lake(tmp_path), connect(ServicesSettings(), {})
    alone = WorkerSetup(lake, connections).node_responses().path
    node = WorkerSetup(lake, connections, is_cluster=True).node_responses().path
    assert Path(alone) == lake.state / "responses.sqlite" != Path(node)
    assert Path(node).parent == lake.state and Path(node).match("responses-*.sqlite")


async def test_a_picture_is_found_until_it_is_forgotten(tmp_path: Path) -> None:
    responses = kept(tmp_path)
    await responses.keep_image("7", IMAGE)
    assert kept(tmp_path).find_image("7") == IMAGE and kept(tmp_path).find_image("8") is None
    responses.forget_image("7")
    responses.forget_image("8")  # nothing there
    await settled(responses)
    assert kept(tmp_path).find_image("7") is None


@settings(max_examples=40, deadline=None)
@given(
    source_id=st.text(st.characters(exclude_categories=()), max_size=60),
    data=st.binary(max_size=300),
    etag=st.none() | st.text(st.characters(exclude_categories=()), max_size=20),
)
async def test_any_id_and_any_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, source_id: str, data: bytes, etag: str | None
) -> None:
    folder, image = tmp_path_factory.mktemp("state"), FetchedImage.now(data, etag, "https://host/\n")
    await kept(folder).keep_image(source_id, image)
    assert kept(folder).find_image(source_id) == image


async def test_a_picture_counts_by_its_moment_or_its_bytes(tmp_path: Path) -> None:
    await kept(tmp_path).keep_image("7", IMAGE)
    at_s = IMAGE.at.timestamp()
    responses = kept(tmp_path)
    assert responses.find_image("7", at_s) == IMAGE and responses.find_image("7", at_s + 1e-3) is None
    assert responses.find_image("7", at_s + 9, sha256=IMAGE.sha256) == IMAGE, "a check saw these very bytes"
    assert responses.find_image("7", at_s + 9, sha256="0" * 64) is None
    after = kept(tmp_path, since_s=at_s + 1)
    assert after.find_image("7") is None and after.find_image("7", sha256=IMAGE.sha256) == IMAGE


async def test_a_changed_picture_waits_longer_than_others(tmp_path: Path) -> None:
    old = replace(IMAGE, at=datetime.now(UTC) - timedelta(seconds=VALID_S + 60))
    await kept(tmp_path).keep_image("for long", old, 2 * VALID_S)
    await kept(tmp_path).keep_image("old", old)
    assert kept(tmp_path).find_image("for long") == old and kept(tmp_path).find_image("old") is None


async def test_a_file_that_cannot_be_written_costs_no_place(streets: Any, tmp_path: Path) -> None:
    streets.put("11", lat=50.001, lon=8.0)
    (tmp_path / "responses.sqlite").mkdir()
    context = street_view.WorkerContext(
        (streets.provider(),),
        Lake(tmp_path / "lake"),
        SETTINGS.model_copy(update={"photos": 0}),
        responses=kept(tmp_path),
    )
    outcome = await street_view.work({"id": "p", "lat": 50.0, "lon": 8.0}, context)
    assert len(outcome.rows["images"]) == 1


def rows_of(lake: Lake) -> pl.DataFrame:
    return lake.read("images").drop("run_id", "written_at", "fetched_at").sort("image_id")


def test_a_killed_run_is_not_asked_for_again(earth: Any, tmp_path: Path, in_process: None, killed_at: Any) -> None:
    """The same rows as an undisturbed run's, for no second box and no second picture."""
    undisturbed, killed = Lake(tmp_path / "undisturbed"), Lake(tmp_path / "killed")
    (killed.root / "names.key").write_bytes((undisturbed.name("x"), (undisturbed.root / "names.key").read_bytes())[1])
    for lake in (undisturbed, killed):
        earth.plan(lake, 6, empty=1)
    run(street_view.STAGE, SETTINGS, earth.context(undisturbed))
    first = earth.log("requests")
    earth.forget()

    with killed_at("tasks.runtime.items.committer.Batch.commit", "tasks.runtime.items.ledger.Ledger.close"):
        run(street_view.STAGE, SETTINGS, earth.context(killed))
    assert killed.existing() == ["places"]
    assert earth.log("requests") == first
    run(street_view.STAGE, SETTINGS, earth.context(killed))
    assert earth.log("requests") == first, "everything was answered before the kill"
    assert rows_of(killed).height > 5 and rows_of(killed).equals(rows_of(undisturbed))
    signed = [name for name, value in entries(killed.state) if b"oh=" in value]
    assert signed == [], "no signature in the file"
    earth.forget()
    assert run(street_view.STAGE, SETTINGS, earth.context(killed)).nothing_to_do


@pytest.mark.parametrize("left", ["whole", "damaged"])
def test_a_run_killed_while_pictures_wait_to_be_decoded(
    earth: Any, tmp_path: Path, in_process: None, killed_at: Any, left: str
) -> None:
    """The same rows as an undisturbed run's; a picture that is there whole is not asked for again."""
    undisturbed, killed = Lake(tmp_path / "undisturbed"), Lake(tmp_path / "killed")
    for lake in (undisturbed, killed):
        earth.plan(lake, 5)
    run(street_view.STAGE, SETTINGS, earth.context(undisturbed))

    with killed_at("tasks.collect.download.computing.run"):
        run(street_view.STAGE, SETTINGS, earth.context(killed))
    waiting = entries(killed.state, "collect.picture")
    assert waiting and not list((killed.root / "images").rglob("*.jpg"))
    assert not [value for _, value in waiting if b"oh=" in value], "no signature in the file"
    if left == "damaged":  # half a picture came
        with sqlite3.connect(killed.state / "responses.sqlite") as file:
            file.execute("UPDATE responses SET value = substr(value, 1, length(value) / 2) WHERE namespace = ?",
                         ("collect.picture",))  # fmt: skip
    with earth.journal() as asked:
        result = run(street_view.STAGE, SETTINGS, earth.context(killed))
    assert result.failed == 0 and rows_of(killed).equals(rows_of(undisturbed))
    paths = [urlsplit(unpack(value)[0]["request_url"]).path for _, value in waiting]
    again = [sum(path in request for _, _, request, _ in asked) for path in paths]
    assert set(again) == ({1} if left == "damaged" else {0})
    assert entries(killed.state, "collect.picture") == []


def test_what_a_killed_run_found_unusable_is_not_fetched_again(
    earth: Any, tmp_path: Path, in_process: None, killed_at: Any
) -> None:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 3)
    strict = SETTINGS.model_copy(update={"panorama_min_pixels": 10**9, "photo_min_pixels": 10**9})

    with killed_at("tasks.runtime.items.committer.Batch.commit", "tasks.runtime.items.ledger.Ledger.close"):
        run(street_view.STAGE, strict, earth.context(lake))
    first = earth.log("requests")
    assert run(street_view.STAGE, strict, earth.context(lake)).rejected == 3
    assert earth.log("requests") == first


async def test_a_long_answer_is_not_kept(earth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = earth.world.place(0)
    box = Box(place.lat - 0.01, place.lon - 0.01, place.lat + 0.01, place.lon + 0.01)
    provider = MapillaryStreets(Mapillary(earth.context(Lake(tmp_path / "lake")).connections.street_view["mapillary"]))
    records = await RecalledBoxes(provider, kept(tmp_path)).in_box(box)
    assert records and all(record.url for record in records)
    earth.forget()
    told = await RecalledBoxes(provider, kept(tmp_path)).in_box(box)
    assert told == [replace(record, url=None) for record in records] and earth.log("requests") == {}
    monkeypatch.setattr(responses_module, "MOST_ROWS", len(records) - 1)
    await RecalledBoxes(provider, kept(tmp_path / "other")).in_box(box)
    assert not (tmp_path / "other").exists() or entries(tmp_path / "other") == []
    await provider.client.close()


async def test_a_small_tile_is_asked_for_once_by_all_workers(
    earth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = earth.world.place(0)
    box = Box(place.lat - 0.001, place.lon - 0.001, place.lat + 0.001, place.lon + 0.001)
    provider = MapillaryStreets(Mapillary(earth.context(Lake(tmp_path / "lake")).connections.street_view["mapillary"]))
    name = tiles_of(box, MAX_TILE_ZOOM)[0]
    images = await TileCache(provider, 10_000, kept(tmp_path)).get(name)
    earth.forget()
    again = await TileCache(provider, 10_000, kept(tmp_path)).get(name)
    assert len(images) and list(again.ids) == list(images.ids) and earth.log("requests") == {}
    monkeypatch.setattr("tasks.collect.tile_cache.MOST_ROWS", len(images) - 1)
    await TileCache(provider, 10_000, kept(tmp_path / "other")).get(name)
    assert not (tmp_path / "other").exists() or entries(tmp_path / "other") == []
    await provider.client.close()
