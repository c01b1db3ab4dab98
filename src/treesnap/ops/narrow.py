"""Restricting a snapshot to some paths."""

from __future__ import annotations

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.codec.tree import put_tree
from treesnap.errors import ErrorCode, NotFound, shown
from treesnap.model import Entry, EntryKind, SkipReason, Snapshot, Totals
from treesnap.ops.access import MemoryObjects
from treesnap.worktree.links import Groups
from treesnap.worktree.listing import Scope, scope_of


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
    names = scope_of(scope)
    if names is None:
        return root
    narrow = _narrow(root, trees, objects, names)
    if narrow is not None:
        return narrow
    return root._replace(content=put_tree((), Totals(), objects.put))


def _narrow(
    directory: Entry, trees: TreeReader, objects: MemoryObjects, names: Scope
) -> Entry | None:
    """Recurses as deep as the caller's paths are."""
    entries = []
    for name in sorted(names):
        entry = trees.lookup(directory.tree_id, name)
        if entry is not None and names[name] is not None:
            entry = _narrow(entry, trees, objects, names[name]) if entry.is_directory else None
        if entry is not None:
            entries.append(entry)
    if not entries:
        return None
    totals = Totals()
    for entry in entries:
        totals = totals.plus(totals_of_entry(entry, trees))
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
