"""Deterministic rng: every draw is a hash of what it is for, never of when or where it is made."""

import hashlib
import random

import numpy as np

_MASK = (1 << 64) - 1


def key_of(*parts: object) -> int:
    """A 128-bit number that depends only on the parts."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(*parts: object) -> np.random.Generator:
    """A random generator of its own for these parts: the same whatever was drawn before, in whatever process."""
    return np.random.Generator(np.random.Philox(key=key_of(*parts)))


def draws(*parts: object) -> random.Random:
    """Python's own generator for these parts: for a handful of draws it is ten times quicker than NumPy's."""
    return random.Random(key_of(*parts))


def fraction(*parts: object) -> float:
    """One number in [0, 1) for these parts."""
    return (key_of(*parts) & _MASK) / 2.0**64


def fractions(seed: int, numbers: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per integer; vectorised for whole gazetteers."""
    return (scrambled(seed, numbers) >> np.uint64(11)).astype(np.float64) / 2.0**53


def scrambled(seed: int, numbers: np.ndarray) -> np.ndarray:
    """64 random-looking bits per integer, by splitmix64."""
    state = numbers.astype(np.uint64)
    with np.errstate(over="ignore"):
        state += np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK)
        state ^= state >> np.uint64(30)
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(27)
        state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state
