"""A whole lake has no problems; each kind of damage is named with its table and row."""

import json
from pathlib import Path

import polars as pl
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from flows.cli.application import app
from schemas.errors import LakeError
from tasks.lake import Commit, Lake
from tasks.lake.backup import copy_lake
from tasks.lake.verify import Problem, verify
from tasks.runtime.items.stage_table import StageTable


def place(name: str) -> dict[str, object]:
    return {"place_id": name, "country": "FR", "lat": 48.5, "lon": 2.5, "split": "train"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    data = b"a picture"
    sha256 = lake.images.put(data, "jpg")
    told = lake.images.put(b"what a tool returned", "jpg")
    fixed = {"kind": "photo", "lat": 1.0, "lon": 2.0, "source": "s", "source_id": "1", "licence": "l"}
    row = {"image_id": "i", "place_id": "p", "sha256": sha256, "extension": "jpg", "bytes": len(data), **fixed}
    lake.upsert("places", [place("p")], Commit("run", 1))
    lake.upsert("images", [{**row, "attribution": "a"}], Commit("run", 1))
    label = {"image_id": "i", "place_id": "p", "sha256": sha256, "lat": 1.0, "lon": 2.0, "split": "train"}
    lake.upsert("labels", [label], Commit("run", 1))
    messages = json.dumps([{"role": "tool", "content": [{"image_url": {"url": f"sha256:{told}.jpg"}}]}])
    trajectory = {"trajectory_id": "t", "image_id": "i", "recipe": "r", "messages_json": messages}
    trajectory |= {"verdict": "kept", "end_reason": "answered"}
    lake.upsert("trajectories", [trajectory], Commit("run", 1))
    lake.blobs.put("models/m/result.json", b"{}")
    model = {"model_id": "m", "training_stage": "sft", "checkpoint": "models/m", "snapshot_id": "s"}
    lake.upsert("models", [model], Commit("run", 1))
    versions = json.dumps({name: lake.version(name) for name in ("places", "images")})
    lake.upsert(
        "snapshots", [{"snapshot_id": "s", "table_versions_json": versions, "status": "approved"}], Commit("r", 1)
    )
    return lake


def problems(lake: Lake, quick: bool = False) -> list[tuple[str, str]]:
    return [(one.table, one.row_id) for one in verify(lake, quick)]


@pytest.mark.parametrize("quick", [False, True])
def test_a_whole_lake_has_no_problems(lake: Lake, quick: bool) -> None:
    assert problems(lake, quick) == []


@pytest.mark.parametrize("quick", [False, True])
def test_missing_and_changed_pictures_are_found(lake: Lake, quick: bool) -> None:
    for blob in list(lake.images.list()):
        lake.blobs.delete(blob.key)
    assert sorted(problems(lake, quick)) == [("images", "i"), ("trajectories", "t")]


def test_a_picture_with_other_bytes_is_found(lake: Lake) -> None:
    [row] = lake.read("images").to_dicts()
    path = lake.images.path(row["sha256"], "jpg")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    [found] = verify(lake)
    assert (found.table, found.row_id) == ("images", "i") and "does not match its sha256" in found.what
    assert problems(lake, quick=True) == [], "a quick look reads no picture"
    path.write_bytes(b"short")
    assert [p.what.partition(" has ")[2] for p in verify(lake, quick=True)] == ["5 bytes, expected 9"]


def test_a_reference_to_nothing_is_found(lake: Lake) -> None:
    attempt = {"attempt_id": "a", "image_id": "gone", "policy": "p", "trial": 1}
    lake.upsert("attempts", [attempt], Commit("run", 2))
    assert list(verify(lake)) == [Problem("attempts", "a", "image_id gone is not in table images")]


def test_a_key_that_stands_twice_is_found(lake: Lake) -> None:
    table = lake.delta("places")
    assert table is not None
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    assert ("places", "p") in problems(lake)


def test_a_missing_checkpoint_or_key_is_found(lake: Lake) -> None:
    lake.blobs.delete("models/m")
    (lake.root / "names.key").unlink()
    assert sorted(problems(Lake(lake.root, read_only=True))) == [("images", ""), ("models", "m")]


@pytest.mark.parametrize("damage", ["cut", "gone", "middle"])
def test_a_damaged_file_is_named_by_reading_and_by_verify(lake: Lake, damage: str) -> None:
    lake.upsert("places", [place(f"q{n}") for n in range(2000)], Commit("run", 2))
    path = max((lake.root / "tables" / "places").glob("*.parquet"), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data[:100] + b"\xff" * 300 + data[400:])
    with pytest.raises(LakeError, match=rf"table 'places': file .*{path.name} is damaged \(.*; `geofix verify`"):
        lake.read("places")
    assert any(one.table == "places" and path.name in one.what for one in verify(lake))


def test_a_stage_names_the_damaged_file_of_its_own_table(lake: Lake) -> None:
    rows = [{**place(f"q{n}"), "stage": "plan", "item_id": f"q{n}"} for n in range(200)]
    lake.upsert("places", rows, Commit("run", 2))
    path = max((lake.root / "tables" / "places").glob("*.parquet"), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(len(data) - 12) + data[-8:])  # it still ends like a Parquet file
    items = pl.DataFrame({"id": ["q1"], "made_from": [None]}, schema={"id": pl.String, "made_from": pl.String})
    with pytest.raises(LakeError, match=rf"table 'places': file .*{path.name} is damaged"):
        StageTable(lake, "places", "plan", "run").read_rows(items)


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_a_damaged_commit_is_named_by_reading_and_by_verify(lake: Lake, damage: str) -> None:
    log = max((lake.root / "tables" / "places" / "_delta_log").glob("*.json"))
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2] if damage == "cut" else bytes(len(whole)))
    fresh = Lake(lake.root, read_only=True)
    with pytest.raises(
        LakeError, match=rf"table 'places': file .*{log.name} is damaged \(.*; restore it from a backup"
    ):
        fresh.read("places")
    assert any(one.table == "places" and f"{log.name} is damaged: it is not JSON" in one.what for one in verify(fresh))


