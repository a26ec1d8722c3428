"""Which of a folder's subfolders holds a file: listed once, because to ask each of them for each picture takes hours.

OSV-5M has five million pictures in a hundred folders. Twelve bytes a name are kept, not the names: a hash may name a
folder too many, so the caller checks whether the file is there.
"""

import itertools
import os
from array import array
from collections.abc import Sequence

import numpy as np


def subfolders(root: str) -> list[str]:
    """The names of a folder's folders, in order; none if it cannot be read."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


class Contents:
    """What the subfolders of a folder hold, as it was when it was listed."""

    def __init__(self, root: str, folders: Sequence[str]) -> None:
        self._folders = folders
        hashes, numbers = array("q"), array("I")
        for number, folder in enumerate(folders):
            try:
                with os.scandir(os.path.join(root, folder)) as entries:  # noqa: PTH118 - names, not places
                    names = [hash(entry.name) for entry in entries]
            except OSError:
                continue  # its pictures are missing then, as if they were asked for one by one
            hashes.extend(names)
            numbers.extend(itertools.repeat(number, len(names)))
        found = np.frombuffer(hashes, dtype=np.int64) if hashes else np.zeros(0, dtype=np.int64)
        order = np.argsort(found, kind="stable")
        self._hashes = found[order]
        self._numbers = np.frombuffer(numbers, dtype=np.uint32)[order] if hashes else np.zeros(0, dtype=np.uint32)

    def folders_of(self, name: str) -> list[str]:
        """The folders that may hold a file of this name, in order."""
        first, last = (int(np.searchsorted(self._hashes, hash(name), side)) for side in ("left", "right"))
        return [self._folders[number] for number in self._numbers[first:last]]
