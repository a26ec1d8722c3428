"""The lake keeps what it promises: keys, versions, idempotent commits, concurrent writers, kept snapshots."""

import json
import random
import shutil
import subprocess
import threading
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from schemas.errors import LakeError, LakeUnwritable
from tasks.lake import Commit, Lake
from tasks.lake.image_store import CorruptImage
from tasks.lake.writes import write_error


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def place(name: str, **more: object) -> dict[str, object]:
    return {"place_id": name, "country": "FR", "lat": 48.5, "lon": 2.5, "split": "train", **more}


def test_a_missing_table_reads_as_empty(lake: Lake) -> None:
    assert lake.version("places") == -1
    assert lake.read("places").is_empty()
    assert lake.history("places") == []


def test_upsert_replaces_by_key_and_keeps_the_rest(lake: Lake) -> None:
    lake.upsert("places", [place("a"), place("b")], Commit("run", 1))
    lake.upsert("places", [place("b", country="DE"), place("c")], Commit("run", 2))
    rows = lake.read("places").sort("place_id")
    assert rows["place_id"].to_list() == ["a", "b", "c"]
    assert rows["country"].to_list() == ["FR", "DE", "FR"]


@pytest.mark.parametrize("name", ["mit leer", "umläut", "#1 日本"])
def test_a_path_may_hold_spaces_and_letters_of_every_language(tmp_path: Path, name: str) -> None:
    lake = Lake(tmp_path / name)
    lake.upsert("places", [place("a"), place("b")], Commit("run", 1))
    lake.upsert("places", [place("b", country="DE"), place("c")], Commit("run", 2))
    lake.tombstone("places", pl.DataFrame({"place_id": ["a"]}), "gone", Commit("run", 3))
    assert dict(lake.read("places").select("place_id", "country").iter_rows()) == {"b": "DE", "c": "FR"}
    assert lake.read("places", version=1).height == 2 and lake.existing() == ["places"]
    assert Lake((tmp_path / name).as_uri()).read("places").equals(lake.read("places"))


def test_upsert_by_a_key_of_two_columns(lake: Lake) -> None:
    rows = [{"image_id": "i", "policy": p, "k": 8, "kept": True} for p in ("p", "q")]
    lake.upsert("regimes", rows, Commit("run", 1))
    lake.upsert("regimes", [{"image_id": "i", "policy": "q", "k": 4, "kept": False}], Commit("run", 2))
    assert dict(lake.read("regimes").select("policy", "k").iter_rows()) == {"p": 8, "q": 4}


def test_the_same_run_and_batch_commits_once(lake: Lake) -> None:
    first = lake.upsert("places", [place("a")], Commit("run", 1))
    again = lake.upsert("places", [place("a", country="XX")], Commit("run", 1))
    assert again == first
    assert lake.read("places")["country"].to_list() == ["FR"]
    lake.append("runs", [{"run_id": "r", "status": "done"}], Commit("r", 1))
    lake.append("runs", [{"run_id": "r", "status": "done"}], Commit("r", 1))
    assert lake.read("runs").height == 1


def test_an_older_version_reads_as_it_was(lake: Lake) -> None:
    version = lake.upsert("places", [place("a")], Commit("run", 1))
    lake.upsert("places", [place("a", country="DE"), place("b")], Commit("run", 2))
    lake.tombstone("places", pl.DataFrame({"place_id": ["a"]}), "gone", Commit("run", 3))
    assert lake.read("places", version)["country"].to_list() == ["FR"]
    assert lake.read("places")["place_id"].to_list() == ["b"]


def test_a_tombstone_hides_a_row_and_says_why(lake: Lake) -> None:
    lake.upsert("places", [place("a"), place("b")], Commit("run", 1))
    lake.tombstone("places", pl.DataFrame({"place_id": ["a"]}), "deleted 'upstream'", Commit("other", 1))
    assert lake.read("places")["place_id"].to_list() == ["b"]
    buried = lake.scan("places").filter(pl.col("place_id") == "a").collect().row(0, named=True)
    assert (buried["tombstone"], buried["run_id"]) == ("deleted 'upstream'", "other")
    lake.upsert("places", [place("a")], Commit("run", 2))
    assert lake.read("places").height == 2, "an upsert brings a row back"


def test_history_carries_run_configuration_code_and_input_versions(lake: Lake) -> None:
    commit = Commit("run-1", 4, "collect", "c0ffee", "0.1.0+abc", {"places": 3})
    lake.upsert("images", [_image("1")], commit)
    entry = lake.history("images")[0]
    assert entry["run_id"] == "run-1"
    assert (entry["batch"], entry["stage"], entry["config_hash"]) == ("4", "collect", "c0ffee")
    assert entry["code_version"] == "0.1.0+abc"
    assert json.loads(entry["input_versions"]) == {"places": 3}


def test_concurrent_writers_both_succeed(lake: Lake) -> None:
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for batch in range(1, 5):
                rows = [place(f"{writer}-{batch}-{n}") for n in range(5)] + [place("shared", seed=writer)]
                Lake(lake.root).upsert("places", rows, Commit(f"writer-{writer}", batch))
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    ids = lake.read("places")["place_id"]
    assert ids.len() == 3 * 4 * 5 + 1
    assert ids.n_unique() == ids.len()


def test_a_table_of_another_schema_is_refused_by_name(lake: Lake) -> None:
    write_deltalake(
        str(lake.root / "tables" / "places"), pl.DataFrame({"place_id": ["a"], "lat": ["north"]}).to_arrow()
    )
    with pytest.raises(LakeError, match=r"table 'places' .* column 'lat' is .*string.*, expected double"):
        lake.read("places")


