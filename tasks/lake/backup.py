"""A copy of a whole lake, beside one that is being worked on: tables, pictures, checkpoints, reports, the names' key.

Files of tables never change, and pictures are named by their bytes, so a second backup copies only what is new. The
tables' logs are listed first and copied last: the copy is the lake as it was at that moment, and a backup that is
killed leaves the one before it whole. What the lake has lost since, such as pictures that were withdrawn, goes from
the backup too. Local state (answers of services, budgets) stays behind.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import InputError, LakeError
from tasks.lake.blobs import Blob, BlobMissing
from tasks.lake.names import KEY_FILE
from tasks.lake.reading import file_keys
from tasks.lake.tables import Lake

FOLDERS = ("images", "models", "reports", "tables")
LOG = "/_delta_log/"
POINTER = "_last_checkpoint"  # of a log: names a checkpoint, so it comes after that
LAST = "result.json"  # of a checkpoint: says that it is whole
COPIERS = 8
LARGE = 64_000_000  # bytes; a larger file goes by disk, not through memory


@dataclass(frozen=True)
class Copied:
    """What a backup did."""

    files: int
    bytes: int
    kept: int  # were there already
    removed: int  # the lake has them no more


def copy_lake(source: Lake, target: Lake, progress: Callable[[int, int], None] = lambda done, count: None) -> Copied:
    """Make the target what the source is now. It is empty, or an earlier copy of the same lake."""
    _check(source, target)
    logs = [blob for blob in source.blobs.list("tables") if LOG in blob.key]  # before anything else
    wanted = {blob.key: blob for folder in FOLDERS for blob in source.blobs.list(folder) if _belongs(blob.key)}
    wanted = {key: blob for key, blob in wanted.items() if LOG not in key} | {blob.key: blob for blob in logs}
    there = {blob.key: blob for folder in FOLDERS for blob in target.blobs.list(folder)}
    if _is_empty(target):
        target.blobs.delete(KEY_FILE)  # of a lake that was opened and never written to
        target.blobs.create(KEY_FILE, source.blobs.get(KEY_FILE))
    new = [blob for key, blob in wanted.items() if not _is_same(blob, there.get(key))]
    done = 0
    copied: list[Blob] = []
    for group in _in_order(new):
        with ThreadPoolExecutor(COPIERS) as pool:
            for copied_blob, was_there in zip(
                group, pool.map(lambda blob: _copy(source, target, blob), group), strict=True
            ):
                done += 1
                progress(done, len(new))
                if was_there:
                    copied.append(copied_blob)
    gone = [key for key in there if key not in wanted]
    for key in sorted(gone, key=lambda key: LOG not in key):
        target.blobs.delete(key)
    return Copied(len(copied), sum(blob.size for blob in copied), len(wanted) - len(new), len(gone))


def check_backup(backup: Lake) -> None:
    """Refuse one that leads out of its own folder, by a link or by a name in a table's log: it may be a stranger's."""
    if backup.blobs.is_local:
        for path in (backup.blobs.local(key) for key in (KEY_FILE, *FOLDERS)):
            inside = (Path(top, name) for top, folders, files in os.walk(path) for name in (*folders, *files))
            if link := next((entry for entry in (path, *inside) if entry.is_symlink()), None):
                raise InputError(f"{link} is a link, and a backup holds its files itself: nothing was restored")
    for name in backup.existing():
        try:
            table = backup.delta(name)
        except LakeError:
            continue  # damaged, as the check after the copy says
        if table is not None:
            file_keys(name, table)


def _check(source: Lake, target: Lake) -> None:
    if _is_empty(source) or not source.blobs.exists(KEY_FILE):
        raise InputError(f"there is no lake at {source.uri}, or its {KEY_FILE} is missing")
    if source.uri == target.uri:
        raise InputError(f"{target.uri} is the lake itself; name another place")
    if _is_empty(target):
        return
    if not target.blobs.exists(KEY_FILE) or target.blobs.get(KEY_FILE) != source.blobs.get(KEY_FILE):
        raise InputError(f"{target.uri} holds another lake; name an empty place, or a backup of {source.uri}")


def _is_empty(lake: Lake) -> bool:
    return next(iter(lake.blobs.list("tables")), None) is None


def _belongs(key: str) -> bool:
    """Not of work that is under way: a checkpoint that is not finished lies in a hidden folder."""
    return not any(part.startswith(".") for part in key.split("/"))


def _is_same(blob: Blob, there: Blob | None) -> bool:
    """Whether a file was copied before. Reports are written anew under their name, all others are not."""
    if there is None or there.size != blob.size or blob.key.endswith(POINTER):
        return False
    return not blob.key.startswith("reports/") or there.modified_s >= blob.modified_s


def _in_order(blobs: Iterable[Blob]) -> list[list[Blob]]:
    """What others refer to first; commits of tables one after another, as readers find them."""
    first: list[Blob] = []
    marks: list[Blob] = []
    commits: list[Blob] = []
    pointers: list[Blob] = []
    for blob in blobs:
        is_log = LOG in blob.key
        if is_log and blob.key.endswith(POINTER):
            pointers.append(blob)
        elif is_log and blob.key.endswith(".json"):
            commits.append(blob)
        else:
            (marks if blob.key.startswith("models/") and blob.key.endswith(f"/{LAST}") else first).append(blob)
    commits.sort(key=lambda blob: blob.key.rpartition("/")[2])
    return [first, marks, *([commit] for commit in commits), pointers]


def _copy(source: Lake, target: Lake, blob: Blob) -> bool:
    """Copy one file; False if it is there no more, as files of old versions are after maintenance."""
    try:
        if blob.size <= LARGE:
            target.blobs.put(blob.key, source.blobs.get(blob.key))
            return True
        path, local = source.blobs.pull(blob.key), target.blobs.local(blob.key)
        local.parent.mkdir(parents=True, exist_ok=True)
        partial = local.with_name(f".{local.name}.tmp")
        shutil.copyfile(path, partial)
        partial.replace(local)
        target.blobs.push(blob.key)
    except (BlobMissing, FileNotFoundError):
        return False
    return True
