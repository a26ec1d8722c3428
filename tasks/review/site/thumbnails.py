"""Every picture of the snapshot, small; and panoramas to look around in.

A page opened from a file may show a picture beside it but not give it to WebGL, so a panorama comes as a script that
holds it. That costs a third more bytes, so the number of panoramas is limited; `geofix review --serve` has no limit.
"""

import base64
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import LakeError
from tasks.imaging.images import BadImage, thumbnail
from tasks.imaging.thumbnails import Job, make_thumbnails
from tasks.lake import Lake
from tasks.review.site.files import Folder, script
from tasks.review.site.page import Source

THREADS = 4  # decoding releases the interpreter's lock
MANY = 1000  # from here on processes make the pictures, which take a second or two to start
PANORAMA_PX = 2048


def picture_name(image_id: str) -> str:
    """Where a picture's small copy lies in the site."""
    return f"pictures/{image_id[:2]}/{image_id}.jpg"


def write_pictures(source: Source, folder: Folder) -> dict[str, Any]:
    """Make the small pictures that are missing; returns how many cannot be read, and which panoramas are there."""
    images = source.read("images").select("image_id", "sha256", "extension", "kind").sort("image_id")
    before = _folder_before(source)
    same = dict(source.before.read("images").select("image_id", "sha256").iter_rows()) if source.before else {}
    side_px = source.settings.thumbnail_px

    there = _there(folder)

    def old(image_id: str, sha256: str) -> bool:
        return f"{image_id}.jpg" in there or (
            same.get(image_id) == sha256 and _linked(folder, before, picture_name(image_id))
        )

    def small(row: dict[str, Any]) -> bool:
        return _made(source, row, side_px, lambda data: folder.write(picture_name(row["image_id"]), data))

    kept = set(source.read("labels")["image_id"])
    round_ones = images.filter(pl.col("kind") == "panorama").with_columns(kept=pl.col("image_id").is_in(list(kept)))
    round_ones = round_ones.sort("kept", "image_id", descending=[True, False]).head(source.settings.look_around)

    def round_one(row: dict[str, Any]) -> bool:
        name = f"panorama/{row['image_id']}"
        if folder.has(f"data/{name}.js"):
            return True

        def write(data: bytes) -> None:
            uri = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
            folder.write(f"data/{name}.js", script(name, uri))

        return _made(source, row, PANORAMA_PX, write)

    missing = [row for row in images.to_dicts() if not old(row["image_id"], row["sha256"])]
    with ThreadPoolExecutor(THREADS) as pool:
        if len(missing) >= MANY and source.lake.blobs.is_local:
            readable = make_thumbnails([_job(source, folder, row) for row in missing], side_px)
        else:
            readable = list(pool.map(small, missing))
        rounds = list(pool.map(round_one, round_ones.to_dicts()))
    shown = [image_id for image_id, ok in zip(round_ones["image_id"], rounds, strict=True) if ok]
    return {"pictures": images.height, "unreadable": readable.count(False), "panoramas": shown}


def _there(folder: Folder) -> set[str]:
    """The names of the small pictures that exist, listed once: asking for each file takes longer."""
    return {name for _, _, names in os.walk(folder.path / "pictures") for name in names}


def _job(source: Source, folder: Folder, row: dict[str, Any]) -> Job:
    return (
        row["sha256"],
        source.lake.images.path(row["sha256"], row["extension"]),
        folder.path / picture_name(row["image_id"]),
    )


def forget_pictures(lake: Lake, image_ids: Sequence[str]) -> int:
    """Delete the copies of withdrawn pictures in every site; returns how many there were."""
    count = 0
    for snapshot_id in lake.read("snapshots", columns=["snapshot_id"])["snapshot_id"]:
        for image_id in image_ids:
            for name in (picture_name(image_id), f"data/panorama/{image_id}.js"):
                key = f"reports/{snapshot_id}/{name}"
                count += lake.blobs.exists(key)
                lake.blobs.delete(key)
                lake.blobs.local(key).unlink(missing_ok=True)  # the copy of a remote lake on this machine
    return count


def _made(source: Source, row: dict[str, Any], side_px: int, write: Callable[[bytes], None]) -> bool:
    try:
        data = source.lake.images.read(row["sha256"], row["extension"] or "")
        write(thumbnail(data, side_px, finer=1))  # half the time; at this size it cannot be seen
    except (LakeError, BadImage):  # the checks name it; the page shows that it cannot be read
        return False
    return True


def _folder_before(source: Source) -> Path | None:
    if source.before is None or not source.lake.blobs.is_local:
        return None
    return source.lake.blobs.local(f"reports/{source.before.snapshot_id}")


def _linked(folder: Folder, before: Path | None, name: str) -> bool:
    """Whether the earlier site had this picture, which is linked here now. Its bytes are known to be the same."""
    if before is None or not (before / name).is_file():
        return False
    target = folder.path / name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(before / name, target)
    except OSError:
        return False
    return True
