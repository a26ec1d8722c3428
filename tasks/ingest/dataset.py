"""A dataset in the lake: what it has, what left its table, what was refused.

Photos belong to a dataset by the beginning of their item's id. A new version of a table under the same name replaces
the old one: photos it no longer lists are retired with a tombstone, once the whole table was seen.
"""

import json
from collections.abc import Iterable

import polars as pl

from schemas.tables import TABLES
from tasks.geo.distance import distance_km
from tasks.ingest.portions import of_dataset
from tasks.ingest.refusal import TableRefused
from tasks.ingest.stage import NAME
from tasks.lake import Commit, Lake
from tasks.runtime.identity import code_version, new_run_id
from tasks.services.errors import safe_text

MOST_MAY_LEAVE = 0.5  # of a dataset's photos, without a word from the user
MOVED_KM = 1.0  # a photo whose position is corrected by more may as well be another one
FEW = 4  # so small that nothing is lost by taking it as meant
# Refused for what the picture was then, or the address answered then: worth another look when the user says so.
_ABOUT_THE_ROW = ("ragged_row", "unreadable_row", "no_", "bad_", "id_damaged", "duplicate_id", "conflicting_id")


def live(lake: Lake, table: str, dataset: str) -> pl.LazyFrame:
    """The dataset's living rows of a table."""
    return lake.scan(table).filter((pl.col("stage") == NAME) & pl.col("tombstone").is_null() & of_dataset(dataset))


def check_successor(lake: Lake, dataset: str, portions: Iterable[pl.DataFrame], file: str, word: str) -> None:
    """TableRefused when most photos of the dataset would leave it.

    Their rows are gone, or would now be refused, or are of other photos: tables of two trips are both called
    photos.csv, and their ids 1, 2, 3, but they were not taken in the same places.
    """
    have = live(lake, "images", dataset).select("lat", "lon", id="item_id").collect()
    if have.height < FEW:
        return
    kept, refused, first, moved, moved_first = 0, 0, "", 0, ""
    for portion in portions:
        met = portion.select("row", "id", "source_id", "lat", "lon", "refusal").join(
            have, on="id", suffix="_there", maintain_order="left"
        )
        bad = met.filter(pl.col("refusal").is_not_null())
        good = met.filter(pl.col("refusal").is_null())
        away = distance_km(*(good[name].to_numpy() for name in ("lat", "lon", "lat_there", "lon_there")))
        elsewhere = good.filter(pl.Series(away > MOVED_KM, dtype=pl.Boolean))
        refused, moved = refused + bad.height, moved + elsewhere.height
        kept += good.height - elsewhere.height
        if bad.height and not first:
            why = json.loads(bad["refusal"][0])
            first = (
                f"{word} {bad['row'][0]}, {why['reason']}: {why['column']} {why.get('given', '')!r} {why['problem']}"
            )
        if elsewhere.height and not moved_first:
            one = elsewhere.row(0, named=True)
            moved_first = (
                f"{word} {one['row']}, {safe_text(one['source_id'], limit=60)}: {one['lat']:g}, {one['lon']:g}, in the "
                f"lake {one['lat_there']:g}, {one['lon_there']:g}"
            )
    leaving = have.height - kept
    if leaving <= MOST_MAY_LEAVE * have.height:
        return
    start = f"{file}: dataset '{dataset}' of this lake has {have.height:,} photos, and"
    if refused * 2 > leaving:
        raise TableRefused(
            f"{start} {leaving:,} of them would leave it, most because their rows are refused now (first: {first}); "
            "correct the file, or add --replace to let them go"
        )
    if moved * 2 > leaving:
        raise TableRefused(
            f"{start} {moved:,} of them would give way to photos of the same id taken elsewhere (first: {moved_first})"
            "; if it is another dataset give it another --name, if positions were corrected add --replace"
        )
    raise TableRefused(
        f"{start} {leaving - refused - moved:,} of them are not in this file; if it is another dataset give it another "
        "--name, if it is a new version add --replace"
    )


