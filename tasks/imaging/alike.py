"""Pairs of pictures that look alike: by the hash of the whole, and by hashes of parts confirmed on thumbnails."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from schemas.settings.curate import DuplicatesSettings
from tasks.imaging.hashes import hash_numbers, mirrored_embedding
from tasks.imaging.near_hashes import near_pairs
from tasks.imaging.patches import Patches, correlation_of_copies

COMMON = 20  # a part that more pictures share than this (a lamp, a wall) tells nothing

NEAR, MIRRORED = "near_duplicate", "mirrored_duplicate"


@dataclass(frozen=True)
class Alike:
    """Two pictures that look alike, and how that was found out."""

    one: str
    two: str
    reason: str  # near_duplicate or mirrored_duplicate
    evidence: dict[str, Any]


def look_alikes(pictures: pl.DataFrame, settings: DuplicatesSettings) -> list[Alike]:
    """Every pair of pictures that look alike, each once.

    Needs image_id, phash, phash_mirrored, embedding and the columns of `Patches`, all of which may be null.
    """
    pairs = list(_by_the_whole(pictures, settings))
    if settings.by_parts:
        known = {(pair.one, pair.two) for pair in pairs}
        pairs += (pair for pair in _by_parts(pictures, settings) if (pair.one, pair.two) not in known)
    return pairs


def _by_the_whole(pictures: pl.DataFrame, settings: DuplicatesSettings) -> Iterator[Alike]:
    known = pictures.filter(pl.col("phash").is_not_null()).sort("image_id")
    if known.height < 2:
        return
    ids = known["image_id"].to_list()
    plain = hash_numbers(known["phash"].to_list())
    vectors = np.array(known["embedding"].to_list(), dtype=np.float32)
    marks = [(NEAR, plain, vectors)]
    if settings.mirrored:
        marks.append((MIRRORED, hash_numbers(known["phash_mirrored"].to_list()), mirrored_embedding(vectors)))
    for reason, other, other_vectors in marks:
        left, two = _pairs(plain, other if reason == MIRRORED else None, settings.hash_distance)
        cosines = np.einsum("ij,ij->i", vectors[left], other_vectors[two])
        bits = np.bitwise_count(plain[left] ^ other[two])
        for a, b, cosine, differ in zip(left.tolist(), two.tolist(), cosines.tolist(), bits.tolist(), strict=True):
            if cosine >= settings.least_cosine:
                first, second = sorted((ids[a], ids[b]))
                yield Alike(first, second, reason, {"bits": int(differ), "cosine": round(float(cosine), 4)})


def _pairs(
    plain: NDArray[np.uint64], other: NDArray[np.uint64] | None, distance: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows whose hashes are near; with `other`, a row of the first and one of the second."""
    if other is None:
        return near_pairs(plain, distance)
    first, two = near_pairs(np.concatenate([plain, other]), distance)
    across = (first < len(plain)) & (two >= len(plain)) & (first != two - len(plain))
    return first[across], two[across] - len(plain)


def _by_parts(pictures: pl.DataFrame, settings: DuplicatesSettings) -> Iterator[Alike]:
    """Pairs that share a hashed part and whose thumbnails fit onto each other."""
    known = pictures.filter(pl.col("patches").list.len() > 0).sort("image_id")
    if known.height < 2:
        return
    ids = known["image_id"].to_list()
    owner = np.repeat(np.arange(known.height), known["patches"].list.len().to_numpy())
    plain = hash_numbers(known["patches"].explode().to_list())
    told = _tells(plain)
    turned = hash_numbers(known["patches_mirrored"].explode().to_list())
    opened: dict[int, Patches] = {}

    def patches(row: int) -> Patches:
        if row not in opened:
            opened[row] = Patches.of_row(known.row(row, named=True))
        return opened[row]

    seen: set[tuple[int, int]] = set()
    for reason in (NEAR, MIRRORED) if settings.mirrored else (NEAR,):
        mirrored = reason == MIRRORED
        first, two = _pairs(plain[told], turned[told] if mirrored else None, settings.hash_distance)
        pairs = np.unique(np.sort(np.stack([owner[told][first], owner[told][two]], axis=1), axis=1), axis=0)
        for a, b in pairs[pairs[:, 0] != pairs[:, 1]].tolist():
            if (a, b) in seen:
                continue
            fits = correlation_of_copies(patches(a), patches(b), mirrored, settings.hash_distance)
            if fits >= settings.least_correlation:
                seen.add((a, b))
                yield Alike(ids[a], ids[b], reason, {"correlation": round(fits, 4)})


def _tells(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of hashes that few pictures have."""
    _, which, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[which] <= COMMON)
