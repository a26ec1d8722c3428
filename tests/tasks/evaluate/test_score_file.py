import csv
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks.evaluate.file_report import render_report
from tasks.evaluate.prediction_file import PredictionsError
from tasks.evaluate.predictions import Report, score_file

ROWS: list[dict[str, Any]] = [
    {"id": "a1", "answer": "<answer>48.8566, 2.3522</answer>", "true_lat": 48.8566, "true_lon": 2.3522},
    {"id": "a2", "answer": "I do not know", "true_lat": 10.0, "true_lon": 20.0},
    {"id": "a3", "answer": None, "true_lat": -33.9, "true_lon": 18.4},
    {"id": "a4", "answer": '{"lat": 40.0, "lon": 0.0}', "true_lat": 40.0, "true_lon": 1.0},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pl.DataFrame(rows).write_parquet(path)
    return path


def values(report: Report) -> dict[str, float]:
    return {metric.name: metric.value for metric in report.metrics}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_answers_in_every_format(tmp_path: Path, suffix: str) -> None:
    report = score_file(write(tmp_path / f"p{suffix}", ROWS))
    assert report.rows == 4 and report.scored_by == "answer"
    assert values(report)["acc@1km"] == 0.25
    assert values(report)["acc@200km"] == 0.5
    assert values(report)["parse_failure_rate"] == 0.5
    assert report.parse_failures == {"empty": 1, "no_answer": 1}
    assert {metric.n for metric in report.metrics} == {4, 2}  # all, and the answered ones for the mean distance


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_points_in_every_format(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"id": "1", "lat": 1.0, "lon": 2.0, "true_lat": 1.0, "true_lon": 2.0},
        {"id": "2", "lat": None, "lon": 2.0, "true_lat": 1.0, "true_lon": 2.0},
        {"id": "3", "lat": 95.0, "lon": 2.0, "true_lat": 1.0, "true_lon": 2.0},
        {"id": "4", "lat": 5.0, "lon": -200.5, "true_lat": 1.0, "true_lon": 2.0},
    ]
    report = score_file(write(tmp_path / f"p{suffix}", rows))
    assert values(report)["acc@0.5km"] == 0.25
    assert report.parse_failures == {"lat_out_of_range": 1, "lon_out_of_range": 1, "missing_lat": 1}


def test_text_where_a_number_should_be_is_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("id,lat,lon,true_lat,true_lon\nx,north,2,1,2\ny, 1.0 ,2,1,2\nz,nan,2,1,2\n")
    report = score_file(path)
    assert report.parse_failures == {"not_a_number": 1, "not_finite": 1}
    assert values(report)["acc@0.5km"] == pytest.approx(1 / 3)


def test_levels_are_scored_where_the_truth_names_them(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "answer": "<answer>France; Ile-de-France; París</answer>", "country": "France", "city": "Paris"},
        {"id": "2", "answer": "<answer>Lyon, France</answer>", "country": "France", "city": "Paris"},
        {"id": "3", "answer": "", "country": "France", "city": ""},
    ]
    report = score_file(write(tmp_path / "p.jsonl", [{**row, "true_lat": 48.0, "true_lon": 2.0} for row in rows]))
    found = {metric.name: (metric.value, metric.n) for metric in report.metrics}
    assert found["country_accuracy"] == (pytest.approx(2 / 3), 3)
    assert found["city_accuracy"] == (0.5, 2)
    assert "province_or_state_accuracy" not in found