def test_a_file_that_only_a_snapshot_needs_is_checked(lake: Lake) -> None:
    [old] = (lake.root / "tables" / "places").glob("*.parquet")
    lake.upsert("places", [{**place("p"), "seed": 5}], Commit("run", 2))
    assert problems(lake) == []
    old.unlink()
    [found] = verify(lake, quick=True)
    assert found.table == "places" and "needed by a snapshot" in found.what


def damage(lake: Lake, *tables: str) -> None:
    for name in tables:
        [path, *_] = (lake.root / "tables" / name).glob("*.parquet")
        path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize("quick", [False, True])
def test_damage_in_one_table_hides_none_in_another(lake: Lake, quick: bool) -> None:
    damage(lake, "places", "trajectories")
    log = max((lake.root / "tables" / "labels" / "_delta_log").glob("*.json"))
    log.write_bytes(b"")
    lake.blobs.delete("models/m")
    for blob in list(lake.images.list()):
        lake.blobs.delete(blob.key)
    found = problems(Lake(lake.root, read_only=True), quick)
    assert sorted(set(found)) == [
        ("images", "i"),
        ("labels", ""),
        ("models", "m"),
        ("places", ""),
        ("trajectories", ""),
    ]


def test_the_list_of_tables_goes_on_past_damaged_ones(lake: Lake) -> None:
    damage(lake, "places", "labels")
    said = CliRunner().invoke(app, ["tables", "--lake", lake.uri])
    assert said.exit_code == 1 and "models" in said.stdout
    assert "table 'places': file" in said.stderr and "table 'labels': file" in said.stderr
    listed = CliRunner().invoke(app, ["tables", "--json", "--lake", lake.uri])
    rows = {row["table"]: row for row in json.loads(listed.stdout)}
    assert listed.exit_code == 1 and rows["images"]["rows"] == 1 and "is damaged" in rows["labels"]["damaged"]


def rows(lake: Lake) -> dict[str, list[dict[str, object]]]:
    return {name: lake.read(name).sort(lake.read(name).columns[0]).to_dicts() for name in lake.existing()}


