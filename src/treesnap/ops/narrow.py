"""Restricting a snapshot to some paths."""

from __future__ import annotations

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.codec.tree import put_tree
from treesnap.errors import ErrorCode, NotFound, shown
from treesnap.model import Entry, EntryKind, SkipReason, Snapshot, Totals
from treesnap.ops.access import MemoryObjects
from treesnap.worktree.links import Groups


def effective_scope(
    snapshot: Snapshot, paths: tuple[bytes, ...] | None
) -> tuple[bytes, ...] | None:
    """Returns the paths that a restore concerns, or None for the whole root.

    Raises NotFound for a path of which a path-scoped snapshot knows nothing.
    """
    held = snapshot.record.scope
    wanted = treepath.without_nested(list(paths)) if paths else None
    if wanted is None or b"" in wanted:
        return held
    if held is None:
        return wanted
    found: list[bytes] = []
    for path in wanted:
        inside = [path] if any(treepath.is_within(path, mine) for mine in held) else []
        below = [mine for mine in held if treepath.is_within(mine, path)]
        if not inside and not below:
            raise NotFound(
                f"Snapshot {snapshot.id[:12]} was taken of other paths than {shown(path)!r}",
                code=ErrorCode.PATH_NOT_FOUND,
                path=path,
            )
        found += inside or below
    return treepath.without_nested(found)


def narrowed(
    root: Entry, trees: TreeReader, objects: MemoryObjects, scope: tuple[bytes, ...] | None
) -> Entry:
    """Returns the root with nothing but the paths in scope, and the directories above them.

    The trees that this makes exist in ``objects`` only. Directories above a path
    are left out when nothing in scope is below them.
    """
    if scope is None or b"" in scope:
        return root
    wanted = set(scope)
    entries = _entries_in(root, trees, wanted)
    below: dict[bytes, list[Entry]] = {}
    for path in sorted(entries, key=lambda path: path.count(b"/"), reverse=True):
        entry = entries[path]
        if path in below:
            entry = _holding(entry, below[path], trees, objects)
        elif path not in wanted:
            continue
        below.setdefault(treepath.split(path)[0], []).append(entry)
    return _holding(root, below.get(b"", []), trees, objects)


def _entries_in(root: Entry, trees: TreeReader, scope: set[bytes]) -> dict[bytes, Entry]:
    """Returns the entries in scope, and the directories above them, by path."""
    above = {parent for path in scope for parent in treepath.parents(path)}
    entries = {b"": root}
    for path in sorted({*above, *scope} - {b""}, key=lambda path: path.count(b"/")):
        directory, name = treepath.split(path)
        parent = entries.get(directory)
        if parent is None or not parent.is_directory:
            continue
        entry = trees.lookup(parent.tree_id, name)
        if entry is not None and (path in scope or entry.is_directory):
            entries[path] = entry
    del entries[b""]
    return entries


def _holding(
    directory: Entry, entries: list[Entry], trees: TreeReader, objects: MemoryObjects
) -> Entry:
    """Returns a directory with nothing but some entries."""
    totals = Totals()
    for entry in entries:
        totals = totals.plus(totals_of_entry(entry, trees))
    entries = sorted(entries, key=lambda entry: entry.name)
    return directory._replace(content=put_tree(entries, totals, objects.put))


def totals_of_entry(entry: Entry, trees: TreeReader) -> Totals:
    """Returns the sums over an entry and everything below it."""
    if entry.kind == EntryKind.DIRECTORY:
        return trees.totals(entry.tree_id).plus(Totals(directories=1))
    if entry.kind == EntryKind.FILE:
        return Totals(files=1, size_bytes=entry.size)
    if entry.kind == EntryKind.SKIPPED:
        return Totals(skipped=1, incomplete=int(entry.content == SkipReason.UNREADABLE))
    return Totals(others=1)


def narrowed_groups(groups: Groups, scope: tuple[bytes, ...] | None) -> Groups:
    """Returns the hard-link groups with nothing but the names in scope."""
    if scope is None:
        return groups
    found: Groups = {}
    for group in set(groups.values()):
        inside = tuple(
            path for path in group if any(treepath.is_within(path, mine) for mine in scope)
        )
        if len(inside) > 1:
            found.update((path, inside) for path in inside)
    return found