def test_long_ids_and_answers_as_objects_pass_unharmed(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [
        f'{{"id": {170000000000000001 + i}, "answer": {{"lat": 1, "lon": 2}}, "true_lat": 1, "true_lon": 2}}'
        for i in range(30)
    ]
    path.write_text("\n".join(lines) + "\n\n")
    report = score_file(path)
    assert values(report)["acc@0.5km"] == 1 and report.rows == 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,answer,true_lat,true_lon\n1.23E+17,x,1,2\n", ["p.csv: line 2, field id", "1.23E+17", "float", "as text"]),
        ("id,answer,true_lat,true_lon\na,x,1,2\n123456789012345680.0,x,1,2\n", ["line 3, field id", "float"]),
        (
            "id,answer,true_lat,true_lon\na,x,1,2\nb,x,1,2\na,x,1,2\n",
            ["line 2, field id: 'a'", "again in line 4", "one"],
        ),
        ("id,answer,true_lat,true_lon\n,x,1,2\n", ["line 2, field id: is empty"]),
        (
            "id,answer,true_lat,true_lon\na,x,116.4,39.9\nb,x,95,3\n",
            ["line 2, field true_lat", "116.4", "1 more", "swapped"],
        ),
        ("id,answer,true_lat,true_lon\na,x,39.9,216.4\n", ["line 2, field true_lon: 216.4 is outside -180..180"]),
        ("id,answer,true_lat,true_lon\na,x,,3\n", ["line 2, field true_lat: is empty"]),
        ("id,answer,true_lat,true_lon\na,x,north,3\n", ["field true_lat: 'north' is not a number"]),
        ("id,answer,true_lat,true_lon\na,x,nan,3\n", ["field true_lat: 'nan' is not a number"]),
        ("id,guess,true_lat\na,x,1\n", ["no field true_lon, answer (or lat and lon)", "it has id, guess, true_lat"]),
        ("id,answer,true_lat,true_lon\n", ["holds no predictions"]),
        ("", ["holds no predictions"]),
    ],
)
def test_what_is_wrong_is_said_with_row_field_and_fix(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(PredictionsError) as raised:
        score_file(path)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"id": "a"}\n{"id": \n', "line 2 is not JSON"),
        ("[1]\n", "line 1 is not an object"),
        ('{"id": 1.7e17, "answer": "", "true_lat": 1, "true_lon": 2}\n', "float"),
        ('{"id": "a", "answer": "", "true_lat": [1], "true_lon": 2}\n', "line 1, field true_lat"),
        ("", "holds no predictions"),
    ],
)
def test_broken_json_lines(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(PredictionsError, match=words):
        score_file(path)


def test_ids_that_went_through_a_float_unseen(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "id": str(int(float(170000000000000001 + 37 * i)))} for i in range(40)]
    with pytest.raises(PredictionsError, match="round in binary"):
        score_file(write(tmp_path / "p.csv", rows))
    floats = pl.DataFrame({"id": [1.7e17], "answer": ["x"], "true_lat": [1.0], "true_lon": [2.0]})
    floats.write_parquet(tmp_path / "f.parquet")
    with pytest.raises(PredictionsError, match="floating-point"):
        score_file(tmp_path / "f.parquet")


def test_wrong_files(tmp_path: Path) -> None:
    for name, words in {"p.xlsx": "must end in", "p.csv": "no such file", "p.parquet": "no such file"}.items():
        with pytest.raises(PredictionsError, match=words):
            score_file(tmp_path / name)
    (tmp_path / "p.parquet").write_bytes(b"not parquet")
    (tmp_path / "p.jsonl").write_bytes(b"\xff\xfe\x00")
    for name in ("p.parquet", "p.jsonl"):
        with pytest.raises(PredictionsError, match=r"not a readable|not JSON"):
            score_file(tmp_path / name)


def test_a_truth_with_swapped_columns_is_suspected(tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "lat": 40.0 + i / 10, "lon": 10.0 + i, "true_lat": 10.0 + i, "true_lon": 40.0 + i / 10}
        for i in range(20)
    ]
    report = score_file(write(tmp_path / "p.csv", rows))
    assert len(report.warnings) == 1 and "swapped" in report.warnings[0]
    honest = [{**row, "true_lat": row["lat"] + 20, "true_lon": row["lon"]} for row in rows]
    assert score_file(write(tmp_path / "h.csv", honest)).warnings == ()


def test_the_report_reads_and_serialises(tmp_path: Path) -> None:
    report = score_file(write(tmp_path / "p.jsonl", ROWS))
    text = render_report(report)
    assert "acc@25km" in text and "25.00 %" in text and "no_answer" in text
    assert max(map(len, text.splitlines()[2:])) <= 100
    again = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert again["rows"] == 4 and again["metrics"][0]["name"] == "acc@0.5km"
    assert render_report(score_file(write(tmp_path / "q.jsonl", ROWS[1:3])))  # nothing answered at all


def test_a_number_among_quoted_ids_keeps_its_digits(tmp_path: Path) -> None:
    """Whatever else the texts hold: colons, quotes and brackets must not make up for the quotes an id lacks."""
    path, at = tmp_path / "p.jsonl", '"lat": 1, "lon": 2, "true_lat": 1, "true_lon": 2'
    for note in ("a", "a: b", '\\"\\"', '\\"id\\": \\"', "{}"):
        lines = [f'{{"id": "a{n}", {at}, "note": "x"}}' for n in range(3)]
        path.write_text("\n".join([*lines, f'{{"id": 123456789012345678, {at}, "note": "{note}"}}']) + "\n")
        assert score_file(path).table["id"].to_list() == ["a0", "a1", "a2", "123456789012345678"], note


def test_a_field_that_only_later_rows_have_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    row = {"id": "", "lat": 1.0, "lon": 2.0, "true_lat": 1.0, "true_lon": 2.0}
    rows = [{**row, "id": f"a{n}", **({"country": "Chad: x"} if n == 1500 else {})} for n in range(1501)]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert set(score_file(path, by="country").slices) == {"(none)", "Chad: x"}
