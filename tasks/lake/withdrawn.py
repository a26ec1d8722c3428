"""What was withdrawn: checked before a picture is fetched or stored, and in everything a snapshot names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tasks.lake.tables import Lake

REASON = "withdrawn"  # of the rejects and, followed by the person's words, of the tombstones


@dataclass(frozen=True)
class Withdrawn:
    """The rules of a lake's `withdrawals`, as sets."""

    image_ids: frozenset[str] = frozenset()
    sources: frozenset[tuple[str, str]] = frozenset()  # (source, source_id)
    digests: frozenset[str] = frozenset()
    creators: frozenset[str] = frozenset()
    licences: frozenset[str] = frozenset()

    @classmethod
    def of(cls, lake: Lake) -> Self:
        rows = lake.read("withdrawals").to_dicts()
        rules = [row for row in rows if row["image_id"] is None]
        met = [row for row in rows if row["image_id"] is not None]
        return cls(
            frozenset(row["image_id"] for row in met),
            frozenset((row["source"], row["source_id"]) for row in met if row["source_id"]),
            frozenset(row["sha256"] for row in met if row["sha256"]),
            frozenset(row["value"] for row in rules if row["rule"] == "creator"),
            frozenset(row["value"] for row in rules if row["rule"] == "licence"),
        )

    def __bool__(self) -> bool:
        return bool(self.image_ids or self.creators or self.licences)

    def why(self, picture: Mapping[str, Any]) -> str | None:
        """Which rule forbids this picture, by as many of an image's columns as are known; None: it may be used."""
        if picture.get("image_id") in self.image_ids or (
            (picture.get("source"), picture.get("source_id")) in self.sources
        ):
            return "this picture was withdrawn"
        if picture.get("sha256") in self.digests:
            return "a picture with the same bytes was withdrawn"
        if picture.get("creator") in self.creators:
            return "pictures of this creator were withdrawn"
        if picture.get("licence") in self.licences:
            return "pictures under this licence were withdrawn"
        return None

    def discarded(self, row: Mapping[str, Any], lake: Lake) -> str | None:
        """Which rule forbids a picture that was just stored, its bytes deleted again; None: it stays."""
        why = self.why(row)
        if why is not None:
            lake.blobs.delete(lake.images.key(row["sha256"], row["extension"]))
        return why
