"""The columns a table has: all that are needed, and each of them once."""

from collections.abc import Mapping
from pathlib import Path

from schemas.settings.ingest import IngestSettings
from tasks.ingest import parquet_rows
from tasks.ingest.layouts import Layout, listed
from tasks.ingest.refusal import TableRefused
from tasks.ingest.table import Table

_ONE_ONLY = ("lat", "lon", "licence", "split")


def check_columns(table: Table, layout: Layout, names: Mapping[str, str], settings: IngestSettings) -> None:
    """TableRefused for what every picture needs and the table has no column for."""
    path = table.path
    if not layout.files and not {"path", "url"} & names.keys():
        raise TableRefused(
            f"{path}: no column path or url, so no picture; call the column that names the pictures so; the columns "
            f"are {listed(table.columns)}"
        )
    if "id" not in names and "path" not in names:
        raise TableRefused(f"{path}: no column id; give every row the id of its picture, in a column of that name")
    if not ("licence" in names or settings.licence or layout.licence):
        raise TableRefused(
            f"{path}: no column licence; every picture needs one: give --licence, such as --licence 'CC BY 4.0'"
        )
    if not ({"attribution", "creator"} & names.keys() or settings.attribution or layout.attribution):
        raise TableRefused(
            f"{path}: no column attribution or creator; every picture needs one: give --attribution, such as "
            "--attribution 'Photo {id} by Jane Doe, {licence}'"
        )
    if settings.images is not None and not Path(settings.images).expanduser().is_dir():
        raise TableRefused(f"--images {settings.images}: there is no such folder")
    if table.format == "parquet":
        parquet_rows.check_types(path, names, settings.check_ids)


def passed_over(layout: Layout, table: Table) -> list[str]:
    """Columns that are not read because another one is taken for the same; TableRefused where that is no small thing.

    Positions would be mixed from two columns, and rows of JSON lines may name their licence in either.
    """
    have = {name.casefold(): name for name in table.columns}
    notes = []
    for wanted, aliases in layout.columns.items():
        taken, *others = [have[alias] for alias in aliases if alias in have] or [""]
        if not others or wanted == "country":
            continue
        if wanted in _ONE_ONLY:
            raise TableRefused(
                f"{table.path}: columns {listed([taken, *others])} may each be the {wanted}; delete or rename all but "
                "the right one"
            )
        notes.append(f"column {listed(others)} is not read: {listed([taken])} is taken for {wanted}")
    return notes
