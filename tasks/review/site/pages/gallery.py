"""The pictures: all of them, each with its history, on a map, and the places that gave none."""

from typing import Any

import polars as pl

from tasks.review.site.blocks import Block, points, table, words
from tasks.review.site.history import READS, histories
from tasks.review.site.nearest import located, nearest
from tasks.review.site.page import Files, Source, chunk_of, page
from tasks.review.site.pictures import columns_of, picture_rows
from tasks.review.site.precision import label_text, sampled_ids
from tasks.review.site.words import distance, evidence, meaning, place_name

ROWS_PER_FILE = 10_000  # in a file


def picture_list_files(source: Source) -> Files:
    rows = picture_rows(source).drop("reject_stage")
    for number, part in enumerate(rows.iter_slices(ROWS_PER_FILE)):
        yield f"pictures-{number}", columns_of(part)


@page(
    "pictures",
    "All pictures",
    "Pictures",
    ("images", "labels", "places", "rejects", "judgements"),
    about="Every picture, kept or rejected. Filter, search, open one for its whole history.",
    files=picture_list_files,
    order=0,
)
def pictures_page(source: Source) -> list[Block]:
    """The gallery; its rows come in files of their own."""
    count = source.read("images").height
    reasons = source.counts.get("rejects_by_reason", {})
    return [
        {
            "block": "gallery",
            "chunks": -(-count // ROWS_PER_FILE),
            "count": count,
            "meanings": {reason: meaning(reason) for reason in reasons},
        }
    ]


PICTURES_PER_FILE = 200
NEIGHBOURS = 6


def picture_files(source: Source) -> Files:
    """Pictures by digest of their id."""
    rows = picture_rows(source)
    shown = ("image_id", "attribution", "sha256", "extension", "width", "height", "compass_angle")
    images = {row["image_id"]: row for row in source.read("images").select(shown).iter_rows(named=True)}
    labels = source.read("labels").with_columns(label=label_text())
    label = dict(labels.select("image_id", "label").iter_rows())
    told, near, same = histories(source), _neighbours(rows), _duplicates(source)
    sampled = set(sampled_ids(source))
    chunks = _chunks(source)
    parts: dict[int, dict[str, Any]] = {number: {} for number in range(chunks)}
    for row in rows.iter_rows(named=True):
        image_id = row["image_id"]
        image = images[image_id]
        parts[chunk_of(image_id, chunks)][image_id] = {
            **{name: row[name] for name in ("kind", "status", "reason", "split", "score", "licence", "lat", "lon")},
            "title": place_name(row["city"], row["region"], row["country"]),
            "categories": row["categories"] or [],
            "credit": image["attribution"] or "",
            **{name: image[name] for name in ("sha256", "extension", "width", "height")},
            "compass": image["compass_angle"],
            "label": label.get(image_id, ""),
            "sampled": image_id in sampled,
            "history": told[image_id],
            "neighbours": near.get(image_id, []),
            "duplicates": same.get(image_id, []),
        }
    for number, part in parts.items():
        yield f"picture-{number}", part


@page("picture", "Picture", "Pictures", READS, files=picture_files, hidden=True)
def picture_page(source: Source) -> list[Block]:
    """Where the pictures' data lie."""
    return [{"block": "picture", "chunks": _chunks(source)}]


def _chunks(source: Source) -> int:
    return max(1, -(-source.read("images").height // PICTURES_PER_FILE))


def _neighbours(rows: pl.DataFrame) -> dict[str, list[list[str]]]:
    """The nearest pictures of the same kind of view, with how far they are; satellite scenes have their own."""
    neighbours: dict[str, list[list[str]]] = {}
    for satellite in (False, True):
        mine = located(rows.filter((pl.col("kind") == "satellite") == satellite))
        ids = mine["image_id"].to_list()
        near, km = nearest(mine, mine, NEIGHBOURS + 1)
        for at, image_id in enumerate(ids):
            others = zip(near[at].tolist(), km[at].tolist(), strict=True)
            neighbours[image_id] = [[ids[other], distance(far)] for other, far in others if other != at][:NEIGHBOURS]
    return neighbours


def _duplicates(source: Source) -> dict[str, list[list[str]]]:
    """Pictures with the same bytes, both ways, and those a curation step names as its double."""
    duplicates: dict[str, list[list[str]]] = {}
    images = source.read("images").select("image_id", "sha256")
    twice = images.filter(pl.len().over("sha256") > 1).group_by("sha256").agg("image_id")
    for ids in twice["image_id"].to_list():
        for own_id in ids:
            duplicates[own_id] = [[other, "the same bytes"] for other in ids if other != own_id]
    doubles = source.read("duplicates")
    if "duplicate_of" in doubles.columns:
        for own_id, other in doubles.select("image_id", "duplicate_of").drop_nulls().iter_rows():
            for here, there in ((own_id, other), (other, own_id)):
                known = [image_id for image_id, _ in duplicates.get(here, [])]
                if there not in known:
                    duplicates.setdefault(here, []).append([there, "found to be a duplicate"])
    return duplicates


@page("map", "Map", "Pictures", ("images", "labels", "places", "rejects", "judgements"), order=10)
def map_page(source: Source) -> list[Block]:
    """Kept pictures by split, rejected ones, and places with nothing."""
    rows = []
    street_view = picture_rows(source).filter(pl.col("kind") != "satellite")
    shown = ("image_id", "split", "status", "city", "region", "country", "lat", "lon")
    for row in street_view.select(shown).iter_rows(named=True):
        group = row["split"] if row["status"] == "kept" else "rejected"
        label = place_name(row["city"], row["region"], row["country"]) or row["image_id"]
        if row["lat"] is not None and row["lon"] is not None:
            rows.append((round(row["lat"], 4), round(row["lon"], 4), group, label, f"picture/{row['image_id']}"))
    street = source.read("images").filter(pl.col("kind") != "satellite").select("place_id")
    places = source.read("places").join(street, on="place_id", how="anti")
    for lat, lon, country in places.select("lat", "lon", "country_name").iter_rows():
        rows.append(
            (round(lat, 4), round(lon, 4), "nothing found", f"planned, no street view found · {country or ''}", "")
        )
    return [
        points("Where it was taken", rows),
        words("Outlines: Natural Earth, public domain. Zoom with the wheel, the buttons or + and −.", "muted"),
    ]


MOST_PLACES = 2000


@page(
    "places",
    "Places without pictures",
    "Pictures",
    ("images", "places", "rejects", "snapshots"),
    about="What was looked for and not found.",
    order=20,
)
def places_page(source: Source) -> list[Block]:
    """Rejects that are not pictures, by reason and country."""
    pictures = source.read("images").select("image_id")
    rejects = source.read("rejects").join(pictures, left_on="item_id", right_on="image_id", how="anti")
    rejects = rejects.filter(pl.col("stage").is_in([stage["stage"] for stage in source.counts.get("stages", [])]))
    places = source.read("places").select("place_id", "country_name", "admin1", "lat", "lon")
    rows = rejects.join(places, left_on="item_id", right_on="place_id", how="left")
    rows = rows.sort("reason", "country_name", "item_id", nulls_last=True).head(MOST_PLACES)
    return [
        table(
            ["where", "stage", "why", "evidence"],
            [
                (
                    place_name(row["admin1"], row["country_name"]) or row["item_id"],
                    row["stage"],
                    meaning(row["reason"]),
                    evidence(row["evidence_json"]),
                )
                for row in rows.to_dicts()
            ],
            empty="Every planned place gave a picture.",
        )
    ]
