"""Where a row's picture lies: inside the picture folder, or nowhere.

A table comes from outside. Its paths may point anywhere, through `..`, as absolute paths or through links; a picture
is read only if, with all links followed, it lies in the folder the user named.
"""

import itertools
import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from tasks.ingest.refusal import Refusal


@dataclass(frozen=True)
class Found:
    """A plain file inside the folder. Size and time tell whether it is still the same one at the next run."""

    name: str  # relative to the folder
    size: int
    mtime_ns: int


def _subfolders_of(root: str) -> list[str]:
    """The names of a folder's folders, in order; none if it cannot be read."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


class _SubfolderIndex:
    """Which of a folder's subfolders holds a file, as it was when they were listed.

    They are listed once, because to ask each of them for each picture takes hours: OSV-5M has five million pictures in
    a hundred folders. Twelve bytes a name are kept, not the names: a hash may name a folder too many, so the caller
    checks whether the file is there.
    """

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


class PictureFolder:
    """The folder that a table's paths are relative to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real = os.path.realpath(root)

    def find(self, path: str) -> Found | Refusal:
        """The file a row names."""
        as_written = os.path.join(self._real, path)  # noqa: PTH118 - Path.exists raises for a name that is too long
        name = path.replace("\\", "/") if "\\" in path and not os.path.exists(as_written) else path  # noqa: PTH110
        return self._stat(name, path)

    def find_by_id(self, names: Sequence[str], in_subfolders: bool) -> Found | Refusal:
        """The first of several names that is there, in the folder or one folder deeper."""
        refusal: Refusal | None = None
        for folder, name in self._places(names, in_subfolders):
            found = self._stat(f"{folder}/{name}" if folder else name, name)
            if isinstance(found, Found):
                return found
            refusal = refusal if found.reason == "missing_file" and refusal else found
        assert refusal is not None
        return refusal

    def _places(self, names: Sequence[str], in_subfolders: bool) -> Iterator[tuple[str, str]]:
        yield from (("", name) for name in names)
        if in_subfolders:
            for name in names:
                # What lies still deeper is not listed; datasets with such names have few folders.
                folders = self._subfolders if "/" in name else self._index.folders_of(name)
                yield from ((folder, name) for folder in folders)

    def head(self, name: str, length: int) -> bytes | Refusal:
        """The first bytes of a file, or why it is not opened."""
        found = self._stat(name, name)
        if isinstance(found, Refusal):
            return found
        try:
            with open(os.path.join(self._real, name), "rb") as file:  # noqa: PTH123, PTH118 - a name, not a place
                return file.read(length)
        except OSError as error:
            return Refusal("file_unreadable", f"cannot be read: {error.strerror or error}", given=name)

    def read(self, name: str, max_bytes: int) -> bytes | Refusal:
        """The bytes of a file that was found before. It is looked at again: between the two it may have changed."""
        found = self._stat(name, name)
        if isinstance(found, Refusal):
            return found
        if found.size > max_bytes:
            return Refusal("too_big", f"{found.size / 1e6:.1f} MB, at most {max_bytes / 1e6:g} MB are read", given=name)
        return self.head(name, max_bytes)

    @cached_property
    def _subfolders(self) -> list[str]:
        return _subfolders_of(self._real)

    @cached_property
    def _index(self) -> _SubfolderIndex:
        return _SubfolderIndex(self._real, self._subfolders)

    def _stat(self, name: str, given: str) -> Found | Refusal:
        if "\0" in name or len(name) > 4096:
            return Refusal("path_escapes", "this is not a path", given=given)
        joined = os.path.normpath(os.path.join(self._real, name))  # noqa: PTH118 - an absolute name replaces the folder
        try:
            if not self._holds(joined):
                how = "is absolute and leads" if PurePosixPath(name).is_absolute() else "leads"
                return Refusal("path_escapes", f"{how} outside the picture folder {self.root}", given=given)
            status = os.stat(joined)  # noqa: PTH116 - first, because it is quick and many names are tried
            if not self._holds(os.path.realpath(joined)):
                said = f"follows a link that leads outside the picture folder {self.root}"
                return Refusal("path_escapes", said, given=given)
        except (FileNotFoundError, NotADirectoryError):
            return Refusal("missing_file", f"there is no such file in {self.root}", given=given)
        except (OSError, ValueError) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or "this is not a path"
            return Refusal("file_unreadable", f"cannot be read: {said}", given=given)
        if not stat.S_ISREG(status.st_mode):
            return Refusal("file_unreadable", "is not a plain file", given=given)
        # Relative to the folder, but with its links: the name the user knows.
        return Found(os.path.relpath(joined, self._real), status.st_size, status.st_mtime_ns)

    def _holds(self, path: str) -> bool:
        return path == self._real or path.startswith(self._real.rstrip("/") + "/")
