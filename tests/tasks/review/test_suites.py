"""Every table's contract is a suite; what breaks it is named, and stops a flow before the snapshot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import TABLES
from tasks.lake import Commit, Lake
from tasks.review.data_docs import without_web, write_data_docs
from tasks.review.suites import SuiteFailed, breaches, require_suites

MakeLake = Callable[..., Lake]


def test_every_table_has_a_suite_that_takes_an_empty_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    for name, table in TABLES.items():
        assert breaches(name, lake.read(name)) == []
        assert all(one.column in table.columns for one in table.expectations), name
    assert sum(len(table.expectations) for table in TABLES.values()) > 40


def test_a_row_that_breaks_its_contract_is_named(make_lake: MakeLake) -> None:
    def broken(rows: dict[str, list[dict[str, Any]]]) -> None:
        rows["images"][0].update(lat=95.0, source_id="4.546e+18")
        rows["images"][1].update(kind="painting")

    lake = make_lake(broken)
    said = {one.says for one in breaches("images", lake.read("images"))}
    assert said == {
        "lat lies in -90..90",
        "source_id never went through a float",
        "kind is panorama, photo, satellite",
    }
    require_suites(lake, ["places", "unknown"], "run-plan")
    with pytest.raises(SuiteFailed, match=r"images: .*: broken in 1 rows"):
        require_suites(lake, ["places", "images"], "run-collect")
    require_suites(lake, ["images"], "another-run")


def test_two_live_rows_of_one_key_are_found(tmp_path: Path) -> None:
    rows = {"place_id": "p", "kind": "photo", "wanted": 1, "got": 0, "reason": "no_photo_near"}
    lake = Lake(tmp_path / "lake")
    lake.append("gaps", [{**rows, "made_from": "a"}, {**rows, "made_from": "b"}], Commit("test", 1))
    assert [one.says for one in breaches("gaps", lake.read("gaps"))] == ["place_id, kind is there once"]


def test_data_docs_are_built_and_load_nothing_from_the_web(make_lake: MakeLake, tmp_path: Path) -> None:
    write_data_docs(make_lake(), tmp_path / "site")
    pages = list((tmp_path / "site/data-docs").rglob("*.html"))
    assert any("images" in str(page) for page in pages) and len(pages) > 5
    for page in pages:
        text = page.read_text("utf-8")
        assert "Content-Security-Policy" in text
        assert 'src="http' not in text and 'rel="stylesheet" href="http' not in text
    assert without_web('<head></head><img src="https://x/y.png"><p>kept</p>').endswith("<p>kept</p>")
