"""Which pictures another picture excludes: duplicates, near-duplicates, and what evaluation and training would share.

Splits are gone through from the scarcest (benchmark) to the largest (train). A picture leaves if it shares something
with a picture of an earlier split that stays, or repeats a picture of its own split that stays. What stays therefore
shares nothing: no bytes, no hash, no sequence, no creator and no place within the radius across two splits.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.curate import DuplicatesSettings
from tasks.geo.distance import distance_km
from tasks.geo.near import pairs_within
from tasks.imaging.hashes import hash_numbers, mirrored_embedding
from tasks.imaging.near_hashes import near_pairs

# Where two splits share something, the later one keeps it: evaluation data is scarcer than training data.
SPLIT_ORDER = {"train": 0, "validation": 1, "benchmark": 2}
SURE_SEQUENCE = 8  # a sequence's id of at least n letters is the same drive through whatever source it came

Ints = NDArray[np.int64]


@dataclass
class Exclusion:
    """Why one picture leaves."""

    reason: str
    duplicate_of: str | None = None
    leaks_into: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class External:
    """One evaluation set of others: where its pictures were taken, and the marks of those that are known."""

    name: str
    lat: NDArray[np.float64]
    lon: NDArray[np.float64]
    sha256: frozenset[str]
    phash: NDArray[np.uint64]


def exclusions(
    pictures: pl.DataFrame, settings: DuplicatesSettings, external: Iterable[External] = ()
) -> dict[str, Exclusion]:
    """Image id -> why it leaves, for the pictures that leave.

    Needs image_id, split, sha256, kind, source, sequence_id, creator, lat, lon, phash, phash_mirrored, embedding; the
    last three may be null, where a picture could not be measured.
    """
    rank = pl.col("split").replace_strict(SPLIT_ORDER, return_dtype=pl.Int64)
    frame = pictures.with_columns(rank=rank).sort(["rank", "image_id"], descending=[True, False])
    return _Pass(frame, settings, tuple(external)).run()


class _Pass:
    """One pass over the pictures, in the order in which they are preferred."""

    def __init__(self, frame: pl.DataFrame, settings: DuplicatesSettings, external: tuple[External, ...]) -> None:
        self.settings, self.external = settings, external
        self.ids: list[str] = frame["image_id"].to_list()
        self.split: list[str] = frame["split"].to_list()
        self.rank = frame["rank"].to_numpy()
        self.lat, self.lon = frame["lat"].to_numpy(), frame["lon"].to_numpy()
        self.sha256: list[str] = frame["sha256"].to_list()
        self.sequence = [
            _sequence_key(*row) if settings.by_sequence else None
            for row in frame.select("source", "sequence_id").iter_rows()
        ]
        self.creator = [
            creator.strip().casefold() or None
            if settings.by_creator and creator and kind != "satellite"  # an agency's scenes serve every split
            else None
            for creator, kind in frame.select("creator", "kind").iter_rows()
        ]
        self.phash: list[str | None] = frame["phash"].to_list()
        self.partners = self._partners(frame)
        self.out: dict[int, Exclusion] = {}

    def run(self) -> dict[str, Exclusion]:
        for rank in sorted(set(self.rank.tolist()), reverse=True):
            rows = np.flatnonzero(self.rank == rank)
            kept = np.array([row for row in range(int(rows[0])) if row not in self.out], dtype=np.int64)
            self._leaks(rows, kept)
            if rank == 0:
                self._external_leaks(rows)
            self._repeats(rows)
        return {self.ids[row]: why for row, why in self.out.items()}

    def _partners(self, frame: pl.DataFrame) -> dict[int, list[tuple[int, str, dict[str, Any]]]]:
        """Row -> the rows before it that look like it, with reason and evidence."""
        known = np.array([row for row, text in enumerate(self.phash) if text], dtype=np.int64)
        found: dict[int, list[tuple[int, str, dict[str, Any]]]] = defaultdict(list)
        if len(known) < 2:
            return found
        plain = hash_numbers([self.phash[row] or "" for row in known.tolist()])
        vectors = np.array(frame["embedding"].gather(pl.Series(known)).to_list(), dtype=np.float32)
        marks = [("near_duplicate", plain, vectors)]
        if self.settings.mirrored:
            turned = frame["phash_mirrored"].gather(pl.Series(known)).to_list()
            marks.append(("mirrored_duplicate", hash_numbers(turned), mirrored_embedding(vectors)))
        for reason, other, other_vectors in marks:
            mirrored = reason == "mirrored_duplicate"
            given = np.concatenate([plain, other]) if mirrored else plain
            one, two = near_pairs(given, self.settings.hash_distance)
            if mirrored:
                across = (one < len(plain)) & (two >= len(plain)) & (one != two - len(plain))
                one, two = one[across], two[across] - len(plain)
            alike = np.einsum("ij,ij->i", vectors[one], other_vectors[two])
            bits = np.bitwise_count(plain[one] ^ other[two])
            for a, b, cosine, differ in zip(one.tolist(), two.tolist(), alike.tolist(), bits.tolist(), strict=True):
                if cosine >= self.settings.least_cosine:
                    first, second = sorted((int(known[a]), int(known[b])))
                    found[second].append((first, reason, {"bits": int(differ), "cosine": round(float(cosine), 4)}))
        return found

    def _leaks(self, rows: Ints, kept: Ints) -> None:
        """What pictures of one split share with those of the scarcer splits that stay."""
        if not kept.size:
            return
        by_bytes = {self.sha256[row]: row for row in reversed(kept.tolist())}
        by_sequence = {key: row for row in reversed(kept.tolist()) if (key := self.sequence[row]) is not None}
        by_creator = {name: row for row in reversed(kept.tolist()) if (name := self.creator[row]) is not None}
        staying = set(kept.tolist())
        near = self._near(rows, kept)
        for row in rows.tolist():
            if (of := by_bytes.get(self.sha256[row])) is not None:
                self._exclude(row, of, "exact_duplicate", {})
            elif found := next((one for one in self.partners.get(row, ()) if one[0] in staying), None):
                self._exclude(row, found[0], found[1], found[2])
            elif (key := self.sequence[row]) is not None and (of := by_sequence.get(key)) is not None:
                self._exclude(row, of, "sequence_leak", {"sequence": key[1]})
            elif (name := self.creator[row]) is not None and (of := by_creator.get(name)) is not None:
                self._exclude(row, of, "creator_leak", {"creator": name})
            elif row in near:
                of, km = near[row]
                self._exclude(row, of, "radius_leak", {"km": round(km, 3), "leak_km": self.settings.leak_km})

    def _near(self, rows: Ints, kept: Ints) -> dict[int, tuple[int, float]]:
        if self.settings.leak_km <= 0:
            return {}
        one, two = pairs_within(self.lat[rows], self.lon[rows], self.lat[kept], self.lon[kept], self.settings.leak_km)
        row, other = rows[one], kept[two]
        away = distance_km(self.lat[row], self.lon[row], self.lat[other], self.lon[other])
        found: dict[int, tuple[int, float]] = {}
        for at in np.argsort(-np.atleast_1d(away), kind="stable").tolist():  # the nearest one is written last
            found[int(row[at])] = int(other[at]), float(np.atleast_1d(away)[at])
        return found

    def _external_leaks(self, rows: Ints) -> None:
        for one in self.external:
            left = np.array([row for row in rows.tolist() if row not in self.out], dtype=np.int64)
            if not left.size:
                return
            for row in left.tolist():
                if self.sha256[row] in one.sha256:
                    self._external(row, one, {"sha256": self.sha256[row]})
            if one.phash.size:
                hashed = [row for row in left.tolist() if row not in self.out and self.phash[row]]
                own = hash_numbers([self.phash[row] or "" for row in hashed])
                first, second = near_pairs(np.concatenate([own, one.phash]), self.settings.hash_distance)
                for at, other in zip(first.tolist(), second.tolist(), strict=True):
                    if at < len(own) <= other:
                        self._external(hashed[at], one, {"phash": f"{int(one.phash[other - len(own)]):016x}"})
            if one.lat.size and self.settings.leak_km > 0:
                at_row, at_point = pairs_within(self.lat[left], self.lon[left], one.lat, one.lon, self.settings.leak_km)
                for row, point in zip(left[at_row].tolist(), at_point.tolist(), strict=True):
                    km = distance_km(self.lat[row], self.lon[row], one.lat[point], one.lon[point])
                    self._external(row, one, {"km": round(float(km), 3), "leak_km": self.settings.leak_km})

    def _external(self, row: int, of: External, evidence: dict[str, Any]) -> None:
        self.out.setdefault(
            row, Exclusion("external_leak", None, of.name, {"external": of.name, "split": self.split[row], **evidence})
        )

    def _repeats(self, rows: Ints) -> None:
        """Pictures of one split that repeat one of it that stays, first come first kept."""
        by_bytes: dict[str, int] = {}
        spatial = self._spatial(rows)
        for row in rows.tolist():
            if row in self.out:
                continue
            if (of := by_bytes.get(self.sha256[row])) is not None:
                self._exclude(row, of, "exact_duplicate", {})
                continue
            alike = next(
                (one for one in self.partners.get(row, ()) if one[0] >= rows[0] and one[0] not in self.out), None
            )
            close = next((one for one in spatial.get(row, ()) if one[0] not in self.out), None)
            if alike is not None:
                self._exclude(row, alike[0], alike[1], alike[2])
            elif close is not None:
                self._exclude(row, close[0], "spatial_duplicate", {"m": round(close[1] * 1000, 2)})
            else:
                by_bytes[self.sha256[row]] = row

    def _spatial(self, rows: Ints) -> dict[int, list[tuple[int, float]]]:
        """Row -> the rows before it of its sequence that lie within the spacing."""
        found: dict[int, list[tuple[int, float]]] = defaultdict(list)
        drives = np.array([row for row in rows.tolist() if self.sequence[row] is not None], dtype=np.int64)
        if self.settings.spatial_m <= 0 or len(drives) < 2:
            return found
        place = self.lat[drives], self.lon[drives]
        one, two = pairs_within(*place, *place, self.settings.spatial_m / 1000)
        for a, b in zip(drives[one].tolist(), drives[two].tolist(), strict=True):
            if a < b and self.sequence[a] == self.sequence[b]:
                found[b].append((a, float(distance_km(self.lat[a], self.lon[a], self.lat[b], self.lon[b]))))
        return found

    def _exclude(self, row: int, of: int, reason: str, evidence: dict[str, Any]) -> None:
        same = self.split[row] == self.split[of]
        self.out[row] = Exclusion(
            reason,
            duplicate_of=self.ids[of] if reason.endswith("duplicate") else None,
            leaks_into=None if same else self.split[of],
            evidence={"of": self.ids[of], "split": self.split[row], "other_split": self.split[of], **evidence},
        )


def _sequence_key(source: str | None, sequence: str | None) -> tuple[str, str] | None:
    """What names one drive. Short ids are numbers of a table's own; long ones are the same in every source."""
    if not sequence:
        return None
    return ("", sequence) if len(sequence) >= SURE_SEQUENCE else (source or "", sequence)
