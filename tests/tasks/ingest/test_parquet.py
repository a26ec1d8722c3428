"""Parquet: an odd value costs its own row at most, and a column that cannot hold its field is refused."""

import datetime
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from tasks.ingest import TableRefused
from tasks.ingest.rows import item_batches
from tasks.ingest.survey import survey_rows

SETTINGS = IngestSettings(keep_lat_lon=True, licence="CC BY 4.0", attribution="Ana", split="train")
IDS = ["a", "b", "c"]


def parquet(darkroom: Any, **columns: pa.Array) -> Path:
    darkroom.save("a.jpg", b"x")
    path: Path = darkroom.folder / "photos.parquet"
    plain = {"id": IDS, "path": ["a.jpg"] * 3, "lat": [48.5] * 3, "lon": [2.5] * 3}
    pq.write_table(pa.table({**plain, **columns}), path)
    return path


def items(darkroom: Any, **columns: pa.Array) -> list[dict[str, Any]]:
    survey = survey_rows(parquet(darkroom, **columns), SETTINGS)
    return pl.concat(list(item_batches(survey, "set", SETTINGS, PlanSettings()))).to_dicts()


def broken_text(values: list[bytes], kind: pa.DataType) -> pa.Array:
    """Text whose bytes nobody has checked."""
    return pa.Array.from_buffers(kind, len(values), [None, *pa.array(values).buffers()[1:]])


@pytest.mark.parametrize(
    ("moments", "said"),  # as Arrow writes a value that its calendar does not hold
    [
        (pa.array([10**17, 1_551_453_012_000, None], pa.timestamp("ms")), "<value out of range: 100000000000000000>"),
        (pa.array([-(10**17), 1_551_453_012_000, None], pa.timestamp("ms", "UTC")), "-21176-"),
        (pa.array([2**62, 1_551_453_012 * 10**6, None], pa.timestamp("us")), ""),
        (pa.array([2**31 - 1, 17_956, None], pa.date32()), f"<value out of range: {2**31 - 1}>"),
    ],
)
def test_a_moment_beyond_the_calendar_is_noted(darkroom: Any, moments: pa.Array, said: str) -> None:
    far, good, none = items(darkroom, captured_at=moments)
    assert [row["refusal"] for row in (far, good, none)] == [None] * 3
    assert far["captured_at"] is None and json.loads(far["notes"])[0].startswith(f"captured_at_unreadable: {said}")
    assert good["captured_at"].startswith("2019-03-01") and good["notes"] is None
    assert none["captured_at"] is None and none["notes"] is None


def test_text_that_is_none_is_refused(darkroom: Any) -> None:
    with pytest.raises(TableRefused, match=r"cannot be read after row 0: .*Invalid UTF8"):
        items(darkroom, creator=broken_text([b"\xff\xfe", b"b", b"c"], pa.string()))


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (pa.array([b"a", b"b", b"c"], pa.binary()), "binary"),
        (pa.array([b"a", b"b", b"c"], pa.binary(1)), r"fixed_size_binary\[1\]"),
        (pa.array([b"a", b"b", b"c"], pa.binary_view()), "binary_view"),
        (pa.array([["a"], ["b"], ["c"]]), "list"),
    ],
)
def test_bytes_and_lists_are_no_ids(darkroom: Any, ids: pa.Array, said: str) -> None:
    with pytest.raises(TableRefused, match=f"column id holds {said}.*store it as text or a number"):
        items(darkroom, id=ids)


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(IDS, pa.string_view()),
        pa.array(IDS, pa.large_string()),
        pa.array(IDS).dictionary_encode(),
        pa.array([2**63, 2**63 + 1, 2**63 + 2], pa.uint64()),
    ],
)
def test_every_kind_of_text_and_whole_number_is_an_id(darkroom: Any, ids: pa.Array) -> None:
    assert [row["source_id"] for row in items(darkroom, id=ids)] == [str(value) for value in ids.to_pylist()]


def test_moments_of_all_units_are_read(darkroom: Any) -> None:
    moment = datetime.datetime(2019, 3, 1, 15, 10, 12, tzinfo=datetime.UTC)
    for unit in ("s", "ms", "us", "ns"):
        found = items(darkroom, captured_at=pa.array([moment] * 3, pa.timestamp(unit, "UTC")))
        assert {row["captured_at"] for row in found} == {"2019-03-01T15:10:12+00:00"}, unit


def test_a_file_of_too_many_rows_is_refused_before_it_is_read(darkroom: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    with pytest.raises(TableRefused, match=r"3 rows, more than ingest\.max_rows \(2\).* --set ingest\.max_rows=3"):
        survey_rows(parquet(darkroom), SETTINGS.model_copy(update={"max_rows": 2}))
