"""Bytes that have come outlive a kill: taken up once, whole or not at all, never in the way."""

import errno
import json
import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.collect import CollectSettings
from tasks.collect import spool as spool_module
from tasks.collect import street_view
from tasks.collect.notes import OBSERVED_S
from tasks.collect.spool import Came, Spool
from tasks.lake import Commit, Lake
from tasks.runtime.runner import run

SETTINGS = CollectSettings(panorama_width=512, panorama_min_pixels=1, photo_min_pixels=1)
CAME = Came.now(b"bytes\nof a picture\n", '"e1"', "https://host/picture.jpg")


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*")) if folder.exists() else []


def test_what_was_put_is_found_by_the_next_worker_until_it_is_dropped(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.put("7", CAME)
    assert first.find("7") is None, "a worker does not observe itself"
    second = Spool(tmp_path)
    assert second.find("7") == CAME and second.find("8") is None
    first.drop("7")
    assert second.find("7") is None and files(tmp_path) == []
    first.drop("7")  # nothing there
    nowhere = Spool()
    nowhere.put("7", CAME)
    nowhere.drop("7")
    assert nowhere.find("7") is None


def test_nobody_else_may_look_into_it(tmp_path: Path) -> None:
    Spool(tmp_path / "spool").put("7", CAME)  # an original, with all that it says of its maker
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0


@settings(max_examples=60, deadline=None)
@given(
    source_id=st.text(st.characters(exclude_categories=()), max_size=60),
    data=st.binary(max_size=300),
    etag=st.none() | st.text(max_size=20),
)
def test_any_id_is_a_name_and_any_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, source_id: str, data: bytes, etag: str | None
) -> None:
    folder = tmp_path_factory.mktemp("spool") / "in" / "here"
    came = Came.now(data, etag, "https://host/\n")
    Spool(folder).put(source_id, came)
    (file,) = files(folder)
    assert file.parent == folder and re.fullmatch("[0-9a-f]{64}.picture", file.name)
    assert Spool(folder).find(source_id) == came


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9])
def test_half_a_file_is_none(tmp_path: Path, share: float) -> None:
    Spool(tmp_path).put("7", CAME)
    (file,) = files(tmp_path)
    whole, until = file.read_bytes(), file.stat().st_mtime
    file.write_bytes(whole[: int(len(whole) * share)])
    os.utime(file, (until, until))
    assert Spool(tmp_path).find("7") is None


@pytest.mark.parametrize("old", [b"picture\n", b'"7"', b"sha256", b"T", b"{"])
def test_a_file_that_does_not_agree_with_itself_is_none(tmp_path: Path, old: bytes) -> None:
    Spool(tmp_path).put("7", CAME)
    (file,) = files(tmp_path)
    until, data = file.stat().st_mtime, file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, b"[1]"))
    os.utime(file, (until, until))
    assert Spool(tmp_path).find("7") is None


