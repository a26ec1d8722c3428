"""A dataset in the lake: what it has, what left its table, what was refused.

Photos belong to a dataset by the beginning of their item's id. A new version of a table under the same name replaces
the old one: photos it no longer lists are retired with a tombstone, once the whole table was seen.
"""

import json
from collections import Counter

import polars as pl

from schemas.settings.ingest import IngestSettings
from schemas.settings.plan import PlanSettings
from schemas.tables import TABLES
from tasks.geo.distance import distance_km
from tasks.ingest.refusal import FIXES, TableRefused
from tasks.ingest.rows import item_batches, of_dataset
from tasks.ingest.stage import NAME
from tasks.ingest.survey import Survey
from tasks.lake import Commit, Lake
from tasks.runtime.items.identity import code_version, new_run_id
from tasks.services.errors import safe_text

MOST_MAY_LEAVE = 0.5  # of a dataset's photos, without a word from the user
MOVED_KM = 1.0  # a photo whose position is corrected by more may as well be another one
FEW = 4  # so small that nothing is lost by taking it as meant
ENOUGH_BAD = 3  # rows: fewer are bad rows, not a bad table
# All other refusals are about what the picture was or its host said then: worth another try when the user asks.
_ABOUT_THE_ROW = ("ragged_row", "no_", "bad_", "id_damaged", "duplicate_id", "conflicting_id")
_REASON = pl.col("refusal").str.json_path_match("$.reason").alias("reason")


def live_rows(lake: Lake, table: str) -> pl.LazyFrame:
    """The living rows of a table that ingest wrote."""
    return lake.scan(table).filter((pl.col("stage") == NAME) & pl.col("tombstone").is_null())


def photos_of(lake: Lake, dataset: str) -> pl.DataFrame:
    """The dataset's photos in the lake: item_id, lat, lon, kind, split."""
    photos = live_rows(lake, "images").filter(of_dataset(dataset)).select("item_id", "lat", "lon", "kind", "split")
    return lake.collect("images", photos)


def check_dataset(lake: Lake | None, survey: Survey, dataset: str, settings: IngestSettings, plan: PlanSettings) -> str:
    """A line on the rows that will be refused, as far as was looked; empty if there are none.

    TableRefused, before anything is written, when no row can be taken, or most photos of the dataset would leave it:
    their rows are gone, or would now be refused, or are of other photos. Tables of two trips are both called
    photos.csv, and their ids 1, 2, 3, but they were not taken in the same places. `lake` is None for a new one.
    """
    have = pl.DataFrame(schema={"id": pl.String, "lat_there": pl.Float64, "lon_there": pl.Float64})
    if lake is not None and not settings.replace:
        have = photos_of(lake, dataset).select(id="item_id", lat_there="lat", lon_there="lon")
    reasons, examples = Counter[str](), dict[str, str]()
    seen = gone = refused = moved = 0
    first = ""
    for batch in item_batches(survey, dataset, settings, plan):
        seen += batch.height
        for (reason,), rows in batch.drop_nulls("refusal").group_by(_REASON, maintain_order=True):
            reasons[str(reason)] += rows.height
            examples.setdefault(str(reason), _first_problem(rows))
        if have.height < FEW and (reasons.total() < seen or settings.replace):
            break
        met = batch.join(have, on="id", maintain_order="left")
        away_km = distance_km(*(met[name].to_numpy() for name in ("lat", "lon", "lat_there", "lon_there")))
        elsewhere = met.filter(pl.Series(away_km > MOVED_KM, dtype=pl.Boolean))  # not of a row that is refused
        gone, refused, moved = gone - met.height, refused + met["refusal"].count(), moved + elsewhere.height
        first = first or _first_problem(met) or _first_moved(elsewhere)
    most = next((reason for reason, _ in reasons.most_common(1)), "")
    if reasons.total() == survey.rows >= ENOUGH_BAD and not settings.replace:
        raise TableRefused(
            f"{survey.table.path}: none of its {seen:,} rows can be taken: {reasons[most]:,} {most} (first: "
            f"{examples[most]}); {FIXES[most]}"
        )
    gone += have.height
    leaving = gone + refused + moved
    if have.height >= FEW and leaving > MOST_MAY_LEAVE * have.height:
        raise TableRefused(
            f"{survey.table.path}: dataset '{dataset}' of this lake has {have.height:,} photos, and {leaving:,} of "
            f"them would leave it: {refused:,} are refused now, {moved:,} of the same id were taken elsewhere, "
            f"{gone:,} are not in this file{first and f' (first: {first})'}; correct the file, "
            "give another dataset another --name, or add --replace to let them go"
        )
    looked_at = f"{seen:,}" if seen == survey.rows else f"the first {seen:,}"
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    return f"{reasons.total():,} of {looked_at} rows will be refused: {counts}" if reasons else ""


def _first_problem(items: pl.DataFrame) -> str:
    for row, refusal in items.select("row", "refusal").drop_nulls().head(1).iter_rows():
        why = json.loads(refusal)
        return f"row {row}, {why['reason']}: {why.get('column', '')} {why.get('given', '')!r} {why['problem']}"
    return ""


def _first_moved(items: pl.DataFrame) -> str:
    for row in items.head(1).iter_rows(named=True):
        there = f"{row['lat']:g}, {row['lon']:g}, in the lake {row['lat_there']:g}, {row['lon_there']:g}"
        return f"row {row['row']}, {safe_text(row['source_id'], limit=60)}: {there}"
    return ""


def retire(lake: Lake, dataset: str, seen: pl.Series) -> None:
    """Tombstone the dataset's rows whose items are not among those seen."""
    run_id = new_run_id(f"{NAME}-retire")
    for batch, table in enumerate(("images", "rejects", "failures"), 1):
        columns = list(dict.fromkeys([*TABLES[table].key, "item_id"]))
        rows = live_rows(lake, table).filter(of_dataset(dataset)).select(columns)
        stale = lake.collect(table, rows.filter(~pl.col("item_id").is_in(seen.implode())))
        if stale.height:
            commit = Commit(run_id, batch, NAME, code_version=code_version())
            lake.tombstone(table, stale, f"no longer in the table of dataset {dataset}", commit)


def forget_refusals(lake: Lake, dataset: str) -> int:
    """Let the next run try rows again that were refused for their picture; returns their number."""
    refused = live_rows(lake, "rejects").filter(of_dataset(dataset)).select("stage", "item_id", "reason")
    rejects = lake.collect("rejects", refused)
    about_row = pl.any_horizontal([pl.col("reason").str.starts_with(start) for start in _ABOUT_THE_ROW])
    again = rejects.filter(~about_row)
    if again.height:
        commit = Commit(new_run_id(f"{NAME}-again"), 1, NAME, code_version=code_version())
        lake.tombstone("rejects", again, "to be tried again", commit)
    return again.height
