"""People's notes on pictures, as GeoAgent's volunteers wrote them: a table of image_id and notes."""

from collections.abc import Callable
from pathlib import Path

import polars as pl

from schemas.errors import InputError

MAX_CHARS = 8000  # of one picture's notes; the rest is left out


def read_notes(path: str) -> pl.DataFrame:
    """image_id and notes, one row a picture; InputError in one line for a file that is none."""
    file = Path(path)
    # Of a csv everything is text: an id that looks like a number stays as it is.
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".csv": lambda path: pl.read_csv(path, infer_schema=False),
        ".jsonl": pl.read_ndjson,
        ".parquet": pl.read_parquet,
    }
    if file.suffix not in readers:
        raise InputError(f"synthesize.notes: {path} is none of {', '.join(readers)}")
    if not file.is_file():
        raise InputError(f"synthesize.notes: there is no file {path}")
    try:
        table = readers[file.suffix](file)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"synthesize.notes: {path} cannot be read ({type(error).__name__})") from None
    for column in ("image_id", "notes"):
        if column not in table.columns:
            raise InputError(f"synthesize.notes: {path} has no column '{column}'; it has {', '.join(table.columns)}")
        if table.schema[column] != pl.String:
            raise InputError(f"synthesize.notes: column '{column}' of {path} must be text")
    return (
        table.select("image_id", pl.col("notes").str.strip_chars().str.slice(0, MAX_CHARS))
        .filter(pl.col("notes").str.len_chars() > 0)
        .unique("image_id", keep="first", maintain_order=True)
    )
