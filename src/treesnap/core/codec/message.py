"""Canonical msgpack, with every length bounded before anything is allocated.

The only module that imports msgpack. Byte strings are ``bin``, text is ``str``;
there are no extension types, no floats and no timestamps. A time is an integer of
nanoseconds; one that msgpack has no integer for is :data:`WIDE_TIME_SIZE` bytes, big-endian
and signed, so that every time has one encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgpack  # type: ignore[import-untyped]  # the library has no types

from treesnap.core.model.errors import Corrupt, InvalidArgument, NewerVersion
from treesnap.core.model.type_names import Any, TypeVar

ARRAY_LENGTH_MAX = 8192
"""Items of one array in a stored object."""
LONG_ARRAY_LENGTH_MAX = 1 << 22
"""Items of one array in the few files that hold long lists."""

INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 64) - 1
"""The integers that msgpack has."""
WIDE_TIME_SIZE = 12
"""Bytes of a time that is none of them."""
TIME_MIN_NS, TIME_MAX_NS = -(1 << 63) * 10**9, (1 << 63) * 10**9 - 1
"""What the kernel can say: signed seconds of 64 bits, and the nanoseconds after them."""

_ERRORS = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError)

T = TypeVar("T")


def pack(value: Any) -> bytes:
    """Returns the canonical bytes of a value made of tuples, dicts, ints, text and bytes.

    Raises TypeError, ValueError or OverflowError for any other value.
    """
    return msgpack.packb(  # type: ignore[no-any-return]  # untyped library
        value, use_bin_type=True, default=_wide_time
    )


def pack_items(length: int, items: Iterable[Any]) -> Iterator[bytes]:
    """Yields the bytes of ``pack`` for an array of so many items, in pieces."""
    yield msgpack.Packer().pack_array_header(length)
    yield from map(pack, items)


def pack_object(value: Any, what: str, times_ns: Callable[[], Iterable[int]] = tuple) -> bytes:
    """Returns the canonical bytes of a tree or list; raises InvalidArgument for odd values.

    ``times_ns`` returns the times in it. They alone may be wider than an integer of msgpack:
    in any other place, a wide number would read back as bytes.
    """
    wide: list[int] = []

    def pack_wide(number: Any) -> bytes:
        packed = _wide_time(number)
        wide.append(number)
        return packed

    try:
        data: bytes = msgpack.packb(value, use_bin_type=True, default=pack_wide)
        if wide and wide != [
            time_ns for time_ns in times_ns() if not INTEGER_MIN <= time_ns <= INTEGER_MAX
        ]:
            raise OverflowError("a number that is not a time is out of range")
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InvalidArgument(f"A {what} cannot hold this: {error}") from error
    return data


def _wide_time(value: Any) -> bytes:
    """Returns the bytes of a time that msgpack has no integer for; called for such values only."""
    if not isinstance(value, int):
        raise TypeError(f"a {type(value).__name__} cannot be stored")
    if not TIME_MIN_NS <= value <= TIME_MAX_NS:
        raise OverflowError(f"{value} is out of range")
    return int(value).to_bytes(WIDE_TIME_SIZE, "big", signed=True)


def decode_time(value: Any, what: str) -> int:
    """Returns a stored time in nanoseconds, or raises Corrupt."""
    if type(value) is int:
        return value
    require(type(value) is bytes and len(value) == WIDE_TIME_SIZE, what, "a time is not an integer")
    time_ns = int.from_bytes(value, "big", signed=True)
    is_wide = not INTEGER_MIN <= time_ns <= INTEGER_MAX and TIME_MIN_NS <= time_ns <= TIME_MAX_NS
    require(is_wide, what, "a time is out of range")
    return time_ns


def unpack(
    data: bytes | memoryview,
    what: str,
    array_length_max: int = ARRAY_LENGTH_MAX,
    *,
    maps: bool = True,
) -> Any:
    """Returns the value of stored bytes, arrays as tuples; raises Corrupt.

    Allocates no more than a small multiple of ``len(data)``, whatever the bytes
    claim. Without ``maps`` a map is refused before anything is made of it: an
    empty one takes one stored byte and 64 in memory.
    """
    try:
        return _unpacked(data, ARRAY_LENGTH_MAX, maps=maps)
    except _ERRORS as error:
        if array_length_max <= ARRAY_LENGTH_MAX:
            raise _undecodable(what, error) from error
    # Few of these files hold a long list, and looking through their bytes takes half as long again.
    try:
        _require_whole(data)
        return _unpacked(data, array_length_max, maps=maps)
    except _ERRORS as error:
        raise _undecodable(what, error) from error


def _unpacked(data: bytes | memoryview, length_max: int, *, maps: bool) -> Any:
    return msgpack.unpackb(
        data,
        raw=False,
        use_list=False,
        strict_map_key=True,
        object_hook=None if maps else _refuse_map,
        max_array_len=length_max,
        max_map_len=length_max if maps else 0,
        max_ext_len=0,
    )


def _require_whole(data: bytes | memoryview) -> None:
    """Raises ValueError unless every item that an array claims is there.

    The library makes room for an array before it has seen its items, and arrays
    nest; this looks through the bytes without making anything of them.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
    unpacker.feed(data)
    unpacker.skip()


