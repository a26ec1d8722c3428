"""Perspective views as products of the lake: cut once, kept by content, with the licence of their panorama."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from schemas.errors import InputError, NotFound
from tasks.imaging.decode import BadImage, jpeg
from tasks.imaging.panorama import STORED_QUALITY
from tasks.imaging.perspective import Panorama, View, yaw_of_bearing
from tasks.lake import Commit, Lake
from tasks.lake.image_store import CorruptImage
from tasks.lake.reading import newest_versions
from tasks.runtime.items.identity import code_version, digest, new_run_id

SHORTEST = 6  # letters of an id that is cut short
SHOWN = 5  # ids that share a beginning
VERSION = 1  # raise it when the same view would come out otherwise
_WORDS = {"satellite": "satellite picture"}
_CHANGED = "perspective view cut from the panorama"  # the licences ask that changes be named


class ViewRefused(InputError):
    """The view cannot be cut from this image."""


def cut_view(lake: Lake, image_id: str, view: View, bearing_deg: float | None = None) -> tuple[dict[str, Any], bool]:
    """The view's row in `views`, its picture in the image store; and whether it had to be made.

    With `bearing_deg` the view looks towards that compass bearing instead of the view's own yaw.
    """
    image = _panorama(lake, image_id)
    image_id = image["image_id"]  # whole, where its beginning was given
    compass = image["compass_angle"]
    if bearing_deg is not None:
        if compass is None:
            raise ViewRefused(f"image {image_id} has no recorded compass angle; give --yaw instead of --bearing")
        view = replace(view, yaw_deg=yaw_of_bearing(bearing_deg, compass))
    view_id = lake.name("view", image_id, digest(asdict(view)))
    made_from = digest("view", VERSION, image["sha256"], image["licence"], image["attribution"], compass)
    before = lake.read("views").filter((pl.col("view_id") == view_id) & (pl.col("made_from") == made_from))
    if before.height and _is_stored(lake, before.row(0, named=True)):
        return before.row(0, named=True), False
    data = _cut(lake, image, view)
    row = {
        "view_id": view_id,
        "image_id": image_id,
        **asdict(view),
        "bearing_deg": None if compass is None else (compass + view.yaw_deg) % 360,
        "image_sha256": image["sha256"],
        "sha256": lake.images.put(data, "jpg"),
        "extension": "jpg",
        "bytes": len(data),
        "licence": image["licence"],
        "attribution": f"{image['attribution']}; {_CHANGED}",
        "stage": "view",
        "item_id": view_id,
        "made_from": made_from,
        "run_id": new_run_id("view"),
        "written_at": datetime.now(UTC),
    }
    versions = {"images": lake.version("images")}
    commit = Commit(row["run_id"], 1, stage="view", code_version=code_version(), input_versions=versions)
    lake.upsert("views", [row], commit)
    return row, True


def _panorama(lake: Lake, image_id: str) -> dict[str, Any]:
    images = lake.scan("images")
    matches = lake.collect("images", images.filter(pl.col("image_id") == image_id))
    if matches.is_empty() and len(image_id) >= SHORTEST:
        matches = lake.collect("images", images.filter(pl.col("image_id").str.starts_with(image_id)))
    live = matches.filter(pl.col("tombstone").is_null())
    matches = live if live.height else matches.head(1)
    if matches.height > 1:
        some = ", ".join(matches["image_id"].sort()[:SHOWN])
        raise NotFound(f"{matches.height} images begin with '{image_id[:80]}': {some}")
    if matches.is_empty():
        raise NotFound(
            f"no image has the id '{image_id[:80]}', nor one that begins so ({SHORTEST} letters are needed); "
            "`geofix show images --where kind=panorama` lists panoramas"
        )
    image = newest_versions(matches, ["image_id"]).row(0, named=True)
    image_id = image["image_id"]
    if image["tombstone"] is not None:
        raise ViewRefused(f"image {image_id} is gone: {image['tombstone']}")
    if image["kind"] != "panorama":
        raise ViewRefused(
            f"image {image_id} is a {_WORDS.get(image['kind'], image['kind'])}, views are cut from panoramas; "
            "`geofix show images --where kind=panorama` lists them"
        )
    return image


def _is_stored(lake: Lake, row: dict[str, Any]) -> bool:
    try:
        lake.images.read(row["sha256"], row["extension"])
    except CorruptImage:
        return False
    return True


def _cut(lake: Lake, image: dict[str, Any], view: View) -> bytes:
    data = lake.images.read(image["sha256"], image["extension"])
    try:
        panorama = Panorama.decode(data)
    except (BadImage, ValueError) as error:
        raise ViewRefused(f"image {image['image_id']} cannot be cut: {error}") from error
    return jpeg(panorama.view(view, panorama.fineness(view)), STORED_QUALITY)
