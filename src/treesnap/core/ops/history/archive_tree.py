"""The tree that the members of an archive make, in any order, with bounded memory.

The entries wait in a table, by directory and name, until the archive was read to its end; then each
directory is stored once, those below before those above, and in pieces where it is wide. So the
order of the members costs nothing, the last one of a path counts, and a directory may have as many
names as a snapshot can hold.

The table is a temporary database of SQLite. Its file has no name, so nothing is left of it after a
crash. Up to ``_CACHE_SIZE_KB`` it is in memory alone; what is more goes to the directory for
temporary files (``SQLITE_TMPDIR``, ``TMPDIR``, or ``/var/tmp``).
"""

from __future__ import annotations

import os
import sqlite3
import stat as stat_module
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache

from treesnap.core.codec import tar
from treesnap.core.codec.journal import is_reserved_path
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.tree import decode_totals, pack_entry, put_entries, unpack_entry
from treesnap.core.fs.os_errors import is_full
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, FileContent, Totals
from treesnap.core.model.errors import InvalidArgument, OperationFailed, quoted
from treesnap.core.model.type_names import Any, NoReturn
from treesnap.core.ops.context import Session
from treesnap.core.ops.tree_state import totals_of_leaf
from treesnap.core.store.writer import Writer
from treesnap.core.worktree.scan.file_reader import store_stream, store_xattrs
from treesnap.core.worktree.scan.hard_links import store_sorted_groups
from treesnap.core.worktree.scan.scanner import DEPTH_MAX

_IMPLIED_MODE = 0o755
"""Of a directory that an archive names only on the way to a path."""
_TARGET_SIZE_MAX = 4095
"""As of Linux, see path_resolution(7); macOS has 1,023."""
_CACHE_SIZE_KB = 24 << 10
_KNOWN_DIRECTORIES_MAX = 1 << 12
_ROOT = 0
_NO_TREE = bytes(32)
"""Stands in a directory until what is in it is known."""
_SCHEMA = f"""
PRAGMA cache_size = -{_CACHE_SIZE_KB};
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE entry (
    directory INTEGER, name BLOB, below INTEGER, packed BLOB, file INTEGER,
    PRIMARY KEY (directory, name)
) WITHOUT ROWID;
CREATE TABLE directory (number INTEGER PRIMARY KEY, above INTEGER, name BLOB, tree BLOB, sums BLOB);
CREATE TABLE link (file INTEGER, path BLOB, PRIMARY KEY (file, path)) WITHOUT ROWID;
BEGIN;
"""
"""``below`` is the number of an entry that is a directory; ``file`` is one number for all names of
a file that has several. A directory has a higher number than the one above it."""


