"""Doubles of blobs, which stack: in memory, failing on purpose, listing late, racing.

What a :class:`FaultyBlobs` does to a call is said by a :class:`BlobFault`, as a fault of the file
system is in ``treesnap.testing.doubles``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Barrier, Lock
from typing import Any

from treesnap.core.model.errors import RemoteFailed
from treesnap.remote.blobs.base import (
    BLOB_SIZE_MAX,
    BlobInfo,
    BlobMissing,
    Blobs,
    Data,
    Range,
    check_listing,
    check_name,
    check_names,
    check_ranges,
    too_large,
)

WRITING = frozenset({"put", "create"})
READING = frozenset({"get", "get_ranges"})


def packs_of(commit: str, names: Iterable[str]) -> list[str]:
    """Returns which files are packs of a commit."""
    return [name for name in names if name.startswith(commit[:-32].replace("commits", "packs"))]


class MemoryBlobs:
    """Keeps blobs in a dictionary, which several connections may share. Safe in threads."""

    _lock = Lock()
    """One for all instances, because those that share a content have to exclude each other."""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        self.content = {} if content is None else content

    def put(self, name: str, data: Data, /) -> None:
        check_name(name)
        with self._lock:
            self.content[name] = bytes(data)

    def create(self, name: str, data: Data, /) -> bool:
        check_name(name)
        with self._lock:
            if name in self.content:
                return False
            self.content[name] = bytes(data)
            return True

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        data = self._found(name)
        if len(data) > size_bytes_max:
            raise too_large(name, len(data), size_bytes_max, "memory")
        return data

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        check_name(name)
        check_ranges(ranges)
        data = self._found(name)
        return [data[start : start + size] for start, size in ranges]

    def size_bytes(self, name: str, /) -> int:
        return len(self._found(name))

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        check_listing(prefix, after)
        with self._lock:
            found = [
                BlobInfo(name, len(data), f"{hash(data):x}")  # computed once for each content
                for name, data in self.content.items()
            ]
        names = [item for item in found if item.name.startswith(prefix) and item.name > after]
        return iter(sorted(names))

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        check_names(names)
        with self._lock:
            for name in names:
                self.content.pop(name, None)
        return []

    def sweep_unfinished(self) -> int:
        return 0

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _found(self, name: str) -> bytes:
        check_name(name)
        with self._lock:
            if name not in self.content:
                raise BlobMissing(name)
            return self.content[name]


class WrappedBlobs:
    """Passes every call on; subclasses override :meth:`around`."""

    def __init__(self, inner: Blobs) -> None:
        self.inner = inner

    def around(self, method: str, proceed: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        return proceed()

    def _forward(self, method: str, *arguments: Any) -> Any:
        call = getattr(self.inner, method)
        return self.around(method, lambda: call(*arguments), arguments)

    def put(self, name: str, data: Data, /) -> None:
        self._forward("put", name, data)

    def create(self, name: str, data: Data, /) -> bool:
        return self._forward("create", name, data)

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        return self._forward("get", name, size_bytes_max)

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        return self._forward("get_ranges", name, ranges)

    def size_bytes(self, name: str, /) -> int:
        return self._forward("size_bytes", name)

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        return self._forward("list", prefix, after)

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        return self._forward("delete", names)

    def sweep_unfinished(self) -> int:
        return self._forward("sweep_unfinished")

    def give_up(self) -> None:
        self.inner.give_up()

    def close(self) -> None:
        self.inner.close()


class BlobFaultKind(StrEnum):
    """What becomes of a call."""

    FAIL_BEFORE = "fail before"
    """It raises, and had no effect."""
    FAIL_AFTER = "fail after"
    """It raises, and had its effect."""
    REPEAT_LATER = "repeat later"
    """It succeeds, and a copy of the request has its effect once more after some other calls."""
    CUT = "cut"
    """What it reads lacks its second half."""


@dataclass(frozen=True, kw_only=True)
class BlobFault:
    """Which call is treated, and how."""

    kind: BlobFaultKind
    number: int = 1
    """Which of the calls that match; 1 is the first."""
    methods: frozenset[str] = frozenset()
    """Methods that are counted; all when empty."""
    names: Callable[[str], bool] = lambda _name: True
    """Which names, or prefixes, are counted."""
    is_lasting: bool = False
    """Whether all later calls that match are treated as well."""
    delay: int = 1
    """After how many further calls a repeated request arrives."""

    def matches(self, method: str, arguments: tuple[Any, ...]) -> bool:
        subject = arguments[0] if arguments else ""
        about = subject if isinstance(subject, str) else "".join(subject[:1])
        return (not self.methods or method in self.methods) and self.names(about)


class FaultyBlobs(WrappedBlobs):
    """Lets faults happen. Safe in threads."""

    def __init__(self, inner: Blobs, *faults: BlobFault) -> None:
        super().__init__(inner)
        self._faults = faults
        self._seen: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self._late: list[tuple[int, Callable[[], Any]]] = []
        self._calls = 0
        self._lock = Lock()

    def hits_of(self, fault: BlobFault) -> int:
        """Returns how many calls a fault has treated."""
        return self._hits[self._faults.index(fault)]

    def settle(self) -> None:
        """Lets every request arrive that is still under way."""
        with self._lock:
            late, self._late = self._late, []
        for _, call in late:
            call()

    def around(self, method: str, proceed: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            self._calls += 1
            due = [call for at, call in self._late if at <= self._calls]
            self._late = [item for item in self._late if item[0] > self._calls]
            fault = self._next_fault(method, arguments)
            if fault is not None and fault.kind is BlobFaultKind.REPEAT_LATER:
                self._late.append((self._calls + fault.delay + 1, proceed))
        for call in due:
            call()
        if fault is None or fault.kind is BlobFaultKind.REPEAT_LATER:
            return proceed()
        if fault.kind is BlobFaultKind.CUT:
            found = proceed()
            return _cut(found) if method == "get" else [_cut(part) for part in found]
        if fault.kind is BlobFaultKind.FAIL_AFTER:
            proceed()
        raise RemoteFailed(f"Call {method} failed on purpose", is_unclear=method in WRITING)

    def _next_fault(self, method: str, arguments: tuple[Any, ...]) -> BlobFault | None:
        for position, fault in enumerate(self._faults):
            if not fault.matches(method, arguments):
                continue
            self._seen[position] += 1
            seen = self._seen[position]
            if seen == fault.number or (fault.is_lasting and seen > fault.number):
                self._hits[position] += 1
                return fault
        return None


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


class LateListBlobs(WrappedBlobs):
    """Lists what was there before the last writes and removals; everything else is current.

    Connections share what a server knows through ``history``.
    """

    def __init__(self, inner: MemoryBlobs, lag: int, history: list[dict[str, bytes]]) -> None:
        super().__init__(inner)
        self._memory = inner
        self._lag = lag
        self._history = history

    def around(self, method: str, proceed: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if method == "list" and self._lag:
            known = self._history[-self._lag] if len(self._history) >= self._lag else {}
            return MemoryBlobs(known).list(*arguments)
        if method in {"put", "create", "delete"}:
            self._history.append(dict(self._memory.content))
        return proceed()


class RacingBlobs(WrappedBlobs):
    """Creates as some servers do: looks for the name, reads the body, writes without another look.

    Bodies of at least ``from_bytes`` take so long that all writers of a race have looked by then:
    as many as meet at the barrier.
    """

    def __init__(self, inner: Blobs, meeting: Barrier, from_bytes: int) -> None:
        super().__init__(inner)
        self._meeting = meeting
        self._from_bytes = from_bytes

    def create(self, name: str, data: Data, /) -> bool:
        if len(data) < self._from_bytes:
            return self.inner.create(name, data)
        if any(item.name == name for item in self.inner.list(name)):
            return False
        self._meeting.wait()
        self.inner.put(name, data)
        return True