def standing_of(lake: Lake, item_ids: pl.DataFrame) -> pl.DataFrame:
    """Those of the items that have a photo in the lake now."""
    images = lake.scan("images").filter((pl.col("stage") == NAME) & pl.col("tombstone").is_null())
    return images.select("item_id").join(item_ids.lazy(), on="item_id", how="semi").collect()


def retire(lake: Lake, dataset: str, seen: Iterable[str]) -> int:
    """Tombstone the dataset's rows whose items are not among those seen; returns how many photos that were."""
    current = pl.DataFrame({"item_id": pl.Series(list(seen), dtype=pl.String)})
    run_id, batch, photos = new_run_id(f"{NAME}-retire"), 0, 0
    for table in ("images", "rejects", "failures"):
        columns = list(dict.fromkeys([*TABLES[table].key, "item_id"]))
        stale = live(lake, table, dataset).select(columns).join(current.lazy(), on="item_id", how="anti").collect()
        photos += stale.height if table == "images" else 0
        if stale.height:
            batch += 1
            commit = Commit(run_id, batch, NAME, code_version=code_version())
            lake.tombstone(table, stale, f"no longer in the table of dataset {dataset}", commit)
    return photos


def forget_refusals(lake: Lake, dataset: str) -> int:
    """Let the next run look again at rows that were refused for their picture; returns how many."""
    found = live(lake, "rejects", dataset).select("stage", "item_id", "reason").collect()
    about_row = pl.any_horizontal([pl.col("reason").str.starts_with(start) for start in _ABOUT_THE_ROW])
    again = found.filter(~about_row)
    if again.height:
        commit = Commit(new_run_id(f"{NAME}-again"), 1, NAME, code_version=code_version())
        lake.tombstone("rejects", again, "to be looked at again", commit)
    return again.height


def refused_of(lake: Lake, portion: pl.DataFrame) -> pl.DataFrame:
    """The portion's refused rows as they stand: row, id, reason, evidence_json, in the table's order."""
    wanted = portion.select("row", "source_id", item_id="id")
    rejects = lake.scan("rejects").filter((pl.col("stage") == NAME) & pl.col("tombstone").is_null())
    found = rejects.select("item_id", "reason", "evidence_json").join(wanted.lazy(), on="item_id", how="inner")
    return found.select("row", "source_id", "reason", "evidence_json").sort("row").collect()


def failed_of(lake: Lake, portion: pl.DataFrame) -> pl.DataFrame:
    """The portion's rows that could not be done this time: row, source_id, kind, message."""
    wanted = portion.select("row", "source_id", item_id="id")
    failures = lake.scan("failures").filter((pl.col("stage") == NAME) & pl.col("tombstone").is_null())
    found = failures.select("item_id", "kind", "message").join(wanted.lazy(), on="item_id", how="inner")
    return found.select("row", "source_id", "kind", "message").sort("row").collect()


def noted_of(lake: Lake, portion: pl.DataFrame) -> pl.DataFrame:
    """The portion's photos that were kept although something was odd: row, source_id, note, one a note."""
    wanted = portion.filter(pl.col("refusal").is_null()).select("row", item_id="id")
    images = lake.scan("images").filter(
        (pl.col("stage") == NAME) & pl.col("tombstone").is_null() & pl.col("notes").list.len().gt(0)
    )
    found = images.select("item_id", "source_id", note="notes").join(wanted.lazy(), on="item_id", how="inner")
    return found.explode("note").select("row", "source_id", "note").sort("row", "note").collect()


def standing(lake: Lake, dataset: str) -> pl.DataFrame:
    """The dataset's photos in the lake, counted by kind and split."""
    found = live(lake, "images", dataset).group_by("kind", "split").agg(photos=pl.len()).collect()
    return found.sort("kind", "split")
