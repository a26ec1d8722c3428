"""Which pictures another picture excludes: duplicates, near-duplicates, and what evaluation and training would share.

Splits are gone through from the scarcest (benchmark) to the largest (train). A picture leaves if it shares something
with a picture of an earlier split that stays, or repeats a picture of its own split that stays. What stays therefore
shares nothing: no bytes, no hash, no sequence, no creator and no place within the radius across two splits.

Copies whose positions disagree are decided by evidence before splits: the position that more copies share, then the one
that answers a planned place. Those outvoted come last, whatever their split.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.curate import DuplicatesSettings
from tasks.geo.distance import distance_km
from tasks.geo.near import pairs_within
from tasks.imaging.alike import Alike
from tasks.imaging.hashes import hash_numbers
from tasks.imaging.near_hashes import near_pairs

# Where two splits share something, the later one keeps it: evaluation data is scarcer than training data.
SPLIT_ORDER = {"train": 0, "validation": 1, "benchmark": 2}
SURE_SEQUENCE = 8  # a sequence's id of at least n letters is the same drive through whatever source it came

AGREE_KM = 1.0  # copies that lie nearer to each other say the same of where they were taken

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
    pictures: pl.DataFrame,
    settings: DuplicatesSettings,
    alike: Sequence[Alike] = (),
    external: Iterable[External] = (),
) -> dict[str, Exclusion]:
    """Image id -> why it leaves, for the pictures that leave. `alike` are the pairs that look alike.

    Needs image_id, place_id, split, sha256, kind, source, sequence_id, creator, captured_at, lat, lon and phash, which
    may be null.
    """
    rank = pl.col("split").replace_strict(SPLIT_ORDER, return_dtype=pl.Int64)
    # By bytes and place before the id, which is keyed by the lake: of copies the same one stays in every lake.
    order = ["rank", "sha256", "place_id", "image_id"]
    frame = pictures.with_columns(rank=rank).sort(order, descending=[True, False, False, False])
    excluded = _Pass(frame, settings, alike, tuple(external)).run()
    if "purpose" not in pictures.columns:
        return excluded
    purposes = dict(pictures.filter(pl.col("purpose").is_not_null()).select("image_id", "purpose").iter_rows())
    return {image_id: why for image_id, why in excluded.items() if not _stays(purposes.get(image_id), why)}


def _stays(purpose: str | None, why: Exclusion) -> bool:
    """Whether a picture of a published set stays for all that: a benchmark's always, others unless they leak."""
    return purpose == "benchmark" or (purpose == "training" and why.leaks_into is None)


