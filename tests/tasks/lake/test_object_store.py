"""A lake on an object store: every operation over a real socket against a server process of its own."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from bench.s3_server import s3_server
from schemas.errors import LakeError
from schemas.settings.maintain import MaintainSettings
from tasks.lake import Commit, Lake
from tasks.lake.backup import copy_lake
from tasks.lake.blobs import BlobMissing
from tasks.lake.image_store import CorruptImage
from tasks.lake.maintain import maintain, vacuum
from tasks.lake.object_blobs import ObjectBlobs
from tasks.lake.verify import verify
from tasks.runtime.items.stage_lock import stage_lock
from tasks.runtime.report import MADE_FROM, report_folder, write_files


@pytest.fixture(scope="module")
def denied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists, the store takes no key."""
    return tmp_path_factory.mktemp("store") / "denied"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, denied: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, s3_server(denied=denied) as environment:
        for name, value in {**environment, "GEOFIX_STATE": str(tmp_path_factory.mktemp("state"))}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def lake(store: None, request: pytest.FixtureRequest) -> Lake:
    return Lake(f"s3://lake/{request.node.name}")


def place(name: str, **more: object) -> dict[str, object]:
    return {"place_id": name, "country": "FR", "lat": 48.5, "lon": 2.5, "split": "train", **more}


def test_blobs(lake: Lake) -> None:
    blobs = lake.blobs
    assert isinstance(blobs, ObjectBlobs)
    blobs.put("a/b.txt", b"hello")
    blobs.put("a/c/d.txt", b"other")
    blobs.put("ab/e.txt", b"beside")
    assert blobs.get("a/b.txt") == b"hello" and blobs.get_range("a/b.txt", 1, 3) == b"ell"
    assert {blob.key: blob.size for blob in blobs.list("a")} == {"a/b.txt": 5, "a/c/d.txt": 5}
    assert blobs.exists("a/b.txt") and not blobs.exists("a/x")
    assert blobs.create("a/new", b"1") and not blobs.create("a/new", b"2") and blobs.get("a/new") == b"1"
    found = blobs.get_tagged("a/new")
    assert found is not None and blobs.replace("a/new", b"3", found[1]) and not blobs.replace("a/new", b"4", found[1])
    blobs.delete("a/new")
    blobs.delete("a/new")
    with pytest.raises(BlobMissing):
        blobs.get("a/new")
    with pytest.raises(BlobMissing):
        blobs.get_range("a/new", 0, 1)


def test_folders_go_up_whole_and_come_down_once(lake: Lake, tmp_path: Path) -> None:
    folder = lake.blobs.local("models/m")
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "weights").write_bytes(os.urandom(6_000_000))
    (folder / "result.json").write_text("{}")
    lake.blobs.push("models/m", last="result.json")
    elsewhere = Lake(lake.uri, state=tmp_path / "other machine")
    pulled = elsewhere.blobs.pull("models/m")
    assert (pulled / "sub" / "weights").read_bytes() == (folder / "sub" / "weights").read_bytes()
    before = (pulled / "sub" / "weights").stat().st_ino
    elsewhere.blobs.pull("models/m")
    assert (pulled / "sub" / "weights").stat().st_ino == before, "what is here already is not fetched again"
    lake.blobs.put("models/m/result.json", b'{"changed": 1}')
    assert (elsewhere.blobs.pull("models/m") / "result.json").read_bytes() == b'{"changed": 1}'
    assert not list(pulled.rglob(".*.tmp"))


def test_pictures_and_names(lake: Lake, tmp_path: Path) -> None:
    sha256 = lake.images.put(b"bytes", "jpg")
    assert lake.images.read(sha256, "jpg") == b"bytes" and lake.images.exists(sha256, "jpg")
    assert lake.images.uri(sha256, "jpg") == f"{lake.uri}/images/{sha256[:2]}/{sha256}.jpg"
    assert [blob.key for blob in lake.images.list(sha256[:2])] == [lake.images.key(sha256, "jpg")]
    assert lake.name("x") == Lake(lake.uri, state=tmp_path).name("x")
    lake.blobs.put(lake.images.key(sha256, "jpg"), b"other")
    with pytest.raises(CorruptImage, match="does not match"):
        lake.images.read(sha256, "jpg")
    with pytest.raises(CorruptImage, match="missing"):
        lake.images.read("ab" * 32, "jpg")


