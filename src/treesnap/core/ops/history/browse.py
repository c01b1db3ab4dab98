"""Looking into snapshots: ``ls``, ``cat``, ``find``, ``du``, and what a snapshot does not hold."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator

from treesnap.core.codec.reader import TreeReader, read_content
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.fs.record_locks import close_after_reading, open_for_reading
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, Skipped, SkipReason
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, StoreMissing, quoted
from treesnap.core.model.events import Phase
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.model.results import FoundPath, GroupSpace, PathSpace
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.tree_state import entry_at
from treesnap.core.worktree.directory import open_chain

if TYPE_CHECKING:
    from treesnap.core.fs.base import FileSystem

_PIECE_SIZE = 1 << 20


def walk(
    trees: TreeReader, directory: Entry, path: bytes, *, into_skipless: bool = True
) -> Iterator[tuple[bytes, Entry]]:
    """Yields everything below a directory with its path, directories before what they hold.

    Without ``into_skipless``, does not descend into directories below which nothing was skipped.
    """
    entries_of = trees.walk().entries
    stack = [entries_of(directory.tree_id)]
    descent = treepath.Descent(path)
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            descent.leave()
            continue
        below = treepath.join(descent.path, entry.name)
        yield below, entry
        if entry.is_directory and (into_skipless or trees.totals(entry.tree_id).skipped):
            stack.append(entries_of(entry.tree_id))
            descent.enter(below)


def ls(context: Context, ref: str, path: bytes, *, recursive: bool) -> tuple[Entry, ...]:
    """Returns the entries of a directory in a snapshot."""
    with opened(context, "list a directory") as session:
        snapshot = resolve_in(session, ref, paths=(path,), anywhere=True)
        with reading(session, snapshot):
            trees = session.store.trees()
            entry = entry_at(trees, snapshot, path)
            if not entry.is_directory:
                return (entry,)
            if recursive:
                budget, entries = session.path_budget(), list[Entry]()
                for name, below in walk(trees, entry, b""):
                    budget.hold(name)
                    entries.append(below._replace(name=name))
                return tuple(entries)
            return tuple(trees.entries(entry.tree_id))


def cat(context: Context, ref: str, path: bytes) -> Iterator[bytes]:
    """Yields a file's bytes; errors of the call itself are raised at once."""
    with opened(context, "read a file") as session:
        snapshot = resolve_in(session, ref, paths=(path,), anywhere=True)
        with reading(session, snapshot):
            entry = entry_at(session.store.trees(), snapshot, path)
            if entry.kind != EntryKind.FILE:
                raise InvalidArgument(
                    f"{quoted(path or b'.')} is not a file in that snapshot", path=path
                )

    def pieces() -> Iterator[bytes]:
        with opened(context, "read a file", recover=False) as again, reading(again, snapshot):
            yield from read_content(entry.file_content, again.store.get)

    return pieces()


def read(context: Context, ref: str | None, path: bytes) -> bytes:
    """Returns a whole file of a snapshot, or of the live tree for None."""
    if ref is not None:
        return b"".join(cat(context, ref, path))
    directory, name = treepath.split(path)
    with translating_os_errors("read a file"):
        try:
            with open_chain(context.fs, context.root) as chain:
                return read_whole_file(context.fs, name, chain.open(directory))
        except FileNotFoundError:
            raise NotFound(
                f"The tree does not hold {quoted(path)}", code=ErrorCode.PATH_NOT_FOUND, path=path
            ) from None


def read_whole_file(fs: FileSystem, name: bytes, dir_fd: int) -> bytes:
    """Returns the bytes of a file of a tree; raises OSError."""
    return b"".join(read_pieces(fs, name, dir_fd))


