"""`geofix score` on several files, foreign columns, slices and rows."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import beta

from schemas.errors import InputError
from tasks.evaluate.file_report import render_report, render_side_by_side
from tasks.evaluate.prediction_file import PredictionsError, parse_columns
from tasks.evaluate.predictions import compare_reports, score_file, write_rows
from tasks.reward.metrics import compare, summarize


def table(rows: int, shift: float, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    true_lat, true_lon = rng.uniform(-60, 70, rows), rng.uniform(-170, 170, rows)
    return pl.DataFrame(
        {
            "id": [f"p{i}" for i in range(rows)],
            "lat": true_lat + rng.exponential(shift, rows),
            "lon": true_lon,
            "true_lat": true_lat,
            "true_lon": true_lon,
            "scene": rng.choice(["street", "park"], rows),
        }
    )


def test_shares_have_exact_binomial_intervals() -> None:
    known = {metric.name: metric for metric in summarize([0.0] * 20)}
    assert known["acc@1km"].value == 1 and known["acc@1km"].low == pytest.approx(beta.ppf(0.025, 20, 1))
    assert known["parse_failure_rate"].high == pytest.approx(beta.ppf(0.975, 1, 20))
    assert known["parse_failure_rate"].high > 0.1
    some = {metric.name: metric for metric in summarize([0.0] * 7 + [5000.0] * 13)}["acc@1km"]
    assert (some.low, some.high) == pytest.approx((beta.ppf(0.025, 7, 14), beta.ppf(0.975, 8, 13)))


def test_two_files_side_by_side_with_paired_tests(tmp_path: Path) -> None:
    near, far = table(400, 0.2), table(400, 3.0)
    near.write_parquet(tmp_path / "near.parquet")
    far.sample(fraction=1, shuffle=True, seed=1).write_csv(tmp_path / "far.csv")  # matched by id, not by place
    first, second = score_file(tmp_path / "far.csv"), score_file(tmp_path / "near.parquet")
    found = {one.metric: one for one in compare_reports(first, second)}
    assert found["acc@25km"].difference > 0.4 and found["acc@25km"].p is not None and found["acc@25km"].p < 1e-9
    assert found["median_km"].high < 0 < found["geoscore_mean"].low
    text = render_side_by_side([first, second], [(first.file, second.file, tuple(found.values()))])
    assert "McNemar p" in text and "far.csv" in text and "near.parquet" in text
    same = {one.metric: one for one in compare_reports(first, first)}
    assert same["acc@25km"].p == 1 and same["acc@25km"].low < 0 < same["acc@25km"].high
    moved = near.with_columns(pl.col("true_lat") + 1)
    moved.write_csv(tmp_path / "moved.csv")
    with pytest.raises(PredictionsError, match="another true position"):
        compare_reports(first, score_file(tmp_path / "moved.csv"))
    near.with_columns(pl.col("id") + "x").write_csv(tmp_path / "other.csv")
    with pytest.raises(PredictionsError, match="no id in common"):
        compare_reports(first, score_file(tmp_path / "other.csv"))


def test_mcnemar_counts_what_only_one_has_right() -> None:
    first, second = [0.5, 0.5, 90.0, np.nan, 900.0], [0.5, 90.0, 0.5, 0.5, np.nan]
    found = {one.metric: one for one in compare(first, second)}
    assert (found["acc@1km"].only_first, found["acc@1km"].only_second, found["acc@1km"].p) == (1, 2, 1.0)
    assert (found["acc@2500km"].only_first, found["acc@2500km"].only_second) == (1, 1)


def test_columns_of_published_files(tmp_path: Path) -> None:
    plain = table(30, 0.1)
    theirs = plain.rename({"id": "ID", "lat": "predicted_lat", "lon": "predicted_lon"})
    theirs.rename({"true_lat": "gt_lat", "true_lon": "gt_lon"}).write_csv(tmp_path / "t.csv", separator=";")
    plain.write_csv(tmp_path / "p.csv")
    assert score_file(tmp_path / "t.csv").metrics == score_file(tmp_path / "p.csv").metrics
    odd = plain.rename({"lat": "a", "lon": "b", "true_lat": "lat", "true_lon": "lon"})
    odd.write_csv(tmp_path / "o.csv")
    given = parse_columns("lat=a, lon=b, true_lat=lat, true_lon=lon")
    assert score_file(tmp_path / "o.csv", columns=given).metrics == score_file(tmp_path / "p.csv").metrics
    for wrong, words in {"lat": "field=column", "latt=a": "no field latt"}.items():
        with pytest.raises(InputError, match=words):
            parse_columns(wrong)
    with pytest.raises(InputError, match="names nope"):
        score_file(tmp_path / "o.csv", columns={"lat": "nope"})


def test_slices_and_rows(tmp_path: Path) -> None:
    table(200, 0.5).write_parquet(tmp_path / "p.parquet")
    by_scene = score_file(tmp_path / "p.parquet", by="scene")
    assert {name: metrics[0].n for name, metrics in by_scene.slices.items()}.keys() == {"street", "park"}
    continents = score_file(tmp_path / "p.parquet", by="continent")
    assert sum(metrics[0].n for metrics in continents.slices.values()) == 200 and "Asia" in continents.slices
    assert "slice" in render_report(continents)
    with pytest.raises(InputError, match="no such column"):
        score_file(tmp_path / "p.parquet", by="colour")
    write_rows([by_scene], tmp_path / "rows.csv")
    rows = pl.read_csv(tmp_path / "rows.csv")
    assert rows.height == 200 and {"id", "error_km", "geoscore", "parse_error"} <= set(rows.columns)
    with pytest.raises(InputError, match="must end in"):
        write_rows([by_scene], tmp_path / "rows.txt")


def test_answers_that_could_not_be_read_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [{"id": f"a{i}", "answer": text, "true_lat": 1, "true_lon": 2} for i, text in enumerate(["1, 2", "hm", ""])]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = score_file(path)
    assert report.to_dict()["unread"] == [
        {"id": "a1", "parse_error": "no_answer", "answer": "hm"},
        {"id": "a2", "parse_error": "empty", "answer": ""},
    ]
    assert "a1" in render_report(report)


def test_ids_rounded_off_by_a_float_are_refused(tmp_path: Path) -> None:
    rounded = table(5, 0.1).with_columns(id=pl.Series([f"81831{i}000000000" for i in range(5)]))
    rounded.write_csv(tmp_path / "p.csv")
    with pytest.raises(PredictionsError, match="end in zeros"):
        score_file(tmp_path / "p.csv")


def test_many_json_lines_take_linear_time(tmp_path: Path) -> None:
    """Once 40,000 rows took 14 s."""
    big = table(40_000, 0.5)
    big.write_ndjson(tmp_path / "p.jsonl")
    big.with_columns(id=pl.int_range(40_000) + 10**15).write_ndjson(tmp_path / "numbers.jsonl")  # the careful reader
    for name in ("p.jsonl", "numbers.jsonl"):
        assert score_file(tmp_path / name).rows == 40_000
