"""A tree of which each path is as in one of several snapshots.

A directory is where anything is left in it, or put into it where there is nothing else. What should
be put below a path that is something else is left out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.tree import Put, put_tree
from treesnap.core.model import treepath
from treesnap.core.model.entries import ChangeList, Entry, Totals
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.ops.context import Session
from treesnap.core.ops.privileges import elsewhere_tags
from treesnap.core.ops.tree_state import State, compared, totals_of_entry
from treesnap.core.store.writer import Writer, retry_overtaken
from treesnap.core.worktree.scan.hard_links import Groups, load_groups, store_groups


class Pick(NamedTuple):
    """What a path becomes."""

    entry: Entry | None
    """Of a directory only what it is itself; None for nothing."""
    source: Snapshot | None
    """The snapshot that has it so; None for the one that all else is as in."""
    is_whole: bool = False
    """Whether a directory is taken with all that is in it."""


class PathSelection(NamedTuple):
    """The outcome of :func:`select`."""

    snapshot: Snapshot | None
    """None where nothing differs, or in a dry run."""
    changes: ChangeList
    """What differs from the tree that is there."""
    left_out: tuple[bytes, ...] = ()
    """What should be put below a path that is something else."""


def select(
    session: Session,
    mine: Snapshot,
    picks: Mapping[bytes, Pick],
    *,
    label: str,
    tags: Mapping[str, str],
    dry_run: bool,
) -> PathSelection:
    """Publishes a safety snapshot that is as ``mine`` but for some paths; durable after return.

    The caller holds the root's lock. Reads the directories above the paths. Raises Busy, Corrupt,
    StorageFull, and NotFound where a snapshot was deleted meanwhile.
    """

    def publish(_: object) -> PathSelection:
        store, before = session.store, mine.record
        with Writer(store) as writer:
            trees = TreeReader(writer.get)
            root, totals = _rebuilt(before.root, picks, trees, writer.put)
            own = load_groups(before.links, writer.get)
            others = {
                identity: load_groups(source.record.links, writer.get)
                for identity, source in _sources(picks).items()
            }
            groups = _groups(trees, root, own, picks, others)
            old, new = State(before.root, trees, own), State(root, trees, groups)
            left_out = tuple(
                path
                for path, pick in picks.items()
                if pick.entry is not None and trees.find(root, path) is None
            )
            changes = compared(old, new, None, session.path_budget())
            if dry_run or not changes:
                return PathSelection(None, changes, left_out)
            sources = [mine, *_sources(picks).values()]
            record = before._replace(
                root=root,
                links=store_groups(set(groups.values()), writer.put),
                totals=totals,
                created_at_ns=session.context.clock_ns(),
                kind=SnapshotKind.SAFETY,  # no one has seen this state
                unstable=(),
                parent=mine.id,
                added_bytes=None,
                host=os.uname().nodename,
                label=label,
                name=None,
                session=None,
                step=None,
                tags={**tags, **elsewhere_tags(session, *sources)},
                attachment=None,
            )
            sequence = store.snapshots.listing(session.root.id).next_sequence
            _, name = writer.publish(record, session.root.id, sequence, sources)
        return PathSelection(store.snapshots.load(session.root.id, name), changes, left_out)

    return retry_overtaken("the rewind", publish)


def _rebuilt(
    root: Entry, picks: Mapping[bytes, Pick], trees: TreeReader, put: Put
) -> tuple[Entry, Totals]:
    """Stores the directories that hold something new; returns the topmost one, and its sums."""
    directories = treepath.ancestors(picks) | {treepath.ROOT}
    children: dict[bytes, list[bytes]] = defaultdict(list)
    for path in {*directories, *picks} - {treepath.ROOT}:
        children[treepath.split(path)[0]].append(path)
    here: dict[bytes, Entry | None] = {treepath.ROOT: root}
    highest_first = sorted({*directories, *picks} - {treepath.ROOT}, key=treepath.components)
    for path in highest_first:  # each from the one above it: from the root it costs the depth
        above, name = treepath.split(path)
        parent = here[above]
        is_inside = parent is not None and parent.is_directory
        here[path] = trees.lookup(parent.tree_id, name) if parent and is_inside else None
    made: dict[bytes, Entry | None] = {}
    totals = Totals()
    for path in [*reversed(highest_first), treepath.ROOT]:
        live, pick = here[path], picks.get(path)
        goal = pick.entry if pick is not None else live
        is_goal_directory = goal is not None and goal.is_directory
        held = goal if pick is not None and pick.is_whole else live
        entries: dict[bytes, Entry] = {}
        if held is not None and held.is_directory:
            entries = {entry.name: entry for entry in trees.entries(held.tree_id)}
        for child in children[path]:
            entry = made[child]
            name = treepath.split(child)[1]
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry._replace(name=name)
        if not is_goal_directory:
            stays = live is not None and live.is_directory and bool(entries)
            directory = live if stays else None
            if goal is None and entries and directory is None:
                directory = _directory_in_sources(path, picks, trees)
            if directory is None:  # below it is nothing, or what has no directory to be in
                made[path] = goal
                continue
            goal = directory
        assert goal is not None
        totals = Totals()
        for entry in entries.values():
            totals = totals.plus(totals_of_entry(entry, trees))
        ordered = [entries[name] for name in sorted(entries)]
        made[path] = goal._replace(content=put_tree(ordered, totals, put))
    top = made[treepath.ROOT]
    assert top is not None
    return top, totals


def _directory_in_sources(
    path: bytes, picks: Mapping[bytes, Pick], trees: TreeReader
) -> Entry | None:
    """Returns a directory as it was where something below it is picked from, or None."""
    for below, pick in picks.items():
        if pick.entry is not None and pick.source is not None and treepath.is_within(below, path):
            directory = trees.find(pick.source.record.root, path)
            if directory is not None and directory.is_directory:
                return directory
    return None


def _sources(picks: Mapping[bytes, Pick]) -> dict[SnapshotId, Snapshot]:
    """Returns the snapshots of which something is picked, by id."""
    return {pick.source.id: pick.source for pick in picks.values() if pick.source is not None}


def _groups(
    trees: TreeReader,
    root: Entry,
    own: Groups,
    picks: Mapping[bytes, Pick],
    of_sources: Mapping[SnapshotId, Groups],
) -> Groups:
    """Returns the hard-link groups: as they are here, and of what is picked as they were there.

    Names that differ by now are names of different files.
    """
    joined: dict[bytes, bytes] = {}

    def top(path: bytes) -> bytes:
        while (above := joined.get(path, path)) != path:
            path = above
        return path

    def join(paths: Sequence[bytes]) -> None:
        for path in paths[1:]:
            joined[top(path)] = top(paths[0])

    for group in set(own.values()):
        join([path for path in group if not _is_picked(path, picks)])
    for path, pick in picks.items():
        if pick.source is None:
            continue
        there = of_sources[pick.source.id]
        inside = [name for name in there if pick.is_whole and treepath.is_within(name, path)]
        for name in [path, *inside]:
            join([name, *there.get(name, ())])
    alike: dict[tuple[bytes, Entry], list[bytes]] = defaultdict(list)
    for path in {name for names in (own, *of_sources.values()) for name in names}:
        entry = trees.find(root, path)
        if entry is not None:
            alike[top(path), entry._replace(name=b"")].append(path)
    return {
        path: group
        for names in alike.values()
        if len(names) > 1
        for group in [tuple(sorted(names))]
        for path in group
    }


def _is_picked(path: bytes, picks: Mapping[bytes, Pick]) -> bool:
    return path in picks or any(
        above in picks and picks[above].is_whole for above in treepath.parents(path)
    )
