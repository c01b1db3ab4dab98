"""What hosts told of the work of agents in a root, beside the snapshots that were taken for it.

A call of a tool that changed nothing makes no snapshot, but that it has ended decides whose later
changes are. So each event leaves a *mark*: a line in a file of the root that only grows, until it
is cut to the newest. It is not synced: a lost mark makes changes less certainly an agent's own,
never more. A line that was torn counts for nothing, and takes no other with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from zlib import crc32

from treesnap.agents.event import Event
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import open_regular, read_file, replace_file, write_all
from treesnap.core.model import treepath
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session
from treesnap.core.ops.history.steps import EventPhase, step_of

MARKS_FILE = "marks"
"""The name of the file that keeps them, in the directory of the root."""
MARKS_SIZE_MAX = 1 << 20
"""A file that is larger is cut to half of that."""
_PATHS_MAX = 100
"""Paths that one call may name; one that names more counts as one that may change any."""
_READ_SIZE_MAX = 4 * MARKS_SIZE_MAX


class MarkPhase(StrEnum):
    """What a host told."""

    TURN = "turn"
    """The user wrote a prompt."""
    WAKE = "wake"
    """The host went on by itself, after a task in the background."""
    PRE = "pre"
    """A call begins, and the files were captured."""
    GAP = "gap"
    """A call begins, and the files were not captured."""
    POST = "post"
    """A call has ended, or with no name each one of the session; the files were captured."""
    POST_GAP = "post-gap"
    """Likewise, and the files were not captured."""
    BACKGROUND = "background"
    """What a call started goes on after its end."""
    SETTLED = "settled"
    """That has ended, or with no name all that the session left in the background."""
    END = "end"
    """The agent has done what it was asked for: of those in the session, the one that is named."""
    END_GAP = "end-gap"
    """Likewise, or another prompt came; and the files were not captured."""
    OUTSIDE = "outside"
    """The agent works in directories outside of the root, which ``paths`` has in full."""


class ToldMark(NamedTuple):
    """One thing that a host told."""

    at: int
    """The number of the snapshot that holds the files as they were then."""
    session: str
    phase: MarkPhase
    call: str = ""
    """What names the call of a tool."""
    paths: tuple[bytes, ...] | None = None
    """The paths that a call says that it changes; None for one that may change any."""
    agent: str = ""
    """Which agent within the session, where one has started others."""
    time_ns: int = 0

    @property
    def end(self) -> int:
        """The number up to which a call may have changed files that has ended here."""
        is_gap = self.phase in (MarkPhase.POST_GAP, MarkPhase.END_GAP)
        return self.at + is_gap  # what it changed is in the next state


_OF_EVENT = {
    EventPhase.TURN: MarkPhase.TURN,
    EventPhase.WAKE: MarkPhase.WAKE,
    EventPhase.PRE: MarkPhase.PRE,
    EventPhase.POST: MarkPhase.POST,
    EventPhase.END: MarkPhase.END,
}
_OF_GAP = {
    EventPhase.TURN: MarkPhase.END_GAP,
    EventPhase.WAKE: MarkPhase.WAKE,
    EventPhase.PRE: MarkPhase.GAP,
    EventPhase.POST: MarkPhase.POST_GAP,
    EventPhase.END: MarkPhase.END_GAP,
}


def marks_of(
    session: Session, event: Event, at: int, time_ns: int, *, is_captured: bool = True
) -> list[ToldMark]:
    """Returns the marks of an event, which was captured in the snapshot with a number, or not.

    Of what was not captured only that a call begins, or that a call or an agent has ended, counts.
    """
    phase = (_OF_EVENT if is_captured else _OF_GAP).get(event.phase)
    if phase is None:
        return []
    paths = None
    root = os.fsencode(session.context.root)
    if event.paths is not None and len(event.paths) <= _PATHS_MAX:
        paths = tuple(_within(root, event.paths))
    marks = [ToldMark(at, event.session, phase, event.call, paths, event.agent, time_ns)]
    if event.is_background and event.phase is EventPhase.POST:
        marks.append(marks[0]._replace(phase=MarkPhase.BACKGROUND, paths=None))
    if event.ends_agent:
        end = MarkPhase.END if is_captured else MarkPhase.END_GAP
        marks.append(marks[0]._replace(phase=end))
    outside = tuple(_outside(root, event))
    if outside:
        marks.append(marks[0]._replace(phase=MarkPhase.OUTSIDE, call="", paths=outside))
    if is_captured:
        marks += [
            marks[0]._replace(phase=MarkPhase.SETTLED, call=call, paths=None)
            for call in event.settled
        ]
    return marks


def _within(root: bytes, paths: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the paths of files relative to the root, of links with what they lead to.

    Without those outside of the root.
    """
    for path in paths:
        directory, name = os.path.split(path)
        real_paths = {os.path.join(os.path.realpath(directory), name), os.path.realpath(path)}
        for each in sorted(real_paths):
            if treepath.is_within(each, root.rstrip(b"/")):
                yield each[len(root.rstrip(b"/")) + 1 :]


