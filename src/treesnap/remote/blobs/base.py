"""Blobs as treesnap uses them: one method per request.

A blob has a name and bytes, and is written whole: readers see all of it or nothing. Blobs
are never appended to. What blobs mean is decided above; whatever comes back from here was in the
hands of others and is not to be trusted.

Names are ``KIND/NAME`` with lower-case letters before the slash and hexadecimal digits and
hyphens after it, or ``format``. No place spells such a name in two ways: no case to fold, nothing
to escape, no path out of the remote. Every implementation refuses other names with ValueError,
before it touches anything.

All methods raise :class:`RemoteFailed`, whose code says what to do about it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from treesnap.core.model.errors import ErrorCode, RemoteFailed, quoted
from treesnap.core.model.named_tuple import NamedTuple

Data: TypeAlias = bytes | bytearray | memoryview
"""What is written; a memoryview has to be one of bytes, and contiguous."""

Range: TypeAlias = tuple[int, int]
"""Where a part of a blob starts, and how many bytes it has."""

NEAR_BYTES = 1 << 20
"""Ranges with a smaller gap between them are read in one request."""

BLOB_SIZE_MAX = 256 << 20
"""The largest blob that ``get`` reads if nothing else is said: what a server sends has to fit into
memory."""

_NAME = re.compile(r"[a-z]{1,32}/[0-9a-f-]{1,128}|format")
_PREFIX = re.compile(r"[a-z]{1,32}/[0-9a-f-]{0,128}")

KIND = re.compile(r"[a-z]{1,32}")
"""The directory of a kind of blobs, where blobs are files."""
MARKERS = ("format", "members", "state")
"""One of these at least is in the directory of a remote: a disk that is not mounted has none."""
_UNFINISHED = ".unfinished-"
_UNFINISHED_NAME = re.compile(rf"{re.escape(_UNFINISHED)}[0-9a-f]{{16}}")


class BlobInfo(NamedTuple):
    """A blob in a listing."""

    name: str
    size_bytes: int
    tag: str = ""
    """Other content, another tag; empty where that cannot be said."""


class BlobMissing(Exception):
    """There is no blob of this name. Callers handle it; no user meets it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no blob {name!r}")
        self.name = name


class Blobs(Protocol):
    """Named files somewhere else, each of which is written whole.

    Safe in several threads, and blocking. Not to be used in a forked child that inherited it.
    """

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, whether or not there is one; durable and listed after return.

        Repeated by itself after failures that may pass, as all other methods but ``create`` are:
        the same bytes again do no harm.
        """

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none; returns whether it did. Never repeated by itself.

        False means that this call wrote nothing. The name may be free all the same: servers refuse
        one of two requests that meet. RemoteFailed has ``is_unclear`` where the blob may have been
        written, or may be written yet.
        """

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Returns a blob; raises BlobMissing, and RemoteFailed for a larger one."""

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Returns parts of a blob in the order of the ranges; raises BlobMissing.

        A range past the end is cut there. Near ranges are read in one request.
        """

    def size_bytes(self, name: str, /) -> int:
        """Returns the size of a blob; raises BlobMissing."""

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields the blobs whose names begin with ``prefix``, sorted by name.

        ``prefix`` is a kind with its slash, and may go on. ``after`` leaves out the names up to
        this one. Files with other names are not blobs and are left out.
        """

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Removes blobs; one that is missing is not a failure.

        Returns those that the server refused to remove, because of a lock or a policy.
        """

    def sweep_unfinished(self) -> int:
        """Removes what writers that are gone left unfinished; returns how many files that were.

        A server does so itself; a directory does not.
        """

    def give_up(self) -> None:
        """Lets the requests that other threads repeat fail now.

        For a caller that fails, and waits for its threads.
        """

    def close(self) -> None:
        """Releases connections and descriptors. No other method may be called afterwards."""


class Facts(NamedTuple):
    """What some places tell of themselves; None is what they do not."""

    server_time_s: float | None = None
    """Since 1970."""
    free_bytes: int | None = None
    keeps_versions: bool | None = None
    """Whether what is replaced or removed can be had back."""


