"""`geofix ingest FILE` as a user meets it: one line for a table that cannot be taken, an account of one that can."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.command import Call
from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from schemas.settings.services import ServicesSettings
from schemas.settings.spread import SpreadSettings
from tasks.ingest import IngestResult, Survey, ingest_table
from tasks.lake import Lake
from tasks.runtime.runner import Context
from tasks.services import connect

HEADER = "id,path,lat,lon,licence,creator\n"


def jpeg(seed: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (320, 240), (seed * 40 % 256, 80, 120)).save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("none.csv", None, [], ["none.csv", "No such file"]),
        ("t.csv", "", [], ["is empty"]),
        ("t.pdf", "x", [], [".csv", ".parquet"]),
        ("t.csv", "id,path,lat,lon\na,a.jpg,48.5,2.5\n", [], ["no column licence", "--licence 'CC BY 4.0'"]),
        ("t.csv", "id,path,lat,lon\na,a.jpg,1,2\n", ["--licence", "CC0: free"], ["--attribution"]),
        ("t.csv", HEADER + "a,a.jpg,2.35,48.85,CC0,x\n" * 5, [], ["look exchanged", "--swap-lat-lon"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--layout", "osv"], ["ingest.layout", "given 'osv'", "osv5m"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--layout", "mp16-pro"], ["not the mp16-pro layout"]),
        ("t.csv", "IMG_ID,LAT,LON\na.jpg,1,2\n", [], ["MP-16", "benchmarks Im2GPS3k and YFCC4k", "--layout im2gps3k"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--images", "nowhere"], ["--images nowhere", "no such folder"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--split", "test"], ["--split (ingest.split)", "benchmark"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--as", "test"], ["--as (ingest.purpose)", "benchmark"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--attribution", "by {autor}"], ["{autor}", "{creator}"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--name", "a/b"], ["ingest.name", "letters"]),
        ("mapillary.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", [], ["cannot be called 'mapillary'", "--name"]),
        ("t.csv", HEADER + "a,a.jpg,1,2,CC0,x\n", ["--swap-lat-lon", "--keep-lat-lon"], ["contradict"]),
        (
            "t.csv",
            HEADER.encode() + b"a,a.jpg,1,2,CC0,Jos\xe9\n",
            [],
            ["cannot be read as UTF-8 text", "--encoding cp1252"],
        ),
        (
            "t.csv",
            HEADER + "1e+17,a.jpg,1,2,CC0,x\n2e+17,a.jpg,1,2,CC0,x\n3e+17,a.jpg,1,2,CC0,x\n",
            [],
            ["none of its 3 rows can be taken: 3 id_damaged"],
        ),
    ],
)
def test_tables_that_cannot_be_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str | bytes | None,
    options: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    result = CliRunner().invoke(app, ["ingest", name, *options])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *before, line = result.stderr.strip().splitlines()
    assert all(one.startswith("reading ") for one in before), "of a slow machine: what is waited for"
    assert line.startswith("geofix: ") and all(word in line for word in words), line
    assert [path.name for path in tmp_path.iterdir()] == ([] if content is None else [name]), "nothing is written"


@pytest.mark.whole
def test_a_folder_of_photos(tmp_path: Path) -> None:
    folder = tmp_path / "trip"
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.jpg").write_bytes(jpeg(n))
    (folder / "note.jpg").write_text("no picture")
    (folder / "trip.csv").write_text(
        "id,path,lat,lon\na,0.jpg,48.85,2.35\nb,1.jpg,48.86,2.35\nc,2.jpg,148.86,2.35\nd,note.jpg,48.87,2.35\n"
        "e,5.jpg,48.85,2.35\n"
    )
    options = ["--licence", "CC BY 4.0", "--attribution", 'Photo {id}: "our trip"', "--as", "training"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    result = subprocess.run(
        [sys.executable, "-m", "flows.cli", "ingest", "trip/trip.csv", *options, "--set", "spread.workers=1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "trip/trip.csv: 5 rows, plain layout (id, path, lat, lon); dataset 'trip'" in result.stderr
    assert "5 in = 2 kept + 3 rejected + 0 failed" in result.stderr
    purposes = Lake(str(tmp_path / "lake"), read_only=True).read("images")["purpose"]
    assert set(purposes) == {"training"}, "a published set that stays whole"
    report = tmp_path / "lake/reports/ingest-trip.csv"
    for words in (
        "Dataset 'trip' has 2 photos in the lake (2 train).",
        "3 of 5 rows were refused:",
        "1 out_of_range: latitude is -90..90",
        "row 4 (c): lat '148.86, 2.35': outside -90..90",
        "1 not_an_image: replace it by a JPEG or PNG picture",
        "row 6 (e): path '5.jpg': there is no such file in",
        str(report),
        "Next: geofix curate",
    ):
        assert words in result.stdout, words
    assert len(report.read_text().splitlines()) == 4
    rows = Lake(tmp_path / "lake").read("images")
    assert sorted(rows["attribution"]) == ['Photo a: "our trip"', 'Photo b: "our trip"']
    assert rows["licence"].unique().to_list() == ["CC BY 4.0"]


@pytest.mark.usefixtures("in_process")
def test_quiet_hides_the_summary_and_not_the_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    (tmp_path / "t.csv").write_text(HEADER + "a,a.jpg,48.85,2.35,CC0,x\nb,b.jpg,48.86,2.35,CC0,x\n")

    def without_prefect(found: Survey, call: Call) -> IngestResult:
        context = Context(Lake(tmp_path / "lake"), connect(ServicesSettings(), {}), SpreadSettings(workers=1))
        return ingest_table(found, "t", IngestSettings(keep_lat_lon=True), PlanSettings(), context)

    monkeypatch.setattr("flows.cli.ingest._run_flow", without_prefect)
    monkeypatch.setattr("flows.cli.ingest.prefect_ready", lambda *given: contextlib.nullcontext())
    options = ["ingest", str(tmp_path / "t.csv"), "--lake", str(tmp_path / "lake"), "--keep-lat-lon"]
    result = CliRunner().invoke(app, [*options, "-q"])
    assert result.exit_code == 0 and result.stdout == "", result.output
    assert "1 of 2 rows were refused" in result.stderr and "'b.jpg'" in result.stderr
    assert "Dataset" not in result.stderr
