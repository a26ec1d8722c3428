"""Bad input: one clear line, exit code 1 or 2, nothing half-written."""

import asyncio
import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import rasterio
from deltalake import write_deltalake
from rasterio.transform import from_origin
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.command import Call, run_command
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, ServicesSettings
from tasks.collect import STAGES as COLLECT
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Context, run
from tasks.services import connect


def geofix(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.endswith(("_TOKEN", "_KEY"))}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("checking the settings")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("geofix: ")
    for word in words:
        assert word in lines[0]
    assert result.stdout == ""


def refused(code: int, *words: str, arguments: list[str]) -> None:
    """The command, in this process: one line that holds these words, and this exit code."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("checking the settings")]
    assert line.startswith("geofix: ")
    for word in words:
        assert word in line


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that commands are called in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--recipe", "spotagnt"], 2, ["unknown recipe 'spotagnt'", "did you mean 'spotagent'"]),
        (["--profile", "prod"], 2, ["unknown profile 'prod'", "offline, open, production"]),
        (["--set", "plan.places=0"], 2, ["plan.places", "given 0", "must be a whole number, at least 1"]),
        (
            ["--set", "plan.places=many"],
            2,
            ["plan.places", "given 'many'", "must be a whole number, at least 1, at most"],
        ),
        (["--set", "plan.plces=3"], 2, ["plan.plces", "did you mean 'plan.places'"]),
        (["--config", "nowhere.yaml"], 2, ["nowhere.yaml", "No such file"]),
        (["--lake", "ftp://bucket/lake"], 1, ["lake 'ftp://bucket/lake'", "a URI that begins with"]),
        (["--from", "nowhere"], 2, ["no stage 'nowhere'", "plan, collect"]),
        (["--from", "train", "--to", "plan"], 2, ["comes after"]),
    ],
)
def test_wrong_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(code, *words, arguments=["run", *options])
    assert list(tmp_path.iterdir()) == [], "nothing is written"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device: /data/x; free some space"),
        (errno.EMFILE, "Too many open files: /data/x; allow more open files (`ulimit -n 4096`)"),
        (errno.EROFS, "Read-only file system: /data/x; make it writable"),
    ],
)
def test_what_the_system_refuses_is_said_with_what_to_do(
    number: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> int:
        raise OSError(number, os.strerror(number), "/data/x")

    with pytest.raises(SystemExit) as ended:
        run_command(Call(), action)
    assert ended.value.code == 1 and capsys.readouterr().err.startswith(f"geofix: {words}")


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_prefect_server_that_is_gone_is_one_line(
    wrapped: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://user:canary@prefect.example.org:4200/api")

    def action() -> int:
        try:
            raise httpx.ConnectError("All connection attempts failed")
        except httpx.ConnectError as error:
            if wrapped:
                raise RuntimeError("Failed to reach API at http://user:canary@prefect.example.org:4200/api") from error
            raise

    with pytest.raises(SystemExit) as ended:
        run_command(Call(), action)
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "geofix: the Prefect server at http://prefect.example.org:4200/api does not answer (ConnectError): finished "
        "work is saved; run the same command again when it is back\n"
    )


def test_wrong_type_in_a_file_names_the_file(inside: Path) -> None:
    (inside / "own.yaml").write_text("plan:\n  places: [1, 2]\n")
    words = ("own.yaml: plan.places: given [1, 2]", "must be a whole number")
    refused(2, *words, arguments=["run", "--config", "own.yaml"])
    assert [path.name for path in inside.iterdir()] == ["own.yaml"]


def test_missing_keys_in_production_are_named_all_at_once(tmp_path: Path) -> None:
    result = geofix("run", "--profile", "production", cwd=tmp_path)
    assert_refused(result, 2, "MAPILLARY_TOKEN", "TAVILY_API_KEY", "OPENAI_API_KEY")
    assert list(tmp_path.iterdir()) == []


def test_a_lake_that_cannot_be_written(inside: Path) -> None:
    (inside / "file").write_text("in the way")
    refused(1, "cannot be written", "--lake", arguments=["run", "--lake", "file/lake"])


def test_a_table_with_a_wrong_schema(inside: Path) -> None:
    write_deltalake(str(inside / "lake/tables/places"), pl.DataFrame({"place_id": ["a"], "lat": ["north"]}).to_arrow())
    refused(1, "table 'places'", "column 'lat'", "expected double", arguments=["show", "places"])


def test_looking_into_a_lake_that_is_not_there(inside: Path) -> None:
    refused(2, "there is no lake at 'lake'", "geofix demo", arguments=["tables"])
    assert list(inside.iterdir()) == [], "looking makes no lake"


def test_unknown_tables_ids_and_snapshots(inside: Path) -> None:
    (inside / "lake/tables").mkdir(parents=True)
    refused(2, "no table 'pictures'", "places, images", arguments=["show", "pictures"])
    refused(2, "no row has the id 'nothing'", arguments=["trace", "nothing"])
    refused(2, "nothing", arguments=["approve", "nothing"])


def test_predictions_that_cannot_be_scored(inside: Path) -> None:
    (inside / "p.csv").write_text("id,lat,lon,true_lat,true_lon\na,1,2,95,4\n")
    refused(2, "p.csv", "true_lat", arguments=["score", "p.csv"])


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


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["plan.countries=[XX]"], 2, ["plan.countries: given XX", "ISO 3166"]),
        (["plan.exclude=[FR, ZZ]"], 2, ["plan.exclude: given ZZ"]),
        (["plan.countries=FR"], 2, ["plan.countries: given 'FR'; must be a list, such as [FR]"]),
        (["plan.countries=[AQ]"], 2, ["plan.exclude leaves out every country", "(AQ)", "plan.exclude=[]"]),
        (["plan.countries=[france]"], 2, ["plan.countries", "'france' is not an ISO 3166 alpha-2 code such as FR"]),
        (["plan.weights.roads=0.9"], 2, ["plan.weights", "must sum to 1", "0.9 (roads)", "= 1.4"]),
        (["plan.weights.roads=.nan"], 2, ["plan.weights.roads", "given nan"]),
        (["plan.split={train: 0.9, validation: 0.2, benchmark: 0}"], 2, ["plan.split", "must sum to 1", "= 1.1"]),
        (["plan.places=-5"], 2, ["plan.places", "given -5", "at least 1"]),
        (["plan.places=999999999999"], 2, ["plan.places", "given 999999999999", "at most 100,000,000"]),
        (["plan.preset=geobench", "plan.places=9"], 2, ["places is 9", "preset geobench sets it to 512", "leave one"]),
        (["plan.preset=geobanch"], 2, ["plan.preset", "'geobanch'", "geobench"]),
        (["plan.mode=cities", "plan.places=3"], 2, ["3 places cannot lie in 108 cities", "plan.cities.count"]),
        (
            ["plan.mode=cities", "plan.countries=[LI]", "plan.cities.count=1"],
            2,
            ["plan.cities.count", "only 0 cities of 100,000 people", "plan.cities.min_people"],
        ),
    ],
)
def test_a_plan_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], code: int, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(code, *words, arguments=["plan", *(word for one in settings for word in ("--set", one))])
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def write_tiff(path: Path, values: Any, west: float, north: float, size: float, crs: str | None) -> None:
    height, width = values.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file without a reference system is the point
        grid = from_origin(west, north, size, size)
        shape = {"height": height, "width": width, "count": 1, "dtype": "float32", "transform": grid, "crs": crs}
        with rasterio.open(path, "w", driver="GTiff", **shape) as sink:
            sink.write(values.astype(np.float32), 1)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nan.tif", ["holds nan people at 49.650, 0.450", "no-data"]),
        ("nan.asc", ["holds nan people", "NODATA_value"]),
        ("nowhere.tif", ["no coordinate reference system", "EPSG:4326"]),
        ("metres.tif", ["EPSG:3857", "reproject it to EPSG:4326"]),
        ("missing.tif", ["No such file"]),
        ("text.tif", ["cannot be read"]),
    ],
)
def test_a_population_raster_that_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.ones((8, 8))
    match case:
        case "nan.tif":
            values[3, 4] = np.nan
            write_tiff(tmp_path / case, values, 0, 50, 0.1, "EPSG:4326")
        case "nan.asc":
            head = "ncols 2\nnrows 1\nxllcorner 0\nyllcorner 45\ncellsize 0.1\nNODATA_value -9999\n"
            (tmp_path / case).write_text(f"{head}1 nan\n")
        case "nowhere.tif":
            write_tiff(tmp_path / case, values, 0, 50, 0.1, None)
        case "metres.tif":
            write_tiff(tmp_path / case, values, 0, 5_000_000, 1000, "EPSG:3857")
        case "text.tif":
            (tmp_path / case).write_text("not a raster")
    before = sorted(tmp_path.iterdir())
    refused(2, f"plan.population_raster: {case}", *words, arguments=["plan", "--set", f"plan.population_raster={case}"])
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


@pytest.fixture
def offline_url() -> Iterator[str]:
    """A small offline world on a real socket."""
    with serving(create_app(World(seed=7, size=50, pano_width=512), warm=False)) as address:
        yield address


def test_a_wrong_token_names_its_variable_and_marks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], offline_url: str
) -> None:
    """Through the frame and the command's last guard, without Prefect's and Ray's start."""

    def here(todo: pl.DataFrame, make: Any, *_: Any, is_async: bool, **__: Any) -> Iterator[Any]:
        async def each() -> list[Any]:
            call = make()
            return [await call(chunk) for chunk in todo.iter_slices(2)]

        assert is_async
        yield from asyncio.run(each())

    monkeypatch.setattr("tasks.runtime.on_ray.pool.spread", here)
    token = "MLY|1234567890123456|badbadbadbadbadbadbadbadbadbadba"
    services = ServicesSettings(mapillary=MapillaryEndpoint(base_url=f"{offline_url}/mapillary", public_key=None))
    context = Context(Lake(tmp_path / "lake"), connect(services, {"MAPILLARY_TOKEN": token}, ["mapillary"]))
    places = [{"place_id": f"p{i}", "country": "FR", "lat": 48 + i, "lon": 2, "split": "train"} for i in range(3)]
    context.lake.upsert("places", places, Commit("plan", 1))
    (street_view,) = (stage for stage in COLLECT if stage.name == "collect")

    def collect() -> int:
        run(street_view, CollectSettings(), context)
        return 0

    with pytest.raises(SystemExit) as ended:
        run_command(Call(), collect)
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("geofix: collect stopped: mapillary does not accept the key in MAPILLARY_TOKEN")
    assert "badbad" not in line
    assert context.lake.existing() == ["places", "runs"], "no picture, no reject, no failure"
    (row,) = context.lake.read("runs").iter_rows(named=True)
    assert (row["stage"], row["status"], row["kept"], row["failed"]) == ("collect", "failed", 0, 0)
    assert not any(b"badbad" in path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file())
