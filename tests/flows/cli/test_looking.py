"""Rows on a screen and in a pipe."""

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.command import Call, UsageError
from flows.cli.show import show_table
from schemas.errors import GeofixError
from tasks.lake import Commit, Lake
from tasks.lake.trace import trace
from tasks.runtime.items.identity import code_version

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MESSAGE = "mapillary answered something odd: " + " ".join(f"word{k:03d}" for k in range(60))


@pytest.fixture
def call(tmp_path: Path) -> Call:
    failure = {"stage": "collect", "item_id": "p1", "kind": "bad_response", "message": MESSAGE, "attempts": 3}
    Lake(tmp_path).upsert("failures", [failure], Commit("test", 1))
    return Call(lake=str(tmp_path))


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_table_fits_the_terminal_and_shortens_what_is_long(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert show_table(call, "failures") == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["stage", "item_id", "kind", "attempts", "message"]
    assert row.split()[:4] == ["collect", "p1", "bad_response", "3"]
    assert len(row) <= width and row.rstrip().endswith("…") and "characters" not in row


def test_csv_and_json_hold_whole_values_of_the_columns_asked_for(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_table(call, "failures", columns="message,attempts", form="csv") == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["message", "attempts"], [MESSAGE, "3"]]
    done = CliRunner().invoke(app, ["show", "failures", "--lake", str(call.lake), "--columns", "kind", "--json"])
    assert json.loads(done.stdout) == [{"kind": "bad_response"}]


def test_lists_are_json_in_a_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"trajectory_id": "t1", "image_id": "i", "recipe": "r", "messages_json": "[]", "verdict": "rejected"}
    row["end_reason"] = "answered"
    Lake(tmp_path).upsert("trajectories", [{**row, "reasons": ["too_far", "no tool"]}], Commit("test", 1))
    assert show_table(Call(lake=str(tmp_path)), "trajectories", columns="reasons,error_km", form="csv") == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out)))[1] == ['["too_far", "no tool"]', ""]


def test_columns_that_are_left_out_are_counted(
    places: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "25")
    assert show_table(places, "places") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:2] == ["place_id", "country"]
    assert max(map(len, shown[:4])) <= 25
    assert "more columns: --columns all" in shown[-1]
    assert show_table(places, "places", columns="split, lat") == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["split", "lat"]
    with pytest.raises(UsageError, match="--columns cuntry: places has no column 'cuntry'; did you mean 'country'"):
        show_table(places, "places", columns="cuntry")


@pytest.fixture
def places(tmp_path: Path) -> Call:
    lake = Lake(tmp_path)
    for number, (place, country) in enumerate((("abcdef01", "FR"), ("abcdef02", "FR"), ("fedcba03", "DE"))):
        row = {"place_id": place, "country": country, "lat": 1.0, "lon": 2.0, "split": "train"}
        lake.upsert("places", [row], Commit(f"run-{number}", 1))
    snapshot = {"snapshot_id": "s" * 24, "status": "approved", "reviewed_at": NOW, "table_versions_json": "{}"}
    lake.upsert("snapshots", [snapshot], Commit("review", 1))
    return Call(lake=str(tmp_path))


def counted(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " rows " in line]
    return line


def test_the_count_names_condition_and_whole_table(places: Call, capsys: pytest.CaptureFixture[str]) -> None:
    show_table(places, "places", limit=1, where=("country=FR", "split=train"))
    assert counted(capsys) == "1 of 2 rows with country=FR and split=train, of 3 in places"
    show_table(places, "places", where=("country=ZZ",))
    assert counted(capsys) == "0 of 0 rows with country=ZZ, of 3 in places"
    show_table(places, "places", version=2)
    assert counted(capsys) == "2 of 2 rows of places at version 2"


def test_moments_stand_without_quotes(places: Call, capsys: pytest.CaptureFixture[str]) -> None:
    show_table(places, "snapshots", limit=1)
    assert "2026-03-01 12:00:00 UTC" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "version", "where", "says"),
    [
        ("place", None, [], r"no table 'place'; did you mean 'places'\? the tables are .*images"),
        ("places", None, ["contry=FR"], r"no column 'contry'; did you mean 'country'\? its columns are place_id, "),
        ("places", None, ["country"], r"must be COLUMN=VALUE, such as place_id="),
        ("places", 99, [], r"--version 99: there is no such version of places; it has versions 0 to \d+$"),
        ("places", -1, [], r"it has versions 0 to"),
        ("labels", 0, [], r"no such version of labels; it has none yet"),
    ],
)
def test_a_wrong_name_or_version_is_answered_with_the_right_ones(
    places: Call, table: str, version: int | None, where: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        show_table(places, table, version=version, where=tuple(where))


def test_a_row_is_traced_by_the_beginning_of_its_id(places: Call) -> None:
    lake = Lake(str(places.lake))
    assert [step.row_id for step in trace(lake, "fedcba")] == ["fedcba03"]
    with pytest.raises(GeofixError, match="2 ids begin with 'abcdef': abcdef01, abcdef02"):
        trace(lake, "abcdef")
    with pytest.raises(GeofixError, match=r"no row has the id 'fedcb', nor one that begins so \(6 letters are needed"):
        trace(lake, "fedcb")


def test_the_version_is_an_option_too() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output.strip()) == (0, code_version())
