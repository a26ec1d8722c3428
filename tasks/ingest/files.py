"""Where a row's picture lies: inside the picture folder, or nowhere.

A table comes from outside. Its paths may point anywhere, through `..`, as absolute paths or through links; a picture
is read only if, with all links followed, it lies in the folder the user named.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.ingest.refusal import Refusal


@dataclass(frozen=True)
class Found:
    """A plain file inside the folder. Size and time tell whether it is still the same one at the next run."""

    name: str  # relative to the folder
    size: int
    mtime_ns: int


class PictureFolder:
    """The folder that a table's paths are relative to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real = os.path.realpath(root)

    def find(self, path: str) -> Found | Refusal:
        """The file a row names."""
        file = self._stat(path, path)
        if "\\" in path and isinstance(file, Refusal):
            return self._stat(path.replace("\\", "/"), path)
        return file

    def find_by_id(self, names: Sequence[str], in_subfolders: bool) -> Found | Refusal:
        """The first of several names that is there, in the folder or one folder deeper."""
        refusals: list[Refusal] = []
        for folder, name in self._places(names, in_subfolders):
            file = self._stat(f"{folder}/{name}" if folder else name, name)
            if isinstance(file, Found):
                return file
            refusals.append(file)
        return next((refusal for refusal in refusals if refusal.reason != "missing_file"), refusals[0])

    def _places(self, names: Sequence[str], in_subfolders: bool) -> Iterator[tuple[str, str]]:
        yield from (("", name) for name in names)
        if in_subfolders:
            for name in names:
                # What lies still deeper is not listed; datasets with such names have few folders.
                folders = self._subfolders if "/" in name else self._folders_of(name)
                yield from ((folder, name) for folder in folders)

    def head(self, name: str, length: int) -> bytes | Refusal:
        """The first bytes of a file, or why it is not opened."""
        found = self._stat(name, name)
        if isinstance(found, Refusal):
            return found
        try:
            with Path(self._real, name).open("rb") as file:
                return file.read(length)
        except OSError as error:
            return Refusal("file_unreadable", f"cannot be read: {error.strerror or error}", given=name)

    def read(self, name: str, max_bytes: int) -> bytes | Refusal:
        """The bytes of a file that was found before. It is looked at again: between the two it may have changed."""
        file = self._stat(name, name)
        if isinstance(file, Found) and file.size > max_bytes:
            return Refusal("too_big", f"{file.size / 1e6:.1f} MB, at most {max_bytes / 1e6:g} MB are read", given=name)
        return self.head(name, max_bytes)

    @cached_property
    def _subfolders(self) -> list[str]:
        return [
            name for name in sorted(_listed(self._real)) if not name.startswith(".") and Path(self._real, name).is_dir()
        ]

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Hashes of all names in the subfolders, in order, and the number of the folder each is in.

        They are listed once, because to ask each folder for each picture takes hours: OSV-5M has five million pictures
        in a hundred folders. The names themselves are not kept: a hash may name a folder too many.
        """
        hashes = [np.fromiter(map(hash, _listed(f"{self._real}/{name}")), np.int64) for name in self._subfolders]
        numbers = np.repeat(np.arange(len(hashes)), [len(part) for part in hashes])
        every = np.concatenate([*hashes, np.zeros(0, np.int64)])
        order = np.argsort(every, kind="stable")
        return every[order], numbers[order]

    def _folders_of(self, name: str) -> list[str]:
        hashes, numbers = self._index
        first, last = (int(np.searchsorted(hashes, hash(name), side)) for side in ("left", "right"))
        return [self._subfolders[number] for number in numbers[first:last]]

    def _stat(self, name: str, text: str) -> Found | Refusal:
        try:
            joined = os.path.normpath(os.path.join(self._real, name))  # noqa: PTH118 - absolute names replace the folder
            inside = self._holds(joined)
            status = os.stat(joined) if inside else None  # noqa: PTH116 - first: it is quick and many names are tried
            if status is None or not self._holds(os.path.realpath(joined)):
                return Refusal("path_escapes", f"leads outside the picture folder {self.root}", given=text)
        except (FileNotFoundError, NotADirectoryError):
            return Refusal("missing_file", f"there is no such file in {self.root}", given=text)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "this is not a path"
            return Refusal("file_unreadable", f"cannot be read: {reason}", given=text)
        if not stat.S_ISREG(status.st_mode):
            return Refusal("file_unreadable", "is not a plain file", given=text)
        # Relative to the folder, but with its links: the name the user knows.
        return Found(os.path.relpath(joined, self._real), status.st_size, status.st_mtime_ns)

    def _holds(self, path: str) -> bool:
        return path == self._real or path.startswith(self._real.rstrip("/") + "/")


def _listed(folder: str) -> list[str]:
    """The names in a folder; none if it cannot be read: its pictures are missing then."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names, not places
    except OSError:
        return []
