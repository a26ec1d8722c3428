"""Rows against a table's contract: into Arrow, or a clear word on what does not fit."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from schemas.errors import LakeError
from schemas.tables import Table


def to_arrow(
    contract: Table, rows: pl.DataFrame | Iterable[Mapping[str, Any]], more: Mapping[str, pa.Array] | None = None
) -> pa.Table:
    """An Arrow table with exactly the contract's columns, absent ones null. `more` holds whole columns."""
    if isinstance(rows, pl.DataFrame):
        columns: dict[str, Any] = {name: rows[name].to_arrow() for name in rows.columns}
    else:
        columns = _from_dicts(contract, list(rows))
    columns |= more or {}
    unknown = [c for c in columns if c not in contract.schema.names]
    if unknown:
        raise LakeError(f"table '{contract.name}' has no column {', '.join(map(repr, unknown))}")
    height = len(next(iter(columns.values()))) if columns else 0
    arrays = []
    for column in contract.schema:
        values = columns.get(column.name)
        array = pa.nulls(height, column.type) if values is None else _cast(contract, column, values)
        if not column.nullable and array.null_count:
            raise LakeError(f"table '{contract.name}': column '{column.name}' is empty in {array.null_count} rows")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=contract.schema)


def _from_dicts(contract: Table, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = set(chain.from_iterable(rows))
    columns: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name not in contract.schema.names:
            columns[name] = pa.nulls(len(values))
            continue
        wanted = contract.schema.field(name).type
        try:
            columns[name] = pa.array(values, type=wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise LakeError(f"table '{contract.name}': column '{name}' must be {wanted}: {error}") from error
    return columns


def _cast(contract: Table, column: pa.Field, array: Any) -> Any:
    # A float that became an id has lost digits already: refuse it rather than print it as text.
    if pa.types.is_string(column.type) and not _is_text(array.type):
        raise LakeError(f"table '{contract.name}': column '{column.name}' must be text, not {array.type}")
    try:
        return array.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LakeError(f"table '{contract.name}': column '{column.name}' must be {column.type}: {error}") from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_null(kind)
        or pa.types.is_dictionary(kind)
    )


# A column of the first kind may become the second: no value changes its meaning.
_WIDENED = {("int32", "int64"), ("int64", "double"), ("float", "double")}


def check_stored_schema(contract: Table, stored: pa.Schema, path: str) -> None:
    """Refuse a table on disk whose columns have other types than the contract's, and cannot be migrated."""
    for column in contract.schema:
        name = stored_name(contract, column.name, stored.names)
        if name is None:
            continue  # a column newer than the table: read as null, added on the next write
        kind = stored.field(name).type
        if _plain(kind) != _plain(column.type) and (_plain(kind), _plain(column.type)) not in _WIDENED:
            raise LakeError(
                f"table '{contract.name}' at {path}: column '{name}' is {kind}, expected {column.type}; "
                "it was not written by this version of geofix: move it away or name another --lake"
            )
    missing = [key for key in contract.key if stored_name(contract, key, stored.names) is None]
    if missing:
        raise LakeError(
            f"table '{contract.name}' at {path}: key column '{missing[0]}' is missing; "
            "it was not written by geofix: move it away or name another --lake"
        )


def stored_name(contract: Table, column: str, stored: Iterable[str]) -> str | None:
    """What a column is called in a stored table: its name, that of an earlier release, or None if it is newer."""
    names = set(stored)
    return next((name for name in (column, contract.renamed.get(column)) if name in names), None)


def rewritten_columns(contract: Table, stored: pa.Schema) -> list[str]:
    """What of a stored table has to be written anew before rows can be added, in words."""
    rewritten = []
    for column in contract.schema:
        name = stored_name(contract, column.name, stored.names)
        if name is None:
            continue
        kind = stored.field(name).type
        if name != column.name:
            rewritten.append(f"{name} becomes {column.name}")
        if _plain(kind) != _plain(column.type):
            rewritten.append(f"{column.name} becomes {column.type}, was {kind}")
    return rewritten


def added_columns(contract: Table, stored: pa.Schema) -> list[pa.Field]:
    """The contract's columns that a stored table lacks."""
    return [field for field in contract.schema if stored_name(contract, field.name, stored.names) is None]


def _plain(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return f"list<{_plain(kind.value_type)}>"
    if _is_text(kind):
        return "string"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return str(kind)
