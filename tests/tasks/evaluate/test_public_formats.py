"""Prediction files as they are published: other names of columns, separators, long ids, and late or mixed fields."""

import json
from pathlib import Path

import polars as pl
import pytest

from tasks.evaluate.prediction_file import PredictionsError, read_predictions
from tasks.evaluate.predictions import score_file

HEADS = [
    "img_id,gt_lat,gt_lon,predicted_lat,predicted_lon",
    "IMG_ID,GT_LAT,GT_LON,PRED_LAT,PRED_LON",
    "ID,true_lat,true_lon,Lat,Lon",
    "image_id,gt_latitude,gt_longitude,pred_latitude,pred_longitude",
    "filename,lat_true,lon_true,lat_pred,lon_pred",
    "image,gt_lat,gt_lng,pred_lat,pred_lng",
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("separator", [",", ";"])
def test_usual_columns_need_no_option(tmp_path: Path, head: str, separator: str) -> None:
    path = tmp_path / "theirs.csv"
    lines = [head, "1044462_e2.jpg,48.85,2.35,48.85,2.35", "1044463_e2.jpg,-33.9,18.4,51.5,-0.1"]
    path.write_text("\n".join(line.replace(",", separator) for line in lines) + "\n", encoding="utf-8-sig")
    report = score_file(path, resamples=100)
    found = {metric.name: metric.value for metric in report.metrics}
    assert report.scored_by == "lat+lon" and found["acc@1km"] == 0.5 and found["parse_failure_rate"] == 0
    assert report.table["id"].to_list() == ["1044462_e2.jpg", "1044463_e2.jpg"]


@pytest.mark.parametrize("answer", ["response", "prediction", "output", "model_answer"])
def test_answers_under_other_names(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "theirs.jsonl"
    row = {"image_id": "a", "gt_lat": 48.85, "gt_lon": 2.35}
    path.write_text(json.dumps({**row, answer: "Final answer: 48.85, 2.35"}) + "\n")
    assert score_file(path, resamples=100).scored_by == "answer"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_ids_that_a_float_rounded_are_refused(tmp_path: Path, suffix: str) -> None:
    ids = ["818314000000000", "292117000000000", "515530000000000", "123456789012345"]
    table = pl.DataFrame({"id": ids, "lat": [1.0] * 4, "lon": [2.0] * 4, "true_lat": [1.0] * 4, "true_lon": [2.0] * 4})
    path = tmp_path / f"p{suffix}"
    {".csv": table.write_csv, ".jsonl": table.write_ndjson, ".parquet": table.write_parquet}[suffix](path)
    with pytest.raises(PredictionsError, match=r"'818314000000000' and most others end in zeros.*write ids as text"):
        read_predictions(path)


def test_a_number_among_quoted_ids_keeps_its_digits(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    point = '"lat": 1.5, "lon": 2.5, "true_lat": 1.5, "true_lon": 2.5'
    many = [f'{{"id": "i{number}", {point}}}' for number in range(1500)]
    path.write_text("\n".join([*many, f'{{"id": 123456789012345678901, {point}}}']) + "\n")
    table, _ = read_predictions(path)
    assert table["id"][-1] == "123456789012345678901" and table.height == 1501
    path.write_text("\n".join([*many, f'{{"id": 1.5e17, {point}}}']) + "\n")
    with pytest.raises(PredictionsError, match="went through a float"):
        read_predictions(path)


def test_a_field_or_type_that_comes_late_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    point = '"lat": 1.5, "lon": 2.5, "true_lat": 1.5, "true_lon": 2.5'
    many = [f'{{"id": "i{number}", {point}}}' for number in range(1500)]
    path.write_text("\n".join([*many, f'{{"id": "late", {point}, "tier": "hard"}}']) + "\n")
    assert read_predictions(path)[0]["tier"].drop_nulls().to_list() == ["hard"]
    path.write_text("\n".join([*many, '{"id": "late", "lat": "north", "lon": 2, "true_lat": 1.5, "true_lon": 2.5}']))
    assert score_file(path, resamples=100).parse_failures == {"not_a_number": 1}


def test_numbers_and_text_give_the_same_report(tmp_path: Path) -> None:
    rows = [f"i{n},{n / 10},{n / 7},{n / 9},{n / 8}" for n in range(300)]
    head = "id,lat,lon,true_lat,true_lon"
    (tmp_path / "plain.csv").write_text("\n".join([head, *rows, "x,,5,1,2", "y,95,5,1,2", "z,5,,1,2"]))
    (tmp_path / "text.csv").write_text("\n".join([head, *rows, "x, ,5,1,2", "y,95,5,1,2", "z,5, ,1,2"]))
    one, other = (score_file(tmp_path / name, resamples=100) for name in ("plain.csv", "text.csv"))
    assert one.metrics == other.metrics and one.parse_failures == other.parse_failures
    assert one.parse_failures == {"lat_out_of_range": 1, "missing_lat": 1, "missing_lon": 1}
    assert one.table.equals(other.table)
