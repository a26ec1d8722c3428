"""What a table contract is.

Every table carries the same six system columns, filled by the runner, never by a stage: `stage` and `item_id` say which
item of which stage wrote the row, `made_from` is the digest of that item's input and settings (same digest = nothing to
redo), `run_id` and `written_at` say when, and `tombstone` says why a row has ended; it is null while the row is live.
A key may have several versions, rows with different `made_from`; at most one of them is live.
"""

from dataclasses import dataclass

import pyarrow as pa

STRING = pa.string()
INT = pa.int64()
FLOAT = pa.float64()
BOOL = pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
JSON = pa.string()  # a JSON document as text; the column's name ends in _json

SYSTEM_COLUMNS: dict[str, pa.DataType] = {
    "stage": STRING,
    "item_id": STRING,
    "made_from": STRING,
    "run_id": STRING,
    "written_at": TIME,
    "tombstone": STRING,
}


@dataclass(frozen=True)
class Table:
    """A table's contract."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, pa.DataType]
    required: tuple[str, ...] = ()  # never null, besides the key
    about: str = ""
    lives_with: str = ""  # a table whose key is a column here: a row ends when the row it names does
    shared: bool = False  # several stages may write it; each row belongs to the stage it names

    @property
    def schema(self) -> pa.Schema:
        needed = set(self.key) | set(self.required)
        own = [pa.field(n, t, nullable=n not in needed) for n, t in self.columns.items()]
        return pa.schema(own + [pa.field(n, t) for n, t in SYSTEM_COLUMNS.items()])
