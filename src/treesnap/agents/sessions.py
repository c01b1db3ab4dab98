"""What the snapshots of a root say of agents: sessions, their steps, and what is missing.

A step is an automatic snapshot with the facts of its event: ``treesnap.host``, ``.key``,
``.phase`` and ``.tool``. Its session and its number are those of the snapshot. There is no other
record, so steps go when a policy removes their snapshots. What should have been a step and was
not captured is a *gap*, in a small file of the root.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from itertools import islice, zip_longest

from treesnap.agents.event import Event
from treesnap.agents.marks import add_marks, marks_of
from treesnap.agents.session_status import session_statuses
from treesnap.core.codec.root_files import GAPS, GAPS_FILE, GAPS_LENGTH_MAX, Gap
from treesnap.core.codec.snapshot import tag_bytes
from treesnap.core.model import treepath
from treesnap.core.model.errors import (
    ErrorCode,
    NotFound,
    StoreMissing,
    TreesnapError,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.reserved_tags import fact_tags
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.history.log import gaps_in
from treesnap.core.ops.history.steps import AgentStep, EventPhase, step_of
from treesnap.core.store.lock import held, inside
from treesnap.core.store.roots import registered_roots

LOOK_BACK_MAX = 256
"""Snapshots of a root that are read at most before a step of a known session is made."""
REASON_LENGTH_MAX = 300
PROMPT_COMMANDS = frozenset(
    {
        *("rewind", "prompts", "undo", "redo", "restore", "revert", "list", "log", "status"),
        *("diff", "show", "ls", "find", "grep", "blame", "help"),
    }
)
"""Commands that a user can type as a prompt."""
_WORDS_MAX = 3
"""Of ``snap rewind N``; options do not count."""
_LOCK_WAIT_S = 1.0


class AgentSession(NamedTuple):
    """What is known of a session in one root, newest first."""

    id: str
    host: str
    steps: tuple[AgentStep, ...]
    gaps: tuple[Gap, ...]


def agent_sessions(context: Context) -> tuple[AgentSession, ...]:
    """Returns the sessions of a root, the one with the newest step or a later gap first.

    Steps have an order without a clock, which may have been set back. An incomplete step is a gap
    as well. Reads all records of the root; an absent store has none.
    """
    try:
        with opened(context, "look for sessions of agents") as session:
            all_steps = map(step_of, session.store.snapshots.readable(session.root.id))
            steps = [step for step in all_steps if step is not None]
            gaps = [*gaps_in(session), *filter(None, map(_incomplete, steps))]
    except StoreMissing:
        return ()
    gaps.sort(key=lambda gap: gap.time_ns, reverse=True)
    hosts = {gap.session: gap.host for gap in gaps}
    hosts |= {step.snapshot.record.session or "": step.host for step in steps}
    steps_of, gaps_of = defaultdict[str, list[AgentStep]](list), defaultdict[str, list[Gap]](list)
    for step in steps:
        steps_of[step.snapshot.record.session or ""].append(step)
    for gap in gaps:
        gaps_of[gap.session].append(gap)
    sessions = [
        AgentSession(name, host, tuple(steps_of[name]), tuple(gaps_of[name]))
        for name, host in hosts.items()
    ]
    newest_ns = steps[0].snapshot.record.created_at_ns if steps else -1

    def age(session: AgentSession) -> tuple[int, int, int]:
        sequence = session.steps[0].snapshot.sequence if session.steps else 0
        gap_ns = session.gaps[0].time_ns if session.gaps else -1
        return (gap_ns if gap_ns > newest_ns else -1), sequence, gap_ns

    return tuple(sorted(sessions, key=age, reverse=True))


def agent_session(context: Context, session_id: str | None = None) -> AgentSession:
    """Returns a session of a root, the newest by default; raises NotFound."""
    sessions = agent_sessions(context)
    if session_id is None and sessions:
        return sessions[0]
    for session in sessions:
        if session.id == session_id:
            return session
    which = "an agent" if session_id is None else f"the session {quoted(session_id)} of an agent"
    if sessions:
        host = printable(sessions[0].host)
        instead = f"; the one that worked last is {quoted(sessions[0].id)} of {host}"
    else:
        instead = _instead(context)
    raise NotFound(
        f"No step of {which} was captured in {quoted(context.root)}{instead}",
        code=ErrorCode.SESSION_NOT_FOUND,
    )


def _instead(context: Context) -> str:
    """Returns in which roots above and below there are steps, and why there are none here."""
    text = "".join(f"; there are some in {quoted(path)}" for path in _near_roots(context)[:2])
    for status in session_statuses(context.fs):
        if status.problem is not None and status.directory == context.root:
            return f"{text}; the newest event of {printable(status.host)}: {status.problem}"
    return text


def _near_roots(context: Context) -> list[str]:
    """Returns the roots above and below this one in which agents have worked, the newest first."""
    by_time: list[tuple[int, str]] = []
    own = os.fsencode(context.root)
    with suppress(StoreMissing, TreesnapError), opened(context, "look", recover=False) as session:
        for path in registered_roots(session.fs, session.store.layout):
            is_near = treepath.is_within(path, own) or treepath.is_within(own, path)
            if path == own or not is_near:
                continue
            root = session.store.root(path)
            recent = islice(session.store.snapshots.readable(root.id), LOOK_BACK_MAX)
            step = next(filter(None, map(step_of, recent)), None)
            if step is not None:
                by_time.append((step.snapshot.record.created_at_ns, os.fsdecode(path)))
    return [path for _, path in sorted(by_time, reverse=True)]


def newest_by_host(context: Context) -> dict[str, int]:
    """Returns when the newest step or gap of each host came, in any root of the store.

    Reads the newest records of each root only.
    """
    newest: dict[str, int] = {}
    with suppress(StoreMissing), opened(context, "look for sessions of agents") as session:
        for root_id in session.store.snapshots.root_ids():
            recent = islice(session.store.snapshots.readable(root_id), LOOK_BACK_MAX)
            of_root = session._replace(root=session.store.root_by_id(root_id, b"/"))
            steps = [step for step in map(step_of, recent) if step is not None]
            times = [(step.host, step.snapshot.record.created_at_ns) for step in steps]
            for host, time_ns in times + [(gap.host, gap.time_ns) for gap in gaps_in(of_root)]:
                newest[host] = max(time_ns, newest.get(host, 0))
    return newest


class Before(NamedTuple):
    """What of a session came before an event."""

    same: Snapshot | None
    """The snapshot that was taken when the event was told first."""
    newest: Snapshot | None
    number: int
    """That of the next step."""
    last_seen: Snapshot | None
    """The files as the agent last saw them, if a restore came after the newest step."""


def look_back(session: Session, event: Event) -> Before:
    """Returns what came before an event. Reads records, newest first, to the newest turn.

    That suffices: no key is older than its prompt. Of a session that has a step no more than
    LOOK_BACK_MAX records are read, else all, for it may be one that is resumed: numbers of steps
    go on.
    """
    newest: Snapshot | None = None
    last_seen: Snapshot | None = None
    looks = 0
    own, safety = event.session.encode(), SnapshotKind.SAFETY.value.encode()
    facts = fact_tags(phase=EventPhase.TURN.value, key=event.key or None)
    told = [tag_bytes(name, value) for name, value in facts.items()]

    def may_matter(data: bytes) -> bool:
        nonlocal looks
        looks += 1
        if newest is None:
            return own in data or safety in data
        return looks > LOOK_BACK_MAX or (own in data and any(tag in data for tag in told))

    log, cache = session.store.snapshots, session.context.record_cache
    for snapshot in log.readable(session.root.id, may_matter=may_matter, cache=cache):
        if looks > LOOK_BACK_MAX and newest is not None:
            break
        step = step_of(snapshot)
        if step is None or snapshot.record.session != event.session or step.host != event.host:
            if newest is None and _is_before_restore(snapshot):
                last_seen = snapshot  # of the oldest restore since: what the newest step did
            continue
        if newest is None:
            newest = snapshot
            if last_seen is not None and step.phase is EventPhase.END:
                last_seen = snapshot  # without what others did between it and the restore
        if event.key and (step.key, step.phase) == (event.key, event.phase):
            return Before(snapshot, newest, step.number, last_seen)
        if step.phase is EventPhase.TURN:
            break
    number = 1 + (newest.record.step or 0) if newest is not None else 1
    return Before(None, newest, number, last_seen)


def _is_before_restore(snapshot: Snapshot) -> bool:
    if snapshot.kind != SnapshotKind.SAFETY:
        return False
    from treesnap.core.store.snapshots import restored_ref

    return restored_ref(snapshot) is not None


def note_gap(context: Context, event: Event, reason: str) -> None:
    """Keeps that an event was not captured; durable after return.

    Does nothing where that cannot be kept either, or the store does not know the root.
    """
    gap = Gap(
        time_ns=context.clock_ns(),
        host=event.host,
        session=event.session,
        key=event.key,
        phase=event.phase.value,
        tool=event.tool,
        reason=reason[:REASON_LENGTH_MAX],
    )
    _note_marks(context, event, gap)


def note_command(context: Context, event: Event) -> None:
    """Keeps that a prompt came which is a command, so that what ran before it has ended by now.

    Nothing is captured for it. Does nothing where that cannot be kept.
    """
    _note_marks(context, event)


def _note_marks(context: Context, event: Event, *gaps: Gap) -> None:
    """Adds the marks of an event that was not captured, and gaps to those of the root."""
    with (
        suppress(TreesnapError, OSError),
        opened(context, "note what was not captured", recover=False) as session,
    ):
        if not session.root.is_registered():
            return
        lock, what = session.root.file(f"{GAPS_FILE}-lock"), "The list of gaps"
        with (
            inside(session.fs, session.store.path, _LOCK_WAIT_S),
            held(session.fs, lock, operation="note a gap", what=what, wait_s=_LOCK_WAIT_S),
        ):
            if gaps:
                kept = (*gaps_in(session), *gaps)[-GAPS_LENGTH_MAX:]
                session.root.write(GAPS_FILE, GAPS, kept)
            newest = session.store.snapshots.listing(session.root.id).newest
            at = newest.sequence if newest is not None else 0
            marks = marks_of(session, event, at, context.clock_ns(), is_captured=False)
            add_marks(session, marks)


def _incomplete(step: AgentStep) -> Gap | None:
    """Returns the gap that a step leaves which did not capture everything, or None."""
    record = step.snapshot.record
    if step.snapshot.complete:
        return None
    reason = f"{record.totals.incomplete} of its paths could not be read"
    session = record.session or ""
    phase = step.phase.value
    return Gap(record.created_at_ns, step.host, session, step.key, phase, step.tool, reason)


def work_of(session: AgentSession) -> list[AgentStep]:
    """Returns the steps of a session, newest first, without those of commands such as this one.

    Where a host cannot carry out what is typed as a prompt, the model runs it as a tool: then the
    prompt, the tool and the end of that turn are not work.
    """
    return [
        step
        for step, earlier in zip_longest(session.steps, session.steps[1:])
        if not _is_of_command(earlier if step.phase is EventPhase.END and earlier else step)
    ]


def _is_of_command(step: AgentStep) -> bool:
    """Returns whether a step is from before a command; longer ones may be sentences, or do more."""
    label = (step.snapshot.label or "").removeprefix(f"{step.tool}: ")
    words = [word for word in label.split() if not word.startswith("-")]
    if words[:1] != ["snap"] or len(words) > _WORDS_MAX:
        return False
    return words[1:2] == ["rewind"] or (words[1:] != [] and " ".join(words[1:]) in PROMPT_COMMANDS)
