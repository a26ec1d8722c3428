"""Great Expectations suites, one for each table, built from the table's contract (schemas/tables).

They run on the rows a stage has just written, and on all live rows at the review, whose Data Docs show them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from schemas.tables import TABLES, Expectation, Table
from tasks.lake import Lake
from tasks.review.gx_context import gx_context

SuiteFrame = Any  # a pandas.DataFrame, which is imported with Great Expectations

EXAMPLES = 3
BESIDE = ("runs",)  # written after the stage's tables, by the runner itself


class SuiteFailed(GeofixError):
    """A table breaks its contract: the flow stops before a snapshot is made of it."""


@dataclass(frozen=True)
class Breach:
    """An expectation that rows do not meet."""

    table: str
    says: str
    rows: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        such = f", such as {', '.join(self.examples)}" if self.examples else ""
        return f"{self.table}: {self.says}: broken in {self.rows:,} rows{such}"


def require_suites(lake: Lake, tables: Iterable[str], run_id: str) -> None:
    """SuiteFailed if a row that this run wrote breaks its table's contract."""
    for name in tables:
        if name not in TABLES or name in BESIDE:
            continue
        mine = lake.scan(name).filter((pl.col("run_id") == run_id) & pl.col("tombstone").is_null())
        rows = lake.collect(name, mine.select(_columns(TABLES[name])))
        found = breaches(name, rows) if rows.height else []
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise SuiteFailed(f"{found[0]}{more}; the rows are in the lake, no snapshot is made of them")


def breaches(name: str, rows: pl.DataFrame) -> list[Breach]:
    """What the rows of a table break."""
    context, batches = _context()
    suite = _suite(name)
    if name not in batches:
        batches[name] = (
            context.data_sources.get("lake").add_dataframe_asset(name).add_batch_definition_whole_dataframe("rows")
        )
    batch = batches[name].get_batch(batch_parameters={"dataframe": suite_frame(name, rows)})
    result = batch.validate(suite)
    if result.success:
        return []
    return [_breach(name, one) for one in result.results if not one.success]


def _breach(name: str, outcome: Any) -> Breach:
    found: Mapping[str, Any] = outcome.result or {}
    values = sorted({str(value)[:80] for value in found.get("partial_unexpected_list") or [] if value == value})
    says = (outcome.expectation_config.meta or {}).get("says", outcome.expectation_config.type)
    return Breach(name, says, int(found.get("unexpected_count") or 0), tuple(values[:EXAMPLES]))


def _columns(table: Table) -> list[str]:
    needed = [*table.key, *table.required, *(one.column for one in table.expectations)]
    return list(dict.fromkeys(name for name in needed))


def suite_frame(name: str, rows: pl.DataFrame) -> SuiteFrame:
    """The checked columns of a table, for pandas: Great Expectations has no polars engine."""
    return rows.select(_columns(TABLES[name])).to_pandas()


@cache
def _context() -> tuple[Any, dict[str, Any]]:
    """One context for the process, and the batch definitions of the tables seen so far."""
    context = gx_context()
    context.data_sources.add_pandas("lake")
    return context, {}


@cache
def _suite(name: str) -> Any:
    import great_expectations as gx

    return gx.ExpectationSuite(name=name, expectations=expectations(TABLES[name]))


def expectations(table: Table) -> list[Any]:
    """The contract as Great Expectations has it."""
    from great_expectations import expectations as gxe

    found: list[Any] = [
        gxe.ExpectColumnValuesToNotBeNull(column=column, meta={"says": f"{column} is never missing"})
        for column in dict.fromkeys((*table.key, *table.required))
    ]
    said = {"says": f"{', '.join(table.key)} is there once"}
    if len(table.key) == 1:
        found.append(gxe.ExpectColumnValuesToBeUnique(column=table.key[0], meta=said))
    else:
        found.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=list(table.key), meta=said))
    return found + [_as_gx(one) for one in table.expectations]


def _as_gx(one: Expectation) -> Any:
    from great_expectations import expectations as gxe

    meta = {"says": one.says}
    if one.values:
        return gxe.ExpectColumnValuesToBeInSet(column=one.column, value_set=list(one.values), meta=meta)
    if one.regex:
        return gxe.ExpectColumnValuesToMatchRegex(column=one.column, regex=one.regex, meta=meta)
    return gxe.ExpectColumnValuesToBeBetween(column=one.column, min_value=one.low, max_value=one.high, meta=meta)
