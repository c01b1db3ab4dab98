"""Comparing two directories of entries: pure, ordered, pruned where trees are equal.

Works on anything that yields the entries of a tree by its id. Equal tree ids mean
equal content below, so nothing below them is looked at.

A name that either side skipped is unknown, and never a change. The modification
time of a directory alone is no change either: it follows from changes inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from treesnap import treepath
from treesnap.model import Change, ChangeKind, Entry, EntryKind, ObjectId

Entries = Callable[[ObjectId], Iterable[Entry]]


def paired(
    old: Iterable[Entry], new: Iterable[Entry]
) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Yields the entries of two directories by name, None where a side lacks it."""
    old_iterator, new_iterator = iter(old), iter(new)
    left, right = next(old_iterator, None), next(new_iterator, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.name < right.name):
            yield left, None
            left = next(old_iterator, None)
        elif left is None or right.name < left.name:
            yield None, right
            right = next(new_iterator, None)
        else:
            yield left, right
            left, right = next(old_iterator, None), next(new_iterator, None)


def kind_of_change(old: Entry, new: Entry) -> ChangeKind | None:
    """Returns how one entry differs from another, children not looked at."""
    if old.kind != new.kind:
        return ChangeKind.TYPE
    if old.kind == EntryKind.DIRECTORY:
        same = (old.mode, old.uid, old.gid, old.xattrs) == (new.mode, new.uid, new.gid, new.xattrs)
        return None if same else ChangeKind.METADATA
    if (old.size, old.content) != (new.size, new.content):
        return ChangeKind.MODIFIED
    return None if old[2:] == new[2:] else ChangeKind.METADATA


def changes(
    old_root: Entry,
    new_root: Entry,
    old_entries: Entries,
    new_entries: Entries,
) -> Iterator[Change]:
    """Yields every path that differs, directories before what they hold.

    Everything below an added or removed directory is yielded too. Does not
    recurse, so depth costs memory only.
    """
    own = kind_of_change(old_root, new_root)
    if own is not None:
        yield Change(treepath.ROOT, own, old_root, new_root)
    stack: list[tuple[bytes, Iterator[tuple[Entry | None, Entry | None]]]] = []

    def descend(path: bytes, old: Entry | None, new: Entry | None) -> None:
        old_id = old.tree_id if old is not None and old.is_directory else None
        new_id = new.tree_id if new is not None and new.is_directory else None
        if old_id != new_id:
            pairs = paired(
                old_entries(old_id) if old_id is not None else (),
                new_entries(new_id) if new_id is not None else (),
            )
            stack.append((path, pairs))

    descend(treepath.ROOT, old_root, new_root)
    while stack:
        parent, pairs = stack[-1]
        pair = next(pairs, None)
        if pair is None:
            stack.pop()
            continue
        old, new = pair
        if (old is not None and old.is_skipped) or (new is not None and new.is_skipped):
            continue
        named = old if old is not None else new
        assert named is not None
        path = treepath.join(parent, named.name)
        if old is None:
            yield Change(path, ChangeKind.ADDED, None, new)
        elif new is None:
            yield Change(path, ChangeKind.REMOVED, old, None)
        else:
            change = kind_of_change(old, new)
            if change is not None:
                yield Change(path, change, old, new)
        descend(path, old, new)
