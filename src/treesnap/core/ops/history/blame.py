"""``blame``: which snapshot brought each line of a file.

The versions of the path are compared from the newest to the oldest. A line belongs to the oldest
snapshot of the run of versions in which it stands. So a line that was removed and came back belongs
to the snapshot that has it again. The walk ends when every line has its snapshot, and where the
path did not exist, or was not text.

Snapshots for agents are taken before each step. So what a step did is first in the snapshot that
was taken before the next one, and a line also says which step it came in.
"""

from __future__ import annotations

from treesnap.core.codec.reader import read_content
from treesnap.core.diff.texts import find_edits, is_binary, split_lines
from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.model.errors import Corrupt, InvalidArgument, NotFound, Refused, quoted
from treesnap.core.model.quantities import size_text
from treesnap.core.model.results import BlameLine, BlameResult
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.history.log import LogRequest, log
from treesnap.core.ops.history.steps import is_before_step
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.tree_state import entry_at


def blame(context: Context, path: bytes, ref: str, size_bytes_max: int) -> BlameResult:
    """Returns the lines of a file in a snapshot, each with the snapshot that brought it.

    Costs the content of each version of the path, one after the other.
    """
    with opened(context, "follow the lines of a file") as session:
        newest = resolve_in(session, ref, paths=(path,), anywhere=True)
        with reading(session, newest):
            entry = entry_at(session.store.trees(), newest, path)
    if entry.kind != EntryKind.FILE:
        raise InvalidArgument(f"{quoted(path or b'.')} is not a file in that snapshot", path=path)
    if entry.size > size_bytes_max:
        raise Refused(
            f"{quoted(path)} has {size_text(entry.size)}, more than {size_text(size_bytes_max)}",
            path=path,
        )
    content = _content(context, newest, entry)
    if is_binary(content):
        raise InvalidArgument(f"{quoted(path)} is not text in that snapshot", path=path)
    lines = split_lines(content)
    followed = _Followed(lines, newest)
    older_ids: dict[SnapshotId, SnapshotId | None] = {}
    is_cut = False
    for change in log(context, LogRequest(path)):
        if change.snapshot.sequence > newest.sequence:
            continue
        version = change.change.new if change.change is not None else None
        if version is None or version.kind != EntryKind.FILE:
            break
        if version.size > size_bytes_max:
            is_cut = True
            break
        if version.content != entry.content:
            content = _content(context, change.snapshot, version)
            if is_binary(content):
                break
            followed.go_back(split_lines(content))
            entry = version
        if not followed.is_done:
            followed.snapshot = change.snapshot
            older_ids[change.snapshot.id] = change.older_id
        else:
            break
    origins = followed.result()
    with opened(context, "follow the lines of a file", recover=False) as session:
        steps = {
            identity: _step(session, older_ids.get(identity))
            for identity in {snapshot.id for snapshot in origins}
        }
    blamed = tuple(
        BlameLine(number, line, snapshot, steps[snapshot.id])
        for number, (line, snapshot) in enumerate(zip(lines, origins, strict=True), start=1)
    )
    return BlameResult(newest, path, blamed, is_complete=not is_cut)


def _step(session: Session, older_id: SnapshotId | None) -> Snapshot | None:
    """Returns the snapshot just before another, if it was taken before a step."""
    if older_id is None:
        return None
    try:
        older = resolve_in(session, older_id)
    except (NotFound, Corrupt):  # deleted or damaged meanwhile
        return None
    return older if is_before_step(older) else None


def _content(context: Context, snapshot: Snapshot, entry: Entry) -> bytes:
    with (
        opened(context, "follow the lines of a file", recover=False) as session,
        reading(session, snapshot),
    ):
        return b"".join(read_content(entry.file_content, session.store.get))


class _Followed:
    """The lines of the newest version, and how far back each was followed."""

    def __init__(self, lines: list[bytes], newest: Snapshot) -> None:
        self._found: list[Snapshot | None] = [None] * len(lines)
        self._version = lines
        self._positions = {number: number for number in range(len(lines))}
        """By line of the current version, the line of the newest one that it became."""
        self.snapshot = newest
        """The oldest snapshot that is known to have the current version."""

    @property
    def is_done(self) -> bool:
        """Whether all lines have their snapshot."""
        return not self._positions

    def go_back(self, older: list[bytes]) -> None:
        """Goes to the version before; lines that it lacks came with the current one."""
        positions: dict[int, int] = {}
        old_from = new_from = 0
        ends = (len(older), len(older), len(self._version), len(self._version))
        for _, old_end, new_start, new_end in [*find_edits(older, self._version), ends]:
            for number in range(new_from, new_start):
                if number in self._positions:
                    positions[old_from + number - new_from] = self._positions[number]
            for number in range(new_start, new_end):
                if number in self._positions:
                    self._found[self._positions[number]] = self.snapshot
            old_from, new_from = old_end, new_end
        self._version, self._positions = older, positions

    def result(self) -> list[Snapshot]:
        """Returns the snapshot of each line; what was followed to the end is of the oldest one."""
        return [blamed or self.snapshot for blamed in self._found]
