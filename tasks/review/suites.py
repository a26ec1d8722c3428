"""Great Expectations: a suite for each table, built from the table's contract (schemas/tables), and how it is run.

Suites run on the rows a stage has just written, and on all live rows at the review, whose Data Docs show them.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from schemas.errors import GeofixError
from schemas.tables import TABLES, Expectation, Table
from tasks.lake import Lake

# Read when Great Expectations is imported, which is done late: nothing leaves the machine.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
os.environ.setdefault("TQDM_DISABLE", "1")

SuiteFrame = Any  # a pandas.DataFrame, which is imported with Great Expectations

EXAMPLES = 3
WITHOUT_SUITE = ("runs",)  # written after the stage's tables, by the runner itself


class SuiteFailed(GeofixError):
    """A table breaks its contract: the flow stops before a snapshot is made of it."""


@dataclass(frozen=True)
class Check:
    """One expectation about one table, and whether the table meets it."""

    table: str
    says: str
    passed: bool
    checked: int  # rows
    unexpected: int  # rows that do not meet it
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        such = f", such as {', '.join(self.examples)}" if self.examples else ""
        return f"{self.table}: {self.says}: broken in {self.unexpected:,} rows{such}"


def require_suites(lake: Lake, tables: Iterable[str], run_id: str) -> None:
    """SuiteFailed if a row that this run wrote breaks its table's contract."""
    for name in tables:
        if name not in TABLES or name in WITHOUT_SUITE:
            continue
        mine = lake.scan(name).filter((pl.col("run_id") == run_id) & pl.col("tombstone").is_null())
        rows = lake.collect(name, mine.select(_columns(expectations(TABLES[name]))))
        broken = breaches(name, rows) if rows.height else []
        if broken:
            more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
            raise SuiteFailed(f"{broken[0]}{more}; the rows are in the lake, no snapshot is made of them")


def breaches(name: str, rows: pl.DataFrame) -> list[Check]:
    """What the rows of a table break."""
    return [check for check in validate(name, rows, expectations(TABLES[name])) if not check.passed]


def validate(name: str, rows: pl.DataFrame, contract: list[Any]) -> list[Check]:
    """Whether the rows meet each expectation of a contract, in its order."""
    import great_expectations as gx

    context, batches = _context()
    if name not in batches:
        asset = context.data_sources.get("lake").add_dataframe_asset(name)
        batches[name] = asset.add_batch_definition_whole_dataframe("rows")
    batch = batches[name].get_batch(batch_parameters={"dataframe": suite_frame(rows, contract)})
    results = batch.validate(gx.ExpectationSuite(name=name, expectations=contract)).results
    checks = {result.expectation_config.meta["says"]: _check(name, result, rows.height) for result in results}
    return [checks[expectation.meta["says"]] for expectation in contract]


def _check(table: str, outcome: Any, height: int) -> Check:
    result: Mapping[str, Any] = outcome.result or {}
    values = result.get("partial_unexpected_list") or []
    # A column of true and false has nothing to show; the sentence says it all.
    shown = sorted({str(value)[:80] for value in values if not isinstance(value, bool) and value == value})
    unexpected = int(result.get("unexpected_count") or 0)
    says = outcome.expectation_config.meta["says"]
    return Check(table, says, bool(outcome.success), height, unexpected, tuple(shown[:EXAMPLES]))


def suite_frame(rows: pl.DataFrame, contract: list[Any]) -> SuiteFrame:
    """The columns that a contract needs, for pandas: Great Expectations has no polars engine."""
    return rows.select(_columns(contract)).to_pandas()


def _columns(contract: list[Any]) -> list[str]:
    needed = [
        getattr(expectation, "column_list", None) or [getattr(expectation, "column", None)] for expectation in contract
    ]
    return list(dict.fromkeys(name for names in needed for name in names if name))


def gx_context() -> Any:
    """A new context in memory, without progress bars, telemetry and chatter."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # They tell of every temporary folder and every closure; the second has a level of its own.
    for name in ("great_expectations", "great_expectations.data_context.types.base"):
        logging.getLogger(name).setLevel(logging.WARNING)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context


@cache
def _context() -> tuple[Any, dict[str, Any]]:
    """One context for the process, and the batch definitions of the tables seen so far."""
    context = gx_context()
    context.data_sources.add_pandas("lake")
    return context, {}


def expectations(table: Table) -> list[Any]:
    """The contract as Great Expectations has it."""
    from great_expectations import expectations as gxe

    expected: list[Any] = [
        gxe.ExpectColumnValuesToNotBeNull(column=column, meta={"says": f"{column} is never missing"})
        for column in dict.fromkeys((*table.key, *table.required))
    ]
    key_meta = {"says": f"{', '.join(table.key)} is there once"}
    if len(table.key) == 1:
        expected.append(gxe.ExpectColumnValuesToBeUnique(column=table.key[0], meta=key_meta))
    else:
        expected.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=list(table.key), meta=key_meta))
    return expected + [_as_gx(expectation) for expectation in table.expectations]


def _as_gx(expectation: Expectation) -> Any:
    from great_expectations import expectations as gxe

    meta = {"says": expectation.says}
    if expectation.values:
        return gxe.ExpectColumnValuesToBeInSet(column=expectation.column, value_set=list(expectation.values), meta=meta)
    if expectation.regex:
        return gxe.ExpectColumnValuesToMatchRegex(column=expectation.column, regex=expectation.regex, meta=meta)
    return gxe.ExpectColumnValuesToBeBetween(
        column=expectation.column, min_value=expectation.low, max_value=expectation.high, meta=meta
    )
