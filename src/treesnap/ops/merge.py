"""Merging what two machines did with one tree since a state that both had.

That state is a *base*. What only one side changed since then is taken from that side. What both
changed, and not in the same way, is a *conflict*: it stays as it is here, or becomes what it is
there. With several bases, what is as in any of them was not changed. A modification time alone
is no change. A repository is one thing, because its files refer to each other.

The result is a snapshot. To restore it is another step, with what that promises.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from treesnap import treepath
from treesnap.codec.reader import Get, TreeReader
from treesnap.codec.tree import put_tree
from treesnap.model import (
    RESERVED_TAGS,
    Entry,
    Snapshot,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    Totals,
)
from treesnap.named_tuple import NamedTuple
from treesnap.ops.context import Session
from treesnap.ops.restore.plan import REPOSITORIES
from treesnap.ops.state import subset_groups, totals_of_entry
from treesnap.store.writer import Writer, retry_overtaken
from treesnap.worktree.scan.hard_links import Groups, load_groups, store_groups

MERGED = f"{RESERVED_TAGS}merged"
"""The tag of a merge: the id of the snapshot of the other side."""


class MergeResult(NamedTuple):
    """Outcome of a merge."""

    snapshot: Snapshot
    conflicts: tuple[bytes, ...]
    """Paths that both sides changed, sorted; of a repository its own path."""


def merge(
    session: Session,
    mine: Snapshot,
    theirs: Snapshot,
    bases: Sequence[Snapshot],
    *,
    overwrites: bool,
    label: str,
) -> MergeResult:
    """Publishes a snapshot of the root with what both sides changed; durable after return.

    All are snapshots of whole roots. Conflicts stay as in ``mine``, or with ``overwrites`` become
    what they are in ``theirs``. The caller holds the root's lock. Costs a look at the directories
    that differ, and nothing is read of files. Raises Busy, Corrupt.
    """

    def publish(_: object) -> MergeResult:
        store, root = session.store, session.root
        with Writer(store) as writer:
            trees = TreeReader(writer.get)
            changes = _compare(trees, mine.record, theirs.record, bases, overwrites=overwrites)
            top, totals = _applied(mine.record.root, changes, trees, writer)
            record = mine.record._replace(
                root=top,
                links=store_groups(
                    set(_groups(mine.record, theirs.record, top, changes, writer.get).values()),
                    writer.put,
                ),
                totals=totals,
                created_at_ns=session.context.clock_ns(),
                kind=SnapshotKind.MANUAL,
                unstable=(),
                parent=mine.id,
                added_bytes=None,
                host=os.uname().nodename,
                label=label,
                name=None,
                session=None,
                step=None,
                tags={MERGED: theirs.id},
                plan=None,
            )
            sequence = store.snapshots.listing(root.id).next_sequence
            _, name = writer.publish(record, root.id, sequence)
        return MergeResult(store.snapshots.load(root.id, name), tuple(sorted(changes.conflicts)))

    return retry_overtaken("the merge", publish)


def merged_id(snapshot: Snapshot) -> SnapshotId | None:
    """Returns the snapshot of the other side, of which a snapshot is a merge; None for others."""
    found = snapshot.record.tags.get(MERGED)
    return SnapshotId(found) if found else None


class _Changes(NamedTuple):
    """What becomes other than it is here, by path."""

    taken: dict[bytes, Entry | None]
    """Entries of the other side, with all below them; None for what is removed."""
    metadata: dict[bytes, Entry]
    """Directories that get the metadata of the other side's."""
    conflicts: list[bytes]


