"""Parquet, some thousand rows at a time."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest.cells import Values, text_or_none
from tasks.ingest.refusal import Refusal, TableRefused

PIECE = 8192  # rows decoded at once
# Bytes are left out: as text they would read b'ab01'.
_CELLS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer),
    *(pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal, pa.types.is_boolean, pa.types.is_null),
)


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


def check_types(path: Path, names: Mapping[str, str], check_ids: bool) -> None:
    """TableRefused for a column whose type cannot hold what the field of that name should."""
    schema = pq.read_schema(path)
    for name, column in names.items():
        kind = schema.field(column).type
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        if name == "id" and check_ids and pa.types.is_floating(values):
            raise TableRefused(
                f"{path}: column {column} stores ids as {kind}, which cannot hold long ids; export it again with "
                f"text ids (pandas: dtype={{'{column}': str}})"
            )
        if not any(is_one(values) for is_one in _CELLS):
            raise TableRefused(f"{path}: column {column} holds {str(kind)[:60]}; store it as text or a number")


def rows_of(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, Values | Refusal]]:
    """Every row with its number."""
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PIECE, columns=list(wanted)):
                columns = [_values(batch.column(name), name) for name in wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    odd = next((value for value in values if isinstance(value, Refusal)), None)
                    yield number, odd or tuple(_cell(value) for value in values)
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:120]
        raise TableRefused(f"{path}: breaks off after row {number}: {said}") from error


def _values(column: pa.Array, name: str) -> list[Any]:
    """The column's values. One that Python cannot hold must not cost the others: then they are taken one by one."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # bytes that are no UTF-8 are a ValueError, too
        return [_value(value, name) for value in column]


def _value(value: pa.Scalar, name: str) -> Any:
    try:
        return value.as_py()
    except UnicodeError:
        return Refusal("unreadable_row", "holds bytes that are not UTF-8", name)
    except (ValueError, OverflowError):
        # A moment beyond the calendar, often a placeholder: as its number and unit, which is not mistaken for a time.
        return f"{getattr(value, 'value', 'a value')} {value.type}"


def _cell(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, datetime | date):
        return value.isoformat()
    return text_or_none(repr(value) if isinstance(value, float) else str(value))
