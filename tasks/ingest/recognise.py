"""Which layout a table has, and what gave it away.

MP-16, Im2GPS3k and YFCC4k come with the same columns: IMG_ID, AUTHOR, LAT, LON and scene labels. One is for training,
the others are benchmarks, and a photo on the wrong side spoils either. So columns alone never make a benchmark: the
file's name says which of them it is, or the user decides.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from schemas.settings.ingest import IngestSettings
from tasks.ingest.layouts import LAYOUTS, MP16_PRO, PLAIN, YFCC4K, Layout, listed
from tasks.ingest.refusal import TableRefused
from tasks.ingest.table import Table, check_parquet

_ADDRESS = ("neighbourhood", "city", "county", "state", "region", "country", "country_code", "continent")
_LEAST_OF_ADDRESS = 3  # columns: a single one occurs in other tables too
_BENCHMARK = re.compile(r"im2gps|yfcc4k|benchmark|(?<![a-z])test(?![a-z])")
_ONE_ONLY = ("lat", "lon", "licence", "split")


def recognise(table: Table, settings: IngestSettings) -> tuple[Layout, list[str]]:
    """The layout requested, or the one the table gives away; TableRefused with what is missing or must be said.

    Beside it what was guessed and what follows from it, so that the user can correct it.
    """
    names, path = table.columns, table.path
    if settings.layout != "auto":
        layout = LAYOUTS[settings.layout]
        if not layout.fits(names):
            raise TableRefused(
                f"{path}: this is not the {layout.name} layout ({layout.about}); its columns are {listed(names)}; "
                "leave --layout away to have it recognised"
            )
        return layout, []
    if table.headless:
        return _without_header(table, settings)
    have = {name.casefold(): name for name in names}
    for layout in LAYOUTS.values():
        marks = [have[mark] for mark in layout.marks if mark in have]
        if marks and len(marks) >= layout.least_marks and layout.fits(names):
            return layout, _note(layout, f"columns {listed(marks[:3])} are those of {layout.name}", settings)
    if "img_id" in have and MP16_PRO.fits(names):
        return _of_flickr(table, have, settings)
    if PLAIN.fits(names):
        return PLAIN, []
    missing = [f for f in PLAIN.needed if f not in PLAIN.pick(names)]
    raise TableRefused(
        f"{path.name}: no column {' and no column '.join(missing)} among {listed(names)}; name the columns as in the "
        f"plain layout ({PLAIN.about})"
    )


def _note(layout: Layout, why: str, settings: IngestSettings) -> list[str]:
    follows = [
        f"; photos without a {name} of their own get {value}"
        for name, value, override in (
            ("split", layout.split, settings.split),
            ("licence", layout.licence, settings.licence),
        )
        if value and override is None
    ]
    return [f"taken for {layout.name}: {why}{''.join(follows)} (--layout says otherwise)"]


def benchmark_hint(table: Table, layout: Layout, settings: IngestSettings, has_split: bool) -> list[str]:
    """A line where the file's name speaks of a benchmark and its photos would be split like any others."""
    match = _BENCHMARK.search(table.path.name.casefold())
    if match is None or layout.split or has_split or settings.split or settings.purpose:
        return []
    return [f"the file's name says {match[0]}: --as benchmark keeps its photos out of training"]


def _of_flickr(table: Table, have: Mapping[str, str], settings: IngestSettings) -> tuple[Layout, list[str]]:
    name = table.path.name.casefold()
    named = [layout for layout in LAYOUTS.values() if layout.file_name and re.search(layout.file_name, name)]
    is_torn = any(layout.split for layout in named) and "train" in name
    if len(named) == 1 and not is_torn:
        return named[0], _note(named[0], "the file's name says so", settings)
    address = [have[level] for level in _ADDRESS if level in have]
    if not named and len(address) >= _LEAST_OF_ADDRESS:
        return MP16_PRO, _note(MP16_PRO, f"columns {listed(address)} are those of MP16-Pro", settings)
    if not named and {"path", "url"} & PLAIN.pick(table.columns).keys():
        return PLAIN, []
    which = "both" if is_torn else "more than one" if named else "none"
    raise TableRefused(
        f"{table.path}: its columns {listed(table.columns)} are those of MP-16, for training, and of the benchmarks "
        f"Im2GPS3k and YFCC4k alike, and the file's name says {which} of them; say "
        "which: --layout mp16-pro, --layout im2gps3k or --layout yfcc4k, or, for photos of your own, add a column path"
    )


def _without_header(table: Table, settings: IngestSettings) -> tuple[Layout, list[str]]:
    columns = f"its {len(table.columns)} columns without a header are those of YFCC100M"
    if not re.search(YFCC4K.file_name, table.path.name.casefold()) and settings.split is None:
        raise TableRefused(
            f"{table.path}: {columns}; is it the benchmark YFCC4k? then add --layout yfcc4k; else say what its photos "
            "are for, with --split train, validation or benchmark"
        )
    return YFCC4K, _note(YFCC4K, columns, settings)


def check_columns(table: Table, layout: Layout, names: Mapping[str, str], settings: IngestSettings) -> None:
    """TableRefused for what every picture needs and the table has no column for, or two."""
    path, have = table.path, {name.casefold(): name for name in table.columns}
    for wanted in _ONE_ONLY:
        columns = [have[alias] for alias in layout.columns[wanted] if alias in have]
        if len(columns) > 1:
            raise TableRefused(
                f"{path}: columns {listed(columns)} may each be the {wanted}; delete or rename all but the right one"
            )
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
        check_parquet(table, names, settings)
