"""Which pictures the report shows, and how: small, inline, with their address, licence and creator."""

import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from schemas.errors import LakeError
from tasks.imaging.images import BadImage, thumbnail, to_data_uri
from tasks.lake import Lake

# What each reason means, for the reviewer.
REASONS = {
    "no_imagery_near": "The service has no picture within the widest search box around the place.",
    "no_panorama_near": "There are photos near the place, but no panorama.",
    "no_photo_near": "There are panoramas near the place, but no photo.",
    "not_all_searched": "So many pictures lie around the place that the search ended before it had seen them all.",
    "too_few_near": "There are fewer pictures near the place than were wanted.",
    "no_scenes": "The archive has no satellite scene of the place in the dates and below the cloud cover asked for.",
    "no_usable_scene": "There are scenes of the place, but none of those looked at could be read.",
    "cloudy": "Too much of the satellite picture stays under cloud or shadow, with all scenes put together.",
    "no_data": "Part of the satellite picture lies outside every scene.",
    "no_usable_image": "There are pictures near the place, but none of those tried could be used.",
    "corrupt_image": "The pictures near the place could not be decoded, also when fetched again.",
    "exact_duplicate": "The same bytes are there under another image id.",
    "sequence_leak": "The same drive also serves another split, which keeps it.",
    "non_localizable": "The judge sees too few clues to tell where this is.",
    "landmark": "The judge sees an iconic sight, which tests memory rather than reasoning.",
    "no_verdict": "The judge was asked several times and never answered in the form of a verdict.",
    "low_score": "Localizable, but below the configured score.",
    "no_address": "The geocoder knows no country at this point.",
}


@dataclass(frozen=True)
class Card:
    """One picture with what is written beside it."""

    image_id: str
    uri: str | None  # None: the picture cannot be read
    title: str
    kind: str
    split: str | None
    score: float | None
    text: str
    credit: str


@dataclass(frozen=True)
class RejectGroup:
    """Rejects of one stage for one reason."""

    stage: str
    reason: str
    meaning: str
    count: int
    cards: list[Card]
    lines: list[str]  # for items that are no pictures


def gallery(lake: Lake, images: pl.DataFrame, labels: pl.DataFrame, count: int, side_px: int) -> list[Card]:
    """Kept pictures from as many countries as possible: the first of each, then the second of each."""
    place_in_line = pl.int_range(pl.len()).over("country_code", order_by="image_id")
    chosen = labels.with_columns(turn=place_in_line).sort("turn", "country_code", "image_id").head(count)
    return [
        _card(
            lake,
            row,
            side_px,
            title=" · ".join(part for part in (row["city"], row["region"], row["country"]) if part),
            text=row["judge_reason"] or "",
        )
        for row in chosen.join(images.select(_OF_IMAGE), on="image_id", how="left").to_dicts()
    ]


def scenes(lake: Lake, images: pl.DataFrame, places: pl.DataFrame, count: int, side_px: int) -> list[Card]:
    """Satellite scenes, a few from as many countries as possible. They are collected, not judged."""
    mine = images.filter(pl.col("kind") == "satellite").drop("split")
    known = mine.join(
        places.select("place_id", "country", "country_name", "admin1", "split"), on="place_id", how="left"
    )
    turn = pl.int_range(pl.len()).over("country", order_by="image_id")
    chosen = known.with_columns(turn=turn).sort("turn", "country", "image_id").head(count)
    return [
        _card(
            lake,
            row,
            side_px,
            title=" · ".join(part for part in (row["admin1"], row["country_name"]) if part),
            text=f"{row['captured_at']:%Y-%m-%d}" if row["captured_at"] else "",
        )
        for row in chosen.to_dicts()
    ]


def reject_groups(
    lake: Lake, rejects: pl.DataFrame, images: pl.DataFrame, places: pl.DataFrame, count: int, side_px: int
) -> list[RejectGroup]:
    """Rejects by stage and reason, most frequent first, each with a few examples."""
    sizes = rejects.group_by("stage", "reason").len().sort(["len", "stage", "reason"], descending=[True, False, False])
    groups = []
    for stage, reason, size in sizes.iter_rows():
        mine = rejects.filter((pl.col("stage") == stage) & (pl.col("reason") == reason)).sort("item_id").head(count)
        rows = mine.select("item_id", "evidence_json").join(
            images.select("sha256", "place_id", *_OF_IMAGE), left_on="item_id", right_on="image_id", how="left"
        )
        # An item is a picture, which has a place, or a place itself.
        rows = rows.with_columns(pl.col("place_id").fill_null(pl.col("item_id"))).join(
            places.select("place_id", "country_name", "lat", "lon"), on="place_id", how="left"
        )
        cards, lines = [], []
        for row in rows.to_dicts():
            said = _evidence(row["evidence_json"])
            if row["sha256"]:
                cards.append(
                    _card(lake, {**row, "image_id": row["item_id"]}, side_px, title=row["country_name"], text=said)
                )
            else:
                where = f"{row['country_name']} {row['lat']:.3f}, {row['lon']:.3f}" if row["lat"] is not None else ""
                lines.append(" · ".join(part for part in (row["item_id"], where, said) if part))
        groups.append(RejectGroup(stage, reason, REASONS.get(reason, ""), size, cards, lines))
    return groups


_OF_IMAGE = ["image_id", "extension", "kind", "attribution", "licence"]


def _card(lake: Lake, row: dict[str, Any], side_px: int, title: str | None, text: str) -> Card:
    try:
        data = lake.images.read(row["sha256"], row["extension"] or "")
        uri = to_data_uri(thumbnail(data, side_px))
    except (LakeError, BadImage):  # the checks name it; the page shows that it is gone
        uri = None
    attribution, licence = row.get("attribution") or "", row.get("licence") or ""
    # The attribution of most sources names the licence already.
    credit = attribution if licence in attribution else f"{attribution}, {licence}"
    return Card(
        image_id=row["image_id"],
        uri=uri,
        title=title or "no address",
        kind=row.get("kind") or "",
        split=row.get("split"),
        score=row.get("localizability_score"),
        text=text,
        credit=credit,
    )


def _evidence(text: str | None) -> str:
    """Evidence as one readable line."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return str(text)[:300]
    if not isinstance(found, dict):
        return str(found)[:300]
    said = found.pop("reason", None)  # a sentence of the judge's: it goes first, and bare
    parts = [str(said)] if said else []
    for key, value in found.items():
        parts.append(f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return ", ".join(parts)[:300]
