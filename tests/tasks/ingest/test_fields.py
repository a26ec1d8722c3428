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
from tasks.ingest import TableRefused, check_dataset
from tasks.ingest.rows import item_batches
from tasks.ingest.survey import survey_rows
from tasks.ingest.table import row_id

SETTINGS = IngestSettings(keep_lat_lon=True, split="train")
ROOT = Path("/data/photos")
COMPOSED, SPLIT_UP = "caf\u00e9", "cafe\u0301"


def shortened(path: str) -> str:
    return str(pl.DataFrame({"path": [path]}).select(row_id(False, ROOT)).item())


def items(path: Path) -> pl.DataFrame:
    return pl.concat(list(item_batches(survey_rows(path, SETTINGS), "set", SETTINGS, PlanSettings())))


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


def test_a_photo_comes_in_once(darkroom: Any) -> None:
    darkroom.save("good.jpg", b"x")
    darkroom.save(f"{COMPOSED}.jpg", b"x")
    paths = ["good.jpg", "./good.jpg", "im/../good.jpg", str(darkroom.folder / "good.jpg"), f"{COMPOSED}.jpg"]
    rows = [[path, 48.5, 2.5, "CC0", "Ana"] for path in paths]
    found = items(darkroom.table(rows, ("path", "lat", "lon", "licence", "creator")))
    assert {n: one["reason"] for n, one in refusals(found).items()} == dict.fromkeys((3, 4, 5), "duplicate_id")
    assert found["source_id"].to_list() == ["good.jpg"] * 4 + [f"{COMPOSED}.jpg"]


@pytest.mark.parametrize("column", ["licence", "creator", "attribution", "split", "lat", "path", "url", "country"])
def test_rows_of_one_id_agree_in_all_that_is_stored(darkroom: Any, column: str) -> None:
    darkroom.save("a.jpg", b"x")
    values = {"split": "train", "lat": "48.5", "path": "a.jpg"}
    other = {"split": "test", "lat": "48.6"}.get(column, "other")
    pairs = (("same", values.get(column, "x")), ("other", other))
    rows = [{"id": key, column: text} for key, last in pairs for text in (values.get(column, "x"), last)]
    reasons = {n: found["reason"] for n, found in refusals(items(darkroom.plain(rows))).items()}
    conflict = {5: "duplicate_id"} if column == "country" else {4: "conflicting_id", 5: "conflicting_id"}
    assert reasons == {3: "duplicate_id", **conflict}


def test_hexadecimal_ids_are_no_floats(darkroom: Any) -> None:
    darkroom.save("a.jpg", b"x")
    hexadecimal = darkroom.plain([{"id": "1234e567"}, {"id": "12345678"}, {"id": "ab34e567"}, {"id": "1.5e+17"}])
    assert {n: one["reason"] for n, one in refusals(items(hexadecimal)).items()} == {5: "id_damaged"}
    floats = survey_rows(darkroom.plain([{"id": f"{n}e+17"} for n in range(3)]), SETTINGS)
    with pytest.raises(
        TableRefused, match=r"none of its 3 rows can be taken: 3 id_damaged .*export the ids again as text"
    ):
        check_dataset(None, floats, "set", SETTINGS, PlanSettings())
