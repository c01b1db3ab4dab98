"""Preserving what other processes wrote to files that an interrupted restore had moved aside.

What lies in a staging directory belongs to the old state or to the new one, and both are in
snapshots. Unless another process changed it, through an open file or a working directory, while
it was moved. That goes into a snapshot of its own, at the paths where that process knew it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping

from treesnap.core.codec.journal import Commit, Journal
from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.tree import put_tree
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, ObjectId, Skipped, SkipReason, Totals
from treesnap.core.model.errors import ErrorCode, Refused, WarningCode, quoted
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.snapshots import SnapshotKind, SnapshotRecord
from treesnap.core.model.treepath import without_nested
from treesnap.core.ops.capture import scan_settings
from treesnap.core.ops.context import Session
from treesnap.core.ops.privileges import is_own, wanted_state, was_captured_here
from treesnap.core.ops.references import load_by_id
from treesnap.core.ops.restore.path_state import Comparison
from treesnap.core.ops.tree_state import (
    MemoryObjects,
    State,
    recorded_state,
    totals_of_entry,
    walked_state,
)
from treesnap.core.store.writer import Writer, retry_overtaken
from treesnap.core.worktree.apply.stage import RESERVE, is_building
from treesnap.core.worktree.apply.step import number_of
from treesnap.core.worktree.scan.scanner import Scanner, ScanResult


def states_of(session: Session, commit: Commit, scope: tuple[bytes, ...]) -> tuple[State, State]:
    """Returns the states before and after a restore, within some of its paths.

    The one after lacks the privileges that the restore leaves out, as it was planned. Where the
    store is not proven to be the user's own, a stranger may have written the journal and both
    snapshots: then a state has privileges only if this process captured it, whatever the journal
    says.
    """
    safety, target = (
        load_by_id(session, identity) for identity in (commit.safety_id, commit.target_id)
    )
    if not session.store.is_own:
        old, _ = wanted_state(
            session, safety.record, scope, None, privileged=was_captured_here(safety)
        )
        new, _ = wanted_state(
            session, target.record, scope, old, privileged=was_captured_here(target)
        )
        return old, new
    old = recorded_state(session, safety.record, scope)
    privileged = commit.privileged or commit.keeps_nothing or is_own(session, target)
    new, _ = wanted_state(session, target.record, scope, old, privileged=privileged)
    return old, new


def preserve_foreign_edits(
    session: Session, journal: Journal, root_path: str | None = None
) -> None:
    """Takes a snapshot of what belongs to neither state, and warns of it; rarely is there any.

    Reads all that is staged or was moved aside. ``root_path`` says where the root is, if it was
    moved. Raises Busy when collections keep overtaking it.
    """
    commit = journal.commit
    assert commit is not None
    old, new = states_of(session, commit, commit.paths)

    def attempt(_: object) -> None:
        for top in (treepath.ROOT, *journal.stage_tops):
            _ForeignEdits(session, journal, top, root_path or session.context.root).run(old, new)

    retry_overtaken("the restore", attempt)


class _ForeignEdits:
    """A staging directory of an interrupted restore. Nothing in it is changed.

    ``top`` is the directory that holds it.
    """

    def __init__(self, session: Session, journal: Journal, top: bytes, root_path: str) -> None:
        self._session = session
        assert journal.commit is not None
        self._paths = journal.commit.paths
        self._target_id = journal.commit.target_id
        self._touch = journal.commit.touch
        root = os.fsencode(root_path)
        self._root_stage_path = os.fsdecode(os.path.join(root, journal.stage_name))
        self._stage_path = os.fsdecode(os.path.join(root, top, journal.stage_name))

    def run(self, old: State, new: State) -> None:
        if not self._may_hold_old_files():
            return
        objects = MemoryObjects(self._session.store)
        result = self._walk(objects)
        walked = walked_state(result)
        self._refuse_unreadable(result.skipped, old, new)
        strange = [
            entry.name
            for entry in walked.trees.entries(walked.root.tree_id)
            if not self._is_known(entry, walked, old, new)
        ]
        if strange:
            self._publish(strange, old)

    def _may_hold_old_files(self) -> bool:
        """Returns whether there is a staging directory, and more than new files in it."""
        fs = self._session.fs
        try:
            fs.lstat(self._stage_path)
            with opened_real(fs, self._root_stage_path) as stage_fd:
                return not is_building(fs, stage_fd)
        except FileNotFoundError:
            return False

    def _refuse_unreadable(self, skipped: Iterable[Skipped], *states: State) -> None:
        """Raises Refused for what neither state has and this process cannot read.

        It cannot go into a snapshot, so it must not be removed. Sockets hold nothing.
        """
        for item in skipped:
            top, _, rest = item.path.partition(b"/")
            path = self._path(top)
            is_known = path is not None and any(
                state.entry(treepath.join(path, rest) if rest else path) is not None
                for state in states
            )
            if not is_known and item.reason != SkipReason.SOCKET:
                raise Refused(
                    f"{quoted(rest or top)}, which another process made in {quoted(path or b'.')} "
                    "while it was being replaced, cannot be read. It is in "
                    f"{quoted(self._stage_path)}",
                    code=ErrorCode.RESTORE_INTERRUPTED,
                    path=self._stage_path,
                )

    def _walk(self, sink: MemoryObjects | Writer) -> ScanResult:
        request = CaptureRequest(heeds_ignore_files=False)
        settings = scan_settings(self._session.context, request, root=self._stage_path)
        return Scanner(self._session.fs, settings, sink, self._session.monitor).scan()

    def _path(self, name: bytes) -> bytes | None:
        """Returns the path that something in the staging directory belongs to, or None."""
        number = number_of(name)
        return self._paths[number] if number is not None and number < len(self._paths) else None

    def _is_known(self, entry: Entry, walked: State, old: State, new: State) -> bool:
        """Returns whether all that an entry holds belongs to one of the states.

        Some of it may be missing, where removing it has begun.
        """
        path = self._path(entry.name)
        if path is None:
            return entry.name == RESERVE
        return entry.is_skipped or any(
            Comparison(walked, state, touch).holds_no_more(entry, entry_then)
            for state, touch in ((old, False), (new, self._touch))
            if (entry_then := state.entry(path)) is not None
        )

    def _publish(self, strange: list[bytes], old: State) -> None:
        store, root = self._session.store, self._session.root
        with Writer(store) as writer:
            walked = walked_state(self._walk(writer))
            edited: dict[bytes, Entry] = {}
            for name in strange:
                entry = walked.trees.lookup(walked.root.tree_id, name)
                if entry is not None:
                    edited[self._path(name) or name] = entry
            tree_id, totals = _at_their_paths(edited, old, writer, walked.trees)
            sequence = store.snapshots.listing(root.id).next_sequence
            record = SnapshotRecord(
                root=old.root._replace(content=tree_id),
                links=None,
                root_path=os.fsencode(self._session.context.root),
                created_at_ns=self._session.context.clock_ns(),
                totals=totals,
                kind=SnapshotKind.SAFETY,
                scope=without_nested(list(edited)),
                label=f"changed during restore {self._target_id[:12]}",
                host=os.uname().nodename,
            )
            identity, _ = writer.publish(record, root.id, sequence)
        named = ", ".join(quoted(path) for path in sorted(edited))
        self._session.monitor.warn(
            WarningCode.EDITS_PRESERVED,
            f"What another process changed in {named} while it was being replaced is in snapshot "
            f"{identity[:12]}",
        )


def _at_their_paths(
    edited: Mapping[bytes, Entry], old: State, writer: Writer, trees: TreeReader
) -> tuple[ObjectId, Totals]:
    """Stores the trees that hold entries at their paths; returns the topmost one."""
    below: dict[bytes, list[tuple[Entry, Totals]]] = defaultdict(list)
    for path, entry in edited.items():
        directory, name = treepath.split(path)
        totals = totals_of_entry(entry, trees)
        below[directory].append((entry._replace(name=name), totals))
    for path in sorted(
        treepath.ancestors(edited), key=lambda path: len(treepath.components(path)), reverse=True
    ):
        sums = Totals()
        for _, totals in below[path]:
            sums = sums.plus(totals)
        entries = sorted((entry for entry, _ in below[path]), key=lambda entry: entry.name)
        tree_id = put_tree(entries, sums, writer.put)
        if not path:
            return tree_id, sums
        directory, name = treepath.split(path)
        own = (old.entry(path) or old.root)._replace(name=name, content=tree_id)
        below[directory].append((own, sums.plus(Totals(directories=1))))
    raise AssertionError("Every path is below the root")
