"""A search by a picture among a lake's own: the training pictures whose embedding is nearest to a crop's.

It is told whose crop it is, and leaves out all that would tell where that picture was taken: itself and its copies,
and what is of its planned place, of its drive or within `apart_km`. Pictures of benchmark and validation and withdrawn
ones are never found, and only pictures of an approved snapshot are. A picture that the lake does not have is refused:
nothing says what would have to be left out.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tasks.geo.distance import distance_km
from tasks.imaging.decode import Encoded
from tasks.imaging.hashes import embedding_of, hash_numbers, mirrored_embedding
from tasks.lake import Lake
from tasks.lake.withdrawn import Withdrawn
from tasks.runtime.snapshots import Snapshot
from tasks.runtime.stage import Inputs
from tasks.services.response_store import SCHEME

APART_KM = 1.0
HASH_DISTANCE, LEAST_COSINE = 6, 0.98  # either tells a copy; curation, which takes both, has removed most
_OF_LABELS = ("image_id", "split", "country", "region", "city", "lat", "lon")
_OF_IMAGES = (
    "image_id", "sha256", "place_id", "sequence_id", "source", "source_id", "lat", "lon", "creator", "licence",
    "attribution",
)  # fmt: skip


class UnknownPicture(ValueError):
    """The lake does not have the picture of a crop, or no fingerprint of it."""


@dataclass(frozen=True)
class LookAlike:
    """A picture that was found. Its address is no place's, and its pixels are not shown."""

    url: str
    title: str
    licence: str
    attribution: str


class LookAlikes:
    """The pictures of a lake that may be found, in memory: 1 kB each."""

    def __init__(self, lake: Lake, snapshot: Snapshot, apart_km: float = APART_KM) -> None:
        self._lake, self._apart_km = lake, apart_km
        labels = Inputs(lake, snapshot.versions, snapshot).frame("labels", *_OF_LABELS)
        now = lake.read("labels", columns=["image_id", "split"]).filter(pl.col("split") != "train")
        labels = labels.filter(~pl.col("image_id").is_in(now["image_id"].implode()))  # evaluation's since then
        marks = lake.read("fingerprints", columns=["image_id", "phash", "phash_mirrored", "embedding"])
        images = lake.read("images", columns=_OF_IMAGES).join(labels, on="image_id", how="left", suffix="_labelled")
        # A label's position is the one that counts, where copies disagreed.
        at = {name: pl.coalesce(f"{name}_labelled", name) for name in ("lat", "lon")}
        known = images.with_columns(**at).join(marks.drop_nulls(), on="image_id").sort("image_id")
        self._known = known.drop("embedding")
        self._vectors = np.array(known["embedding"].to_list(), np.float32).reshape(known.height, -1)
        self._hashes = hash_numbers(known["phash"].to_list())
        self._mirrored = hash_numbers(known["phash_mirrored"].to_list())
        complete = pl.all_horizontal(pl.col("licence", "attribution", "country", "lat", "lon").is_not_null())
        self._is_train = known.select((pl.col("split") == "train").fill_null(False) & complete).to_series().to_numpy()
        self._withdrawals, self._may_be_found = -1, self._is_train

    @property
    def count(self) -> int:
        """How many pictures may be found."""
        return int(self._findable().sum())

    def find(self, jpeg: bytes, of: str, most: int) -> list[LookAlike]:
        """Pictures like a crop of the one with these bytes' sha256, best first; `BadImage` for a crop that is none."""
        likeness = self._vectors @ embedding_of(Encoded.open(jpeg).pixels())
        allowed = self._findable() & ~self._near(of)
        best = np.argsort(-np.where(allowed, likeness, -np.inf), kind="stable")[: min(most, int(allowed.sum()))]
        return [self._told(row) for row in self._known[best.tolist()].to_dicts()]

    def _findable(self) -> NDArray[np.bool_]:
        version = self._lake.version("withdrawals")
        if version != self._withdrawals:
            rules = Withdrawn.of(self._lake)
            withdrawn = [rules.why(row) is not None for row in self._known.to_dicts()] if rules else False
            self._may_be_found, self._withdrawals = self._is_train & ~np.array(withdrawn), version
        return self._may_be_found

    def _near(self, of: str) -> NDArray[np.bool_]:
        """What would tell where a picture was taken."""
        rows = self._known.with_row_index("at").filter(pl.col("sha256") == of)
        if rows.is_empty():
            raise UnknownPicture("this lake has no such picture, or no fingerprint of it")
        lat, lon = (self._known[name].to_numpy().astype(np.float64) for name in ("lat", "lon"))
        is_near = np.zeros(self._known.height, bool)
        for row in rows.to_dicts():
            at = row["at"]
            names = [name for name in ("sha256", "place_id", "sequence_id") if row[name] is not None]
            same = [(pl.col(name) == row[name]).fill_null(False) for name in names]
            is_near |= self._known.select(pl.any_horizontal(same)).to_series().to_numpy()
            # A place that is not known is taken for near.
            is_near |= ~(distance_km(np.full_like(lat, row["lat"]), np.full_like(lon, row["lon"]), lat, lon)
                         >= self._apart_km)  # fmt: skip
            for mark in (self._hashes[at], self._mirrored[at]):
                is_near |= np.bitwise_count(self._hashes ^ mark) <= HASH_DISTANCE
            for vector in (self._vectors[at], mirrored_embedding(self._vectors[at : at + 1])[0]):
                is_near |= self._vectors @ vector >= LEAST_COSINE
        return is_near

    @staticmethod
    def _told(row: dict[str, str]) -> LookAlike:
        place = ", ".join(name for name in dict.fromkeys((row["city"], row["region"], row["country"])) if name)
        title = f"A picture taken in {place}"
        return LookAlike(f"{SCHEME}{row['image_id']}", title, row["licence"], row["attribution"])
