"""What a table contract is.

Every table carries the same six system columns, filled by the runner, never by a stage: `stage` and `item_id` say which
item of which stage wrote the row, `made_from` is the digest of that item's input and settings (same digest = nothing to
redo), `run_id` and `written_at` say when, and `tombstone` says why a row has ended; it is null while the row is live.
A key may have several versions, rows with different `made_from`; at most one of them is live.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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

# Columns that several tables have alike.
ATTEMPT: dict[str, pa.DataType] = {
    "end_reason": STRING,
    "tool_calls": INT,
    "tool_successes": INT,
    "tool_pattern": STRING,  # tools used, in the order of first use
    "prompt_tokens": INT,
    "completion_tokens": INT,
    "cost_usd": FLOAT,
    "seconds": FLOAT,
}
ESTIMATE: dict[str, pa.DataType] = {"value": FLOAT, "low": FLOAT, "high": FLOAT, "n": INT}


@dataclass(frozen=True)
class Expectation:
    """What every live row promises about one column. Empty values are promised by `key` and `required` alone."""

    column: str
    says: str
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    regex: str = ""


def between(column: str, low: float | None = None, high: float | None = None) -> Expectation:
    """The column's numbers lie between two bounds, both included; one of them may be left open."""
    if low is not None and high is not None:
        bound = f"lies in {low:g}..{high:g}"
    else:
        bound = f"is at least {low:g}" if low is not None else f"is at most {high:g}"
    return Expectation(column, f"{column} {bound}", low=low, high=high)


def one_of(column: str, *values: str) -> Expectation:
    """The column holds one of these texts."""
    return Expectation(column, f"{column} is {', '.join(values)}", values=values)


def matches(column: str, regex: str, says: str) -> Expectation:
    """The column's text has this form."""
    return Expectation(column, says, regex=regex)


# Columns that mean the same in every table promise the same in every table.
_SHARED = {
    **{name: between(name, -90, 90) for name in ("lat", "city_lat")},
    **{name: between(name, -180, 180) for name in ("lon", "city_lon")},
    **{name: matches(name, r"^[0-9a-f]{64}$", f"{name} is 64 hex digits") for name in ("sha256", "source_sha256")},
    "split": one_of("split", "train", "validation", "benchmark"),
    **{
        name: between(name, 0)
        for name in (
            "bytes", "error_km", "geoscore", "cost_usd", "prompt_tokens", "completion_tokens", "tool_calls",
            "tool_failures", "requests", "items_in", "kept", "rejected", "failed", "skipped", "total", "attempts",
            "steps", "samples", "trial", "n",
        )
    },
    **{name: between(name, 1) for name in ("width", "height", "k")},
    **{name: between(name, 0, 1) for name in ("probability",)},
    **{name: between(name, 0, 10) for name in ("score", "localizability_score")},
}  # fmt: skip


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
    keeps_versions: bool = True  # a redone item's old rows stay as tombstones; false: they are deleted, unasked
    expects: tuple[Expectation, ...] = ()  # besides what its columns promise in every table
    renamed: Mapping[str, str] = field(default_factory=dict)  # column -> its name in an earlier release

    @property
    def expectations(self) -> tuple[Expectation, ...]:
        """What Great Expectations holds the table to, besides its key and its required columns."""
        own = {expectation.column for expectation in self.expects}
        numbers_or_text = (n for n, t in self.columns.items() if t in (STRING, INT, FLOAT))
        return (*self.expects, *(_SHARED[n] for n in numbers_or_text if n in _SHARED and n not in own))

    @property
    def schema(self) -> pa.Schema:
        needed = set(self.key) | set(self.required)
        own = [pa.field(n, t, nullable=n not in needed) for n, t in self.columns.items()]
        return pa.schema(own + [pa.field(n, t) for n, t in SYSTEM_COLUMNS.items()])
