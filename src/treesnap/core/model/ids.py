"""The one place that computes identities.

An object's identity is BLAKE3-256 over one byte that says its kind, followed by
its uncompressed bytes. The kind byte keeps file content from ever being read as
a tree, and a tree from being read as a snapshot.
"""

from __future__ import annotations

from blake3 import blake3

from treesnap.core.model.entries import ObjectId, ObjectKind

ID_SIZE = 32
"""Bytes of an object's identity."""

_PREFIXES = {kind: bytes([kind]) for kind in ObjectKind}
_JOINED_SIZE_MAX = 32 << 10
"""Up to this size one call with a copy costs less than two without: a sixth less of 4 KiB, a
third of 16 KiB. Of 256 KiB it costs an eighth more."""


def object_id(kind: ObjectKind, data: bytes | memoryview) -> ObjectId:
    """Returns the identity of an object. Costs one pass over ``data``."""
    prefix = _PREFIXES[kind]
    if len(data) <= _JOINED_SIZE_MAX:
        return ObjectId(blake3(prefix + data).digest())
    hasher = blake3(prefix)
    hasher.update(data)
    return ObjectId(hasher.digest())


def prefixed_id(data: bytes | memoryview) -> ObjectId:
    """Returns the identity of an object from its kind byte and its bytes in one piece."""
    return ObjectId(blake3(data).digest())


def checksum(data: bytes | memoryview, size: int) -> bytes:
    """Returns the first ``size`` bytes of the plain BLAKE3 of ``data``."""
    return blake3(data).digest(length=size)


def keyed_hash(key: bytes, data: bytes | memoryview, size: int = 32) -> bytes:
    """Returns ``size`` bytes that cannot be computed without the key of 32 bytes (keyed BLAKE3)."""
    return blake3(data, key=key).digest(length=size)


def expanded(seed: bytes, size: int) -> bytes:
    """Returns ``size`` bytes that look random and are the same everywhere (BLAKE3's XOF)."""
    return blake3(seed).digest(length=size)


def is_snapshot_id(text: str) -> bool:
    """Returns whether a text is a whole snapshot id."""
    return len(text) == 2 * ID_SIZE and not set(text) - set("0123456789abcdef")


def root_id(real_path: bytes) -> str:
    """Returns the 32 hex digits that identify a root in a store."""
    return blake3(b"treesnap root\0" + real_path).hexdigest(length=16)
