"""Rows on a screen and in a pipe."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.command import Call, UsageError
from flows.looking import show_table
from schemas.errors import GeofixError
from tasks.lake import Commit, Lake
from tasks.lake.trace import trace
from tasks.runtime.identity import code_version

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MESSAGE = "mapillary answered something odd: " + " ".join(f"word{k:03d}" for k in range(60))


@pytest.fixture
def call(tmp_path: Path) -> Call:
    failure = {"stage": "collect", "item_id": "p1", "kind": "bad_response", "message": MESSAGE, "attempts": 3}
    Lake(tmp_path).upsert("failures", [failure], Commit("test", 1))
    return Call(lake=str(tmp_path))


def test_a_message_is_whole_on_a_line_of_its_own_in_a_pipe(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_table(call, "failures", 10, None, []) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  message")]
    assert line.split(maxsplit=1)[1] == MESSAGE


def test_on_a_screen_it_goes_on_below_itself(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert show_table(call, "failures", 10, None, []) == 0
    shown = capsys.readouterr().out
    assert all(f"word{k:03d}" in shown for k in range(60)) and max(map(len, shown.splitlines())) <= 90
    below = [line for line in shown.splitlines() if line.startswith(" " * 25 + "word")]
    assert len(below) >= 5


@pytest.fixture
def places(tmp_path: Path) -> Call:
    lake = Lake(tmp_path)
    for number, (place, country) in enumerate((("abcdef01", "FR"), ("abcdef02", "FR"), ("fedcba03", "DE"))):
        row = {"place_id": place, "country": country, "lat": 1.0, "lon": 2.0, "split": "train"}
        lake.upsert("places", [row], Commit(f"run-{number}", 1))
    snapshot = {"snapshot_id": "s" * 24, "status": "approved", "reviewed_at": NOW, "table_versions_json": "{}"}
    lake.upsert("snapshots", [snapshot], Commit("review", 1))
    return Call(lake=str(tmp_path))


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_the_count_names_condition_and_whole_table(places: Call, capsys: pytest.CaptureFixture[str]) -> None:
    show_table(places, "places", 1, None, ["country=FR", "split=train"])
    assert last_line(capsys) == "1 of 2 rows with country=FR and split=train, of 3 in places"
    show_table(places, "places", 10, None, ["country=ZZ"])
    assert last_line(capsys) == "0 of 0 rows with country=ZZ, of 3 in places"
    show_table(places, "places", 10, 2, [])
    assert last_line(capsys) == "2 of 2 rows of places at version 2"


def test_moments_stand_without_quotes(places: Call, capsys: pytest.CaptureFixture[str]) -> None:
    show_table(places, "snapshots", 1, None, [])
    assert "2026-03-01 12:00:00 UTC\n" in capsys.readouterr().out


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
        show_table(places, table, 10, version, where)


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
