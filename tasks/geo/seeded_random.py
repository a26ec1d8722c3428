"""Random numbers that depend only on what they are for, never on who draws them or in which order."""

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

Unsigned = NDArray[np.uint64]


def key(*parts: str | int) -> np.uint64:
    """A 64-bit key for a stream of numbers, such as ("draw", seed, "FR")."""
    return np.uint64(int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "little"))


def _mix(x: Unsigned) -> Unsigned:
    # The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit flips every output bit half the time.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(keys: Unsigned | np.uint64, *counters: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for each combination of key and counters, broadcast."""
    state = np.asarray(keys, dtype=np.uint64)
    with np.errstate(over="ignore"):  # wrapping around is the point
        for counter in counters:
            state = _mix(state * np.uint64(0x9E3779B97F4A7C15) + np.asarray(counter).astype(np.uint64) + np.uint64(1))
        state = _mix(state + np.uint64(0x9E3779B97F4A7C15))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