def test_a_backup_is_the_lake_and_a_second_one_copies_what_is_new(lake: Lake, tmp_path: Path) -> None:
    lake.name("anything")  # makes the key of the names
    lake.blobs.put("models/.half/weights", b"not finished")
    copy = Lake(tmp_path / "backup")
    first = copy_lake(lake, copy)
    assert first.files > 8 and first.kept == 0 and rows(copy) == rows(lake) and problems(copy) == []
    assert copy.name("anything") == lake.name("anything") and not copy.blobs.exists("models/.half/weights")
    key = (tmp_path / "backup" / "names.key").stat()
    assert key.st_mode & 0o077 == 0, "only the owner reads the key"

    again = copy_lake(lake, copy)
    assert again.kept == first.files and again.files == 0
    lake.upsert("places", [place("q")], Commit("run", 2))
    [picture] = [blob.key for blob in lake.images.list() if lake.blobs.get(blob.key) == b"what a tool returned"]
    lake.tombstone("trajectories", pl.DataFrame({"trajectory_id": ["t"]}), "withdrawn", Commit("run", 2))
    lake.blobs.delete(picture)  # withdrawn
    later = copy_lake(lake, copy)
    assert rows(copy) == rows(lake) and problems(copy) == [] and not copy.blobs.exists(picture)
    assert 2 <= later.files <= 6 and later.removed == 1


def test_a_backup_that_is_killed_leaves_the_one_before_it(lake: Lake, tmp_path: Path) -> None:
    lake.name("anything")
    copy = Lake(tmp_path / "backup")
    copy_lake(lake, copy)
    before = rows(copy)
    lake.upsert("places", [place("q")], Commit("run", 2))
    lake.upsert("snapshots", [{"snapshot_id": "t", "table_versions_json": "{}", "status": "pending"}], Commit("r", 2))

    def killed(done: int, count: int) -> None:
        if done == count - 2:  # the files of both tables are there, their commits are not
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_lake(lake, copy, killed)
    assert rows(copy) == before and problems(copy) == []
    copy_lake(lake, copy)
    assert rows(copy) == rows(lake)


def test_the_commands_back_up_restore_and_refuse(lake: Lake, tmp_path: Path) -> None:
    lake.name("anything")

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments))
        return done.exit_code, done.output

    backup, back = str(tmp_path / "backup"), str(tmp_path / "restored lake")
    code, told = run("backup", backup, "--lake", lake.uri)
    assert code == 0 and "copied, 0 were there" in told and "is whole: 6 tables" in told
    code, told = run("restore", backup, "--lake", back, "--json")
    assert code == 0 and json.loads(told)["problems"] == [] and rows(Lake(back)) == rows(lake)
    code, told = run("restore", backup, "--lake", back)
    assert code == 2 and "there is a lake at" in told
    other = Lake(tmp_path / "other")
    other.upsert("places", [place("x")], Commit("run", 1))
    (tmp_path / "other" / "names.key").write_text("0f" * 32)
    code, told = run("backup", other.uri, "--lake", lake.uri)
    assert code == 2 and "holds another lake" in told and len(other.read("places")) == 1
    code, told = run("backup", lake.uri, "--lake", lake.uri)
    assert code == 2 and "is the lake itself" in told
    lake.blobs.delete(next(iter(lake.images.list())).key)
    code, told = run("backup", str(tmp_path / "late"), "--lake", lake.uri)
    assert code == 1 and "is damaged" in told, "a lake that lacks a picture has no whole backup"


@pytest.mark.parametrize("place_of_link", ["images/aa/secret.jpg", "models/m/folder", "reports", "names.key"])
def test_a_backup_with_a_link_is_not_restored(lake: Lake, tmp_path: Path, place_of_link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of this machine")
    link = lake.root / place_of_link
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside if link.suffix == "" else outside / "secret")
    done = CliRunner().invoke(app, ["restore", lake.uri, "--lake", str(tmp_path / "back")])
    assert done.exit_code == 2 and f"{link} is a link" in done.output and len(done.output.splitlines()) == 1
    assert not any(path.name == "secret" for path in (tmp_path / "back").rglob("*"))


def test_a_log_that_names_a_file_elsewhere_is_refused(lake: Lake, tmp_path: Path) -> None:
    log = next((lake.root / "tables/places/_delta_log").glob("*1.json"))
    file = json.loads(next(line for line in log.read_text().splitlines() if '"add"' in line))["add"]["path"]
    log.write_text(log.read_text().replace(file, f"../../../{file}"))
    message = f"table 'places': its log names '../../../{file}', which is not a file of its own folder"
    with pytest.raises(LakeError, match=message.replace(".", r"\.")):
        lake.read("places")
    done = CliRunner().invoke(app, ["restore", lake.uri, "--lake", str(tmp_path / "back")])
    assert done.exit_code == 1 and message in done.output and not (tmp_path / "back").exists()
