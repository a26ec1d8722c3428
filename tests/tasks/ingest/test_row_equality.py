"""Rows that mean the same are the same, however they are written."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.ingest import TableRefused
from tasks.ingest.row_equality import FIELDS, plain_path, row_content
from tasks.ingest.rows import item_batches
from tasks.ingest.survey import survey_rows

ROOT = Path("/data/photos")
COMPOSED, SPLIT_UP = "caf\u00e9", "cafe\u0301"


def shortened(path: str) -> str:
    return str(pl.DataFrame({"path": [path]}).select(plain_path("path", ROOT)).item())


def items(path: Path) -> pl.DataFrame:
    chosen = IngestSettings(keep_lat_lon=True, split="train")
    return pl.concat(list(item_batches(survey_rows(path, chosen), "set", chosen, PlanSettings())))


def refusals(frame: pl.DataFrame) -> dict[int, dict[str, Any]]:
    return {row: json.loads(text) for row, text in frame.select("row", "refusal").drop_nulls().iter_rows()}


@pytest.mark.parametrize(
    "path", ["im/a.jpg", "./im/a.jpg", "im//a.jpg", "im/x/../a.jpg", "im\\a.jpg", "/data/photos/im/a.jpg"]
)
def test_one_path(path: str) -> None:
    assert shortened(path) == "im/a.jpg"


@given(st.lists(st.sampled_from(["a", "b", ".", "..", ""]), min_size=1, max_size=6))
def test_a_plain_path_stays_as_it_is(parts: list[str]) -> None:
    found = shortened("/".join(["x", *parts]))
    assert shortened(found) == found


@given(st.floats(-90, 90), st.integers(0, 5))
def test_numbers_are_compared_as_numbers(lat: float, zeros: int) -> None:
    written = f"{lat:.6f}"
    schema = dict.fromkeys(FIELDS, pl.String)
    rows = [{"lat": text, "lon": "1", "path": "a"} for text in (written, written + "0" * zeros, "91")]
    one, two, other = pl.DataFrame(rows, schema).select(row_content(ROOT)).to_series()
    assert one == two != other


def test_a_photo_comes_in_once(darkroom: Any) -> None:
    darkroom.save("good.jpg", b"x")
    darkroom.save(f"{COMPOSED}.jpg", b"x")
    paths = ["good.jpg", "./good.jpg", "im/../good.jpg", str(darkroom.folder / "good.jpg"), f"{COMPOSED}.jpg"]
    rows = [[path, 48.5, 2.5, "CC0", "Ana"] for path in paths]
    found = items(darkroom.table(rows, ("path", "lat", "lon", "licence", "creator")))
    assert {n: one["reason"] for n, one in refusals(found).items()} == dict.fromkeys((3, 4, 5), "duplicate_id")
    assert found["source_id"].to_list() == ["good.jpg"] * 4 + [f"{COMPOSED}.jpg"]


def test_rows_of_one_id_disagree_only_where_they_mean_something_else(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    same = [{"id": "s", "lat": "48.8"}, {"id": "s", "lat": "48.80", "path": "./a.jpg"}]
    composed = [{"id": COMPOSED}, {"id": SPLIT_UP}]
    other = [{"id": "o", "lat": 48.8}, {"id": "o", "lat": 48.81}]
    said = {n: one["reason"] for n, one in refusals(items(darkroom.plain([*same, *composed, *other]))).items()}
    assert said == {3: "duplicate_id", 5: "duplicate_id", 6: "conflicting_id", 7: "conflicting_id"}


@pytest.mark.parametrize(
    ("column", "one", "same", "other"),
    [
        ("licence", "CC0", "CC0", "CC BY-NC"),
        ("creator", COMPOSED, SPLIT_UP, "Bob"),
        ("attribution", "Ann's", "Ann's", "Bob's"),
        ("split", "benchmark", "Test", "train"),
        ("kind", "panorama", "360", "photo"),
        ("sequence", "s1", "s1", "s2"),
        ("captured_at", "2020-05-01T12:00:00+02:00", "2020-05-01T10:00:00Z", "2020-05-01"),
        ("compass_angle", "90", "90.0", "91"),
        ("url", "https://host/a.jpg", "https://host/a.jpg", "https://host/b.jpg"),
        ("country", "FR", "France", "DE"),
    ],
)
def test_rows_of_one_id_agree_in_all_that_is_stored(
    darkroom: Any, column: str, one: str, same: str, other: str
) -> None:
    darkroom.save("a.jpg", b"x")
    rows = [{"id": key, column: value} for key, two in (("s", same), ("o", other)) for value in (one, two)]
    said = {n: found["reason"] for n, found in refusals(items(darkroom.plain(rows))).items()}
    stored = column != "country"
    assert said == {
        3: "duplicate_id",
        **dict.fromkeys((4, 5) if stored else (5,), "conflicting_id" if stored else "duplicate_id"),
    }


def test_hexadecimal_ids_are_no_floats(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    hexadecimal = darkroom.plain([{"id": "1234e567"}, {"id": "12345678"}, {"id": "ab34e567"}, {"id": "1.5e+17"}])
    assert {n: one["reason"] for n, one in refusals(items(hexadecimal)).items()} == {5: "id_damaged"}
    numbers = items(darkroom.plain([{"id": "1234e5"}, {"id": "12345678"}, {"id": "12345679"}]))
    said = refusals(numbers)
    assert set(said) == {2} and "ingest.check_ids=false" in said[2]["fix"]
    with pytest.raises(TableRefused, match="3 of 3 ids went through a float"):
        survey_rows(darkroom.plain([{"id": f"{n}e17"} for n in range(3)]), IngestSettings())
