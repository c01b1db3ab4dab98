"""How the lines of a file differ from those in a snapshot, and restoring some of these hunks.

    read both sides            gives hunks to choose from, and the hash of the live file
    capture the live file      under the root's lock; another hash is a conflict
    publish the goal           a snapshot of that file with the chosen lines of the old one
    restore it                 all or nothing; the state has to be the captured one

A kill before the restore leaves one snapshot more, and the tree as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from stat import S_ISREG

from treesnap.core.codec.reader import read_content
from treesnap.core.codec.snapshot import state_hash
from treesnap.core.diff.texts import CONTEXT_LINES, find_edits, split_lines
from treesnap.core.diff.three_way import TEXT_SIZE_MAX, are_texts
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.model.errors import (
    Conflict,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    quoted,
)
from treesnap.core.model.ids import ID_SIZE, checksum
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import FileHunks, Hunk, RestoreResult
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.capture import Capture, preview
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.history.browse import read_whole_file
from treesnap.core.ops.merge.trees import applied
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.restore.attempt import refuse_covered
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.tree_state import entry_at
from treesnap.core.ops.undo import refuse_dangerous_restore, restore
from treesnap.core.store.writer import Added, retry_overtaken
from treesnap.core.worktree.directory import NO_DIRECTORY, open_chain
from treesnap.core.worktree.scan.file_reader import store_bytes


def hunks(context: Context, ref: str, path: bytes) -> FileHunks:
    """Returns where a live file differs from a snapshot; see :meth:`treesnap.Handle.hunks`."""
    with opened(context, "compare a file") as session:
        snapshot = resolve_in(session, ref, paths=(path,))
        with reading(session, snapshot):
            entry = entry_at(session.store.trees(), snapshot, path)
            if entry.kind != EntryKind.FILE:
                raise _no_file(path, "in that snapshot")
            _refuse_large(path, entry.size)
            old = b"".join(read_content(entry.file_content, session.store.get))
        live = _live_content(session, path)
    if not are_texts(old, live):
        raise InvalidArgument(f"{quoted(path)} is not a text, so it has no hunks", path=path)
    listed = tuple(_compared(split_lines(old), split_lines(live)))
    return FileHunks(snapshot, path, _hash(live), listed)


def restore_hunks(
    context: Context, hunks: FileHunks, numbers: Sequence[int], *, force: bool
) -> RestoreResult:
    """Restores some hunks; see :meth:`treesnap.Handle.restore_hunks`."""
    chosen = frozenset(numbers)
    if not chosen:
        raise InvalidArgument("numbers must name a hunk at least")
    if max(chosen) >= len(hunks.hunks):
        raise InvalidArgument(
            f"There is no hunk {max(chosen)}: {quoted(hunks.path)} has {len(hunks.hunks)}, from 0"
        )
    refuse_dangerous_restore(context, force=force)
    with (
        opened(context, "restore", writing=True, recover=False) as session,
        locked_root(session, "restore"),
    ):
        refuse_covered(session)
        scope = _names_of(session, hunks.path)
        goal, before = retry_overtaken(
            "the restore",
            lambda earlier: _publish_goal(session, hunks, chosen, scope, earlier),
        )

    def approve(state: str) -> None:
        if state != before:
            raise _changed(hunks.path)

    return restore(context, RestoreRequest(ref=goal.id, force=force, approve=approve))


def _compared(old: Sequence[bytes], live: Sequence[bytes]) -> Iterator[Hunk]:
    edits = find_edits(old, live)
    ends = [0, *(edit.new_end for edit in edits)]
    starts = [*(edit.new_start for edit in edits), len(live)]
    for number, edit in enumerate(edits):
        start, end = edit.new_start, edit.new_end
        yield Hunk(
            number=number,
            live_start=start,
            live_lines=tuple(live[start:end]),
            snapshot_start=edit.old_start,
            snapshot_lines=tuple(old[edit.old_start : edit.old_end]),
            lines_before=tuple(live[max(ends[number], start - CONTEXT_LINES) : start]),
            lines_after=tuple(live[end : min(starts[number + 1], end + CONTEXT_LINES)]),
        )


def _with_restored(live: bytes, hunks: FileHunks, chosen: Collection[int]) -> bytes:
    """Returns the live text with the lines of the snapshot in the place of its own."""
    lines, text, at = split_lines(live), list[bytes](), 0
    for hunk in hunks.hunks:
        if hunk.number in chosen:
            text += lines[at : hunk.live_start]
            text += hunk.snapshot_lines
            at = hunk.live_start + len(hunk.live_lines)
    return b"".join(text + lines[at:])


def _publish_goal(
    session: Session,
    hunks: FileHunks,
    chosen: Collection[int],
    scope: tuple[bytes, ...],
    earlier: Mapping[bytes, Added],
) -> tuple[Snapshot, str]:
    """Publishes the file as it is to become; returns that, and the state that was captured.

    Its other names get the same content. Everything but content and time stays.
    """
    with (
        translating_os_errors("take a snapshot"),
        Capture(session, CaptureRequest(scope=scope, fresh=True), earlier=earlier) as capture,
    ):
        state, put = capture.state, capture.writer.put
        entry = state.entry(hunks.path)
        if entry is None or entry.is_skipped:
            _live_content(session, hunks.path)
            raise Refused(
                f"{quoted(hunks.path)} is not captured, so it could not be brought back",
                code=ErrorCode.UNREADABLE,
                path=hunks.path,
            )
        if entry.kind != EntryKind.FILE or entry.size > TEXT_SIZE_MAX:
            raise _changed(hunks.path)
        live = b"".join(read_content(entry.file_content, capture.writer.get))
        if _hash(live) != hunks.live_hash:
            raise _changed(hunks.path)
        text = _with_restored(live, hunks, chosen)
        content, now_ns = store_bytes(text, put), session.context.clock_ns()
        taken: dict[bytes, Entry | None] = {
            path: entry._replace(
                name=treepath.split(path)[1], content=content, size=len(text), mtime_ns=now_ns
            )
            for path in state.groups.get(hunks.path, (hunks.path,))
        }
        root, totals = applied(state.root, taken, {}, {}, state.trees, put)
        record = capture.record()
        goal = record._replace(
            root=root,
            totals=totals,
            unstable=(),
            kind=SnapshotKind.AUTOMATIC,
            label=f"{len(chosen)} of {len(hunks.hunks)} hunks as in {hunks.snapshot.id[:12]}",
        )
        return capture.publish(goal), state_hash(record)


def _names_of(session: Session, path: bytes) -> tuple[bytes, ...]:
    """Returns all names of a file in the root, which stay names of one file.

    Costs a look at the file, and where it has several names a walk of the root.
    """
    directory, name = treepath.split(path)
    with translating_os_errors("look at a file"):
        try:
            with open_chain(session.fs, session.context.root) as chain:
                links = session.fs.lstat(name, dir_fd=chain.open(directory)).st_nlink
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                raise _changed(path) from error
            raise
    return (path,) if links == 1 else preview(session).state.groups.get(path, (path,))


def _live_content(session: Session, path: bytes) -> bytes:
    directory, name = treepath.split(path)
    with translating_os_errors("read a file"):
        try:
            with open_chain(session.fs, session.context.root) as chain:
                parent = chain.open(directory)
                status = session.fs.lstat(name or b".", dir_fd=parent)
                if not S_ISREG(status.st_mode):
                    raise _no_file(path, "in the tree")
                _refuse_large(path, status.st_size)
                return read_whole_file(session.fs, name, parent)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            raise NotFound(
                f"The tree does not hold {quoted(path)}", code=ErrorCode.PATH_NOT_FOUND, path=path
            ) from None


def _refuse_large(path: bytes, size: int) -> None:
    if size > TEXT_SIZE_MAX:
        raise InvalidArgument(
            f"{quoted(path)} is larger than {TEXT_SIZE_MAX >> 20} MiB, so it has no hunks",
            path=path,
        )


def _no_file(path: bytes, where: str) -> InvalidArgument:
    return InvalidArgument(f"{quoted(path)} is not a file {where}", path=path)


def _changed(path: bytes) -> Conflict:
    return Conflict(f"{quoted(path)} changed since its hunks were listed", path=path)


def _hash(content: bytes) -> str:
    return checksum(content, ID_SIZE).hex()
