"""One page for each picture: its history, verdicts, neighbours and duplicates."""

from typing import Any

import polars as pl

from tasks.review.site.blocks import Block
from tasks.review.site.history import READS, histories
from tasks.review.site.nearest import located, nearest
from tasks.review.site.page import Files, Page, Source, chunk_of
from tasks.review.site.pages.sample import drawn
from tasks.review.site.pictures import picture_rows
from tasks.review.site.precision import label_text
from tasks.review.site.words import distance, place_name

PER_FILE = 200
NEIGHBOURS = 6


def make(source: Source) -> list[Block]:
    """Where the pictures' data lie."""
    return [{"block": "picture", "chunks": _chunks(source)}]


def files(source: Source) -> Files:
    """Pictures by digest of their id."""
    rows = picture_rows(source)
    shown = ("image_id", "attribution", "sha256", "extension", "width", "height", "compass_angle")
    images = {row["image_id"]: row for row in source.read("images").select(shown).iter_rows(named=True)}
    labels = source.read("labels").with_columns(label=label_text())
    label = dict(labels.select("image_id", "label").iter_rows())
    told, near, same = histories(source), _neighbours(rows), _duplicates(source)
    sampled = set(drawn(source))
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
            "sha256": image["sha256"],
            "extension": image["extension"],
            "width": image["width"],
            "height": image["height"],
            "compass": image["compass_angle"],
            "label": label.get(image_id, ""),
            "sampled": image_id in sampled,
            "history": told[image_id],
            "neighbours": near.get(image_id, []),
            "duplicates": same.get(image_id, []),
        }
    for number, part in parts.items():
        yield f"picture-{number}", part


def _chunks(source: Source) -> int:
    return max(1, -(-source.read("images").height // PER_FILE))


def _neighbours(rows: pl.DataFrame) -> dict[str, list[list[str]]]:
    """The nearest pictures of the same kind of view, with how far they are; satellite scenes have their own."""
    found: dict[str, list[list[str]]] = {}
    for satellite in (False, True):
        mine = located(rows.filter((pl.col("kind") == "satellite") == satellite))
        ids = mine["image_id"].to_list()
        near, km = nearest(mine, mine, NEIGHBOURS + 1)
        for at, image_id in enumerate(ids):
            others = zip(near[at].tolist(), km[at].tolist(), strict=True)
            found[image_id] = [[ids[one], distance(far)] for one, far in others if one != at][:NEIGHBOURS]
    return found


def _duplicates(source: Source) -> dict[str, list[list[str]]]:
    """Pictures with the same bytes, both ways, and those a curation step names as its double."""
    found: dict[str, list[list[str]]] = {}
    images = source.read("images").select("image_id", "sha256")
    twice = images.filter(pl.len().over("sha256") > 1).group_by("sha256").agg("image_id")
    for ids in twice["image_id"].to_list():
        for one in ids:
            found[one] = [[other, "the same bytes"] for other in ids if other != one]
    doubles = source.read("duplicates")
    if "duplicate_of" in doubles.columns:
        for one, other in doubles.select("image_id", "duplicate_of").drop_nulls().iter_rows():
            for here, there in ((one, other), (other, one)):
                known = [image_id for image_id, _ in found.get(here, [])]
                if there not in known:
                    found.setdefault(here, []).append([there, "found to be a duplicate"])
    return found


PAGE = Page(
    id="picture",
    title="Picture",
    group="Pictures",
    reads=READS,
    make=make,
    files=files,
    hidden=True,
)
