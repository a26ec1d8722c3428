"""A growing set of keys as 64-bit hashes: 8 bytes each, and a batch is looked up without reading them all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl


def hash_of(key: Sequence[str]) -> pl.Expr:
    """One hash a row, of text columns that together are its key. Holds within a process only."""
    return pl.concat_str(list(key), separator="\x1f").hash() if len(key) > 1 else pl.col(key[0]).hash()


class KeyHashes:
    """Sorted arrays, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray[Any, np.dtype[np.uint64]]] = []

    def __bool__(self) -> bool:
        return bool(self._arrays)

    def add(self, hashes: pl.Series) -> None:
        """Take hashes in."""
        if len(hashes):
            self._arrays.append(np.sort(hashes.to_numpy()))
        while len(self._arrays) > 1 and 2 * len(self._arrays[-1]) > len(self._arrays[-2]):
            last = self._arrays.pop()
            self._arrays[-1] = np.sort(np.concatenate([self._arrays[-1], last]))

    def holds(self, hashes: pl.Series) -> pl.Series:
        """For each hash, whether it was taken in before."""
        order = np.argsort(hashes.to_numpy())  # looked up in order, neighbours are found in the same cache lines
        wanted = hashes.to_numpy()[order]
        held = np.zeros(len(wanted), dtype=bool)
        for array in self._arrays:
            place = np.minimum(np.searchsorted(array, wanted), len(array) - 1)
            held |= array[place] == wanted
        found = np.empty_like(held)
        found[order] = held
        return pl.Series(found)
