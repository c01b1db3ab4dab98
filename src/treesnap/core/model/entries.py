"""What is in a tree: identities, entries, directories, and how two trees differ.

An :class:`Entry` is one row of a tree: one name of one directory. Its fields are in the order
of the stored format, because captures make them by the hundred thousand.

Not here: bytes (codec), files (fs, worktree), packs (store), states of a root (snapshots).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum

from treesnap.core.model.errors import path_fields, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import (
    AtPath,
    Fields,
    Record,
    fields_of,
    html_table,
    json_fields,
    path_text,
)
from treesnap.core.model.quantities import size_text
from treesnap.core.model.type_names import Any, NewType

ObjectId = NewType("ObjectId", bytes)
"""The 32 bytes that identify a stored object."""


class ObjectKind(IntEnum):
    """What a stored object is; part of its identity."""

    CHUNK = 1
    TREE = 2
    CHUNK_LIST = 3
    SNAPSHOT = 4
    STATE = 5


class EntryKind(IntEnum):
    """What a name in a directory is."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    FIFO = 4
    CHARACTER_DEVICE = 5
    BLOCK_DEVICE = 6
    SKIPPED = 7


class SkipReason(IntEnum):
    """Why a name is known to exist but was not captured."""

    EXCLUDED = 1
    MOUNT = 2
    SOCKET = 3
    UNREADABLE = 4
    STORE = 5
    RESERVED = 6
    UNSTABLE = 7

    @property
    def word(self) -> str:
        """The reason for people and for JSON."""
        return self.name.lower().replace("_", "-")


Xattrs = tuple[tuple[bytes, bytes], ...]
"""Extended attributes as (name, value), sorted by name."""


class Segment(NamedTuple):
    """A run of a file's bytes: a stored object, or a hole of ``size`` bytes."""

    id: ObjectId | None
    size: int


class FileContent(tuple[Any, ...]):
    """What a file holds, as it is stored: ``(data,)`` or ``(level, id, size, id, size, ...)``.

    A few bytes are data, in place of a reference to them. At level 0 the ids are chunks, or
    None for holes; above it they are chunk lists of the level below. It is a tuple because trees
    hold one for every file.
    """

    __slots__ = ()

    @property
    def level(self) -> int:
        """How many chunk lists are between it and its chunks."""
        level: int = self[0] if self.data is None else 0
        return level

    @property
    def data(self) -> bytes | None:
        """All its bytes, when they are in place; else None."""
        return self[0] if type(self[0]) is bytes else None

    @property
    def size_bytes(self) -> int:
        """Bytes that it covers, holes included."""
        return sum(self[2::2]) if self.data is None else len(self.data)

    def segments(self) -> Iterator[Segment]:
        """Yields its runs of bytes in order, chunk lists not followed."""
        return map(Segment, self[1::2], self[2::2])

    def ids(self) -> list[ObjectId]:
        """Returns the ids that it names in order, chunk lists not followed."""
        return [identity for identity in self[1::2] if identity is not None]


class Device(NamedTuple):
    """The number of a device."""

    major: int
    minor: int


