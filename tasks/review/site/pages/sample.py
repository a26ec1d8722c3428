"""A random sample of labels for people to mark right or wrong."""

import hashlib

from tasks.review.site.blocks import Block, words
from tasks.review.site.page import Page, Source
from tasks.review.site.precision import label_text, precision_of
from tasks.review.site.words import day, place_name


def drawn(source: Source) -> list[str]:
    """Image ids drawn at random from the kept pictures; which ones follows from the snapshot's id alone."""
    kept = sorted(source.read("labels")["image_id"], key=lambda one: _lot(source.snapshot_id, one))
    return kept[: source.settings.sample]


def _lot(snapshot_id: str, image_id: str) -> str:
    return hashlib.sha256(f"sample {snapshot_id} {image_id}".encode()).hexdigest()


def make(source: Source) -> list[Block]:
    """The pictures to mark, and what marks have shown so far."""
    chosen = drawn(source)
    images = source.read("images").select("image_id", "captured_at", "extension", "attribution")
    rows = source.read("labels").with_columns(label=label_text()).join(images, on="image_id", how="left")
    by_id = {row["image_id"]: row for row in rows.to_dicts()}
    items = [
        {
            "id": one,
            "sha256": by_id[one]["sha256"],
            "extension": by_id[one]["extension"],
            "label": by_id[one]["label"],
            "title": place_name(by_id[one]["city"], by_id[one]["region"], by_id[one]["country"]),
            "said": by_id[one]["judge_reason"] or "",
            "taken": day(by_id[one]["captured_at"]),
            "lat": by_id[one]["lat"],
            "lon": by_id[one]["lon"],
            "credit": by_id[one]["attribution"] or "",
        }
        for one in chosen
    ]
    found = precision_of(source)
    so_far = found.sentence if found else "No marks have been brought in yet."
    return [words(so_far, "good" if found else "muted"), {"block": "sample", "items": items}]


PAGE = Page(
    id="sample",
    title="Mark a sample",
    group="Decision",
    about="Look at each picture and say whether its label is right. A random sample tells the precision of all labels.",
    reads=("images", "labels", "marks"),
    make=make,
    order=20,
)