def test_only_what_came_after_the_last_ended_run_counts_and_only_for_a_while(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Spool.of(lake, "collect").put("7", CAME)
    assert Spool.of(lake, "other").find("7") is None
    spool, at_s = Spool.of(lake, "collect"), CAME.at.timestamp()
    assert spool.find("7", at_s) == CAME and spool.find("7", at_s + 1e-3) is None
    assert spool.find("7", at_s + 9, sha256=CAME.sha256) == CAME, "a check saw these very bytes"
    assert spool.find("7", at_s + 9, sha256="0" * 64) is None
    row = {"run_id": "r1", "stage": "collect", "status": "done", "finished_at": CAME.at + timedelta(seconds=1)}
    lake.append("runs", [row], Commit("done", 1))
    assert Spool.of(lake, "collect").find("7") is None
    assert Spool.of(lake, "collect").find("7", sha256=CAME.sha256) == CAME


def test_leftovers_go_when_their_time_is_over(tmp_path: Path) -> None:
    old = replace(CAME, at=datetime.now(UTC) - timedelta(seconds=OBSERVED_S + 60))
    begun, stale = tmp_path / ".begun.tmp", tmp_path / ".stale.tmp"
    for file in (begun, stale):
        file.touch()
    os.utime(stale, (old.at.timestamp(),) * 2)
    first = Spool(tmp_path)
    first.put("kept", CAME)
    first.put("kept for long", old, 2 * OBSERVED_S)
    first.put("old", old)
    spool = Spool(tmp_path)
    assert [spool.find(name) is None for name in ("kept", "kept for long", "old")] == [False, False, True]
    assert len(files(tmp_path)) == 3 and begun.exists() and not stale.exists()


def test_it_holds_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MOST_BYTES", 5000)
    monkeypatch.setattr(spool_module, "MEASURE_S", 0.0)
    workers = [Spool(tmp_path), Spool(tmp_path)]
    for number in range(20):
        workers[number % 2].put(str(number), Came.now(bytes(1000), None, "u"))
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 5000 and len(files(tmp_path)) >= 3
    for number in range(20):
        workers[0].drop(str(number))
    workers[1].put("again", CAME)
    assert len(files(tmp_path)) == 1


async def test_a_full_disk_costs_no_place(streets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streets.put("11", lat=50.001, lon=8.0)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool_module.os, "utime", full)  # behind the bytes, before the name
    bench = street_view.WorkerContext(
        streets.client(),
        Lake(tmp_path / "lake"),
        SETTINGS.model_copy(update={"photos": 0}),
        spool=Spool(tmp_path / "s"),
    )
    outcome = await street_view.work({"id": "p", "lat": 50.0, "lon": 8.0}, bench)
    assert len(outcome.rows["images"]) == 1 and files(tmp_path / "s") == []


def rows_of(lake: Lake) -> pl.DataFrame:
    return lake.read("images").drop("run_id", "written_at", "fetched_at").sort("image_id")


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
    folder = killed.root / ".state/spool/collect"
    waiting = [json.loads(path.read_bytes().partition(b"\n")[0])["source_id"] for path in files(folder)]
    assert waiting and not list((killed.root / "images").rglob("*.jpg"))
    assert not [path for path in files(folder) if b"oh=" in path.read_bytes()], "no signature in any file"
    for name in waiting if left == "damaged" else ():  # half a picture came, under its right length and sha256
        came = Spool(folder).find(name)
        assert came is not None
        Spool(folder).put(name, Came.now(came.data[: len(came.data) // 2], came.etag, came.request_url))
    with earth.journal() as asked:
        result = run(street_view.STAGE, SETTINGS, earth.context(killed))
    assert result.failed == 0 and rows_of(killed).equals(rows_of(undisturbed))
    again = [sum(f"/{name}/" in request for _, _, request, _ in asked) for name in waiting]
    assert set(again) == ({1} if left == "damaged" else {0})
    assert files(folder) == []


def test_what_a_killed_run_found_unusable_is_not_fetched_again(
    earth: Any, tmp_path: Path, in_process: None, killed_at: Any
) -> None:
    lake = Lake(tmp_path / "lake")
    earth.plan(lake, 3)
    strict = SETTINGS.model_copy(update={"panorama_min_pixels": 10**9, "photo_min_pixels": 10**9})

    with killed_at("tasks.runtime.committer.Batch.commit", "tasks.runtime.ledger.Ledger.close"):
        run(street_view.STAGE, strict, earth.context(lake))
    first = earth.log("requests")
    assert run(street_view.STAGE, strict, earth.context(lake)).rejected == 3
    assert earth.log("requests") == first and files(lake.root / ".state/spool/collect") == []


def test_a_clock_that_runs_on_ends_what_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Spool(tmp_path).put("7", CAME)
    spool = Spool(tmp_path)
    later = time.time() + OBSERVED_S + 60
    monkeypatch.setattr(spool_module.time, "time", lambda: later)
    assert spool.find("7") is None
