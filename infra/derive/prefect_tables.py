"""Derives `infra/prefect_tables.sql.gz`, the empty tables of Prefect's database, from one that Prefect itself made.

PREFECT_HOME=/tmp/home prefect server database upgrade --yes
python -m infra.derive.prefect_tables /tmp/home/prefect.db
"""

import contextlib
import gzip
import sqlite3
import sys
from pathlib import Path

from infra.prefect_server import TABLES


def tables_of(database: Path) -> str:
    """The statements that make these tables without their rows, but at the same version."""
    with contextlib.closing(sqlite3.connect(database)) as opened:
        lines = opened.iterdump()
        return "\n".join(line for line in lines if not line.startswith("INSERT") or '"alembic_version"' in line) + "\n"


if __name__ == "__main__":
    TABLES.write_bytes(gzip.compress(tables_of(Path(sys.argv[1])).encode(), mtime=0))
