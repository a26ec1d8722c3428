"""Parquet, some thousand rows at a time."""

import math
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest.cells import Values, text_or_none
from tasks.ingest.refusal import Refusal, TableRefused

PIECE = 8192  # rows decoded at once


def names_of(path: Path) -> list[str]:
    """The columns; TableRefused when it is no table."""
    try:
        with pq.ParquetFile(path) as file:
            names, rows = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{path}: is not a readable Parquet file: {said}") from error
    if rows == 0:
        raise TableRefused(f"{path}: the file holds no rows")
    return list(names)


def type_of(path: Path, column: str) -> pa.DataType:
    """The type a column is stored with."""
    return pq.read_schema(path).field(column).type


def rows_of(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, Values | Refusal]]:
    """Every row with its number."""
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PIECE, columns=list(wanted)):
                columns = [batch.column(name).to_pylist() for name in wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield number, tuple(_cell(value) for value in values)
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{path}: breaks off after row {number}: {said}") from error


def _cell(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime | date):
        return value.isoformat()
    return text_or_none(repr(value) if isinstance(value, float) else str(value))
