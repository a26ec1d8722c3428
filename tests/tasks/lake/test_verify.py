"""A whole lake has no problems; each kind of damage is named with its table and row."""

import json
from pathlib import Path

import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from flows.cli.application import app
from schemas.errors import LakeError
from tasks.lake import Commit, Lake
from tasks.lake.verify import Problem, verify


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