def test_tables_with_time_travel_maintenance_and_verification(lake: Lake) -> None:
    assert not Lake(f"{lake.uri}-other", read_only=True).is_there()
    assert lake.existing() == [] and lake.version("places") == -1
    for batch in range(1, 5):
        lake.upsert("places", [place(f"p{batch}"), place("changes", seed=batch)], Commit("run", batch))
    assert lake.upsert("places", [place("p1")], Commit("run", 4)) == lake.version("places"), "a commit is made once"
    lake.append("places", [place("q")], Commit("run", 5))
    lake.tombstone("places", pl.DataFrame({"place_id": ["p1"]}), "gone", Commit("run", 6))
    assert lake.is_there() and lake.existing() == ["places"]
    assert sorted(lake.read("places")["place_id"]) == ["changes", "p2", "p3", "p4", "q"]
    versions = json.dumps({"places": 2})
    snapshot = {"snapshot_id": "s", "table_versions_json": versions, "status": "pending"}
    lake.upsert("snapshots", [snapshot], Commit("review", 1))
    before = lake.read("places", 2).sort("place_id")
    assert list(verify(lake)) == []
    maintain(lake, MaintainSettings(least_files=2))
    assert vacuum(lake, "places", retention_hours=0).count
    assert lake.read("places", 2).sort("place_id").equals(before) and list(verify(lake)) == []
    [key] = [blob.key for blob in lake.blobs.list("tables/snapshots") if blob.key.endswith(".parquet")]
    lake.blobs.put(key, lake.blobs.get(key)[:100])
    with pytest.raises(LakeError, match=r"table 'snapshots': file s3://.* is damaged"):
        lake.read("snapshots")


def test_a_parts_report_is_written_here_and_pushed(lake: Lake) -> None:
    files = write_files(report_folder(lake, "plan"), "digest", {"map.png": lambda: b"map"})
    lake.blobs.push("reports/plan", last=MADE_FROM)
    assert files["map.png"].read_bytes() == lake.blobs.get("reports/plan/map.png") == b"map"
    assert lake.blobs.get(f"reports/plan/{MADE_FROM}") == b"digest"


WRITER = """
    import sys
    from tasks.lake import Commit, Lake
    from tasks.lake.names import Names
    lake = Lake(sys.argv[1])
    for batch in range(1, 11):
        row = {"place_id": f"{sys.argv[2]}-{batch}", "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}
        lake.append("places", [row], Commit(f"writer-{sys.argv[2]}", batch))
        lake.upsert("gaps", [{"place_id": "shared", "kind": sys.argv[2], "wanted": batch, "got": 0, "reason": "r"}],
                    Commit(f"writer-{sys.argv[2]}", batch))
    print(lake.name("x"))
"""


@pytest.mark.whole
def test_two_processes_commit_at_once_and_lose_nothing(lake: Lake, tmp_path: Path) -> None:
    uri = f"{lake.uri}-two"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), uri, writer],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GEOFIX_STATE": str(tmp_path / writer)},  # as on two machines
        )
        for writer in "ab"
    ]
    names = {process.communicate(timeout=900)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0] and len(names) == 1
    both = Lake(uri)
    assert sorted(both.read("places")["place_id"]) == sorted(f"{w}-{n}" for w in "ab" for n in range(1, 11))
    assert both.read("gaps").sort("kind")["wanted"].to_list() == [10, 10]