class ArchiveTree:
    """Takes members, and stores the tree that they make; made by :func:`archive_tree`."""

    def __init__(self, session: Session, writer: Writer, table: sqlite3.Connection) -> None:
        self._writer = writer
        self._ask = table.execute
        self._now_ns = session.context.clock_ns()
        self._root = _root_entry(session)
        with opened_real(session.fs, session.context.root) as root_fd:
            self._name_size_max = session.fs.name_size_max(root_fd)
        self._directories = 0
        self._files = 0
        self._enter = lru_cache(_KNOWN_DIRECTORIES_MAX)(self._entered)

    def add(self, member: tar.Member, reader: tar.TarReader) -> None:
        """Adds one member; raises InvalidArgument for one that no tree can hold."""
        names = _names(member.path)
        path = b"/".join(names)
        self._refuse_unmakeable(names, path, member)
        if member.kind is EntryKind.DIRECTORY:
            self._add_directory(names, path, member)
            return
        if not names:
            tar.refuse("The archive has the root as something other than a directory", b"")
        directory, name = self._reached(names[:-1], path), names[-1]
        number = None
        if member.is_hard_link:
            target = b"/".join(_names(member.target))
            packed, number = self._linked(path, target, name)
            if target == path:
                return
        else:
            packed = _packed(self._entry(name, path, member, reader), path)
        done = self._ask(
            "INSERT INTO entry VALUES (?, ?, NULL, ?, ?) ON CONFLICT DO UPDATE "
            "SET packed = excluded.packed, file = excluded.file WHERE below IS NULL",
            (directory, name, packed, number),
        )
        if not done.rowcount:
            tar.refuse(
                f"{quoted(path)} is in the archive as a directory and as something else", path
            )

    def _refuse_unmakeable(self, names: list[bytes], path: bytes, member: tar.Member) -> None:
        """Raises InvalidArgument for what no restore into the root could make."""
        if max(map(len, names), default=0) > self._name_size_max:
            tar.refuse(
                f"{quoted(path)} has a name of more than {self._name_size_max} bytes, which the "
                "file system of the root cannot take",
                path,
            )
        if member.kind is EntryKind.SYMLINK and not 0 < len(member.target) <= _TARGET_SIZE_MAX:
            tar.refuse(
                f"{quoted(path)} is a symbolic link to a path of {len(member.target):,} bytes, "
                f"which no system can make; it may have 1 to {_TARGET_SIZE_MAX:,}",
                path,
            )

    def _add_directory(self, names: list[bytes], path: bytes, member: tar.Member) -> None:
        directory = self._reached(names[:-1], path)
        name = names[-1] if names else b""
        blank = Entry(name, EntryKind.DIRECTORY, 0, 0, 0, 0, 0, _NO_TREE, None)
        entry = _described(blank, member, self._stored_xattrs(member, path))
        packed = _packed(entry if name else entry._replace(name=b".top"), path)
        if not name:
            self._root = entry
        elif self._enter(directory, name) is None:
            _refuse_way(path)
        else:
            self._ask(
                "UPDATE entry SET packed = ? WHERE directory = ? AND name = ?",
                (packed, directory, name),
            )

    def _entry(self, name: bytes, path: bytes, member: tar.Member, reader: tar.TarReader) -> Entry:
        content: object = None
        size = 0
        if member.kind is EntryKind.FILE:
            content, size = store_stream(reader.content(), self._writer.put)
        elif member.kind is EntryKind.SYMLINK:
            content = member.target
        elif member.kind is not EntryKind.FIFO:
            content = tuple(member.device)
        blank = Entry(name, member.kind, 0, 0, 0, 0, size, content, None)
        return _described(blank, member, self._stored_xattrs(member, path))

    def _stored_xattrs(self, member: tar.Member, path: bytes) -> object:
        try:
            return store_xattrs(member.xattrs, self._writer.put)
        except OSError as error:
            if is_full(error):
                raise
            tar.refuse(f"{quoted(path)} has extended attributes that are too large to store", path)

    def _linked(self, path: bytes, target: bytes, name: bytes) -> tuple[bytes, int]:
        """Returns the entry of a hard link under its new name, and the linked file's number."""
        *above, last = treepath.components(target) or (b"",)
        directory: int | None = _ROOT
        for way in above:
            directory = self._looked_up(directory, way)[0] if directory is not None else None
        below, packed, number = (
            self._looked_up(directory, last) if directory is not None else (None, None, None)
        )
        if packed is None or below is not None:
            tar.refuse(
                f"{quoted(path)} is a hard link to {quoted(target)}, which is not a file before it "
                "in the archive",
                path,
            )
        if number is None:
            self._files += 1
            number = self._files
            if target != path:
                self._ask(
                    "UPDATE entry SET file = ? WHERE directory = ? AND name = ?",
                    (number, directory, last),
                )
        return pack_entry(unpack_entry(packed)._replace(name=name)), number

    def _looked_up(self, directory: int, name: bytes) -> Sequence[Any]:
        """Returns the number of a directory below, the entry, and the number of its file."""
        rows = self._ask(
            "SELECT below, packed, file FROM entry WHERE directory = ? AND name = ?",
            (directory, name),
        )
        return rows.fetchone() or (None, None, None)

    def _reached(self, names: list[bytes], path: bytes) -> int:
        """Returns the number of a directory, which is made where no member named it yet."""
        directory: int | None = _ROOT
        for name in names:
            directory = self._enter(directory, name) if directory is not None else None
        if directory is None:
            _refuse_way(path)
        return directory

    def _entered(self, directory: int, name: bytes) -> int | None:
        """Returns the number of a directory below another; None for something else."""
        number, packed, _ = self._looked_up(directory, name)
        if packed is not None:
            return number  # type: ignore[no-any-return]  # from the table
        self._directories += 1
        number = self._directories
        packed = pack_entry(_implied(name, self._now_ns))
        self._ask("INSERT INTO entry VALUES (?, ?, ?, ?, NULL)", (directory, name, number, packed))
        self._ask("INSERT INTO directory VALUES (?, ?, ?, NULL, NULL)", (number, directory, name))
        return number

    def finish(self) -> tuple[Entry, Totals]:
        """Stores all directories; returns the root and its sums."""
        for number in range(self._directories, _ROOT, -1):
            tree_id, totals = self._stored(number)
            self._ask(
                "UPDATE directory SET tree = ?, sums = ? WHERE number = ?",
                (tree_id, pack(totals), number),
            )
        tree_id, totals = self._stored(_ROOT)
        return self._root._replace(content=tree_id), totals

    def _stored(self, directory: int) -> tuple[bytes, Totals]:
        totals = Totals()

        def entries() -> Iterator[Entry]:
            nonlocal totals
            for packed, tree_id, sums in self._ask(
                "SELECT packed, tree, sums FROM entry LEFT JOIN directory ON below = number "
                "WHERE entry.directory = ? ORDER BY entry.name",
                (directory,),
            ):
                entry = unpack_entry(packed)
                if tree_id is None:
                    totals = totals.plus(totals_of_leaf(entry))
                else:
                    entry = entry._replace(content=tree_id)
                    below = decode_totals(unpack(sums, "totals"))
                    totals = totals.plus(below.plus(Totals(directories=1)))
                yield entry

        (count,) = self._ask(
            "SELECT COUNT(*) FROM entry WHERE directory = ?", (directory,)
        ).fetchone()
        return put_entries(entries(), count, lambda: totals, self._writer.put), totals

    def links(self) -> FileContent | None:
        """Stores the table of hard links."""
        above, way = _ROOT, b""
        for directory, name, number in self._ask(
            "SELECT directory, name, file FROM entry WHERE file IS NOT NULL"
        ):
            if directory != above:
                above, way = directory, self._way(directory)
            self._ask("INSERT INTO link VALUES (?, ?)", (number, way + name))

        def paths(number: int) -> Iterator[bytes]:
            rows = self._ask("SELECT path FROM link WHERE file = ? ORDER BY path", (number,))
            return (path for (path,) in rows)

        groups = self._ask(
            "SELECT file, COUNT(*) FROM link GROUP BY file HAVING COUNT(*) > 1 ORDER BY MIN(path)"
        )
        return store_sorted_groups(
            ((count, paths(number)) for number, count in groups), self._writer.put
        )

    def _way(self, directory: int) -> bytes:
        """Returns the path of a directory as names below it begin."""
        names = [b""]
        while directory != _ROOT:
            directory, name = self._ask(
                "SELECT above, name FROM directory WHERE number = ?", (directory,)
            ).fetchone()
            names.append(name)
        return b"/".join(reversed(names))


