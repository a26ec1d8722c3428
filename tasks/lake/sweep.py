"""What maintenance may delete besides table files: each candidate with its size and the way to delete it."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import polars as pl

from tasks.lake.blobs import Blob, LocalBlobs
from tasks.lake.tables import Lake

DAY_S = 24 * 3600.0
SHA256 = r"[0-9a-f]{64}"


@dataclass(frozen=True)
class Candidate:
    """One thing that may go. `delete` says whether it went: it may be in use again by then."""

    name: str
    size: int
    delete: Callable[[], bool]


def old_temporaries(lake: Lake, hours: int) -> Iterator[Candidate]:
    """Temporary files of killed writers. An object store has none: an upload that ends early leaves no object."""
    if isinstance(lake.blobs, LocalBlobs):
        for folder in ("images", "reports"):
            for blob in lake.blobs.temporaries(folder):
                if blob.modified_s < time.time() - hours * 3600:
                    yield _blob(lake, blob)


def old_images(lake: Lake, days: int) -> Iterator[Candidate]:
    """Pictures that no row names, neither in a table as it is nor in a version that a snapshot names."""
    before_s = time.time() - days * DAY_S
    listed = {PurePosixPath(blob.key).stem: blob for blob in lake.images.list() if blob.modified_s < before_s}
    # Rows are read after the listing, so that those committed meanwhile count.
    for sha256 in _unnamed(lake, pl.DataFrame({"sha256": list(listed)}, schema={"sha256": pl.String}))["sha256"]:
        yield _blob(lake, listed[sha256])


def _unnamed(lake: Lake, left: pl.DataFrame) -> pl.DataFrame:
    """The digests that stand in no text of any row: columns, stored messages and evidence alike."""
    for name in lake.existing():
        for version in (None, *lake.snapshot_versions(name)):
            rows = lake.scan(name, version)
            for column, dtype in rows.collect_schema().items():
                text = pl.col(column) if dtype == pl.String else pl.col(column).list.join(" ")
                if left.height and dtype in (pl.String, pl.List(pl.String)):
                    named = rows.select(sha256=text.str.extract_all(SHA256)).explode("sha256").drop_nulls().unique()
                    left = left.join(lake.collect(name, named), on="sha256", how="anti")
    return left


def old_reports(lake: Lake, days: int) -> Iterator[Candidate]:
    """Reports of snapshots that were reviewed long ago, or never, and not approved. The newest one stays."""
    snapshots = lake.read("snapshots", columns=["report", "status", "written_at"]).sort("written_at")
    long_ago = pl.col("written_at").dt.epoch("s") < time.time() - days * DAY_S
    for key in snapshots.head(-1).filter((pl.col("status") != "approved") & long_ago)["report"].drop_nulls():
        for blob in lake.blobs.list(str(PurePosixPath(key).parent)):
            yield _blob(lake, blob)


def old_state(lake: Lake, days: int) -> Iterator[Candidate]:
    """Logs, and answers in `notes` and `spool`, which earlier versions left."""
    now = time.time()
    for pattern, seconds in {"*.log": days * DAY_S, "notes/**/*.jsonl": DAY_S, "spool/**/*.picture": DAY_S}.items():
        for path in lake.state.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now - seconds:
                    yield Candidate(str(path), path.stat().st_size, _unlinked(path))


def old_copies(lake: Lake, days: int) -> Iterator[Candidate]:
    """Local copies of a remote lake's files, and unfinished training runs, that were not used for so long."""
    before_s = time.time() - days * DAY_S
    models = lake.blobs.local("models")
    for partial in models.glob(".*.partial"):
        files = [path for path in partial.rglob("*") if path.is_file()]
        if max([path.stat().st_mtime for path in files], default=0.0) < before_s:
            yield Candidate(str(partial), sum(path.stat().st_size for path in files), _removed(partial))
    if not lake.blobs.is_local:
        for blob in lake.blobs.list("models"):
            if ".partial/" in blob.key and blob.modified_s < before_s:
                yield _blob(lake, blob)
        for path in (lake.state / "copies").rglob("*"):
            if path.is_file() and max(path.stat().st_atime, path.stat().st_mtime) < before_s:
                yield Candidate(str(path), path.stat().st_size, _unlinked(path))


def _blob(lake: Lake, blob: Blob) -> Candidate:
    def delete() -> bool:
        now = lake.blobs.find(blob.key)
        if now is not None and now.modified_s != blob.modified_s:
            return False  # stored again meanwhile: a row that names it may follow
        lake.blobs.delete(blob.key)
        return True

    return Candidate(blob.key, blob.size, delete)


def _unlinked(path: Path) -> Callable[[], bool]:
    def delete() -> bool:
        with contextlib.suppress(OSError):
            path.unlink()
            return True
        return False

    return delete


def _removed(folder: Path) -> Callable[[], bool]:
    def delete() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return True

    return delete