def test_the_lease_of_a_stage_is_held_by_one_machine(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks.lake.lease.RENEW_S", 0.1)
    monkeypatch.setattr("tasks.lake.lease.EXPIRY_S", 1.0)
    elsewhere = Lake(lake.uri, state=tmp_path)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.close()
        time.sleep(0.3)

    with contextlib.ExitStack() as first:
        first.enter_context(stage_lock(lake, "collect"))
        with stage_lock(lake, "curate"):
            pass  # another stage is free
        with stage_lock(elsewhere, "collect", wait):
            assert len(waits) == 3, "renewed in time, it was not taken over; released, it was free at once"
    assert "another machine" in caplog.text
    with stage_lock(lake, "collect", wait):
        assert len(waits) == 3


def test_a_lease_that_is_not_renewed_expires_and_one_of_this_machine_is_taken_over(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.lake.lease.EXPIRY_S", 0.5)
    dead = json.dumps({"machine": "elsewhere", "who": "killed", "n": 1}).encode()
    lake.blobs.put("locks/collect.json", dead)
    waits: list[float] = []
    with stage_lock(lake, "collect", lambda _: (waits.append(1), time.sleep(0.2))[1]):
        assert waits
    with stage_lock(lake, "collect"):
        mine = lake.blobs.get("locks/collect.json")
    lake.blobs.put("locks/collect.json", mine)  # as a killed process of this machine would have left it
    monkeypatch.setattr("tasks.lake.lease.EXPIRY_S", 1000.0)
    with stage_lock(lake, "collect", lambda _: pytest.fail("waited for a process of this machine that is gone")):
        pass


def test_a_store_that_cannot_be_used_is_one_line_with_bucket_and_variables(
    store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(uri: str = "s3://nowhere/x", **options: bool) -> str:
        with pytest.raises(LakeError) as refused:
            Lake(uri, **options).is_there()
        return str(refused.value)

    assert said() == (
        "lake 's3://nowhere/x' cannot be written: the store knows no such bucket; check bucket 'nowhere' and the "
        "environment: AWS_ENDPOINT_URL (set), AWS_ACCESS_KEY_ID (set), AWS_SECRET_ACCESS_KEY (set), AWS_REGION (set)"
    )
    with socket.socket() as closed:  # bound, but nothing listens
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        for words in (said(), said(read_only=True)):
            assert "the store gave no usable answer; check bucket 'nowhere'" in words and "Generic" not in words
        # Without keys the library asks the cloud's host for some, which here does not answer either.
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        words = said()
        assert "AWS_ACCESS_KEY_ID (not set)" in words and "AWS_SECRET_ACCESS_KEY (set)" in words and "\n" not in words
    assert "AZURE_STORAGE_ACCOUNT_NAME (not set)" in said("az://container/x")


def test_credentials_that_are_lost_in_the_middle_are_one_line(lake: Lake, denied: Path) -> None:
    lake.upsert("places", [place("a")], Commit("run", 1))
    denied.touch()
    try:
        for attempt in (
            lambda: lake.upsert("places", [place("b")], Commit("run", 2)),
            lambda: lake.read("places"),
            lambda: lake.blobs.put("reports/x", b"x"),
            lambda: lake.images.put(b"picture", "jpg"),
            lambda: lake.blobs.get("names.key"),
        ):
            with pytest.raises(LakeError) as refused:
                attempt()
            said = str(refused.value)
            assert "the store refuses the credentials; check bucket 'lake' and the environment" in said, said
            assert "AWS_SECRET_ACCESS_KEY (set)" in said and "\n" not in said
    finally:
        denied.unlink()
    lake.upsert("places", [place("b")], Commit("run", 2))
    assert lake.read("places")["place_id"].sort().to_list() == ["a", "b"]


def test_a_backup_goes_to_an_object_store_and_back(lake: Lake, tmp_path: Path) -> None:
    here = Lake(tmp_path / "lake")
    here.name("anything")
    here.upsert("places", [place("p")], Commit("run", 1))
    here.images.put(b"a picture", "jpg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.lake.backup.LARGE", 8)  # every file goes by disk, as checkpoints do
        copy_lake(here, lake)
        back = Lake(tmp_path / "back")
        copy_lake(lake, back)
    assert back.read("places").to_dicts() == here.read("places").to_dicts() == lake.read("places").to_dicts()
    assert [blob.size for blob in back.images.list()] == [9] and list(verify(back)) == []
