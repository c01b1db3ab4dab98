"""A file system that writes down what is done with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from treesnap.fs.base import FileSystem
from treesnap.testing.wrapped import MUTATING, Call, Kind, WrappedFileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One call that was made, and how it ended."""

    method: str
    kind: Kind
    paths: tuple[str, ...]
    size_bytes: int
    """Bytes of content read, mapped or written."""
    names: int
    """How many names a listing returned."""
    errno: int | None
    """The error number that it raised, or None."""

    @property
    def path(self) -> str:
        """The first path, or an empty one."""
        return self.paths[0] if self.paths else ""


class RecordingFileSystem(WrappedFileSystem):
    """Keeps every call in ``log``, in order; see :class:`Recorded`."""

    def __init__(self, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self.log: list[Recorded] = []

    def around(self, call: Call) -> Any:
        """Makes the call and writes it down, however it ends."""
        result: Any = None
        number = None
        try:
            result = call.proceed()
        except OSError as error:
            number = error.errno
            raise
        finally:
            self.log.append(
                Recorded(
                    method=call.method,
                    kind=call.kind,
                    paths=call.paths,
                    size_bytes=_size_of(call, result),
                    names=len(result) if isinstance(result, list) else 0,
                    errno=number,
                )
            )
        return result

    def clear(self) -> None:
        """Forgets what was written down."""
        self.log.clear()

    def calls(
        self, *methods: str, kinds: Iterable[Kind] = (), below: str | None = None
    ) -> list[Recorded]:
        """Returns the calls of some methods or kinds, all when none is given.

        ``below`` keeps those that are about a path or what lies below it.
        """
        wanted = frozenset(kinds)
        return [
            item
            for item in self.log
            if (item.method in methods or item.kind in wanted or not (methods or wanted))
            and (below is None or any(_is_below(path, below) for path in item.paths))
        ]

    def count(self, *methods: str) -> Counter[str]:
        """Returns how often each method was called, or each of those given."""
        return Counter(item.method for item in self.calls(*methods))

    @property
    def syncs(self) -> list[Recorded]:
        """Calls that make something durable."""
        return self.calls(kinds=[Kind.SYNC])

    @property
    def mutations(self) -> list[Recorded]:
        """Calls that change the disk."""
        return self.calls(kinds=MUTATING)

    def read_bytes(self, below: str | None = None) -> int:
        """Returns how many bytes of content were read, or mapped."""
        return sum(item.size_bytes for item in self.calls(kinds=[Kind.READ], below=below))

    def written_bytes(self, below: str | None = None) -> int:
        """Returns how many bytes of content were written."""
        return sum(item.size_bytes for item in self.calls(kinds=[Kind.WRITE], below=below))


def _size_of(call: Call, result: Any) -> int:
    if isinstance(result, (bytes, mmap)) and call.kind == Kind.READ:
        return len(result)
    if call.kind == Kind.WRITE and isinstance(result, int):
        return result
    return 0


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