@runtime_checkable
class TellsFacts(Protocol):
    """Blobs of a place that tells something of itself."""

    def facts(self) -> Facts:
        """Asks the place; raises RemoteFailed. May write a file there, which it removes."""


class WrappedBlobs:
    """Blobs that pass every request on to others; a subclass says what it does otherwise."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, whether or not there is one."""
        self._blobs.put(name, data)

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none."""
        return self._blobs.create(name, data)

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Returns a blob."""
        return self._blobs.get(name, size_bytes_max)

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Returns parts of a blob."""
        return self._blobs.get_ranges(name, ranges)

    def size_bytes(self, name: str, /) -> int:
        """Returns the size of a blob."""
        return self._blobs.size_bytes(name)

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields names."""
        return self._blobs.list(prefix, after)

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Asks for the removal of blobs."""
        return self._blobs.delete(names)

    def sweep_unfinished(self) -> int:
        """Removes what writers that are gone left unfinished."""
        return self._blobs.sweep_unfinished()

    def give_up(self) -> None:
        """Ends the pauses of the blobs below."""
        self._blobs.give_up()

    def close(self) -> None:
        """Closes the blobs below."""
        self._blobs.close()


def is_name(name: str) -> bool:
    """Returns whether a blob may have this name."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raises ValueError for what cannot be the name of a blob."""
    if not is_name(name):
        raise ValueError(f"{name!r} is not the name of a blob")


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError if one of several cannot be the name of a blob."""
    for name in names:
        check_name(name)


def split_name(name: str) -> tuple[str, str]:
    """Returns the kind of a blob, which is empty for ``format``, and its name in there."""
    kind, _, base = name.rpartition("/")
    return kind, base


def unfinished_name() -> str:
    """Returns the name of a new temporary file, where blobs are files."""
    return _UNFINISHED + os.urandom(8).hex()


def is_unfinished(base: str) -> bool:
    """Returns whether a file in the directory of a kind is a temporary one."""
    return _UNFINISHED_NAME.fullmatch(base) is not None


def check_listing(prefix: str, after: str) -> None:
    """Raises ValueError for what no names begin with, and for what none can come after."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not the beginning of names of blobs")
    if after and not _PREFIX.fullmatch(after):
        raise ValueError(f"{after!r} is not the name of a blob")


def check_ranges(ranges: Sequence[Range]) -> None:
    """Raises ValueError for a range that no blob can have."""
    for start, size in ranges:
        if start < 0 or size < 0:
            raise ValueError(f"There are no {size} bytes at {start}")


def merged_ranges(ranges: Sequence[Range]) -> list[Range]:
    """Returns what is requested for some ranges: sorted, near ones joined, empty ones left out."""
    requests: list[Range] = []
    for start, size in sorted(item for item in ranges if item[1] > 0):
        if requests and start < sum(requests[-1]) + NEAR_BYTES:
            first, length = requests[-1]
            requests[-1] = first, max(length, start + size - first)
        else:
            requests.append((start, size))
    return requests


def cut_ranges(
    ranges: Sequence[Range], requests: Sequence[Range], parts: Sequence[Data]
) -> list[bytes]:
    """Returns the ranges out of what was read for their merged requests."""
    starts = [start for start, _ in requests]

    def cut(start: int, size: int) -> bytes:
        if not size:
            return b""
        at = bisect_right(starts, start) - 1
        offset = start - starts[at]
        return bytes(memoryview(parts[at])[offset : offset + size])

    return [cut(*item) for item in ranges]


def too_large(name: str, size_bytes: int, size_bytes_max: int, endpoint: str) -> RemoteFailed:
    """Returns the error for a blob that is larger than its reader takes."""
    return RemoteFailed(
        f"Blob {name!r} at {quoted(endpoint)} has {size_bytes} bytes, "
        f"and {size_bytes_max} are read at most",
        code=ErrorCode.REMOTE_FAILED,
        endpoint=endpoint,
    )
