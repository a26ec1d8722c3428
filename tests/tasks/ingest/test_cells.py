"""What a cell holds, and what is written where there is nothing."""

import json
from pathlib import Path

import polars as pl
import pytest

from tasks.ingest.cells import text_or_none
from tasks.ingest.table import open_table

NOTHING = ["", "  ", "nan", "NaN", "NULL", "null", "None", "n/a", "N/A", "#N/A", "<NA>", "NaT", "\\N"]


@pytest.mark.parametrize("text", NOTHING)
def test_words_for_nothing(text: str) -> None:
    assert text_or_none(text) is None


@pytest.mark.parametrize("text", ["NA", "na", "Nana", "nonesuch", "0", "-", "no", "CC0"])
def test_words_that_may_be_meant(text: str) -> None:
    assert text_or_none(f" {text} ") == text


def test_every_format_knows_them(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "licence": text} for n, text in enumerate([*NOTHING, "CC0"])]
    (tmp_path / "t.csv").write_text("id,licence\n" + "".join(f"{row['id']},{row['licence']}\n" for row in rows))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pl.DataFrame(rows).write_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        found = [values for _, values in open_table(tmp_path / name).rows(["licence"])]
        assert found == [(None,)] * len(NOTHING) + [("CC0",)], name


def test_json_numbers_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a", "licence": NaN, "lat": NaN}\n{"id": "b", "licence": "CC0", "lat": -Infinity}\n')
    assert [values for _, values in open_table(path).rows(["licence", "lat"])] == [(None, None), ("CC0", "-Infinity")]
