"""Maintenance frees what nothing needs, and nothing else."""

import json
import os
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from flows.cli.application import app
from schemas.errors import LakeError
from schemas.settings.maintain import MaintainSettings
from tasks.lake import Commit, Lake
from tasks.lake.maintain import maintain, vacuum

DAY_S = 24 * 3600
SETTINGS = MaintainSettings(least_files=2)


def place(name: str, **more: object) -> dict[str, object]:
    return {"place_id": name, "country": "FR", "lat": 48.5, "lon": 2.5, "split": "train", **more}


def image(name: str, sha256: str) -> dict[str, object]:
    fixed = {"kind": "photo", "lat": 1.0, "lon": 2.0, "source": "mapillary", "source_id": name, "extension": "jpg"}
    return {"image_id": name, "licence": "CC0", "attribution": "A", "sha256": sha256, **fixed}


def snapshot(name: str, status: str = "pending", **versions: int) -> dict[str, object]:
    report = f"reports/{name}/index.html"
    return {"snapshot_id": name, "table_versions_json": json.dumps(versions), "status": status, "report": report}


def age(path: Path, days: float) -> None:
    moment = time.time() - days * DAY_S
    os.utime(path, (moment, moment))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_vacuum_spares_what_a_snapshot_names(lake: Lake) -> None:
    for batch in range(1, 6):
        lake.upsert("places", [place(f"p{batch}"), place("changes", seed=batch)], Commit("run", batch))
    for batch in range(6, 9):
        lake.append("places", [place(f"p{batch}")], Commit("run", batch))
    named, unnamed = 2, 3
    lake.upsert("snapshots", [snapshot("s", places=named)], Commit("review", 1))
    before = lake.read("places", named).sort("place_id")
    assert [one.what for one in maintain(lake, SETTINGS)] == ["compacted"], "the versions are too young to go"
    assert lake.read("places", unnamed).height == 4
    orphan = lake.root / "tables" / "places" / "part-killed.snappy.parquet"
    orphan.write_bytes(b"left by a writer that was killed")
    age(orphan, 1)
    assert vacuum(lake, "places", retention_hours=0, dry_run=True).count
    assert orphan.exists()
    freed = vacuum(lake, "places", retention_hours=0)
    assert freed.count and freed.bytes and not orphan.exists()
    assert lake.read("places", named).sort("place_id").equals(before)
    assert lake.read("places").height == 9
    with pytest.raises(LakeError, match="version 3 of table 'places' cannot be read any more: `geofix maintain`"):
        lake.read("places", unnamed)


def test_pictures_that_no_row_names_are_swept_when_old(lake: Lake) -> None:
    kept, replaced, pinned, orphan, young, told = (
        lake.images.put(text.encode(), "jpg") for text in ("kept", "replaced", "pinned", "orphan", "young", "told")
    )
    lake.upsert("images", [image("a", pinned), image("b", kept)], Commit("run", 1))
    lake.upsert("snapshots", [snapshot("s", images=lake.version("images"))], Commit("review", 1))
    lake.upsert("images", [image("a", replaced)], Commit("run", 2))
    lake.upsert("images", [image("a", kept)], Commit("run", 3))
    messages = json.dumps([{"role": "tool", "content": f"sha256:{told}.jpg"}])
    trajectory = {"trajectory_id": "t", "image_id": "a", "recipe": "r", "messages_json": messages, "verdict": "kept"}
    trajectory["end_reason"] = "answered"
    lake.upsert("trajectories", [trajectory], Commit("run", 1))
    for sha256 in (kept, replaced, pinned, orphan, told):
        age(lake.images.path(sha256, "jpg"), 8)
    temporary = lake.root / "images" / "ab" / ".x.tmp"
    temporary.parent.mkdir(exist_ok=True)
    temporary.write_bytes(b"half")
    age(temporary, 2)
    foreign = lake.root / "images" / "README"
    foreign.write_text("not ours")
    age(foreign, 100)

    said = maintain(lake, SETTINGS, dry_run=True)
    found = {one.where: one.count for one in said if one.what == "deleted"}
    assert found == {"temporary files": 1, "pictures that no row names": 2}
    assert lake.images.exists(orphan, "jpg") and temporary.exists(), "a dry run deletes nothing"
    maintain(lake, SETTINGS)
    left = {blob.key[10:74] for blob in lake.images.list()}
    assert left == {kept, pinned, young, told} and not temporary.exists() and foreign.exists()


def test_a_picture_stored_again_is_young_again(lake: Lake) -> None:
    sha256 = lake.images.put(b"again", "jpg")
    age(lake.images.path(sha256, "jpg"), 30)
    lake.images.put(b"again", "jpg")  # its row is committed a few seconds later
    maintain(lake, SETTINGS)
    assert lake.images.exists(sha256, "jpg")


