"""What a place already has: when it is redone, pictures that are still good are kept and not fetched again.

And what it must not get back: pictures that their source has deleted, which searches may go on showing for a while.
"""

from pathlib import PurePosixPath
from typing import Any

import polars as pl

from schemas.settings.collect import CollectSettings
from tasks.collect.candidates import Candidate, key_of
from tasks.collect.hosts import REFUSALS
from tasks.lake import Lake
from tasks.lake.image_store import ImageStore
from tasks.lake.reading import newest_versions
from tasks.runtime.runner import Inputs, digest

# Which pictures are chosen, not what is made of one. Whatever else is set may change the stored bytes.
_CHOICE = frozenset({
    "providers", "prefer", "panoramas", "photos", "half_sizes_m", "photo_preferred_pixels", "quality_bonus_m",
    "age_penalty_m", "age_reference", "sequence_penalty_m", "sequence_spacing_m", "crowded_rows", "search_requests",
    "looked_at", "max_shift_m", "tries", "satellite",
})  # fmt: skip
# What a row says of the fetching of its bytes, and of the bytes.
FACTS = (
    "fetched_at", "request_url", "http_status", "sha256", "extension", "bytes", "width", "height",
    "etag", "source_sha256", "source_bytes", "prepared",
)  # fmt: skip

DELETED = "deleted upstream"  # the tombstone of a picture its source no longer has
UNHASHED = ("had", "changed", "news_at", "refused")  # columns of an item that make it quicker, not another


def prepared_with(settings: CollectSettings, version: int) -> str:
    """A name for how stored bytes are made of fetched ones: the same name, the same bytes."""
    return digest(version, {name: value for name, value in settings.identity().items() if name not in _CHOICE})


def with_what_it_has(places: pl.DataFrame, inputs: Inputs, stage: str, prepared: str) -> pl.DataFrame:
    """The places (`id`) with `news`, which makes a place another item, and with what makes it quicker (`UNHASHED`).

    `had` are the facts of its good pictures, `changed` those of the others with the sha256 that the last check saw,
    `news_at` is the moment of that check. `refused`: the place could not be done because a host refused a picture.
    """
    checks = inputs.frame("checks")
    news = checks.group_by(id="place_id").agg(pl.col("news").sum(), news_at=pl.col("checked_at").max())
    seen = checks.select("checked_at", image_id="subject_id", seen_sha256="source_sha256")
    is_changed = (pl.col("checked_at") > pl.col("fetched_at")) & (pl.col("seen_sha256") != pl.col("source_sha256"))
    kept = (
        inputs.lake.scan("images", inputs.versions["images"])  # a few columns of a wide table
        .filter((pl.col("stage") == stage) & pl.col("tombstone").is_null())
        .select("image_id", "source", "source_id", "kind", *FACTS, id="place_id")
    )
    rows = (
        inputs.lake.collect("images", kept)
        .join(seen, on="image_id", how="left")
        .with_columns(is_changed=is_changed.fill_null(False))
    )
    had = rows.filter(~pl.col("is_changed"), pl.col("prepared") == prepared)
    changed = rows.filter("is_changed")
    facts = ("source", "source_id", "kind", *FACTS)
    return (
        places.join(news, on="id", how="left")
        .join(had.group_by("id").agg(had=pl.struct(facts)), on="id", how="left")
        .join(changed.group_by("id").agg(changed=pl.struct("seen_sha256", *facts)), on="id", how="left")
        .join(refused_before(inputs, stage), on="id", how="left")
        .with_columns(pl.col("news").fill_null(0), pl.col("refused").fill_null(False))
    )


def refused_before(inputs: Inputs, stage: str) -> pl.DataFrame:
    """The items (`id`) that failed the last time because an image host refused a picture."""
    failed = inputs.frame("failures").filter(pl.col("stage") == stage, pl.col("kind").is_in(sorted(REFUSALS)))
    return failed.select(id="item_id", refused=pl.lit(True))


def ended_upstream(lake: Lake, stage: str) -> frozenset[str]:
    """The keys of pictures that were found to be deleted, for whichever place, and did not come back for it."""
    looked_at = (pl.col("stage") == stage) & (pl.col("tombstone").is_null() | (pl.col("tombstone") == DELETED))
    wanted = lake.scan("images").filter(looked_at).select("image_id", "source", "source_id", "tombstone", "written_at")
    images = lake.collect("images", wanted)
    ended = newest_versions(images, ["image_id"]).drop_nulls("tombstone")
    return frozenset(key_of(*pair) for pair in ended.select("source", "source_id").iter_rows())


def facts_had(item: dict[str, Any], candidate: Candidate, lake: Lake) -> dict[str, Any] | None:
    """The facts of a picture that the place has already, if its bytes are there; else it is to be fetched."""
    return _facts(item.get("had"), candidate, lake)


def facts_before(item: dict[str, Any], candidate: Candidate, prepared: str, lake: Lake) -> dict[str, Any] | None:
    """The facts of a picture as it was before a check saw other bytes of it, if those we have are there."""
    facts = _facts(item.get("changed"), candidate, lake)
    return facts if facts is not None and facts["prepared"] == prepared else None


def _facts(rows: list[dict[str, Any]] | None, candidate: Candidate, lake: Lake) -> dict[str, Any] | None:
    for facts in rows or ():
        if _is_of(facts, candidate) and facts["kind"] == candidate.kind:
            there = lake.images.exists(facts["sha256"], facts["extension"])
            return {name: facts[name] for name in FACTS} if there else None
    return None


def seen_changed(item: dict[str, Any], candidate: Candidate) -> str | None:
    """The sha256 of the bytes a check has seen instead of those the place has."""
    seen = (row["seen_sha256"] for row in item.get("changed") or () if _is_of(row, candidate))
    return next(seen, None)


def _is_of(row: dict[str, Any], candidate: Candidate) -> bool:
    return (row["source"], row["source_id"]) == (candidate.source, candidate.source_id)


def is_lost(images: pl.DataFrame, store: ImageStore) -> pl.Series:
    """Of each row (`sha256`, `extension`) whether its file is missing. Folders are listed, no file is looked up."""
    lost = [False] * images.height
    shas, extensions = images["sha256"].to_list(), images["extension"].to_list()
    start, held = None, frozenset[str]()
    for row in sorted(range(len(shas)), key=shas.__getitem__):  # so that only one folder's names are held at a time
        if shas[row][:2] != start:
            start = shas[row][:2]
            held = frozenset(PurePosixPath(blob.key).name for blob in store.list(start))
        lost[row] = f"{shas[row]}.{extensions[row]}" not in held
    return pl.Series("lost", lost, dtype=pl.Boolean)
