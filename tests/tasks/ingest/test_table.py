"""Tables of every format are read alike, and what cannot be read is said by line."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.settings.ingest import IngestSettings
from tasks.ingest.layouts import YFCC4K
from tasks.ingest.refusal import Refusal, TableRefused
from tasks.ingest.survey import survey_rows
from tasks.ingest.table import open_table

ROWS = [("a", "x.jpg", "48.5", "2.25"), ("9007199254740993", "y z.jpg", "-1.5", "0.125"), ("c", None, "3.5", "4.5")]
NAMES = ["id", "path", "lat", "lon"]


def write(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pl.DataFrame(rows, schema=NAMES, orient="row").with_columns(
            pl.col("lat", "lon").cast(pl.Float64)
        ).write_parquet(path)
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text("\n".join(mark.join(v or "" for v in row) for row in [NAMES, *rows]) + "\n")
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "T.CSV"])
def test_every_format_gives_the_same_text(rows_of: Any, tmp_path: Path, name: str) -> None:
    table = open_table(write(tmp_path / name, ROWS))
    found = rows_of(table, *NAMES)
    assert [values for _, values in found] == ROWS
    first = 2 if name.lower().endswith(("csv", "tsv")) else 1
    assert [number for number, _ in found] == [first, first + 1, first + 2]
    assert rows_of(table, "lon", "id")[1][1] == ("0.125", "9007199254740993")


@pytest.mark.parametrize(("encoding", "named"), [("utf-8", None), ("utf-8-sig", None), ("utf-16", "utf-16")])
def test_encodings_are_read(rows_of: Any, tmp_path: Path, encoding: str, named: str | None) -> None:
    (tmp_path / "t.csv").write_bytes("id,path,lat,lon\né,ü.jpg,1,2\n".encode(encoding))
    table = open_table(tmp_path / "t.csv", named)
    assert table.columns == ("id", "path", "lat", "lon")
    assert rows_of(table, "id") == [(2, ("é",))]


def test_latin_text_is_refused_unless_it_is_named(rows_of: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,path,lat,lon,licence,creator\na,a.jpg,1,2,CC0,Ana\nb,b.jpg,1,2,CC0,José\n".encode("cp1252"))
    with pytest.raises(TableRefused, match=r"cannot be read as UTF-8 text: .*--encoding cp1252"):
        survey_rows(path, IngestSettings())
    found = survey_rows(path, IngestSettings(encoding="cp1252", keep_lat_lon=True))
    assert rows_of(found, "creator")[0][1] == ("Ana",)
    with pytest.raises(ValueError, match="is no encoding"):
        IngestSettings(encoding="klingon")


def test_rows_that_do_not_fit_are_told_and_the_others_read(rows_of: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        'id,path,lat,lon\na,a.jpg,1,2\nb,b.jpg,1\n\n"c\nd",c.jpg,1,2\ne,e.jpg,1,2,3\nf,f.jpg,1,2,\ng,g.jpg,1,2,,5\n'
    )
    found = dict(rows_of(open_table(path), "id", "lon"))
    # Counted as a spreadsheet counts them: a blank row has a number, a row of two lines has one.
    refused = {row: values for row, values in found.items() if isinstance(values, Refusal)}
    assert {row: (why.reason, why.given) for row, why in refused.items()} == {
        5: ("ragged_row", "c\nd"), 6: ("ragged_row", "3")
    }  # fmt: skip
    assert {row: values for row, values in found.items() if row not in refused} == {
        2: ("a", "2"), 3: ("b", None), 7: ("f", "2"), 8: ("g", "2")
    }  # fmt: skip


@pytest.mark.parametrize("rest", ['b,"b.jpg",1,2\n', "b,b.jpg,1,2\n" * 20_000])
def test_an_open_quote_refuses_the_table(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'id,path,lat,lon,licence,creator\na,a.jpg,1,2,CC0,x\nb,"a.jpg,1,2,CC0,x\n{rest}')
    with pytest.raises(TableRefused, match=r'could not parse `"a.jpg,1,2,CC0,x; close a quote that is left open'):
        survey_rows(path, IngestSettings())


@pytest.mark.parametrize("between", ["", "c,c.jpg,3,4,CC0,x\n" * 3])
def test_quotes_of_two_rows_that_make_one_row_of_the_right_width_are_told(
    rows_of: Any, tmp_path: Path, between: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'id,path,lat,lon,licence,creator\na,a.jpg,1,2,CC0,"x\n{between}b,b.jpg,1,2,CC0,y"\n')
    ((row, refused),) = rows_of(survey_rows(path, IngestSettings()), "id")
    assert row == 2 and refused.reason == "ragged_row" and refused.given.endswith("b,b.jpg,1,2,CC0,y")


@pytest.mark.parametrize("between", ["", "c,c.jpg,3,4,CC0,x,\n" * 3])
def test_rows_are_not_lost_in_a_column_that_nobody_reads(rows_of: Any, tmp_path: Path, between: str) -> None:
    path = tmp_path / "t.csv"
    note = '"a note, of\ntwo lines"'
    path.write_text(
        f'id,path,lat,lon,licence,creator,told\na,a.jpg,1,2,CC0,x,"oh\n{between}b,b.jpg,1,2,CC0,y,no"\n'
        f"d,d.jpg,1,2,CC0,y,{note}\n"
    )
    (row, refused), last = rows_of(survey_rows(path, IngestSettings(keep_lat_lon=True)), "id")
    assert row == 2 and refused.reason == "ragged_row" and "b,b.jpg,1,2,CC0,y,no" in refused.given
    assert last == (3, ("d",)), "a text of several lines is no row"


def test_json_lines_with_flaws(rows_of: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"id": 12345678901234567890, "lat": 1.50, "lon": 2}\n\n{"id": {"x": "1"}}\n{"id": true}\n{"id": "c"}\n'
        '{"id": "half \\ud800"}\n'
    )
    found = dict(rows_of(open_table(path), "id", "lat"))
    assert found[1] == ("12345678901234567890", "1.50"), "numbers stay as they were written"
    assert [found[n][0] for n in (3, 4, 5)] == ['{"x": "1"}', "true", "c"]
    assert found[6] == ("half ?", None), "half of a character could not be stored"
    for line in ('{"id": "b"', "[1]", "7", "[" * 100_000):
        path.write_text(f'{{"id": "a"}}\n{line}\n')
        with pytest.raises(TableRefused, match=r"line 2 is not a JSON object.*; write one JSON object a line"):
            open_table(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"", ["is empty"]),
        ("t.csv", b"\n\n  \n", ["is empty"]),
        ("t.csv", b"id,path,lat,lon,licence,creator\n", ["holds no rows"]),
        ("t.xlsx", b"PK", ["must end in .csv"]),
        ("t.csv", b"id,lat,lat,lon\n1,2,3,4\n", ["'lat' stands twice"]),
        ("t.csv", b"p1,a.jpg,48.5,2.5\np2,b.jpg,48.6,2.5\n", ["no column lat and no column lon among p1, a.jpg"]),
        ("t.csv", b"id,path,breite,laenge\na,b,1,2\n", ["no column lat and no column lon", "plain layout"]),
        ("t.csv", b"id,lat,lon,licence,creator\na,1,2,CC0,x\n", ["no column path or url"]),
        ("t.csv", b"id,path,lat,lon,creator\na,a.jpg,1,2,x\n", ["no column licence", "--licence"]),
        ("t.csv", b"id,path,lat,lon,licence\na,a.jpg,1,2,CC0\n", ["no column attribution or creator", "--attribution"]),
        ("t.csv", b"url,lat,lon,licence,creator\nhttp://h/a,1,2,CC0,x\n", ["no column id"]),
        ("t.csv", b"id,path,\x1b]0;pwn\x07,lon\na,b,1,2\n", ["no column lat", "]0;pwn"]),
        ("t.csv", b'id,path,"lat,lon\na,b,1,2\n', ["no column lat and no column lon"]),
        ("t.jsonl", b"hello\n", ["line 1 is not a JSON object", "one JSON object a line"]),
        ("t.jsonl", b"\n\n", ["holds no rows"]),
        ("t.parquet", b"PAR1 but not really", ["not a readable Parquet file"]),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableRefused) as caught:
        survey_rows(tmp_path / name, IngestSettings())
    said = str(caught.value)
    assert said.isprintable() and name in said and all(word in said for word in words), said


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TableRefused, match="No such file"):
        survey_rows(tmp_path / "t.csv", IngestSettings())
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(TableRefused, match="the folder holds no picture"):
        survey_rows(tmp_path / "d.csv", IngestSettings())


def test_parquet_columns_that_cannot_hold_what_they_should(rows_of: Any, tmp_path: Path) -> None:
    rights = {"licence": ["CC0"], "creator": ["x"], "path": ["a.jpg"], "lat": [1.0], "lon": [2.0]}
    pl.DataFrame({"id": [1.0], **rights}).write_parquet(tmp_path / "f.parquet")
    with pytest.raises(TableRefused, match="stores ids as double"):
        survey_rows(tmp_path / "f.parquet", IngestSettings())
    pl.DataFrame({"id": [7], **rights, "url": [["x"]]}).write_parquet(tmp_path / "n.parquet")
    with pytest.raises(TableRefused, match="column url holds"):
        survey_rows(tmp_path / "n.parquet", IngestSettings())
    pl.DataFrame({"id": [9007199254740993], **rights}).write_parquet(tmp_path / "i.parquet")
    found = survey_rows(tmp_path / "i.parquet", IngestSettings(keep_lat_lon=True))
    assert rows_of(found, "id") == [(1, ("9007199254740993",))]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_separators_are_seen(rows_of: Any, tmp_path: Path, mark: str) -> None:
    (tmp_path / "t.csv").write_text("id,path,lat,lon\na,a b.jpg,1,2\n".replace(",", mark))
    table = open_table(tmp_path / "t.csv")
    assert rows_of(table, "path", "lon") == [(2, ("a b.jpg", "2"))]
    assert "separated by" in table.notes[0]


def test_yfcc100m_rows_without_header(rows_of: Any, tmp_path: Path) -> None:
    fields = [str(n) for n in range(25)]
    fields[1], fields[4], fields[12], fields[13], fields[9] = "5133463568", "Jane+Doe", "2.35", "48.85", 'a "quote'
    (tmp_path / "yfcc4k.txt").write_text("\t".join(fields) + "\n" + "\t".join(fields) + "\n")
    table = open_table(tmp_path / "yfcc4k.txt", layout=YFCC4K)
    assert table.headless
    assert rows_of(table, "photo_id", "latitude", "longitude")[0] == (1, ("5133463568", "48.85", "2.35"))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["csv", "tsv", "jsonl", "parquet"]))
def test_no_bytes_at_all_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str) -> None:
    path = tmp_path_factory.mktemp("any") / f"t.{kind}"
    path.write_bytes(b"id,path,lat,lon,licence,creator\n" * (kind == "csv") + data)
    try:
        found = survey_rows(path, IngestSettings())
        assert found.rows == sum(batch.height for batch in found.batches()) > 0
    except TableRefused as refused:
        assert "\n" not in str(refused) and len(str(refused)) < 1000
