"""Keeping what somebody wrote into files that an interrupted restore had moved aside.

What lies in a staging directory is of the old state or of the new one, and both are
in snapshots. Unless somebody changed it: through a file that he had open, or in a
directory that he worked in, while it was moved. That goes into a snapshot of its
own, at the paths where he knew it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from treesnap.codec.journal import Journal
from treesnap.codec.reader import TreeReader
from treesnap.codec.tree import put_tree
from treesnap.errors import Busy, shown
from treesnap.model import Entry, SnapshotKind, SnapshotRecord, Totals
from treesnap.ops.access import MemoryObjects, Opened
from treesnap.ops.capture import scan_settings
from treesnap.ops.history import resolve_in
from treesnap.ops.narrow import totals_of_entry
from treesnap.ops.standing import holds_same
from treesnap.ops.state import State, recorded_state, walked_state
from treesnap.store.writer import EpochChanged, Writer
from treesnap.treepath import without_nested
from treesnap.worktree.scan import Scanner
from treesnap.worktree.scanned import ScanResult
from treesnap.worktree.staging import READY, RESERVE
from treesnap.worktree.step import number_of

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

ATTEMPTS = 5
"""How often a rescue that collections overtook is done again."""


def rescue(handle: Handle, pair: Opened, journal: Journal) -> None:
    """Takes a snapshot of what is of neither state, and says so; mostly there is nothing.

    Reads all that is staged or kept aside. Raises Busy when collections keep overtaking it.
    """
    commit = journal.commit
    assert commit is not None
    old, new = (
        recorded_state(pair, resolve_in(pair, identity).record, commit.paths)
        for identity in (commit.safety_id, commit.target_id)
    )
    for _ in range(ATTEMPTS):
        try:
            _Rescue(handle, pair, journal).run(old, new)
        except EpochChanged:
            continue
        return
    raise Busy("Garbage collections kept overtaking the restore")


class _Rescue:
    """The staging directory of an interrupted restore. Nothing in it is changed."""

    def __init__(self, handle: Handle, pair: Opened, journal: Journal) -> None:
        self._handle = handle
        self._pair = pair
        assert journal.commit is not None
        self._paths = journal.commit.paths
        self._target_id = journal.commit.target_id
        self._stage_path = os.path.join(handle.root, os.fsdecode(journal.stage_name))

    def run(self, old: State, new: State) -> None:
        if not os.path.lexists(os.path.join(self._stage_path, os.fsdecode(READY))):
            return  # nothing was kept aside yet, or all is being removed
        objects = MemoryObjects(self._pair.store)
        walked = walked_state(self._walk(objects), objects.get)
        strange = [
            entry.name
            for entry in walked.trees.entries(walked.root.tree_id)
            if not self._is_known(entry, walked, old, new)
        ]
        if strange:
            self._publish(strange, old)

    def _walk(self, sink: MemoryObjects | Writer) -> ScanResult:
        settings = replace(
            scan_settings(self._handle, None, ()), root=self._stage_path, heeds_ignore_files=False
        )
        return Scanner(self._handle.fs, settings, sink, self._handle.monitor).scan()

    def _path(self, name: bytes) -> bytes | None:
        """Returns the path that something in the staging directory belongs to, or None."""
        number = number_of(name)
        return self._paths[number] if number is not None and number < len(self._paths) else None

    def _is_known(self, entry: Entry, walked: State, *states: State) -> bool:
        path = self._path(entry.name)
        if path is None:
            return entry.name in (READY, RESERVE)
        if entry.is_skipped:
            return True
        for state in states:
            wanted = state.entry(path)
            if wanted is not None and holds_same(entry, walked, wanted, state):
                return True
        return False

    def _publish(self, strange: list[bytes], old: State) -> None:
        store, root = self._pair.store, self._pair.root
        with Writer(store) as writer:
            walked = walked_state(self._walk(writer), writer.get)
            kept: dict[bytes, Entry] = {}
            for name in strange:
                entry = walked.trees.lookup(walked.root.tree_id, name)
                if entry is not None:
                    kept[self._path(name) or name] = entry
            tree_id, totals = _nested(kept, old, writer, b"", walked.trees)
            names = store.snapshots.names(root.id)
            record = SnapshotRecord(
                root=old.root._replace(content=tree_id),
                links=None,
                root_path=os.fsencode(self._handle.root),
                created_at_ns=self._handle.clock_ns(),
                totals=totals,
                kind=SnapshotKind.SAFETY,
                scope=without_nested(list(kept)),
                label=f"changed during restore {self._target_id[:12]}",
                host=os.uname().nodename,
            )
            identity, _ = writer.publish(record, root.id, names[0].sequence + 1 if names else 1)
        shown_paths = ", ".join(repr(shown(path)) for path in sorted(kept))
        self._handle.monitor.remark(
            f"What somebody changed in {shown_paths} while it was being replaced is in snapshot "
            f"{identity[:12]}; see it with 'snap restore {identity[:12]} --to DIRECTORY'"
        )


def _nested(
    kept: Mapping[bytes, Entry], old: State, writer: Writer, parent: bytes, trees: TreeReader
) -> tuple[bytes, Totals]:
    """Stores the trees that hold entries at their paths; recurses as deep as these are."""
    below: dict[bytes, dict[bytes, Entry]] = defaultdict(dict)
    entries: dict[bytes, Entry] = {}
    totals = Totals()
    for path, entry in kept.items():
        name, _, rest = path.partition(b"/")
        if rest:
            below[name][rest] = entry
        else:
            entries[name] = entry._replace(name=name)
            totals = totals.plus(totals_of_entry(entry, trees))
    for name, inner in below.items():
        path = parent + b"/" + name if parent else name
        tree_id, sums = _nested(inner, old, writer, path, trees)
        directory = old.entry(path) or old.root
        entries[name] = directory._replace(name=name, content=tree_id)
        totals = totals.plus(sums).plus(Totals(directories=1))
    tree_id = put_tree([entries[name] for name in sorted(entries)], totals, writer.put)
    return tree_id, totals
