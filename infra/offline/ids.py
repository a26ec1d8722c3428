"""Image and sequence ids that look like Mapillary's and can be read back without a table."""

import base64
import hashlib

# Above 2**53 throughout: an id that went through a float anywhere comes back changed, as it did to real benchmarks.
_LOWEST = 10**17
_BITS = 56
_MODULUS = 1 << _BITS
_MULTIPLIER = 0x9E3779B97F4A7D  # odd, so it has an inverse modulo 2**56
_INVERSE = pow(_MULTIPLIER, -1, _MODULUS)
SLOTS = 64


def _mix(number: int) -> int:
    return number ^ (number >> 28)  # its own inverse at half the width


def image_id(seed: int, place: int, slot: int) -> str:
    """The id of one image: 18 digits, different for every (place, slot) of a world."""
    number = (place * SLOTS + slot + _offset(seed)) % _MODULUS
    number = _mix(number * _MULTIPLIER % _MODULUS) * _MULTIPLIER % _MODULUS
    return str(_LOWEST + number)


def read_image_id(seed: int, text: str) -> tuple[int, int] | None:
    """(place, slot) an id stands for, or None for an id of another world; the caller checks that both exist."""
    if not (text.isascii() and text.isdigit()) or len(text) != 18:
        return None
    number = int(text) - _LOWEST
    if not 0 <= number < _MODULUS:
        return None
    number = _mix(number * _INVERSE % _MODULUS) * _INVERSE % _MODULUS
    return divmod((number - _offset(seed)) % _MODULUS, SLOTS)


def sequence_id(seed: int, place: int) -> str:
    """The id of a place's sequence: 22 characters of the URL alphabet, as Mapillary's sequence keys."""
    head = (place ^ (_offset(seed) & 0xFFFFFFFF)).to_bytes(8, "big")
    tail = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()
    mixed = bytes(a ^ b for a, b in zip(head, tail, strict=True)) + tail
    return base64.urlsafe_b64encode(mixed).decode().rstrip("=")


def _offset(seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"ids/{seed}".encode(), digest_size=6).digest(), "big")
