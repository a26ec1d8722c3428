"""Pictures inside Parquet files, as the Hugging Face hub publishes them: a column of structs {bytes, path}.

A row is known by where its picture stands, `data/train-00000-of-00002.parquet#17`, counted from 0. The bytes are read
when the row is worked on, with those of its row group, which is what a Parquet file can be read by.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.ingest.files import Found, PictureFolder
from tasks.ingest.folder import files_in
from tasks.ingest.refusal import Refusal, TableRefused

LARGEST_GROUP_MB = 500  # of pictures that are read together; twice to four times as much is needed meanwhile


def read_schema(file: Path) -> pa.Schema:
    """The columns of a Parquet file; TableRefused for any other file."""
    try:
        return pq.read_schema(file)
    except pa.ArrowException as error:
        raise TableRefused(f"{file}: is not a readable Parquet file: {str(error)[:120]}") from error


def picture_column(schema: pa.Schema) -> str | None:
    """The column that holds pictures, if there is one."""
    for field in schema:
        parts = {part.name: str(part.type) for part in field.type} if pa.types.is_struct(field.type) else {}
        if "binary" in parts.get("bytes", "") and "string" in parts.get("path", ""):
            return str(field.name)
    return None


def shards(folder: Path) -> list[Path]:
    """The Parquet files of a folder, if they hold pictures."""
    files = sorted(file for file in files_in(folder) if file.suffix.casefold() == ".parquet")
    return files if files and picture_column(read_schema(files[0])) else []


def check_groups(path: Path, files: Sequence[pq.FileMetaData], column: str) -> None:
    """TableRefused where pictures cannot be read some at a time."""
    groups = (file.row_group(number) for file in files for number in range(file.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    sizes = (chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == f"{column}.bytes")
    if (largest_mb := max(sizes, default=0) / 1e6) > LARGEST_GROUP_MB:
        raise TableRefused(
            f"{path}: column {column} holds pictures in groups of up to {largest_mb:,.0f} MB, and a group is read as a "
            f"whole: write the file again in groups below {LARGEST_GROUP_MB} MB (pyarrow.parquet: row_group_size=100)"
        )


def with_places(rows: pl.DataFrame, column: str, names: pl.Series, file: str, first: int) -> pl.DataFrame:
    """The rows with each picture's place in its column, and in COLUMN.path the name it has, else its place."""
    place = pl.concat_str(pl.lit(f"{file}#"), pl.int_range(first, first + len(names)))
    return rows.with_columns(place.alias(column), pl.coalesce(names, place).alias(f"{column}.path"))


class EmbeddedPictures(PictureFolder):
    """The pictures of a column, of files in this folder."""

    def __init__(self, root: Path, column: str) -> None:
        super().__init__(root)
        self.column = column
        self._lock = threading.Lock()
        self._group: tuple[str, int] | None = None
        self._pictures = pa.chunked_array([], pa.binary())  # of that group: the next rows are in it too

    def find(self, path: str) -> Found | Refusal:
        """The picture a row names. Size and time are those of its file."""
        info = (self.root / path.rpartition("#")[0]).stat()
        return Found(path, info.st_size, info.st_mtime_ns)

    def read(self, name: str, max_bytes: int) -> bytes | Refusal:
        """The bytes of a picture that was found before."""
        try:
            with self._lock:
                data = self._bytes_at(*name.rsplit("#", 1))
        except (pa.ArrowException, OSError, IndexError) as error:
            return Refusal("file_unreadable", f"cannot be read: {str(error)[:120]}", given=name)
        if not data:
            return Refusal("no_picture", "holds no bytes", given=name)
        if len(data) > max_bytes:
            return Refusal("too_big", f"{len(data) / 1e6:.1f} MB, at most {max_bytes / 1e6:g} MB are read", given=name)
        return data

    def _bytes_at(self, file: str, number: str) -> bytes | None:
        row, group = int(number), 0
        with pq.ParquetFile(self.root / file) as parquet:
            while row >= (count := parquet.metadata.row_group(group).num_rows):
                row, group = row - count, group + 1
            if self._group != (file, group):
                table = parquet.read_row_group(group, columns=[f"{self.column}.bytes"])
                self._group, self._pictures = (file, group), table.column(self.column)
        picture: dict[str, bytes | None] | None = self._pictures[row].as_py()
        return picture["bytes"] if picture else None


def picture_source(folder: Path, column: str | None) -> PictureFolder:
    """Where the pictures of a table are: in a folder, or in a column of the table's own files."""
    return PictureFolder(folder) if column is None else EmbeddedPictures(folder, column)
