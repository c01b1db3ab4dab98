"""The histories on a remote: what its commits hold of each root, and which one words mean."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from treesnap.core.codec.snapshot import decode_snapshot, snapshot_id, state_hash
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, NotOnRemote, quoted
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind, SnapshotRecord
from treesnap.core.store.snapshots import SnapshotLog
from treesnap.remote.fetched import is_meant_by, name_and_ref
from treesnap.remote.protocol import Deletions, View
from treesnap.remote.records import CommitEntry

_NAMED_MAX = 5
"""So many histories a message names."""
_COUNTED_BACK = re.compile(r"latest(?:~([0-9]{1,9}))?\Z")


class HistoryInfo(Record):
    """The history of one root on one machine, as a remote holds it."""

    id: str
    name: str
    snapshots: int
    newest_id: SnapshotId
    newest_at_ns: int


class RemoteHistory:
    """The history of one root on one machine: commits with at least one snapshot each."""

    def __init__(self, commits: Sequence[CommitEntry]) -> None:
        self.commits = commits
        self.id: str = commits[0].history.id.hex()
        self.name: str = commits[0].history.name
        """The first name that it had."""

    @cached_property
    def records(self) -> dict[SnapshotId, SnapshotRecord]:
        """Its snapshots, oldest first."""
        unordered = {key: decode_snapshot(payload) for key, payload in self._payloads()}
        return {key: unordered[key] for key in oldest_first(unordered)}

    @property
    def payloads(self) -> dict[SnapshotId, bytes]:
        """The same as they were pushed, in the same order."""
        by_id = dict(self._payloads())
        return {key: by_id[key] for key in self.records}

    def _payloads(self) -> Iterator[tuple[SnapshotId, bytes]]:
        return ((snapshot_id(item), item) for each in self.commits for item in each.snapshots)

    def info(self) -> HistoryInfo:
        """Returns what a list of histories shows."""
        newest_id, newest = next(reversed(self.records.items()))
        return HistoryInfo(self.id, self.name, len(self.records), newest_id, newest.created_at_ns)

    def snapshots(self, log: SnapshotLog) -> tuple[Snapshot, ...]:
        """Returns its snapshots, newest first, numbered as they were taken.

        Whether one is pinned, and its later tags, is what ``log`` knows of it.
        """
        numbered = enumerate(self.records.items(), start=1)
        return tuple(
            Snapshot(key, number, state_hash(record), record, log.state(key))
            for number, (key, record) in numbered
        )[::-1]

    def find(self, ref: str | None) -> SnapshotId:
        """Returns the snapshot that a REF names; without one the newest of the whole root.

        ``latest`` and ``latest~N`` count those of the whole root. Raises NotOnRemote and
        InvalidArgument.
        """
        newest_first = list(reversed(self.records.items()))
        counted = _COUNTED_BACK.match(ref if ref is not None else "latest")
        if counted is not None:
            whole = [
                key
                for key, record in newest_first
                if record.scope is None and record.kind != SnapshotKind.SAFETY
            ]
            back = int(counted[1] or 0)
            if back >= len(whole):
                raise NotOnRemote(
                    "The history has no snapshot of the whole root"
                    if not whole
                    else f"The history has no snapshot {quoted(counted[0])}"
                )
            return whole[back]
        assert ref is not None
        named = [key for key, record in newest_first if record.name == ref]
        matches = named[:1] or [key for key in self.records if key.startswith(ref)]
        if not matches or not ref:
            raise NotOnRemote(f"The history has no snapshot {quoted(ref)}")
        if len(matches) > 1:
            raise InvalidArgument(
                f"Several snapshots of the history begin with {quoted(ref)}",
                code=ErrorCode.AMBIGUOUS_REF,
            )
        return matches[0]


def without_deleted(view: View, deletions: Deletions) -> list[CommitEntry]:
    """Returns the commits that count, without the snapshots that were deleted."""
    gone: dict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
    for deletion in deletions.listed.values():
        gone[deletion.commit.numbers].update(deletion.snapshots)
    kept = []
    for commit in view.visible.values():
        deleted = gone[commit.name.numbers]
        left = (
            item for item in commit.snapshots if bytes.fromhex(snapshot_id(item)) not in deleted
        )
        kept.append(commit._replace(snapshots=tuple(left)))
    return kept


def by_history(commits: Iterable[CommitEntry]) -> list[RemoteHistory]:
    """Returns the histories that commits hold snapshots of."""
    by_id: dict[bytes, list[CommitEntry]] = {}
    for commit in sorted(commits, key=lambda commit: commit.name):
        if commit.snapshots:
            by_id.setdefault(commit.history.id, []).append(commit)
    return [RemoteHistory(each) for each in by_id.values()]


def choose_with_ref(
    histories: Sequence[RemoteHistory], words: str | None, ref: str | None
) -> tuple[RemoteHistory, str | None]:
    """Returns what :func:`choose` does, and the REF, which ``words`` may name as well."""
    for name, inner in name_and_ref(words or ""):
        if any(is_meant_by(name, item.name, item.id) for item in histories):
            return choose(histories, name), inner or ref
    return choose(histories, words), ref


def choose(histories: Sequence[RemoteHistory], words: str | None) -> RemoteHistory:
    """Returns the history that is meant by a name or the beginning of an id, or the only one.

    Raises NotFound, and InvalidArgument where there are several.
    """
    matches = [
        item for item in histories if words is None or is_meant_by(words, item.name, item.id)
    ]
    if not matches:
        what = "history" if words is None else f"history {quoted(words)}"
        there = f"; it has {_names(histories)}" if histories else ""
        raise NotFound(f"The remote has no {what}{there}", code=ErrorCode.HISTORY_NOT_FOUND)
    if len(matches) > 1:
        raise InvalidArgument(
            f"Several histories are possible: {_names(matches)}; a name or the beginning of an id "
            "names one"
        )
    return matches[0]


def _names(histories: Sequence[RemoteHistory]) -> str:
    """Returns the names and ids of histories, of many only the first."""
    names = sorted(f"{item.name} ({item.id[:12]})" for item in histories)
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def oldest_first(records: Mapping[SnapshotId, SnapshotRecord]) -> list[SnapshotId]:
    """Returns the ids of snapshots by time, but none before its parent: clocks are set back."""
    ordered: dict[SnapshotId, None] = {}
    for key in sorted(records, key=lambda item: (records[item].created_at_ns, item)):
        line = []
        above: SnapshotId | None = key
        while above is not None and above in records and above not in ordered:
            line.append(above)
            ordered[above] = None
            above = records[above].parent
        for each in reversed(line):  # to the end, parents first
            ordered[each] = ordered.pop(each)
    return list(ordered)
