"""What becomes of a directory that was walked: its tree, and its row for the next walk."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from stat import S_ISDIR
from typing import Any

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.codec.statcache import Row, decode_observations
from treesnap.codec.tree import put_tree
from treesnap.errors import Corrupt
from treesnap.model import TOTAL_MAX, Entry, ObjectId, Totals, Tree
from treesnap.worktree.capture import ObjectSink
from treesnap.worktree.revisit import Recall
from treesnap.worktree.scanned import Frame, totals_of
from treesnap.worktree.statcache import StatCacheBuilder


class Rows:
    """Stores the trees of directories that were walked, and adds their rows to a cache."""

    def __init__(
        self,
        trees: TreeReader,
        sink: ObjectSink,
        builder: StatCacheBuilder | None,
        recall: Recall | None,
    ) -> None:
        self._trees = trees
        self._sink = sink
        self._builder = builder
        self._recall = recall

    def keep_unseen(self) -> None:
        """Lets the rows of directories that are not walked stay as they are."""
        if self._builder is not None:
            self._builder.keep_unseen()

    def leave(self, frame: Frame) -> tuple[ObjectId, Totals, bool]:
        """Returns a directory's tree, its totals, and whether the tree is not the cached one."""
        row = frame.row
        if row is not None and frame.is_same and not frame.children_changed:
            if self._builder is not None:
                assert frame.place is not None
                self._builder.keep(row, frame.place)
            return row.tree_id, row.totals, False
        if row is not None and frame.is_same:
            self._complete_from_row(frame, row)
        entries = [frame.entries[name] for name in sorted(frame.entries)]
        totals = self._totals(frame, entries)
        tree_id = put_tree(entries, totals, self._sink.put)
        self._trees.keep(tree_id, Tree(totals, tuple(entries)))
        if self._builder is not None and frame.scope is None:
            self._remove_lost(self._builder, frame)
            self._builder.add(
                Row(
                    path=frame.path,
                    tree_id=tree_id,
                    totals=totals,
                    rules=frame.exclusions.fingerprint,
                    distrusted=tuple(sorted(frame.distrusted | _distrusted_still(frame))),
                    linked=bool(frame.linked),
                    skipped=tuple(frame.skipped),
                    observations=frame.packed,
                ),
                is_listed=bool(frame.mapped),
            )
        return tree_id, totals, row is None or row.tree_id != tree_id

    def _totals(self, frame: Frame, entries: list[Entry]) -> Totals:
        """Returns the sums over a directory and all below it.

        Where most is as it was, costs as much as what is not.
        """
        row, old = frame.row, frame.old
        if row is None or old is None or frame.changed is None or TOTAL_MAX in row.totals:
            return totals_of(frame, entries, partial(self._totals_below, frame))
        sums = list(row.totals)
        for name in old.keys() | frame.entries.keys():
            before, now = old.get(name), frame.entries.get(name)
            if before is now or before == now:
                continue
            child = frame.children.get(name)
            if now is not None:
                below = child[1] if child is not None and now.is_directory else None
                self._add(sums, frame, now, 1, below)
            if before is not None:
                self._add(sums, frame, before, -1, None)
        return Totals(*(min(number, TOTAL_MAX) for number in sums))

    def _add(
        self, sums: list[int], frame: Frame, entry: Entry, sign: int, below: Totals | None
    ) -> None:
        if entry.is_directory:
            totals = below if below is not None else self._totals_below(frame, entry)
            totals = totals._replace(directories=totals.directories + 1)
        else:
            totals = totals_of(frame, [entry], partial(self._totals_below, frame))
        for position, number in enumerate(totals):
            sums[position] += sign * number

    def _totals_below(self, frame: Frame, entry: Entry) -> Totals:
        assert self._recall is not None
        return self._recall.totals(treepath.join(frame.path, entry.name), entry.tree_id)

    def _remove_lost(self, builder: StatCacheBuilder, frame: Frame) -> None:
        """Lets cached rows not count below directories that were there, and were not walked."""
        if frame.row is None:
            builder.remove(frame.path)
            return
        before: Iterable[Any] = frame.observations
        if not frame.is_same:
            try:
                before = decode_observations(frame.row.observations).values()
            except Corrupt:
                builder.remove(frame.path)
                return
        for item in before:
            name = item[0]
            is_walked = name in frame.children or name in frame.reused
            if S_ISDIR(item[1]) and not is_walked:
                builder.remove(treepath.join(frame.path, name))

    def _complete_from_row(self, frame: Frame, row: Row) -> None:
        """Fills in the entries of a directory in which only children changed."""
        changed = frame.entries
        frame.old = {entry.name: entry for entry in self._trees.entries(row.tree_id)}
        frame.entries = dict(frame.old)
        for name, (tree_id, _) in frame.children.items():
            frame.entries[name] = frame.entries[name]._replace(content=tree_id)
        for name in frame.distrusted:
            frame.entries.pop(name, None)
        frame.entries.update(changed)


def _distrusted_still(frame: Frame) -> set[bytes]:
    """Returns the names that were distrusted and have not been looked at since.

    A watcher speaks for them now, but not for ever: the next look at everything does not ask it.
    """
    if frame.row is None or frame.looked is None:
        return set()
    return {name for name in frame.row.distrusted if name not in frame.looked}
