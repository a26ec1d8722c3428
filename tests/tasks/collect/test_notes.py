"""Notes of answers: what a killed run left is used, what an ended run left is not."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.settings.collect import CollectSettings
from tasks.collect import notes as notes_module
from tasks.collect import street_view
from tasks.collect.notes import Notes, RecallingMapillary
from tasks.lake import Commit, Lake
from tasks.runtime.runner import run

SETTINGS = CollectSettings(panorama_width=512, panorama_min_pixels=1, photo_min_pixels=1)


def ended(lake: Lake, status: str, when: datetime) -> None:
    lake.append(
        "runs", [{"run_id": f"r{when}", "stage": "collect", "status": status, "finished_at": when}], Commit(status, 1)
    )


def test_what_was_noted_is_found_by_the_next_worker(tmp_path: Path) -> None:
    first = Notes(tmp_path)
    first.add({"a": [1, 2.5, "é"]}, "box", 1.25, None, ["id"])
    assert first.find("box", 1.25, None, ["id"]) is None, "a worker does not observe itself"
    second = Notes(tmp_path)
    assert second.find("box", 1.25, None, ["id"]) == {"a": [1, 2.5, "é"]}
    assert second.find("box", 1.25, True, ["id"]) is None
    assert Notes().find("box", 1.25, None, ["id"]) is None


def test_half_a_line_and_old_notes_are_passed_over(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.add("kept", "one")
    notes.add("cut", "two")
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-4])
    stale = [time.time() - notes_module.OBSERVED_S - 5, '["three"]', "stale"]
    with file.open("a") as sink:
        sink.write(f"\nnot json\n{json.dumps(stale)}\n")
    after = Notes(tmp_path)
    assert [after.find(key) for key in ("one", "two", "three")] == ["kept", None, None]


def test_files_past_their_time_are_deleted(tmp_path: Path) -> None:
    old, fresh = tmp_path / "old.jsonl", tmp_path / "fresh.jsonl"
    for file in (old, fresh):
        file.touch()
    long_ago = time.time() - notes_module.OBSERVED_S - 60
    os.utime(old, (long_ago, long_ago))
    Notes(tmp_path).add(1, "x")
    assert not old.exists() and fresh.exists()


def test_only_what_came_after_the_last_ended_run_counts(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    Notes.of(lake, "collect").add("answer", "one")
    ended(lake, "interrupted", datetime.now(UTC) + timedelta(seconds=5))
    assert Notes.of(lake, "collect").find("one") == "answer", "an interrupted run left places under way"
    assert Notes.of(lake, "other").find("one") is None
    ended(lake, "done", datetime.now(UTC) + timedelta(seconds=5))
    assert Notes.of(lake, "collect").find("one") is None


def test_only_what_was_said_since_a_moment_counts(tmp_path: Path) -> None:
    Notes(tmp_path).add("before", "one")
    moment = time.time()
    after = Notes(tmp_path)
    assert after.find("one", since_s=moment + 1) is None and after.find("one", since_s=moment - 60) == "before"
    later = [moment + 5, '["one"]', "later"]
    (tmp_path / "a.jsonl").write_text(json.dumps(later) + "\n")  # read first, and the newer one all the same
    assert Notes(tmp_path).find("one", since_s=moment + 1) == "later"


def test_a_full_disk_is_no_failure(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    (tmp_path / "notes").write_text("a file where a folder should be")
    notes.add("lost", "one")
    (tmp_path / "notes").unlink()
    notes.add("noted", "two")
    with Path("/dev/full").open("w") as full:
        notes._file = full
        notes.add("lost", "three")
        notes.add("noted", "four")
    after = Notes(tmp_path / "notes")
    assert [after.find(key) for key in ("one", "two", "three", "four")] == [None, "noted", None, "noted"]


def test_a_killed_run_is_not_asked_for_again(earth: Any, tmp_path: Path, in_process: None, killed_at: Any) -> None:
    """The same rows as an undisturbed run's, for no second box and no second picture."""
    undisturbed, killed = Lake(tmp_path / "undisturbed"), Lake(tmp_path / "killed")
    (killed.root / "names.key").write_bytes((undisturbed.name("x"), (undisturbed.root / "names.key").read_bytes())[1])
    for lake in (undisturbed, killed):
        earth.plan(lake, 6, empty=1)
    run(street_view.STAGE, SETTINGS, earth.context(undisturbed))
    first = earth.log("requests")
    earth.forget()

    with killed_at("tasks.runtime.committer.Batch.commit", "tasks.runtime.ledger.Ledger.close"):
        run(street_view.STAGE, SETTINGS, earth.context(killed))
    assert killed.existing() == ["places"]
    assert earth.log("requests") == first
    run(street_view.STAGE, SETTINGS, earth.context(killed))
    assert earth.log("requests") == first, "everything was answered before the kill"
    rows = [
        lake.read("images").drop("run_id", "written_at", "fetched_at").sort("image_id")
        for lake in (undisturbed, killed)
    ]
    assert rows[0].height > 5 and rows[0].equals(rows[1])
    signatures = [path for path in (killed.root / ".state/notes").rglob("*.jsonl") if "oh=" in path.read_text()]
    assert signatures == []
    earth.forget()
    assert run(street_view.STAGE, SETTINGS, earth.context(killed)).nothing_to_do


async def test_a_long_answer_is_not_written_down(earth: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = earth.world.place(0)
    box = (place.lon - 0.01, place.lat - 0.01, place.lon + 0.01, place.lat + 0.01)
    connection = earth.context(Lake(tmp_path / "lake")).connections.mapillary
    service = RecallingMapillary(connection, Notes(tmp_path / "notes"))
    rows = await service.images_in_box(*box, ("id", "thumb_original_url"), None, 2000)
    assert rows and all("thumb_original_url" in row for row in rows)
    earth.forget()
    again = RecallingMapillary(connection, Notes(tmp_path / "notes"))
    told = await again.images_in_box(*box, ("id", "thumb_original_url"), None, 2000)
    assert [row["id"] for row in told] == [row["id"] for row in rows] and earth.log("requests") == {}
    monkeypatch.setattr(notes_module, "MOST_ROWS", len(rows) - 1)
    longer = RecallingMapillary(connection, Notes(tmp_path / "other"))
    await longer.images_in_box(*box, ("id", "thumb_original_url"), None, 2000)
    assert not (tmp_path / "other").exists()
    for client in (service, again, longer):
        await client.close()