class Entry(NamedTuple):
    """One name of one directory.

    ``content`` is what the tree stores, by the kind; it is for comparing and for storing. The
    property of the kind reads it: ``file_content``, ``tree_id``, ``target``, ``device`` and
    ``skip_reason``. A fifo has None. Decoding does not make these types, which would cost
    a fifth more for each tree.
    """

    name: bytes
    kind: int
    mode: int
    """The twelve permission bits, without the type."""
    uid: int
    gid: int
    mtime_ns: int
    size: int
    """Bytes of a file's content, holes included; 0 for everything else."""
    content: object
    xattrs: Any
    """None, the sorted (name, value) pairs, or the id of a chunk that holds them."""

    @property
    def file_content(self) -> FileContent:
        """What a file holds."""
        content: Any = self.content
        return FileContent(content)

    @property
    def tree_id(self) -> ObjectId:
        """The tree of a directory."""
        content: Any = self.content
        return ObjectId(content)

    @property
    def target(self) -> bytes:
        """The target of a symbolic link."""
        content: Any = self.content
        return bytes(content)

    @property
    def device(self) -> Device:
        """The number of a character or block device."""
        content: Any = self.content
        return Device._make(content)

    @property
    def skip_reason(self) -> SkipReason:
        """Why a skipped name was not captured."""
        content: Any = self.content
        return SkipReason(content)

    @property
    def xattrs_id(self) -> ObjectId | None:
        """The chunk that holds the extended attributes, or None when they are in the entry."""
        return ObjectId(self.xattrs) if type(self.xattrs) is bytes else None

    @property
    def path_text(self) -> str:
        """The name as text that Python's file functions take."""
        return path_text(self.name)

    def to_dict(self) -> Fields:
        """Returns the entry as ``snap ls --json`` prints it; ``json.dumps`` takes it."""
        return {**path_fields(self.name), **self.details()}

    def details(self) -> Fields:
        """Returns the entry as JSON without its name; fields that its kind lacks are left out."""
        kind = EntryKind(self.kind)
        if kind is EntryKind.SKIPPED:
            return {"kind": "skipped", "reason": self.skip_reason.word}
        fields: Fields = {
            "kind": kind.name.lower(),
            "mode": f"{self.mode:04o}",
            "uid": self.uid,
            "gid": self.gid,
            "mtime_ns": self.mtime_ns,
        }
        if kind is EntryKind.FILE:
            fields["size"] = self.size
        elif kind is EntryKind.SYMLINK:
            fields |= path_fields(self.target, "target")
        elif kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
            fields["device"] = list(self.device)
        return fields

    def __repr__(self) -> str:
        kind = EntryKind(self.kind).name.lower().replace("_", " ")
        size = f" {self.size} bytes" if self.kind == EntryKind.FILE else ""
        return f"<Entry {self.name!r} {kind}{size}>"

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory that was captured."""
        return self.kind == EntryKind.DIRECTORY

    @property
    def is_skipped(self) -> bool:
        """Whether the name exists but was not captured."""
        return self.kind == EntryKind.SKIPPED


TOTAL_MAX = (1 << 63) - 1


class Totals(NamedTuple):
    """Sums over everything below a directory."""

    files: int = 0
    directories: int = 0
    others: int = 0
    size_bytes: int = 0
    skipped: int = 0
    incomplete: int = 0
    """How many of the skipped names were unreadable."""

    def plus(self, other: Totals) -> Totals:
        """Returns the sums of both; what is too large to be stored stays at the largest number.

        Only a forged tree gets there, and a sum is not a reason to fail.
        """
        return Totals(
            *(min(mine + theirs, TOTAL_MAX) for mine, theirs in zip(self, other, strict=True))
        )

    def with_new(self, old: Totals, new: Totals) -> Totals:
        """Returns the sums after a part of what is in them became something else."""
        numbers = zip(self, old, new, strict=True)
        return Totals(*(min(number - less + more, TOTAL_MAX) for number, less, more in numbers))


class TreePage(NamedTuple):
    """One page of a large directory: its first name, its tree, its entry count."""

    first_name: bytes
    id: ObjectId
    entry_count: int


class Tree(NamedTuple):
    """The manifest of one directory: its entries, or the pages that hold them.

    Exactly one of ``entries`` and ``pages`` is used; entries are sorted by raw
    name and no name occurs twice.
    """

    totals: Totals
    entries: tuple[Entry, ...]
    pages: tuple[TreePage, ...] = ()


LINES_MAX = 20
"""Items of a list that its ``repr`` shows."""


class ChangeKind(StrEnum):
    """How a path differs between two states."""

    ADDED = "added"
    REMOVED = "removed"
    MODIFIED = "modified"
    TYPE = "type"
    METADATA = "metadata"


class Change(NamedTuple):
    """One path that differs between two states."""

    path: bytes
    change: ChangeKind
    old: Entry | None
    new: Entry | None

    @property
    def path_text(self) -> str:
        """The path as text that Python's file functions take; the root is a dot."""
        return path_text(self.path)

    def to_dict(self) -> Fields:
        """Returns the change as ``snap diff --json`` prints it; ``json.dumps`` takes it."""
        return {
            **json_fields(fields_of(self, without={"old", "new"})),
            "old": None if self.old is None else self.old.details(),
            "new": None if self.new is None else self.new.details(),
        }

    def __repr__(self) -> str:
        return f"<Change {self.change.value} {printable(self.path) or '.'}>"


def changes_table(changes: Sequence[Change], above: str = "") -> str:
    """Returns changes as HTML, below a sentence if one is given."""
    rows = (
        (
            change.change.value,
            change.path or ".",
            *(
                size_text(entry.size) if entry is not None and entry.kind == EntryKind.FILE else ""
                for entry in (change.old, change.new)
            ),
        )
        for change in changes
    )
    return html_table(("change", "path", "size before", "size after"), rows, above)


class ChangeList(tuple[Change, ...]):
    """What ``diff`` found: a tuple of changes, in the order of their paths."""

    __slots__ = ()

    def to_dict(self) -> Fields:
        """Returns the changes as ``snap diff --json`` prints them; ``json.dumps`` takes it."""
        return {"changes": [change.to_dict() for change in self]}

    def __repr__(self) -> str:
        """Returns the changes, one a line; of many the first, and how many others there are."""
        lines = [f"<ChangeList of {len(self):,}>", *map(repr, self[:LINES_MAX])]
        if len(self) > LINES_MAX:
            lines.append(f"... {len(self) - LINES_MAX:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        return changes_table(self, f"{len(self):,} changed paths")


DATABASE_HEADER = b"SQLite format 3\0"
"""What a database of SQLite begins with, https://www.sqlite.org/fileformat.html."""
DATABASE_LOG_SUFFIXES = (b"-wal", b"-journal")
"""Of files beside a database of SQLite that belong to what it holds,
https://www.sqlite.org/tempfiles.html.
"""

CONTENT_SIZE_MAX = 16 << 20
"""Bytes of the largest file that is compared by its content, unless another limit is given."""


class Skipped(AtPath, Record):
    """A path that exists in the root but is not held by a snapshot."""

    path: bytes
    reason: SkipReason

    def __repr__(self) -> str:
        return f"<Skipped {printable(self.path) or '.'}: {self.reason.word}>"
