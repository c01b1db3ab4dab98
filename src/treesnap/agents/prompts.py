"""The prompts of a root's sessions, with what was changed for each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator

from treesnap.agents.attribution import Whose
from treesnap.agents.rewind import session_of_work
from treesnap.agents.root_history import RootHistory, was_there
from treesnap.agents.sessions import AgentSession, agent_sessions, work_of
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.history.steps import AgentStep, EventPhase


class Prompt(NamedTuple):
    """A prompt, and what the work for it changed."""

    number: int | None
    """How many prompts ``rewind`` has to go back; None for one of another session."""
    session: AgentSession
    step: AgentStep
    changed: int
    """Paths that were changed, as far as they are the session's own."""
    uncertain: int
    """Other paths that another session or work in the background may have changed, too."""
    gaps: int
    """What was not captured meanwhile."""


def prompts(
    context: Context, session_id: str | None = None, limit: int | None = 20
) -> tuple[Prompt, ...]:
    """Returns prompts, newest first: those that ``rewind`` counts, and between them others.

    What was typed as a command is not a prompt. At most ``limit`` of the session are listed. Costs
    a comparison of each two states since the oldest of them. Raises NotFound where no agent worked.
    """
    own = session_of_work(context, session_id)
    turns = _turns(own)[:limit]
    if not turns:
        return ()
    listed = _counted(context, own, turns, is_own=True)
    for other in agent_sessions(context):
        if other.id != own.id:
            since = turns[-1].snapshot.sequence
            later = [step for step in _turns(other) if step.snapshot.sequence >= since]
            listed += _counted(context, other, later, is_own=False)
    listed.sort(key=lambda prompt: prompt.step.snapshot.sequence, reverse=True)
    return tuple(listed)


def _turns(session: AgentSession) -> list[AgentStep]:
    """Returns the steps of prompts, newest first."""
    return [step for step in work_of(session) if step.phase is EventPhase.TURN]


def _counted(
    context: Context, session: AgentSession, turns: list[AgentStep], *, is_own: bool
) -> list[Prompt]:
    """Returns some prompts of a session with what was changed for each."""
    if not turns:
        return []
    oldest_first = turns[::-1]
    numbers = [step.snapshot.sequence for step in oldest_first]
    times = [step.snapshot.record.created_at_ns for step in oldest_first]
    changed: dict[int, set[bytes]] = defaultdict(set)
    uncertain: dict[int, set[bytes]] = defaultdict(set)
    with opened(context, "list prompts") as opened_session:
        newest = _newest(opened_session.store.snapshots.readable(opened_session.root.id))
        if newest is not None:
            history = RootHistory(opened_session, session, oldest_first[0].snapshot, newest)
            for at, path, whose in history.changes():
                place = bisect_left(numbers, at) - 1  # what led to a prompt is of the one before
                if whose in (Whose.OWN, Whose.PERHAPS):
                    changed[place].add(path)
                elif whose is not Whose.OTHERS:
                    uncertain[place].add(path)
    gaps: dict[int, int] = defaultdict(int)
    for gap in session.gaps:
        gaps[bisect_right(times, gap.time_ns) - 1] += 1
    return [
        Prompt(
            len(turns) - place if is_own else None,
            session,
            step,
            len(changed[place]),
            len(uncertain[place] - changed[place]),
            gaps[place],
        )
        for place, step in enumerate(oldest_first)
    ]


def _newest(snapshots: Iterator[Snapshot]) -> Snapshot | None:
    """Returns the newest snapshot that says what was in the whole root."""
    return next((snapshot for snapshot in snapshots if was_there(snapshot)), None)