@contextmanager
def archive_tree(session: Session, writer: Writer) -> Iterator[ArchiveTree]:
    """Yields a tree without members.

    Raises OperationFailed where its table does not fit in the directory for temporary files.
    """
    try:
        with closing(sqlite3.connect("", isolation_level=None)) as table:
            table.executescript(_SCHEMA)
            yield ArchiveTree(session, writer, table)
    except sqlite3.Error as error:
        raise OperationFailed(
            f"The names in the archive cannot be kept in a temporary file: {error}; set TMPDIR to "
            "a directory with more room"
        ) from error


def _packed(entry: Entry, path: bytes) -> bytes:
    try:
        return pack_entry(entry)
    except InvalidArgument:
        tar.refuse(f"{quoted(path)} has a property that no snapshot can hold", path)


def _refuse_way(path: bytes) -> NoReturn:
    tar.refuse(f"{quoted(path)} leads through something that is not a directory", path)


def _names(path: bytes) -> list[bytes]:
    """Returns the names of a path in an archive; raises InvalidArgument for one that leads out."""
    if path.startswith(b"/"):
        tar.refuse(f"The archive has the absolute path {quoted(path)}", path)
    names = [name for name in path.split(b"/") if name not in {b"", b"."}]
    if not path or b".." in names or not treepath.are_valid_names(names):
        tar.refuse(f"The archive has the path {quoted(path)}, which no tree can hold", path)
    if is_reserved_path(path):
        tar.refuse(f"The archive has the path {quoted(path)}, which is reserved for restores", path)
    if len(names) > DEPTH_MAX:
        tar.refuse(f"The archive has a path of more than {DEPTH_MAX} directories", path)
    return names


def _described(entry: Entry, member: tar.Member, xattrs: object) -> Entry:
    return entry._replace(
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        mtime_ns=member.mtime_ns,
        xattrs=xattrs,
    )


def _implied(name: bytes, now_ns: int) -> Entry:
    kind = EntryKind.DIRECTORY
    uid, gid = os.geteuid(), os.getegid()
    return Entry(name, kind, _IMPLIED_MODE, uid, gid, now_ns, 0, _NO_TREE, None)


def _root_entry(session: Session) -> Entry:
    """Returns the root as it is now, for archives that do not say what it is."""
    stat = session.fs.lstat(session.context.root)
    mode, mtime_ns = stat_module.S_IMODE(stat.st_mode), stat.st_mtime_ns
    return Entry(
        b"", EntryKind.DIRECTORY, mode, stat.st_uid, stat.st_gid, mtime_ns, 0, _NO_TREE, None
    )
