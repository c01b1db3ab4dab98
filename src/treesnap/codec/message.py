"""Canonical msgpack, with every length bounded before anything is allocated.

The only module that imports msgpack. Byte strings are ``bin``, text is ``str``;
there are no extension types, no floats and no timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]  # the library has no types

from treesnap.errors import Corrupt

ARRAY_LENGTH_MAX = 8192
"""Items of one array in a stored object."""

T = TypeVar("T")


def pack(value: Any) -> bytes:
    """Returns the canonical bytes of a value made of tuples, dicts, ints, text and bytes."""
    return msgpack.packb(value, use_bin_type=True)  # type: ignore[no-any-return]  # untyped library


def unpack(data: bytes | memoryview, what: str, array_length_max: int = ARRAY_LENGTH_MAX) -> Any:
    """Returns the value of stored bytes, arrays as tuples; raises Corrupt.

    Allocates no more than a small multiple of ``len(data)`` and of
    ``array_length_max``, whatever the bytes claim.
    """
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=True,
            max_array_len=array_length_max,
            max_map_len=array_length_max,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise Corrupt(f"Stored {what} cannot be decoded: {reason}") from error


def require(condition: object, what: str, problem: str) -> None:
    """Raises Corrupt unless a stored value keeps a rule."""
    if not condition:
        raise Corrupt(f"Stored {what} is not valid: {problem}")


class Fields:
    """Reads the fields of a stored map, one by one, each with its type."""

    def __init__(self, value: Any, what: str) -> None:
        require(isinstance(value, Mapping), what, "it is no map")
        self._value: Mapping[str, Any] = value
        self._what = what

    def get(self, name: str, kind: type[T]) -> T:
        """Returns a field that must be there."""
        value = self._value.get(name)
        if type(value) is not kind:
            raise Corrupt(f"Stored {self._what} is not valid: {name} is no {kind.__name__}")
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Returns a field that may be absent or nil."""
        if self._value.get(name) is None:
            return None
        return self.get(name, kind)

    def size(self, name: str) -> int:
        """Returns a field that must be an integer of at least 0."""
        value = self.get(name, int)
        require(value >= 0, self._what, f"{name} is negative")
        return value


def unpack_sequence(data: bytes, what: str, array_length_max: int) -> Iterator[Any]:
    """Yields the values that stand one after the other in ``data``; raises Corrupt."""
    unpacker = msgpack.Unpacker(
        raw=False,
        use_list=False,
        strict_map_key=True,
        max_buffer_size=max(1, len(data)),
        max_array_len=array_length_max,
        max_map_len=0,
        max_ext_len=0,
    )
    unpacker.feed(data)
    position = 0
    while position < len(data):
        try:
            value = unpacker.unpack()
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise Corrupt(
                f"Stored {what} cannot be decoded: {error or type(error).__name__}"
            ) from error
        position = unpacker.tell()
        yield value
