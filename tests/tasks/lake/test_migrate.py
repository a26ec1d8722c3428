"""A lake of an earlier release: read as it is, migrated with a dry run, and the lake that the last release made."""

import dataclasses
import json
import tarfile
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from flows.cli import app
from schemas.errors import LakeError
from schemas.tables import TABLES
from schemas.tables.base import FLOAT, INT
from tasks.lake import Commit, Lake
from tasks.lake.migrate import pending_migrations
from tasks.lake.verify import verify

DATA = Path(__file__).parents[2] / "data"
PLACE = {"country": "FR", "lat": 1.0, "lon": 2.0, "split": "train", "item_id": "a", "run_id": "r"}


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake whose release called `city` town, counted `seed` in whole numbers and had a column `mood`."""
    now = TABLES["places"]
    columns = {("town" if name == "city" else name): kind for name, kind in now.columns.items() if name != "cell"}
    before = dataclasses.replace(now, columns={**columns, "seed": INT, "mood": INT}, renamed={})
    monkeypatch.setitem(TABLES, "places", before)
    lake = Lake(tmp_path / "lake")
    lake.append("places", [{"place_id": "a", "town": "Lyon", "seed": 3, "mood": 1, **PLACE}], Commit("r", 1, "plan"))
    lake.append("places", [{"place_id": "b", "town": "Nice", "seed": 4, "mood": 2, **PLACE}], Commit("r", 2, "plan"))
    after = dataclasses.replace(now, columns={**now.columns, "seed": FLOAT}, renamed={"city": "town"})
    monkeypatch.setitem(TABLES, "places", after)
    return Lake(lake.root)


def cities(lake: Lake, version: int | None = None) -> list[tuple[str, str, float, str | None]]:
    return lake.read("places", version).sort("place_id").select("place_id", "city", "seed", "cell").rows()


def geofix(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_old_names_and_kinds_are_read_without_a_migration(older: Lake) -> None:
    assert cities(older) == [("a", "Lyon", 3.0, None), ("b", "Nice", 4.0, None)]
    assert older.scan("places").filter(pl.col("city") == "Nice").collect()["place_id"].to_list() == ["b"]


def test_writing_is_refused_until_the_table_is_migrated(older: Lake) -> None:
    with pytest.raises(LakeError, match=r"earlier geofix \(.*town becomes city.*\): run `geofix migrate`"):
        older.append("places", [{"place_id": "c", "city": "Brest", **PLACE}], Commit("r", 3, "plan"))


def test_a_dry_run_says_what_changes_and_writes_nothing(older: Lake) -> None:
    before = sorted(path for path in older.root.rglob("*") if path.is_file())
    said = geofix("migrate", "--dry-run", "--lake", str(older.root))
    assert said.strip() == (
        "places: adds cell; writes all rows anew: town becomes city, seed becomes double, was int64; drops mood"
    )
    assert sorted(path for path in older.root.rglob("*") if path.is_file()) == before
    [told] = json.loads(geofix("migrate", "--dry-run", "--json", "--lake", str(older.root)))["tables"]
    assert (told["table"], told["added"], told["dropped"]) == ("places", ["cell"], ["mood"])


def test_a_migration_keeps_rows_old_versions_and_the_stages_count(older: Lake) -> None:
    rows, version = cities(older), older.version("places")
    count = older.stage_count("places", "plan").count
    geofix("migrate", "--lake", str(older.root))
    lake = Lake(older.root)
    assert cities(lake) == rows and lake.version("places") == version + 1
    assert cities(lake, version) == rows, "a snapshot's version is still read"
    assert lake.stage_count("places", "plan").count == count == 2, "no run takes it for another one's commit"
    lake.append("places", [{"place_id": "c", "city": "Brest", **PLACE}], Commit("r", 3, "plan"))
    assert [row[0] for row in cities(lake)] == ["a", "b", "c"]
    assert list(pending_migrations(lake)) == []
    assert "nothing to do" in geofix("migrate", "--lake", str(lake.root))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake that `tests/data/make_lake.py` made with the last release."""
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(DATA / "lake-0.1.0.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder / "lake"


def test_the_last_releases_lake_is_small() -> None:
    assert (DATA / "lake-0.1.0.tar.xz").stat().st_size < 300_000


def test_the_last_releases_lake_is_whole_for_this_one(released: Path) -> None:
    lake = Lake(released, read_only=True)
    for name in lake.existing():
        assert lake.read(name).columns == TABLES[name].schema.names, name
    filled = {name for name in lake.existing() if lake.read(name).height}
    assert filled >= {"places", "images", "judgements", "labels", "snapshots", "trajectories", "attempts", "calls"}
    problems = [str(one) for one in verify(lake)]
    assert [one for one in problems if "picture " not in one] == [], "pictures alone were left out"
    assert lake.read("snapshots")["status"].to_list() == ["approved"]


def test_the_last_releases_lake_can_be_written_after_migrating(released: Path) -> None:
    geofix("migrate", "--lake", str(released))
    lake = Lake(released)
    snapshot = lake.read("snapshots")["snapshot_id"][0]
    geofix("reject", snapshot, "--why", "a test", "--force", "--reviewer", "me", "--lake", str(released))
    assert lake.read("snapshots")["status"].to_list() == ["rejected"]
    image = lake.read("images")["image_id"][0]
    assert "images" in geofix("trace", image, "--lake", str(released))