def _outside(root: bytes, event: Event) -> Iterator[bytes]:
    """Yields the directories outside of the root in which an event says that the agent works."""
    paths = () if event.paths is None else event.paths
    directories = {os.path.dirname(os.path.realpath(path)) for path in paths[:_PATHS_MAX]}
    if event.directory is not None:
        directories.add(os.path.realpath(os.fsencode(event.directory)))
    for directory in sorted(directories):
        if not treepath.is_within(directory, root.rstrip(b"/")):
            yield directory


def add_marks(session: Session, marks: Iterable[ToldMark]) -> None:
    """Adds marks to those of the root, in one write; the caller holds the root's lock.

    Without it, which is allowed for what could not be captured, a cut may lose them. Syncs
    nothing. Raises OSError.
    """
    lines = b"".join(map(_line, marks))
    if not lines:
        return
    fs, path = session.fs, session.root.file(MARKS_FILE)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        fd = open_regular(fs, path, flags, by_one_name=True)
    except Corrupt:  # it may be a file of the user, to which a stranger made a link
        _cut(session, fs, path)
        fd = open_regular(fs, path, flags, by_one_name=True)
    try:
        write_all(fs, fd, lines)
        size_bytes = fs.fstat(fd).st_size
    finally:
        fs.close(fd)
    if size_bytes > MARKS_SIZE_MAX:
        _cut(session, fs, path)


def _cut(session: Session, fs: FileSystem, path: str) -> None:
    """Leaves the newest marks, about half of what there may be."""
    kept: list[bytes] = []
    size_bytes = 0
    for mark in reversed(marks_in(session)):
        line = _line(mark)
        size_bytes += len(line)
        if size_bytes > MARKS_SIZE_MAX // 2:
            break
        kept.append(line)
    content = b"".join(reversed(kept))
    replace_file(fs, path, content, temporary=session.store.layout.temporary, durable=False)


def marks_in(session: Session) -> list[ToldMark]:
    """Returns the marks of the root, oldest first; those that are damaged are left out."""
    data = b""
    with suppress(OSError, Corrupt):
        data = read_file(session.fs, session.root.file(MARKS_FILE), _READ_SIZE_MAX)
    return [mark for mark in map(_parsed, data.split(b"\n")) if mark is not None]


def with_steps(marks: Iterable[ToldMark], snapshots: Iterable[Snapshot]) -> list[ToldMark]:
    """Returns marks in order, with those that snapshots stand for whose own were lost.

    ``snapshots`` are some of the root, in any order.
    """
    all_marks = list(marks)
    told = {(mark.session, mark.phase, mark.at) for mark in all_marks}
    all_marks += [
        mark for mark in _of_steps(snapshots) if (mark.session, mark.phase, mark.at) not in told
    ]
    return sorted(all_marks, key=lambda mark: mark.at)  # stable: else as they were told


def _of_steps(snapshots: Iterable[Snapshot]) -> Iterator[ToldMark]:
    for snapshot in snapshots:
        step = step_of(snapshot)
        phase = _OF_EVENT.get(step.phase) if step is not None else None
        if step is not None and phase is not None:
            time_ns = snapshot.record.created_at_ns
            call = step.key if phase is MarkPhase.PRE else ""
            session = snapshot.record.session or ""
            yield ToldMark(snapshot.sequence, session, phase, call, time_ns=time_ns)


def _line(mark: ToldMark) -> bytes:
    """Returns a mark as a line, between two ends of lines: the line before it may be torn."""
    paths = mark.paths and [os.fsdecode(path) for path in mark.paths]
    fields = [mark.at, mark.session, mark.phase, mark.call, paths, mark.agent, mark.time_ns]
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"\n%08x %s\n" % (crc32(text), text)


def _parsed(line: bytes) -> ToldMark | None:
    """Returns the mark in a line, or None where it is none."""
    digits, _, text = line.partition(b" ")
    if not text or digits != b"%08x" % crc32(text):
        return None
    try:
        at, session, phase, call, paths, agent, time_ns = json.loads(text)
        encoded = None if paths is None else tuple(map(os.fsencode, paths))
        mark = ToldMark(at, session, MarkPhase(phase), call, encoded, agent, time_ns)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (mark.session, mark.call, mark.agent)
    is_number = all(type(number) is int and number >= 0 for number in (at, time_ns))
    return mark if is_number and all(type(text) is str for text in texts) else None
