"""Bad input: one clear line, exit code 1 or 2, nothing half-written."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from deltalake import write_deltalake


def geofix(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.endswith(("_TOKEN", "_KEY"))}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("geofix: ")
    for word in words:
        assert word in lines[0]
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--recipe", "spotagnt"], 2, ["unknown recipe 'spotagnt'", "did you mean 'spotagent'"]),
        (["--profile", "prod"], 2, ["unknown profile 'prod'", "offline, production"]),
        (["--set", "plan.places=0"], 2, ["plan.places", "given 0", "greater than or equal to 1"]),
        (["--set", "plan.places=many"], 2, ["plan.places", "given 'many'", "valid integer"]),
        (["--set", "plan.plces=3"], 2, ["plan.plces", "did you mean 'places'"]),
        (["--config", "nowhere.yaml"], 2, ["nowhere.yaml", "No such file"]),
        (["--lake", "s3://bucket/lake"], 1, ["not a local folder"]),
        (["--from", "nowhere"], 2, ["no part 'nowhere'", "plan, collect"]),
        (["--from", "train", "--to", "plan"], 2, ["comes after"]),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], code: int, words: list[str]) -> None:
    assert_refused(geofix("run", *options, cwd=tmp_path), code, *words)
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_wrong_type_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("plan:\n  places: [1, 2]\n")
    result = geofix("run", "--config", "own.yaml", cwd=tmp_path)
    assert_refused(result, 2, "own.yaml: plan.places: given [1, 2]", "integer")
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


def test_missing_keys_in_production_are_named_all_at_once(tmp_path: Path) -> None:
    result = geofix("run", "--profile", "production", cwd=tmp_path)
    assert_refused(result, 1, "MAPILLARY_TOKEN", "TAVILY_API_KEY", "OPENAI_API_KEY")
    assert list(tmp_path.iterdir()) == []


def test_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_refused(geofix("run", "--lake", "file/lake", cwd=tmp_path), 1, "cannot be written", "--lake")


def test_a_table_with_a_wrong_schema(tmp_path: Path) -> None:
    write_deltalake(
        str(tmp_path / "lake/tables/places"), pl.DataFrame({"place_id": ["a"], "lat": ["north"]}).to_arrow()
    )
    assert_refused(geofix("show", "places", cwd=tmp_path), 1, "table 'places'", "column 'lat'", "expected double")


def test_looking_into_a_lake_that_is_not_there(tmp_path: Path) -> None:
    assert_refused(geofix("tables", cwd=tmp_path), 1, "there is no lake at 'lake'", "geofix demo")
    assert list(tmp_path.iterdir()) == [], "looking makes no lake"


def test_unknown_tables_ids_and_snapshots(tmp_path: Path) -> None:
    (tmp_path / "lake/tables").mkdir(parents=True)
    assert_refused(geofix("show", "pictures", cwd=tmp_path), 2, "no table 'pictures'", "places, images")
    assert_refused(geofix("trace", "nothing", cwd=tmp_path), 1, "no row has the id 'nothing'")
    assert_refused(geofix("approve", "nothing", cwd=tmp_path), 1, "nothing")


def test_predictions_that_cannot_be_scored(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,lat,lon,true_lat,true_lon\na,1,2,95,4\n")
    result = geofix("score", "p.csv", cwd=tmp_path)
    assert_refused(result, 1, "p.csv", "true_lat")


def test_debug_shows_the_way(tmp_path: Path) -> None:
    result = geofix("run", "--recipe", "spotagnt", "--debug", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_help_is_quick_and_complete(tmp_path: Path) -> None:
    result = geofix("--help", cwd=tmp_path)
    assert result.returncode == 0
    stages = "plan collect curate review synthesize difficulty train evaluate"
    for command in f"demo run refresh {stages} approve reject score tables show trace offline up down".split():
        assert command in result.stdout
