"""Signatures of a lake (Ed25519): the holder of the public key can tell that a text came from it and was not changed.

The private key follows from `names.key`, so that a backup holds it and nothing else has to be kept.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tasks.lake.tables import Lake


def _private_key(lake: Lake) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(lake.secret("signatures"))


def public_key(lake: Lake) -> str:
    """The key that others check signatures with, as hex digits."""
    return bytes(_private_key(lake).public_key().public_bytes_raw()).hex()


def sign(lake: Lake, text: str) -> str:
    """The lake's signature of a text, as hex digits."""
    return bytes(_private_key(lake).sign(text.encode())).hex()


def is_signed(text: str, signature: str, key: str) -> bool:
    """Whether the owner of this public key signed exactly this text."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), text.encode())
    except (InvalidSignature, ValueError):  # a key or signature that is none
        return False
    return True
