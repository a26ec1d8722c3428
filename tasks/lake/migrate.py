"""Tables of an earlier release brought to the contracts of this one.

A contract names what a column was called before (`renamed`); whole numbers may become fractions. Reading does without
a migration, at old versions too: snapshots stay readable. Writing to a table whose columns changed is refused until it
was migrated. Columns that a contract no longer has are left out of what is read, and of a table that is written anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

from schemas.tables import TABLES, Table
from tasks.lake.table_schema import added_columns, rewritten_columns, stored_name, to_arrow
from tasks.lake.tables import Lake
from tasks.lake.writes import Commit, add_new_columns

ROWS = 50_000  # written at a time


@dataclass(frozen=True)
class Migration:
    """What is done to one table."""

    table: str
    added: tuple[str, ...]  # columns
    rewritten: tuple[str, ...]  # in words; all rows are written once
    dropped: tuple[str, ...]  # columns that a rewriting leaves behind, and that no contract has

    def __str__(self) -> str:
        parts = [
            f"adds {', '.join(self.added)}" if self.added else "",
            f"writes all rows anew: {', '.join(self.rewritten)}" if self.rewritten else "",
            f"drops {', '.join(self.dropped)}" if self.dropped else "",
        ]
        return f"{self.table}: {'; '.join(filter(None, parts))}"


def pending_migrations(lake: Lake) -> Iterator[Migration]:
    """What `migrate` would do, table by table. Writes nothing."""
    for name in lake.existing():
        table = lake.delta(name)
        assert table is not None
        stored = pa.schema(table.schema().to_arrow())
        added, rewritten = added_columns(TABLES[name], stored), rewritten_columns(TABLES[name], stored)
        if added or rewritten:
            known = {stored_name(TABLES[name], column, stored.names) for column in TABLES[name].schema.names}
            dropped = [column for column in stored.names if column not in known] if rewritten else []
            yield Migration(name, tuple(field.name for field in added), tuple(rewritten), tuple(dropped))


def migrate(lake: Lake, migration: Migration, run_id: str) -> None:
    """Bring one table to its contract, in one commit; killed before it, the table is as it was."""
    table = lake.delta(migration.table)
    assert table is not None
    if not migration.rewritten:
        add_new_columns(table, migration.table)
        return
    contract = TABLES[migration.table]
    # Opened here: the writer asks for batches in a thread where no table can be opened.
    parts = iter(lake.scan(migration.table, table.version()).collect_batches(chunk_size=ROWS))
    write_deltalake(
        table,
        pa.RecordBatchReader.from_batches(
            contract.schema, (batch for part in parts for batch in _batches(contract, part))
        ),
        mode="overwrite",
        schema_mode="overwrite",
        commit_properties=Commit(run_id, 1).properties("migrate", 0),
    )


def _batches(contract: Table, rows: pl.DataFrame) -> list[pa.RecordBatch]:
    return list(to_arrow(contract, rows).to_batches())