def test_old_reports_logs_notes_and_spools_go(lake: Lake) -> None:
    for number, (name, status) in enumerate([("old", "rejected"), ("good", "approved"), ("new", "pending")]):
        lake.blobs.put(f"reports/{name}/index.html", b"page")
        lake.blobs.put(f"reports/{name}/plan/map.png", b"map")
        written = pl.datetime(2020, 1, 1 + number, time_zone="UTC")
        row = pl.DataFrame([snapshot(name, status)]).with_columns(written_at=written)
        lake.upsert("snapshots", row, Commit("review", number + 1))
    for name in ("a.log", "notes/collect/x.jsonl", "spool/collect/y.picture", "up.json", "budgets.sqlite"):
        path = lake.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        age(path, 40)
    (lake.state / "fresh.log").write_text("x")
    maintain(lake, SETTINGS)
    assert {blob.key.split("/")[1] for blob in lake.blobs.list("reports")} == {"good", "new"}
    left = {path.relative_to(lake.state).as_posix() for path in lake.state.rglob("*") if path.is_file()}
    assert left == {"up.json", "budgets.sqlite", "fresh.log"}


def test_a_training_run_that_was_given_up_goes_and_a_model_stays(lake: Lake) -> None:
    for name, days in (
        ("models/.old.partial/weights", 40),
        ("models/.new.partial/weights", 1),
        ("models/m/weights", 40),
    ):
        lake.blobs.put(name, b"x")
        age(lake.blobs.local(name), days)
    [done] = maintain(lake, SETTINGS)
    assert (done.where, done.count, done.bytes) == ("local copies and unfinished training runs", 1, 1)
    assert {blob.key for blob in lake.blobs.list("models")} == {"models/.new.partial/weights", "models/m/weights"}


def test_maintenance_beside_two_writers_loses_nothing(lake: Lake) -> None:
    for batch in range(1, 11):
        lake.upsert("places", [place(f"p{batch}")], Commit("before", batch))
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for batch in range(1, 9):
                lake.upsert(
                    "places", [place(f"w{writer}-{batch}"), place("p1", seed=batch)], Commit(f"w{writer}", batch)
                )
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2)]
    for thread in writers:
        thread.start()
    while any(thread.is_alive() for thread in writers):
        maintain(lake, SETTINGS)
    assert errors == []
    rows = lake.read("places")
    assert rows.height == 10 + 2 * 8 and rows["place_id"].is_unique().all()


def test_a_checkpoint_of_the_log_is_made_and_older_versions_stay_readable(lake: Lake) -> None:
    for batch in range(1, 13):
        lake.append("runs", [{"run_id": f"r{batch}", "status": "done"}], Commit(f"r{batch}", 1))
    maintain(lake, SETTINGS)
    assert list((lake.root / "tables" / "runs" / "_delta_log").glob("*.checkpoint*.parquet"))
    assert lake.read("runs", 3).height == 3 and lake.read("runs").height == 12
    assert maintain(lake, SETTINGS) == [], "a second time there is nothing to do"


def test_a_failed_write_leaves_the_tables_other_threads_follow(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers of one process: the one that loses a race opens the table anew, and only it."""
    lake.upsert("places", [place("p1")], Commit("first", 1))
    follows = lake._newest("places")
    failed: list[str] = []

    def lose() -> None:
        monkeypatch.setattr(lake, "_refuse_full_disk", lambda name: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(LakeError):
            lake.upsert("places", [place("p2")], Commit("second", 1))
        failed.append("yes")

    loser = threading.Thread(target=lose)
    loser.start()
    loser.join()
    assert failed and lake._newest("places") is follows
    assert [thread for _, thread in lake._handles] == [threading.get_ident()]


def test_a_full_disk_is_maintained_as_far_as_it_goes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(1, 4):
        lake.append("places", [place(f"p{batch}")], Commit("run", batch))
    left = lake.root / "tables" / "places" / "part-killed.snappy.parquet"
    left.write_bytes(b"left by a writer that was killed")
    picture = lake.root / lake.images.key(lake.images.put(b"orphan", "jpg"), "jpg")
    for path in (left, picture):
        age(path, 400)
    version = lake.version("places")
    monkeypatch.setattr("tasks.lake.tables.is_full", lambda where: True)
    monkeypatch.setattr(Lake, "_refuse_unwritable", lambda self: pytest.fail("no space is needed to free some"))
    done = CliRunner().invoke(app, ["maintain", "--lake", lake.uri, "--set", "maintain.least_files=2"])
    assert done.exit_code == 0 and "pictures that no row names deleted" in done.stdout
    assert "files of table places vacuumed" in done.stdout and "compacted" not in done.stdout
    assert not left.exists() and not picture.exists() and lake.version("places") == version, "nothing was written"
    assert "no space left on the disk" in caplog.text