def test_a_column_added_to_the_contract_later_is_null_in_old_rows(lake: Lake) -> None:
    path = str(lake.root / "tables" / "places")
    old = pl.DataFrame({"place_id": ["a"], "country": ["FR"], "lat": [1.0], "lon": [2.0], "split": ["train"]})
    write_deltalake(path, old.with_columns(tombstone=pl.lit(None, dtype=pl.String)).to_arrow())
    assert lake.read("places").row(0, named=True)["seed"] is None
    lake.upsert("places", [place("b", seed=3)], Commit("run", 1))
    assert dict(lake.read("places").select("place_id", "seed").iter_rows()) == {"a": None, "b": 3}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"place_id": "a", "country": "FR", "lon": 1.0, "split": "train"}], "column 'lat' is empty"),
        ([place("a", latitude=3)], "no column 'latitude'"),
        ([place("a", lat="north")], "column 'lat' must be double"),
        ([place("a"), place("a")], "repeat a key"),
    ],
)
def test_rows_that_break_the_contract_are_refused_and_nothing_is_written(
    lake: Lake, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(LakeError, match=message):
        lake.upsert("places", rows, Commit("run", 1))
    assert lake.version("places") == -1


def test_an_id_that_went_through_a_float_is_refused(lake: Lake) -> None:
    rows = pl.DataFrame([_image("1")]).with_columns(source_id=pl.lit(1.2345678901234567e17))
    with pytest.raises(LakeError, match="'source_id' must be text"):
        lake.upsert("images", rows, Commit("run", 1))


def test_an_unknown_table_is_named_with_the_known_ones(lake: Lake) -> None:
    with pytest.raises(LakeError, match="no table 'pictures'; the tables are places, images"):
        lake.read("pictures")


def test_a_lake_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LakeError, match=r"cannot be written: .*; choose another with --lake"):
        Lake(tmp_path / "file" / "lake")


def test_a_full_disk_is_one_clear_line_and_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        lake = Lake(mount / "lake")
        lake.upsert("places", [place("a")], Commit("run", 1))
        chance = random.Random(1)
        many = [place(f"{n:064x}", admin1=chance.randbytes(200).hex()) for n in range(40_000)]
        with pytest.raises(LakeUnwritable, match="no space left on the disk"):
            lake.upsert("places", many, Commit("run", 2))
        assert lake.read("places")["place_id"].to_list() == ["a"]
        for left in (mount / "lake").rglob("*.parquet"):  # what a write that broke off may leave
            if left.stat().st_size > 1_000_000:
                left.unlink()
        with (mount / "filler").open("wb") as filler:
            filler.write(bytes(shutil.disk_usage(mount).free - 1_000_000))
        with pytest.raises(LakeUnwritable, match="no space left on the disk"):
            lake.upsert("places", [place("b")], Commit("run", 3))  # not begun
        # All that delta-rs may say of it.
        said = str(write_error("places", lake.uri, DeltaError("Generic LocalFileSystem error")))
        assert "no space left on the disk" in said and "free some and run again" in said
        with pytest.raises(LakeUnwritable, match="cannot be written: No space left"):
            lake.images.put(bytes(range(256)) * 8000, "jpg")
        assert not list((lake.root / "images").rglob("*.tmp"))
        assert Lake(mount / "lake", read_only=True).read("places")["place_id"].to_list() == ["a"]
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_images_are_stored_once_under_their_hash(lake: Lake) -> None:
    sha256 = lake.images.put(b"picture", "jpg")
    assert lake.images.put(b"picture", "jpg") == sha256
    assert lake.images.path(sha256, "jpg").relative_to(lake.root).parts[:2] == ("images", sha256[:2])
    assert lake.images.read(sha256, "jpg") == b"picture"
    assert len([p for p in (lake.root / "images").rglob("*") if p.is_file()]) == 1


def test_a_damaged_or_missing_image_is_noticed_on_read(lake: Lake) -> None:
    sha256 = lake.images.put(b"picture", "png")
    lake.images.path(sha256, "png").write_bytes(b"pictura")
    with pytest.raises(CorruptImage, match="does not match its sha256"):
        lake.images.read(sha256, "png")
    lake.images.path(sha256, "png").unlink()
    with pytest.raises(CorruptImage, match="missing"):
        lake.images.read(sha256, "png")


@pytest.mark.parametrize("name", ["../../etc/passwd", "ab", "", "A" * 64])
def test_only_a_hash_names_an_image(lake: Lake, name: str) -> None:
    with pytest.raises(LakeError, match="is not a sha256"):
        lake.images.path(name, "jpg")
    with pytest.raises(LakeError, match="extension"):
        lake.images.path("a" * 64, "exe")


def test_tables_are_plain_delta_that_others_can_read(lake: Lake) -> None:
    lake.upsert("places", [place("a")], Commit("run", 1))
    assert DeltaTable(str(lake.root / "tables" / "places")).to_pyarrow_table().num_rows == 1


def _image(name: str) -> dict[str, object]:
    return {
        "image_id": name,
        "kind": "photo",
        "lat": 1.0,
        "lon": 2.0,
        "source": "mapillary",
        "source_id": "123456789012345678",
        "licence": "CC BY-SA 4.0",
        "attribution": "somebody",
        "sha256": "0" * 64,
    }
