"""Which layout a table has, and what gave it away.

MP-16, Im2GPS3k and YFCC4k come with the same columns: IMG_ID, AUTHOR, LAT, LON and scene labels. One is for training,
the others are benchmarks, and a photo on the wrong side spoils either. So columns alone never make a benchmark: the
file's name says which of them it is, or the user is asked.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.settings.ingest import IngestSettings
from tasks.ingest.layouts import (
    GEOCOMP,
    IM2GPS3K,
    IMAGEO_2,
    LAYOUTS,
    MP16_PRO,
    OSV5M,
    PLAIN,
    STREET_VIEW_TEXT,
    YFCC4K,
    Layout,
    listed,
)
from tasks.ingest.refusal import TableRefused
from tasks.ingest.table import Table, check_parquet

_NAMED = (
    (MP16_PRO, re.compile(r"(?<![a-z0-9])mp[-_ ]?16")),
    (IM2GPS3K, re.compile(r"im2gps")),
    (YFCC4K, re.compile(r"yfcc[-_ ]?4k")),
)
_TRAINING = re.compile(r"(?<![a-z])train")
_SCENES = ("s3_label", "s16_label", "s365_label")
_ADDRESS = ("neighbourhood", "city", "county", "state", "region", "country", "country_code", "continent")
_OF_OSV5M = (
    *("thumb_original_url", "creator_username", "creator_id", "lon_bin", "lat_bin", "sub-region", "land_cover"),
    *("road_index", "drive_side", "climate", "soil", "dist_sea", "quadtree_10_1000", "quadtree_10_5000"),
    *("quadtree_10_25000", "quadtree_10_50000", "unique_country", "unique_region", "unique_sub-region", "unique_city"),
)
# Columns that no other table has beside an id and a position.
_MARKED = (
    (GEOCOMP, ("panoid", "nation")),
    (IMAGEO_2, ("image_id", "gmap_id", "address")),
    (STREET_VIEW_TEXT, ("imagename", "address")),
)
_ONE_ONLY = ("lat", "lon", "licence", "split")
_LEAST_OF_OSV5M, _LEAST_OF_ADDRESS = 2, 3  # columns: a single one occurs in other layouts too


@dataclass(frozen=True)
class Recognised:
    """A layout, and in words what it was recognised by; None where nothing had to be guessed."""

    layout: Layout
    why: str | None = None

    def notes(self, settings: IngestSettings) -> list[str]:
        """What was guessed and what follows from it, so that the user can correct it."""
        if self.why is None:
            return []
        split = self.layout.split if settings.split is None else None
        licence = self.layout.licence if settings.licence is None else None
        follows = [f"; photos without a {what} of their own get {given}"
                   for what, given in (("split", split), ("licence", licence)) if given]  # fmt: skip
        options = ["--layout", *(["--split"] if split else []), *(["--licence"] if licence else [])]
        say = "says" if len(options) == 1 else "say"
        return [f"taken for {self.layout.name}: {self.why}{''.join(follows)} ({' and '.join(options)} {say} otherwise)"]


def recognise(table: Table, settings: IngestSettings) -> Recognised:
    """The layout asked for, or the one the table gives away; TableRefused with what is missing or must be said."""
    names, path, file_name = table.columns, table.path, table.path.name
    if settings.layout != "auto":
        return Recognised(_asked_for(LAYOUTS[settings.layout], names, str(path)))
    if table.headless:
        return _without_header(table, settings)
    have = {name.casefold(): name for name in names}
    osv5m = [have[mark] for mark in _OF_OSV5M if mark in have]
    if OSV5M.fits(names) and len(osv5m) >= _LEAST_OF_OSV5M:
        return Recognised(OSV5M, f"columns {listed(osv5m[:3])} are those of OSV-5M")
    for layout, marks in _MARKED:
        if layout.fits(names) and all(mark in have for mark in marks):
            shown = listed([have[mark] for mark in marks])
            return Recognised(layout, f"columns {shown} are those of {layout.name}")
    by_name = "img_id" in have or ("name" in have and any(label in have for label in _SCENES))
    if by_name and MP16_PRO.fits(names):
        return _of_flickr(names, have, str(path), file_name)
    if PLAIN.fits(names):
        return Recognised(PLAIN)
    missing = [f for f in PLAIN.needed if f not in PLAIN.pick(names)]
    raise TableRefused(
        f"{file_name}: no column {' and no column '.join(missing)} among {listed(names)}; name the columns as in the "
        f"plain layout ({PLAIN.about})"
    )


def benchmark_named(file_name: str, layout: Layout) -> str | None:
    """What in a file's name speaks of a benchmark, where the layout it is read by does not."""
    if layout.split:
        return None
    if layout is OSV5M:
        return "test" if "test" in file_name.casefold() else None
    return next((said.name for said in _said_by(file_name) if said.split), None)


def _asked_for(layout: Layout, names: Sequence[str], path: str) -> Layout:
    if not layout.fits(names):
        raise TableRefused(
            f"{path}: this is not the {layout.name} layout ({layout.about}); its columns are {listed(names)}; "
            "leave --layout away to have it recognised"
        )
    return layout


def _said_by(file_name: str) -> list[Layout]:
    name = file_name.casefold()
    return [layout for layout, pattern in _NAMED if pattern.search(name)]


def _of_flickr(names: Sequence[str], have: dict[str, str], path: str, file_name: str) -> Recognised:
    said = _said_by(file_name)
    contradicts = any(layout.split for layout in said) and _TRAINING.search(file_name.casefold()) is not None
    if len(said) == 1 and not contradicts:
        return Recognised(said[0], f"the file's name says so, and it has {listed(_own(said[0], names))}")
    address = [have[level] for level in _ADDRESS if level in have]
    scenes = [have[label] for label in _SCENES if label in have]
    if not said and len(address) >= _LEAST_OF_ADDRESS:
        return Recognised(
            MP16_PRO, f"columns {listed(address)} beside {_own(MP16_PRO, names)[0]} are those of MP16-Pro"
        )
    picture = PLAIN.pick(names).keys() & {"path", "url"}
    if not said and not scenes and picture:
        return Recognised(PLAIN, f"the pictures are named by column {' and '.join(sorted(picture))}")
    unclear = "says more than one thing" if said else "says none of them"
    raise TableRefused(
        f"{path}: columns {listed([*_own(MP16_PRO, names), *scenes])} are those of MP-16, for training, and of the "
        f"benchmarks Im2GPS3k and YFCC4k alike, and the file's name {unclear}; say which it is: --layout mp16-pro, "
        "--layout im2gps3k or --layout yfcc4k, or, for photos of your own, add a column path"
    )


def _own(layout: Layout, names: Sequence[str]) -> list[str]:
    picked = layout.pick(names)
    return [picked[needed] for needed in layout.needed]


def _without_header(table: Table, settings: IngestSettings) -> Recognised:
    columns = f"its {len(table.columns)} columns without a header are those of YFCC100M"
    if _said_by(table.path.name) == [YFCC4K]:
        return Recognised(YFCC4K, f"{columns}, and the file's name says yfcc4k")
    if settings.split is None:
        raise TableRefused(
            f"{table.path}: {columns}; is it the benchmark YFCC4k? then add --layout yfcc4k; else say what its photos "
            "are for, with --split train, validation or benchmark"
        )
    return Recognised(YFCC4K, columns)


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
        check_parquet(path, names, settings)


def passed_over(layout: Layout, table: Table) -> list[str]:
    """Columns that are not read because another one is taken for the same; TableRefused where that matters.

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
