"""Merging what two machines did with one tree since a state that both had.

That state is a *base*. What only one side changed since then is taken from that side. What both
changed, and not in the same way, is a *conflict*: it stays as it is here, or becomes what it is
there. With several bases, what is as in any of them was not changed. A modification time alone
is no change. A repository is one thing, because its files refer to each other.

Owners are merged apart from the rest, because every file that a user clones becomes theirs, which
is no change that they made. They are never a conflict.

The result is a snapshot. To restore it is another step, with what that promises.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from treesnap import treepath
from treesnap.codec.reader import Get, TreeReader
from treesnap.codec.tree import put_tree
from treesnap.facts import RESERVED_TAGS
from treesnap.model import (
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
    takes_owners: bool,
    label: str,
) -> MergeResult:
    """Publishes a snapshot of the root with what both sides changed; durable after return.

    All are snapshots of whole roots. Conflicts stay as in ``mine``, or with ``overwrites`` become
    what they are in ``theirs``. What is here keeps its owner, or with ``takes_owners``, for a user
    who may set owners, gets the one that only the other side changed. The caller holds the root's
    lock. Reads the directories that differ, and no file. Raises Busy, Corrupt.
    """

    def publish(_: object) -> MergeResult:
        store, root = session.store, session.root
        with Writer(store) as writer:
            trees = TreeReader(writer.get)
            comparison = _Comparison(trees, overwrites=overwrites, takes_owners=takes_owners)
            changes = comparison.run(mine.record, theirs.record, bases)
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


class _Comparison:
    """Walks all trees side by side, where they differ. Does not recurse."""

    def __init__(self, trees: TreeReader, *, overwrites: bool, takes_owners: bool) -> None:
        self._trees = trees
        self._overwrites = overwrites
        self._takes_owners = takes_owners
        self._changes = _Changes({}, {}, [])

    def run(
        self, mine: SnapshotRecord, theirs: SnapshotRecord, bases: Sequence[Snapshot]
    ) -> _Changes:
        """Returns what becomes other than it is in ``mine``."""
        stack = [(treepath.ROOT, mine.root, theirs.root, [base.record.root for base in bases])]
        while stack:
            path, here, there, before = stack.pop()
            self._compare_metadata(path, here, there, before)
            own, other = _named(self._trees, here), _named(self._trees, there)
            old = [_named(self._trees, entry) for entry in before]
            for name in own.keys() | other.keys():
                ours, new = own.get(name), other.get(name)
                known = [entry for entries in old if (entry := entries.get(name)) is not None]
                is_new = len(known) < len(old)
                below = treepath.join(path, name)
                if _is_skipped(ours) or _is_skipped(new):
                    continue
                if _may_enter(ours, new) and name not in REPOSITORIES:
                    assert ours is not None
                    assert new is not None
                    if not any(_is_same(new, entry) for entry in (ours, *known)):
                        stack.append((below, ours, new, known))
                else:
                    self._compare_whole(below, ours, new, [*known, *([None] if is_new else [])])
        return self._changes

    def _compare_whole(
        self, path: bytes, ours: Entry | None, new: Entry | None, known: Sequence[Entry | None]
    ) -> None:
        """Decides on what is taken whole or not at all; ``known`` has None where it was not."""
        if any(_is_same(new, entry) for entry in (ours, *known)):
            return
        result = ours
        if not self._is_alike_any(new, [ours, *known]):
            is_mine = not self._is_alike_any(ours, known)
            if is_mine:
                self._changes.conflicts.append(path)
            if not is_mine or self._overwrites:
                result = new
        if result is not None and ours is not None and new is not None:
            result = self._with_owner(result, ours, new, known)
        if result != ours:
            self._changes.taken[path] = result

    def _compare_metadata(
        self, path: bytes, ours: Entry, new: Entry, known: Sequence[Entry]
    ) -> None:
        """Decides on a directory's own metadata, as on a file's."""
        mine, theirs, *before = (_essence(entry) for entry in (ours, new, *known))
        result = ours
        if theirs not in (mine, *before):
            if mine not in before:
                self._changes.conflicts.append(path)
            if mine in before or self._overwrites:
                result = new
        result = self._with_owner(result, ours, new, known)
        if result != ours:
            self._changes.metadata[path] = result

    def _with_owner(
        self, entry: Entry, ours: Entry, new: Entry, known: Sequence[Entry | None]
    ) -> Entry:
        """Returns an entry with the owner that it should have here."""
        own, other = (ours.uid, ours.gid), (new.uid, new.gid)
        before = [(item.uid, item.gid) for item in known if item is not None]
        takes = self._takes_owners and own in before and other not in before
        uid, gid = other if takes else own
        return entry._replace(uid=uid, gid=gid)

    def _is_alike_any(self, one: Entry | None, others: Sequence[Entry | None]) -> bool:
        return any(self._is_alike(one, other) for other in others)

    def _is_alike(self, one: Entry | None, other: Entry | None) -> bool:
        """Returns whether entries, and all below them, are equal but for times and owners."""
        stack = [(one, other)]
        while stack:
            first, second = stack.pop()
            if first is None or second is None:
                return first is second
            if _essence(first) != _essence(second):
                return False
            if first.is_directory and first.content != second.content:
                below, others = _named(self._trees, first), _named(self._trees, second)
                if below.keys() != others.keys():
                    return False
                stack += [(below[name], others[name]) for name in below]
        return True


def _essence(entry: Entry) -> Entry:
    """Returns an entry without time and owner, and without what is below a directory."""
    content = None if entry.is_directory else entry.content
    return entry._replace(mtime_ns=0, uid=0, gid=0, content=content)


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
    """Returns the hard-link groups of what stays, and of what is taken, each by itself.

    Names of one file on the other side may differ here: of two files that became one there, one is
    in a conflict, or keeps another owner. Those that differ stay different files.
    """
    trees = TreeReader(get)

    def is_taken(path: bytes) -> bool:
        return any(above in changes.taken for above in (path, *treepath.parents(path)))

    def is_there(path: bytes) -> bool:
        return trees.find(root, path) is not None

    def split(groups: Groups) -> Groups:
        found: Groups = {}
        for group in set(groups.values()):
            alike: dict[Entry | None, list[bytes]] = {}
            for path in group:
                entry = trees.find(root, path)
                alike.setdefault(entry and entry._replace(name=b""), []).append(path)
            for paths in alike.values():
                found.update(dict.fromkeys(paths, tuple(paths)))
        return found

    stay = load_groups(mine.links, get)
    come = load_groups(theirs.links, get)
    taken = split(subset_groups(come, lambda path: is_there(path) and is_taken(path)))
    return {
        **subset_groups(stay, lambda path: is_there(path) and not is_taken(path)),
        **{path: group for path, group in taken.items() if len(group) > 1},
    }