def _refuse_map(_value: Any) -> None:
    raise ValueError("it holds a map")


def require(condition: object, what: str, problem: str) -> None:
    """Raises Corrupt unless a stored value keeps a rule."""
    if not condition:
        raise refused(what, problem)


def refused(what: str, problem: str) -> Corrupt:
    """Returns the error for a stored value that breaks a rule.

    For loops over every entry of a tree, which ask before they call.
    """
    return Corrupt(f"Stored {what} is not valid: {problem}")


class Fields:
    """Reads the fields of a stored map, one by one, each with its type."""

    def __init__(self, value: Any, what: str) -> None:
        require(isinstance(value, Mapping), what, "it is not a map")
        self._value: Mapping[str, Any] = value
        self._what = what

    def get(self, name: str, kind: type[T]) -> T:
        """Returns a field that must be there."""
        value = self._value.get(name)
        if type(value) is not kind:
            raise Corrupt(
                f"Stored {self._what} is not valid: {name} is not of type {kind.__name__}"
            )
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Returns a field that may be absent or nil."""
        if self._value.get(name) is None:
            return None
        return self.get(name, kind)

    def time(self, name: str) -> int:
        """Returns a field that must be a time, in nanoseconds."""
        return decode_time(self._value.get(name), f"{self._what}, field {name},")

    def require_version(self, version: int) -> None:
        """Raises Corrupt unless the map says that it has this version; NewerVersion for a newer."""
        stored = self.get("version", int)
        if stored > version:
            raise NewerVersion(
                f"Stored {self._what} has version {stored}, and this treesnap reads {version}"
            )
        require(stored == version, self._what, f"its version {stored} is unknown")

    def size(self, name: str) -> int:
        """Returns a field that must be an integer of at least 0."""
        value = self.get(name, int)
        require(value >= 0, self._what, f"{name} is negative")
        return value


class _Source:
    """Pieces as a file that can be read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""
        self.given_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        """Returns at most so many bytes, none at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        given, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        self.given_bytes += len(given)
        return given


def unpack_groups(
    pieces: Iterable[bytes], what: str, *, length_max: int, item_size_max: int
) -> Iterator[tuple[bytes, ...]]:
    """Yields arrays of byte strings that stand one after the other; raises Corrupt.

    The strings of an array rise, so that pieces which repeat cannot make it grow;
    in memory are the current array and a piece.
    """
    source = _Source(pieces)
    unpacker = msgpack.Unpacker(
        source,
        raw=False,
        use_list=False,
        object_hook=_refuse_map,
        read_size=1 << 16,
        max_buffer_size=item_size_max + (1 << 17),
        max_bin_len=item_size_max,
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
    )
    position = 0
    while True:
        try:
            length = unpacker.read_array_header()
        except msgpack.exceptions.OutOfData:
            break
        except (*_ERRORS, msgpack.exceptions.BufferFull) as error:
            raise _undecodable(what, error) from error
        require(length <= length_max, what, "an array is too long")
        yield tuple(_rising(unpacker, length, what))
        position = unpacker.tell()
    require(position == source.given_bytes, what, "it is cut short")


def _rising(unpacker: Any, length: int, what: str) -> Iterator[bytes]:
    previous = b""
    for _ in range(length):
        try:
            item = unpacker.unpack()
        except (*_ERRORS, msgpack.exceptions.BufferFull) as error:
            raise _undecodable(what, error) from error
        require(type(item) is bytes and item > previous, what, "an array does not rise")
        previous = item
        yield item


def _undecodable(what: str, error: Exception) -> Corrupt:
    return Corrupt(f"Stored {what} cannot be decoded: {str(error) or type(error).__name__}")
