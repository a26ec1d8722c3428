"""The report of a stage: files beside the tables, written again only when their content would change.

A stage's package may export `report(lake, settings) -> Report`; the flow calls it after the stage's steps, publishes
the text and the pictures, and the command's last words name the folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tasks.lake import Lake

MADE_FROM = "made_from.txt"  # what the files beside it were made from; written last


@dataclass(frozen=True)
class Report:
    """A page of Markdown, and the files by name."""

    markdown: str
    files: Mapping[str, Path]

    @property
    def pictures(self) -> list[Path]:
        return [path for path in self.files.values() if path.suffix in (".png", ".jpg", ".svg")]


def report_folder(lake: Lake, stage: str) -> Path:
    """The local folder of a stage's report; of a remote lake, a copy to be pushed."""
    return lake.blobs.local(f"reports/{stage}")


def write_files(folder: Path, made_from: str, make: Mapping[str, Callable[[], bytes]]) -> dict[str, Path]:
    """The files, made only if they are missing or were made from something else. A reader never sees half a file."""
    files = {name: folder / name for name in make}
    marker = folder / MADE_FROM
    known = marker.read_text() if marker.is_file() else ""
    if known == made_from and all(path.is_file() for path in files.values()):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in make:
            old.unlink()  # the marker first of all: from here on the files are not to be trusted
    for name, content in make.items():
        _replace(files[name], content())
    _replace(marker, made_from.encode())
    return files


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)


def markdown_table(rows: pl.DataFrame) -> str:
    """A frame as a Markdown table, numbers to the right."""
    sides = ["---:" if dtype.is_numeric() else "---" for dtype in rows.dtypes]
    lines = [rows.columns, sides, *([_cell(value) for value in row] for row in rows.iter_rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value).replace("|", "\\|")