def read_pieces(fs: FileSystem, name: bytes, dir_fd: int) -> Iterator[bytes]:
    """Yields the bytes of a file of a tree from its start; raises OSError."""
    fd = open_for_reading(fs, name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        while data := fs.read(fd, _PIECE_SIZE):
            yield data
    finally:
        close_after_reading(fs, fd)


def find(context: Context, pattern: str, *, ref: str | None) -> tuple[FoundPath, ...]:
    """Returns the paths that match a glob pattern, and the snapshots that hold them.

    A directory that several snapshots share is searched once.
    """
    pattern_bytes = os.fsencode(pattern)
    on_path = b"/" in pattern_bytes
    ids_by_path: dict[bytes, list[SnapshotId]] = {}
    try:
        with opened(context, "search") as session:
            snapshots = (
                [resolve_in(session, ref, anywhere=True)]
                if ref is not None
                else list(session.store.snapshots.readable(session.root.id))
            )
            trees, budget = session.store.trees(), session.path_budget()
            search = _Search(trees, pattern_bytes, budget, on_path=on_path)
            for snapshot in snapshots:
                for path in search.matches(snapshot.record.root.tree_id, b""):
                    ids_by_path.setdefault(path, []).append(snapshot.id)
    except StoreMissing:
        return ()
    return tuple(
        FoundPath(path=path, snapshot_ids=tuple(ids)) for path, ids in sorted(ids_by_path.items())
    )


def translatable(pattern: bytes) -> bytes:
    """Returns a glob pattern that means the same and that fnmatch translates in linear time.

    For each bracket that opens a set, fnmatch looks for the one that closes it, to the end of the
    pattern where there is none: eight thousand of them took seconds. After the first that none
    closes there is none for the others either, so each of them becomes a set of its own.
    """
    opening = pattern.find(b"[")
    while opening != -1:
        first = opening + (2 if pattern.startswith(b"[!", opening) else 1)
        closing = pattern.find(b"]", first + 1)  # the first of a set may be a bracket as well
        if closing == -1:
            return pattern[:opening] + pattern[opening:].replace(b"[", b"[[]")
        opening = pattern.find(b"[", closing)
    return pattern


class _Search:
    def __init__(
        self, trees: TreeReader, pattern: bytes, budget: PathBudget, *, on_path: bool
    ) -> None:
        self._trees = trees
        self._budget = budget
        self._pattern = translatable(pattern.lstrip(b"/") if on_path else pattern)
        self._on_path = on_path
        self._known: dict[tuple[ObjectId, bytes], tuple[bytes, ...]] = {}

    def matches(self, tree_id: ObjectId, path: bytes) -> tuple[bytes, ...]:
        """Returns the matching paths below a directory."""
        cached = self._known.get((tree_id, path))
        if cached is not None:
            return cached
        root = Entry(b"", EntryKind.DIRECTORY, 0, 0, 0, 0, 0, tree_id, None)
        paths: list[bytes] = []
        for below, entry in walk(self._trees, root, path):
            compared = below if self._on_path else entry.name
            if not entry.is_skipped and fnmatch.fnmatchcase(compared, self._pattern):
                self._budget.hold(below)
                paths.append(below)
        cached = self._known[tree_id, path] = tuple(paths)
        return cached


def skipped(context: Context, ref: str) -> tuple[Skipped, ...]:
    """Returns the paths that a snapshot knows of but does not hold, each with the reason."""
    with opened(context, "look at a snapshot") as session:
        snapshot = resolve_in(session, ref, anywhere=True)
        root = snapshot.record.root
        trees = session.store.trees()
        budget, names = session.path_budget(), list[Skipped]()
        for path, entry in walk(trees, root, b"", into_skipless=False):
            if entry.is_skipped:
                budget.hold(path)
                names.append(Skipped(path, entry.skip_reason))
        unstable = [Skipped(path, SkipReason.UNSTABLE) for path in snapshot.record.unstable]
        return tuple(names + unstable)


def du(context: Context, ref: str, path: bytes, depth: int) -> tuple[PathSpace, ...]:
    """Returns the space that a path of a snapshot takes; see :meth:`treesnap.Handle.du`."""
    from treesnap.core.store.maintenance.space import measure_paths

    with opened(context, "measure a snapshot") as session:
        snapshot = resolve_in(session, ref, paths=(path,), anywhere=True)
        context.monitor.begin(Phase.MARK, None, None)
        with reading(session, snapshot):
            entry = entry_at(session.store.trees(), snapshot, path)
            return measure_paths(session.store, snapshot, path, entry, depth, session.path_budget())


def du_sessions(context: Context) -> tuple[GroupSpace, ...]:
    """Returns the space that each session takes; see :meth:`treesnap.Handle.du_sessions`."""
    from treesnap.core.store.maintenance.space import measure_groups

    try:
        with opened(context, "measure the sessions") as session:
            context.monitor.begin(Phase.MARK, None, None)
            return measure_groups(
                session.store, session.root.id, lambda snapshot: snapshot.session or ""
            )
    except StoreMissing:
        return ()
