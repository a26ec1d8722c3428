"""What a cell holds, and what is written where there is nothing."""

import json
from pathlib import Path
from typing import Any

import polars as pl

from tasks.ingest.table import open_table

NOTHING = ["", "  ", "nan", "NaN", "NULL", "null", "None", "n/a", "N/A", "#N/A", "<NA>", "NaT", "\\N"]


MEANT = ["NA", "na", "Nana", "nonesuch", "0", "-", "no", "CC0"]


def test_every_format_knows_them(tmp_path: Path, rows_of: Any) -> None:
    rows = [{"id": f"r{n}", "licence": text} for n, text in enumerate([*NOTHING, *MEANT])]
    (tmp_path / "t.csv").write_text("id,licence\n" + "".join(f"{row['id']},{row['licence']}\n" for row in rows))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pl.DataFrame(rows).write_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        found = [values for _, values in rows_of(open_table(tmp_path / name), "licence")]
        assert found == [(None,)] * len(NOTHING) + [(text,) for text in MEANT], name


def test_json_numbers_that_are_none(tmp_path: Path, rows_of: Any) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "a", "licence": NaN, "lat": NaN}\n{"id": "b", "licence": "CC0", "lat": -Infinity}\n')
    assert [values for _, values in rows_of(open_table(path), "licence", "lat")] == [(None, None), ("CC0", "-Infinity")]
