"""`geofix maintain`, `geofix verify`, and what reading commands say of a damaged lake."""

import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks.lake import Commit, Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    for batch in range(1, 10):
        row = {"place_id": f"p{batch}", "country": "FR", "lat": 1.0, "lon": 2.0, "split": "train"}
        lake.append("places", [row], Commit("run", batch))
    old = time.time() - 30 * 24 * 3600
    os.utime(lake.images.path(lake.images.put(b"orphan", "jpg"), "jpg"), (old, old))
    return lake


def geofix(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_maintain_says_what_it_frees(lake: Lake) -> None:
    code, said = geofix("maintain", "--dry-run", "--lake", lake.uri)
    assert code == 0 and "9 files of table places would be compacted" in said
    assert "1 pictures that no row names would be deleted" in said and "would be freed" in said
    code, said = geofix("maintain", "--json", "--lake", lake.uri)
    found = json.loads(said)
    assert code == 0 and found["freed_bytes"] == len(b"orphan") and len(found["done"]) == 2
    assert geofix("maintain", "--lake", lake.uri) == (0, f"nothing to do in {lake.uri}\n")
    assert lake.read("places").height == 9


def test_a_retention_is_a_setting(lake: Lake) -> None:
    code, said = geofix("maintain", "--lake", lake.uri, "--set", "maintain.images_days=60")
    assert code == 0 and "pictures" not in said
    code, said = geofix("maintain", "--lake", lake.uri, "--set", "maintain.images_days=0")
    assert code == 2 and "maintain.images_days" in said


def test_verify_ends_with_1_if_anything_is_wrong(lake: Lake) -> None:
    code, said = geofix("verify", "--lake", lake.uri)
    assert code == 0 and f"lake {lake.uri} is whole: 1 tables" in said
    attempt = {"attempt_id": "a", "image_id": "gone", "policy": "p", "trial": 1}
    lake.upsert("attempts", [attempt], Commit("run", 1))
    code, said = geofix("verify", "--quick", "--lake", lake.uri)
    assert code == 1 and "attempts a: image_id gone is not in table images\n" in said
    assert "is damaged: 1 problems in attempts" in said
    code, said = geofix("verify", "--json", "--lake", lake.uri)
    assert code == 1 and json.loads(said)["problems"][0]["row_id"] == "a"


def test_there_must_be_a_lake(tmp_path: Path) -> None:
    for command in ("maintain", "verify"):
        code, said = geofix(command, "--lake", str(tmp_path / "none"))
        assert code == 2 and "there is no lake" in said and not (tmp_path / "none").exists()


def test_reading_a_damaged_table_is_one_line(lake: Lake) -> None:
    path = next((lake.root / "tables" / "places").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:200])
    for words in (["show", "places"], ["tables"], ["trace", "p1"]):
        done = CliRunner().invoke(app, [*words, "--lake", lake.uri])
        assert done.exit_code == 1 and done.stderr.count("\n") == 1, done.stderr
        assert f"table 'places': file {path} is damaged" in done.stderr
