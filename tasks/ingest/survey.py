"""The first pass over a whole table, before anything is written: is it what it says, and can it be taken at all?

It goes through the file once in batches and keeps 24 bytes a row, so a table of millions needs some hundred megabytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG

import polars as pl

from schemas.settings.ingest import IngestSettings
from tasks.ingest.layouts import LAYOUTS, YFCC4K, Layout
from tasks.ingest.positions import Positions
from tasks.ingest.recognise import benchmark_hint, check_columns, recognise
from tasks.ingest.refusal import TableRefused
from tasks.ingest.table import FIELDS, STORED, Table, open_table, read_degrees, row_id
from tasks.lake.ids import float_can_hold, long_ids

ENOUGH_LONG_IDS = 20  # by chance, 20 long ids are all a float's values once in a million tables
_DEGREES = ["lat_deg", "lon_deg"]
_NONE_REPEATED = pl.DataFrame(schema={"id_hash": pl.UInt64, "first": pl.Int64, "differs": pl.Boolean})


@dataclass(frozen=True, eq=False)
class Survey:
    """A table that can be taken, and what was learnt of it."""

    table: Table
    layout: Layout
    names: Mapping[str, str]  # field -> the table's own name of its column
    rows: int
    notes: tuple[str, ...]
    folder: Path  # of the pictures
    stamp: list[tuple[int, ...]]  # of the files when it was surveyed
    repeated: pl.DataFrame = field(default_factory=lambda: _NONE_REPEATED)
    """For each id that stands in several rows its hash, its `first` row, and whether its rows `differ`."""
    chosen: pl.Series | None = None  # numbers of the rows that were drawn; None: all
    held_out: pl.Series | None = None  # numbers of those that are the benchmark, the others being for training

    def batches(self, further: Mapping[str, str] | None = None) -> Iterator[pl.DataFrame]:
        """Every row, with a column for each of FIELDS, and why it is `refused` where it cannot be read.

        `source_id`, `lat_deg` and `lon_deg` are what is read of them. `further` names columns of the table beside those
        of the layout.
        """
        self.check_unchanged()
        missing = [pl.lit(None, dtype=pl.String).alias(name) for name in FIELDS if name not in self.names]
        own_id = row_id("id" in self.names, self.folder)
        for rows in self.table.batches({**self.names, **(further or {})}):
            mine = rows if self.chosen is None else rows.filter(pl.col("row").is_in(self.chosen.implode()))
            if mine.height or self.chosen is None:
                degrees = {f"{name}_deg": read_degrees(name) for name in ("lat", "lon")}
                yield mine.with_columns(missing).with_columns(own_id, **degrees)
        self.check_unchanged()

    @property
    def embedded(self) -> str | None:
        """The column that holds the pictures themselves, if they are taken from there."""
        return self.table.pictures if self.names.get("path") == self.table.pictures else None

    def check_unchanged(self) -> None:
        """TableRefused if the file is not the one that was surveyed: what was found out does not hold for it."""
        if stamp_of(self.table) != self.stamp:
            raise TableRefused(f"{self.table.path}: the file was changed while it was read; run the command again")


def stamp_of(table: Table) -> list[tuple[int, ...]]:
    """What changes when a file of the table does. Of a folder of photos, each is looked at again when it is opened."""
    status = [file.stat() for file in table.files if file.exists()]
    return [(info.st_ino, *((info.st_size, info.st_mtime_ns) if S_ISREG(info.st_mode) else ())) for info in status]


def survey_rows(path: Path, settings: IngestSettings) -> Survey:
    """What the table is; TableRefused, with the way out, when it cannot be taken as a whole."""
    table = open_table(path, settings.encoding, YFCC4K if settings.layout == "auto" else LAYOUTS[settings.layout])
    stamp = stamp_of(table)
    layout, guesses = recognise(table, settings)
    names = layout.pick(table.columns)
    if table.pictures and not settings.images:
        names = {"id": f"{table.pictures}.path", **names, "path": table.pictures}
    if settings.swap_lat_lon:
        names["lat"], names["lon"] = names["lon"], names["lat"]
    check_columns(table, layout, names, settings)
    guesses += benchmark_hint(table, layout, settings, "split" in names)
    folder = Path(settings.images).expanduser().absolute() if settings.images else table.root
    return _counted(Survey(table, layout, names, 0, (*table.notes, *guesses), folder, stamp), settings)


def _counted(survey: Survey, settings: IngestSettings) -> Survey:
    """The survey with the number of its rows and its repeated ids; TableRefused for what rows show only together."""
    total, long, damaged, positions = 0, 0, pl.DataFrame(), Positions()
    ids: list[pl.DataFrame] = []
    has_ids, text = "id" in survey.names, pl.col("source_id")
    stored = [name for name in STORED if has_ids or name != "path"]
    for batch in survey.batches():
        total += batch.height
        rows = batch.filter(pl.col("refused").is_null())
        named = rows.drop_nulls("source_id")
        ids.append(named.select("row", id_hash=text.hash(), content=pl.struct(stored).hash()))
        if has_ids and settings.check_ids and long == len(damaged):
            long_of_batch = long_ids(named["source_id"])
            long += len(long_of_batch)
            held = [number for number in long_of_batch if float_can_hold(int(number))]
            damaged = pl.concat([damaged, named.filter(text.is_in(held)).select("row", "source_id")], how="diagonal")
        placed = rows.drop_nulls(_DEGREES)
        row, lat, lon = (placed[name].to_numpy() for name in ("row", *_DEGREES))
        positions.observe(row, lat, lon, placed["country"])
    if total == 0:
        raise TableRefused(f"{survey.table.path}: the file holds no rows")
    if long == len(damaged) >= ENOUGH_LONG_IDS:
        raise TableRefused(
            f"{survey.table.path}: {long:,} of {total:,} ids went through a float and lost digits (first: "
            f"row {damaged['row'][0]}, {damaged['source_id'][0]}); export it again with ids as text, "
            "or, if they are right, add --set ingest.check_ids=false"
        )
    if not settings.keep_lat_lon and (why := positions.why_exchanged()):
        columns = " and ".join(survey.names[name] for name in ("lat", "lon"))
        swap = "add --swap-lat-lon, or --keep-lat-lon if they are right"
        fix = "leave --swap-lat-lon away" if settings.swap_lat_lon else swap
        raise TableRefused(f"{survey.table.path}: columns {columns} look exchanged: {why}; {fix}")
    several = pl.concat(ids).lazy().filter(pl.col("id_hash").is_duplicated())
    repeated = several.group_by("id_hash").agg(first=pl.col("row").min(), differs=pl.col("content").n_unique() > 1)
    return replace(survey, rows=total, repeated=repeated.collect())
