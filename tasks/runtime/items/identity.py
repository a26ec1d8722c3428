"""Names that follow from content: digests, run ids, code version."""

import hashlib
import json
import secrets
import subprocess
from collections.abc import Collection
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import GeofixError

LENGTH = 24
SLICE = 20_000  # rows written as text together: a million at once would take more memory than the table


def digest(*parts: Any) -> str:
    """A name that follows from the parts: 24 hex digits of the sha256 of their JSON."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def with_made_from(items: pl.DataFrame, config_hash: str, stage: str, unhashed: Collection[str] = ()) -> pl.DataFrame:
    """The items with `made_from`: the digest of each row without its unhashed columns, and of the configuration."""
    if "id" not in items.columns or items.schema["id"] != pl.String:
        raise GeofixError(f"step {stage}: items need a text column 'id'")
    if not is_unique(items["id"]):
        repeated = items.filter(pl.col("id").is_duplicated())["id"]
        raise GeofixError(f"step {stage}: item id '{repeated[0]}' occurs {repeated.len()} times in the input")
    if items["id"].null_count():
        raise GeofixError(f"step {stage}: an item has no id")
    # JSON lines rather than Polars' own hash, which may change between its versions and would redo everything.
    counted = items.select(sorted(set(items.columns) - set(unhashed)))
    seed = hashlib.sha256(config_hash.encode())
    names = [pl.Series("made_from", [], dtype=pl.String)]
    for part in counted.iter_slices(SLICE) if items.height else ():
        names.append(
            pl.Series("made_from", [_line_name(seed, line) for line in part.write_ndjson().encode().splitlines()])
        )
    return items.with_columns(pl.concat(names))


def is_unique(ids: pl.Series) -> bool:
    """Whether no id occurs twice; hashes answer it, and only where two are the same the texts are compared."""
    return ids.hash().n_unique() == len(ids) or not bool(ids.is_duplicated().any())


def _line_name(seed: "hashlib._Hash", line: bytes) -> str:
    state = seed.copy()
    state.update(line)
    return state.hexdigest()[:LENGTH]


def new_run_id(stage: str) -> str:
    """A run's name: sorts by time, says the stage, repeats never."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{stage.replace('.', '-')}-{secrets.token_hex(4)}"


@cache
def code_version() -> str:
    """The package's version and, in a checkout, its commit."""
    try:
        number = version("geofix").partition("+")[0]  # of a checkout the commit follows, as it is now
    except PackageNotFoundError:
        number = "0"
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return number
    process = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{number}+{process.stdout.strip()}" if process.returncode == 0 else number