def _compare(
    trees: TreeReader,
    mine: SnapshotRecord,
    theirs: SnapshotRecord,
    bases: Sequence[Snapshot],
    *,
    overwrites: bool,
) -> _Changes:
    """Walks all trees side by side, where they differ. Does not recurse."""
    changes = _Changes({}, {}, [])
    roots = [base.record.root for base in bases]
    _compare_metadata(treepath.ROOT, mine.root, theirs.root, roots, changes, overwrites=overwrites)
    stack = [(treepath.ROOT, mine.root, theirs.root, roots)]
    while stack:
        path, here, there, before = stack.pop()
        own = _named(trees, here)
        other = _named(trees, there)
        old = [_named(trees, entry) for entry in before]
        for name in own.keys() | other.keys():
            ours, new = own.get(name), other.get(name)
            known = [entries.get(name) for entries in old]
            if _is_skipped(ours) or _is_skipped(new) or _is_same(ours, new):
                continue
            if any(_is_same(new, entry) for entry in known):
                continue
            below = treepath.join(path, name)
            if _may_enter(ours, new) and name not in REPOSITORIES:
                assert ours is not None
                assert new is not None
                earlier = [entry for entry in known if entry is not None]
                _compare_metadata(below, ours, new, earlier, changes, overwrites=overwrites)
                stack.append((below, ours, new, earlier))
            elif any(_is_same(ours, entry) for entry in known):
                changes.taken[below] = new
            else:
                changes.conflicts.append(below)
                if overwrites:
                    changes.taken[below] = new
    return changes


def _named(trees: TreeReader, directory: Entry) -> dict[bytes, Entry]:
    if not directory.is_directory:
        return {}
    return {entry.name: entry for entry in trees.entries(directory.tree_id)}


def _is_skipped(entry: Entry | None) -> bool:
    return entry is not None and entry.is_skipped


def _is_same(one: Entry | None, other: Entry | None) -> bool:
    """Returns whether entries are equal but for the time; of directories, with all below them."""
    if one is None or other is None:
        return one is other
    return one._replace(mtime_ns=0) == other._replace(mtime_ns=0)


def _may_enter(ours: Entry | None, new: Entry | None) -> bool:
    return ours is not None and new is not None and ours.is_directory and new.is_directory


def _compare_metadata(
    path: bytes,
    ours: Entry,
    new: Entry,
    known: Sequence[Entry],
    changes: _Changes,
    *,
    overwrites: bool,
) -> None:
    """Decides on a directory's own metadata, as on a file's."""
    mine, theirs, *before = (
        entry._replace(content=None, mtime_ns=0) for entry in (ours, new, *known)
    )
    if theirs in (mine, *before):
        return
    if mine not in before:
        changes.conflicts.append(path)
    if mine in before or overwrites:
        changes.metadata[path] = new


def _applied(
    root: Entry, changes: _Changes, trees: TreeReader, writer: Writer
) -> tuple[Entry, Totals]:
    """Stores the directories that hold something new; returns the topmost one, and its sums."""
    made: dict[bytes, Entry] = {}
    children: dict[bytes, list[bytes]] = {}
    directories = treepath.ancestors([*changes.taken, *changes.metadata]) | {*changes.metadata}
    for path in {*directories, *changes.taken} - {treepath.ROOT}:
        children.setdefault(treepath.split(path)[0], []).append(path)
    deepest_first = sorted({*directories, treepath.ROOT}, key=treepath.components, reverse=True)
    for path in deepest_first:
        directory = root if not path else trees.find(root, path)
        assert directory is not None
        entries = _named(trees, directory)
        for child in children.get(path, ()):
            name = treepath.split(child)[1]
            entry = made[child] if child in made else changes.taken[child]
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        totals = Totals()
        for entry in entries.values():
            totals = totals.plus(totals_of_entry(entry, trees))
        ordered = [entries[name] for name in sorted(entries)]
        own = changes.metadata.get(path, directory)
        made[path] = own._replace(content=put_tree(ordered, totals, writer.put))
    return made[treepath.ROOT], totals


def _groups(
    mine: SnapshotRecord,
    theirs: SnapshotRecord,
    root: Entry,
    changes: _Changes,
    get: Get,
) -> Groups:
    """Returns the hard-link groups of what stays, and of what is taken, each by itself."""
    trees = TreeReader(get)

    def is_taken(path: bytes) -> bool:
        return any(above in changes.taken for above in (path, *treepath.parents(path)))

    def is_there(path: bytes) -> bool:
        return trees.find(root, path) is not None

    stay = load_groups(mine.links, get)
    come = load_groups(theirs.links, get)
    return {
        **subset_groups(stay, lambda path: is_there(path) and not is_taken(path)),
        **subset_groups(come, lambda path: is_there(path) and is_taken(path)),
    }