class _Pass:
    """One pass over the pictures, in the order in which they are preferred."""

    def __init__(
        self,
        frame: pl.DataFrame,
        settings: DuplicatesSettings,
        alike: Sequence[Alike],
        external: tuple[External, ...],
    ) -> None:
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
        burst = frame.select("kind", "sequence_id", pl.col("captured_at").dt.epoch("ms") / 1000).iter_rows()
        # Of a picture in no sequence, the kind and second; scenes of satellites are of one place on purpose.
        self.taken = [
            (kind, at) if at is not None and not sequence and kind != "satellite" else None
            for kind, sequence, at in burst
        ]
        self.creator = [
            _creator_key(creator)
            if settings.by_creator and creator and kind != "satellite"  # an agency's scenes serve every split
            else None
            for creator, kind in frame.select("creator", "kind").iter_rows()
        ]
        self.phash: list[str | None] = frame["phash"].to_list()
        self.partners = self._partners(alike)
        self.outvoted = self._outvoted(frame["place_id"].is_not_null().to_numpy())
        self.out: dict[int, Exclusion] = {}

    def run(self) -> dict[str, Exclusion]:
        kept = np.empty(0, np.int64)
        for last in (False, True):
            for rank in sorted(set(self.rank.tolist()), reverse=True):
                rows = np.flatnonzero((self.rank == rank) & (self.outvoted == last))
                self._leaks(rows, kept[self.rank[kept] != rank])
                if rank == 0:
                    self._external_leaks(rows)
                self._repeats(rows, kept[self.rank[kept] == rank])
                staying = np.array([row for row in rows.tolist() if row not in self.out], dtype=np.int64)
                kept = np.sort(np.concatenate([kept, staying]))
        return {self.ids[row]: why for row, why in self.out.items()}

    def _partners(self, alike: Sequence[Alike]) -> dict[int, list[tuple[int, str, dict[str, Any]]]]:
        """Row -> the rows that look like it, in their order, with reason and evidence."""
        row_of = {image_id: row for row, image_id in enumerate(self.ids)}
        partners: dict[int, list[tuple[int, str, dict[str, Any]]]] = defaultdict(list)
        for pair in alike:
            if pair.one in row_of and pair.two in row_of:
                first, two = row_of[pair.one], row_of[pair.two]
                partners[first].append((two, pair.reason, pair.evidence))
                partners[two].append((first, pair.reason, pair.evidence))
        return {row: sorted(others, key=lambda other: other[0]) for row, others in partners.items()}

    def _outvoted(self, planned: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which rows lie elsewhere than a copy of theirs whose position has better evidence."""
        by_bytes: dict[str, list[int]] = defaultdict(list)
        for row, sha256 in enumerate(self.sha256):
            by_bytes[sha256].append(row)
        copies = {row: {other[0] for other in others} for row, others in self.partners.items()}
        for rows in by_bytes.values():
            for row in rows if len(rows) > 1 else ():
                copies.setdefault(row, set()).update(other for other in rows if other != row)
        far: dict[int, list[int]] = {}
        votes: dict[int, tuple[int, bool]] = {}
        for row, others in copies.items():
            at = np.array(sorted(others), dtype=np.int64)
            away = np.atleast_1d(distance_km(self.lat[row], self.lon[row], self.lat[at], self.lon[at]))
            far[row] = at[away > AGREE_KM].tolist()
            votes[row] = int((away <= AGREE_KM).sum()), bool(planned[row])
        outvoted = np.zeros(len(self.ids), bool)
        for row, distant in far.items():
            outvoted[row] = any(votes[other] > votes[row] for other in distant)
        return outvoted

    def _leaks(self, rows: Ints, kept: Ints) -> None:
        """What pictures of one split share with those of the scarcer splits that stay."""
        if not kept.size or not rows.size:
            return
        by_bytes = {self.sha256[row]: row for row in reversed(kept.tolist())}
        by_sequence = {key: row for row in reversed(kept.tolist()) if (key := self.sequence[row]) is not None}
        by_creator = {name: row for row in reversed(kept.tolist()) if (name := self.creator[row]) is not None}
        staying = set(kept.tolist())
        near = self._near(rows, kept)
        for row in rows.tolist():
            if (of := by_bytes.get(self.sha256[row])) is not None:
                self._exclude(row, of, "exact_duplicate", {})
            elif partner := next((other for other in self.partners.get(row, ()) if other[0] in staying), None):
                self._exclude(row, partner[0], partner[1], partner[2])
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
        own_at, two = pairs_within(
            self.lat[rows], self.lon[rows], self.lat[kept], self.lon[kept], self.settings.leak_km
        )
        row, other = rows[own_at], kept[two]
        away = distance_km(self.lat[row], self.lon[row], self.lat[other], self.lon[other])
        nearest: dict[int, tuple[int, float]] = {}
        for at in np.argsort(-np.atleast_1d(away), kind="stable").tolist():  # the nearest one is written last
            nearest[int(row[at])] = int(other[at]), float(np.atleast_1d(away)[at])
        return nearest

    def _external_leaks(self, rows: Ints) -> None:
        for dataset in self.external:
            left = np.array([row for row in rows.tolist() if row not in self.out], dtype=np.int64)
            if not left.size:
                return
            for row in left.tolist():
                if self.sha256[row] in dataset.sha256:
                    self._external(row, dataset, {"sha256": self.sha256[row]})
            if dataset.phash.size:
                hashed = [row for row in left.tolist() if row not in self.out and self.phash[row]]
                own = hash_numbers([self.phash[row] or "" for row in hashed])
                first, second = near_pairs(np.concatenate([own, dataset.phash]), self.settings.hash_distance)
                for at, other in zip(first.tolist(), second.tolist(), strict=True):
                    if at < len(own) <= other:
                        self._external(hashed[at], dataset, {"phash": f"{int(dataset.phash[other - len(own)]):016x}"})
            if dataset.lat.size and self.settings.leak_km > 0:
                at_row, at_point = pairs_within(
                    self.lat[left], self.lon[left], dataset.lat, dataset.lon, self.settings.leak_km
                )
                for row, point in zip(left[at_row].tolist(), at_point.tolist(), strict=True):
                    km = distance_km(self.lat[row], self.lon[row], dataset.lat[point], dataset.lon[point])
                    self._external(row, dataset, {"km": round(float(km), 3), "leak_km": self.settings.leak_km})

    def _external(self, row: int, of: External, evidence: dict[str, Any]) -> None:
        self.out.setdefault(
            row, Exclusion("external_leak", None, of.name, {"external": of.name, "split": self.split[row], **evidence})
        )

    def _repeats(self, rows: Ints, kept: Ints) -> None:
        """Pictures of one split that repeat one of it that stays, first come first kept."""
        by_bytes = {self.sha256[row]: row for row in kept.tolist()}
        placed = set(kept.tolist())
        spatial = self._spatial(np.concatenate([kept, rows]))
        for row in rows.tolist():
            if row in self.out:
                continue
            if (of := by_bytes.get(self.sha256[row])) is not None:
                self._exclude(row, of, "exact_duplicate", {})
                continue
            alike = next((other for other in self.partners.get(row, ()) if other[0] in placed), None)
            close = next((other for other in spatial.get(row, ()) if other[0] in placed), None)
            if alike is not None:
                self._exclude(row, alike[0], alike[1], alike[2])
            elif close is not None:
                self._exclude(row, close[0], "spatial_duplicate", {"m": round(close[1] * 1000, 2)})
            else:
                by_bytes[self.sha256[row]] = row
                placed.add(row)

    def _spatial(self, rows: Ints) -> dict[int, list[tuple[int, float]]]:
        """Row -> the rows of its sequence that lie within the spacing; without a sequence, those of its burst."""
        neighbours: dict[int, list[tuple[int, float]]] = defaultdict(list)
        drives = [row for row in rows.tolist() if self.sequence[row] is not None]
        bursts = [row for row in rows.tolist() if self.taken[row] is not None]
        for a, b, km in self._close(drives, self.settings.spatial_m):
            if self.sequence[a] == self.sequence[b]:
                neighbours[b].append((a, km))
        for a, b, km in self._close(bursts, self.settings.burst_m):
            (kind, second), (other_kind, other_second) = self.taken[a] or ("", 0), self.taken[b] or ("", 0)
            if kind == other_kind and abs(second - other_second) <= self.settings.burst_s:
                neighbours[b].append((a, km))
        return neighbours

    def _close(self, among: list[int], metres: float) -> Iterator[tuple[int, int, float]]:
        """Pairs of rows, both ways, that lie within a distance, with it in kilometres."""
        if metres <= 0 or len(among) < 2:
            return
        rows = np.array(among, dtype=np.int64)
        place = self.lat[rows], self.lon[rows]
        first, two = pairs_within(*place, *place, metres / 1000)
        for a, b in zip(rows[first].tolist(), rows[two].tolist(), strict=True):
            if a != b:
                yield a, b, float(distance_km(self.lat[a], self.lon[a], self.lat[b], self.lon[b]))

    def _apart(self, row: int, of: int) -> dict[str, Any]:
        """How far an outvoted copy lies from the one that stays."""
        if not self.outvoted[row]:
            return {}
        km = float(distance_km(self.lat[row], self.lon[row], self.lat[of], self.lon[of]))
        return {"positions_apart_km": round(km, 3)}

    def _exclude(self, row: int, of: int, reason: str, evidence: dict[str, Any]) -> None:
        same = self.split[row] == self.split[of]
        self.out[row] = Exclusion(
            reason,
            duplicate_of=self.ids[of] if reason.endswith("duplicate") else None,
            leaks_into=None if same else self.split[of],
            evidence={
                "of": self.ids[of],
                "split": self.split[row],
                "other_split": self.split[of],
                **evidence,
                **self._apart(row, of),
            },
        )


def _creator_key(creator: str) -> str | None:
    """What names one person: the same with other capitals, spaces or Unicode forms."""
    return "".join(unicodedata.normalize("NFKC", creator).casefold().split()) or None


def _sequence_key(source: str | None, sequence: str | None) -> tuple[str, str] | None:
    """What names one drive. Short ids are numbers of a table's own; long ones are the same in every source."""
    if not sequence:
        return None
    return ("", sequence) if len(sequence) >= SURE_SEQUENCE else (source or "", sequence)
