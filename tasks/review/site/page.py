"""What a page of the site is, and what it is given: the tables of one snapshot."""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from schemas.settings.review import ReviewSettings
from tasks.lake import Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.review.site.blocks import Block

# Navigation groups, in the order they are shown in.
GROUPS = ("Decision", "Pictures", "Data", "Trust", "Agents", "Behind it")
Files = Iterator[tuple[str, Any]]


@dataclass
class Source:
    """The tables as the snapshot names them; tables it does not name, such as those of later parts, as they are now."""

    lake: Lake
    snapshot: dict[str, Any]  # its row
    settings: ReviewSettings
    before: "Source | None" = None  # the snapshot that was approved last before this one
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    _derived: dict[str, pl.DataFrame] = field(default_factory=dict)

    @property
    def snapshot_id(self) -> str:
        return str(self.snapshot["snapshot_id"])

    @property
    def versions(self) -> dict[str, int]:
        """The tables the snapshot names, with their versions."""
        return dict(json.loads(self.snapshot["table_versions_json"] or "{}"))

    @property
    def counts(self) -> dict[str, Any]:
        return dict(json.loads(self.snapshot.get("counts_json") or "{}"))

    @property
    def checks(self) -> list[dict[str, Any]]:
        return list(json.loads(self.snapshot.get("checks_json") or "[]"))

    def command(self, words: str) -> str:
        """A `geofix` command on this lake that can be pasted into a shell."""
        return f"geofix {words} --lake {shlex.quote(self.lake.uri)}"

    def version(self, table: str) -> int:
        """The version that is shown of a table, -1 while it does not exist."""
        return self.versions[table] if table in self.versions else self.lake.version(table)

    def read(self, table: str) -> pl.DataFrame:
        """The live rows of a table, read once."""
        if table not in self._frames:
            pinned = self.versions.get(table)
            missing = pinned is not None and pinned < 0
            rows = self.lake.read(table, None if missing else pinned)
            if "image_id" in rows.columns:  # what was withdrawn since is shown nowhere
                rows = rows.filter(~pl.col("image_id").is_in(list(Withdrawn.of(self.lake).image_ids)))
            self._frames[table] = rows.clear() if missing else rows
        return self._frames[table]

    def once(self, name: str, make: "Callable[[Source], pl.DataFrame]") -> pl.DataFrame:
        """A frame that several pages derive from the tables."""
        if name not in self._derived:
            self._derived[name] = make(self)
        return self._derived[name]


Make = Callable[[Source], list[Block]]


@dataclass(frozen=True)
class Page:
    """A page of the site. One that a module of `tasks/review/site/pages/` defines is found by being there."""

    id: str  # in the address: index.html#/<id>
    title: str
    group: str  # one of GROUPS
    reads: tuple[str, ...]  # tables; the page is made again when one of them has another version
    make: Make
    about: str = ""  # one sentence below the title
    order: int = 50  # within its group
    # Bulk data beside the page: (name, value) pairs, each a script data/<name>.js that the browser loads when needed.
    files: Callable[[Source], Files] | None = None
    hidden: bool = False  # not in the navigation
    # Leaves the page out while this says no; a page without data that would only say so.
    shown: Callable[[Source], bool] = lambda source: True


def page(id: str, title: str, group: str, reads: tuple[str, ...], **more: Any) -> Callable[[Make], Page]:
    """Makes a page of the function below it; `more` holds the other fields of Page."""
    return lambda make: Page(id, title, group, reads, make, **more)


def chunk_of(image_id: str, chunks: int) -> int:
    """Which of the chunks holds a picture: FNV-1a, as core.js computes it."""
    state = 0x811C9DC5
    for byte in image_id.encode():
        state = ((state ^ byte) * 0x01000193) & 0xFFFFFFFF
    return state % max(chunks, 1)


def code_digest(paths: Sequence[Path]) -> str:
    """Changes when the code that makes the site does."""
    state = hashlib.sha256()
    for path in sorted(paths):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]
