"""Going back to before a prompt or a tool call of an agent, and keeping what others did since.

The state in which the agent left the files is the snapshot of the end of its turn. It is the
base of the restore: what differs from it was changed by others, such as the user, and is a
conflict. After an earlier rewind, or another restore, what that went to is a base as well if it
was captured before the end of the turn, so that others did nothing in it that has to be kept.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile, zip_longest

from treesnap.agents.hook import PROMPT_COMMANDS
from treesnap.agents.hosts.table import HOSTS
from treesnap.agents.sessions import AgentSession, agent_session, agent_sessions
from treesnap.core.codec.root_files import Gap
from treesnap.core.model.errors import InvalidArgument, NotFound, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import RestoreResult
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.history.steps import AgentStep, EventPhase
from treesnap.core.ops.references import resolve_in
from treesnap.core.ops.restore.plan import KEEP, OVERWRITE, RestoreRequest
from treesnap.core.ops.undo import restore
from treesnap.core.store.snapshots import restored_ref

_PROMPTS_DIGITS_MAX = 3
"""More digits are the beginning of an id, which takes four at least."""
_STEP = "step:"
_WORDS_MAX = 3
"""Of ``snap rewind N``; options do not count."""


class RewindRequest(NamedTuple):
    """What the caller of ``rewind`` asked for."""

    where: str = "1"
    """How many prompts to go back, ``step:N`` of the session, or any other REF."""
    session_id: str | None = None
    """The session, or None for the one that did something last; commands are nothing."""
    overwrites: bool = False
    """Whether what others changed since is restored as well."""
    dry_run: bool = False
    list_changes: bool = True


class RewindResult(NamedTuple):
    """Outcome of ``rewind``."""

    session: AgentSession
    step: AgentStep | None
    """The step that the root went back to, or None for a REF that is none of the session's."""
    restore: RestoreResult
    """Without bases, it is not known what others changed, and all was restored."""
    gaps: tuple[Gap, ...]
    """What was not captured since then, newest first."""


def rewind(context: Context, request: RewindRequest) -> RewindResult:
    """Goes back to before a prompt or a step of an agent, all or nothing.

    Raises NotFound where there is no such session, prompt or step, InvalidArgument, and what
    :meth:`treesnap.Handle.restore` does.
    """
    where = request.where
    is_number = where.isdecimal() and len(where) <= _PROMPTS_DIGITS_MAX
    if is_number and int(where) == 0:
        raise InvalidArgument("The number of prompts to go back is 1 or more")
    target_id = None
    if not is_number and not where.startswith(_STEP):
        with opened(context, "rewind") as opened_session:
            target_id = resolve_in(opened_session, where).id
    session = _session(context, request.session_id)
    if target_id is None:
        found = _before_prompt(session, int(where)) if is_number else _step_named(session, where)
        target_id = found.snapshot.id
    result = restore(
        context,
        RestoreRequest(
            ref=target_id,
            dry_run=request.dry_run,
            list_changes=request.list_changes,
            bases=_base_ids(context, session),
            conflicts=OVERWRITE if request.overwrites else KEEP,
        ),
    )
    since_ns = result.snapshot.record.created_at_ns
    return RewindResult(
        session,
        next((step for step in session.steps if step.snapshot.id == target_id), None),
        result,
        tuple(gap for gap in session.gaps if gap.time_ns >= since_ns),
    )


def _session(context: Context, session_id: str | None) -> AgentSession:
    if session_id is None:
        for session in agent_sessions(context):
            if session.gaps or _work_of(session):
                return session
    return agent_session(context, session_id)


def _step_named(session: AgentSession, where: str) -> AgentStep:
    for step in session.steps:
        if where == f"{_STEP}{step.number}":
            return step
    raise NotFound(f"The session {quoted(session.id)} has no {quoted(where)}")


def _before_prompt(session: AgentSession, count: int) -> AgentStep:
    """Returns the step before the newest prompt, the second newest, and so on."""
    work = _work_of(session)
    turns = [position for position, step in enumerate(work) if step.phase is EventPhase.TURN]
    if count > len(turns):
        held = count_text(len(turns), "prompt")
        raise NotFound(f"Of the session {quoted(session.id)}, {held} can be undone")
    position = turns[count - 1]
    host = HOSTS.get(session.host)
    if host is not None and not host.waits_for_turn:
        position += _overtaking(work[position + 1 :])
    return work[position]


def _overtaking(earlier: list[AgentStep]) -> int:
    """Returns how many tool calls were captured before the prompt that asked for them.

    Those after another prompt that no end of a turn follows may be of that one.
    """
    calls = list(takewhile(lambda step: step.phase is EventPhase.PRE, earlier))
    before = [step.phase for step in earlier[len(calls) : len(calls) + 1]]
    return 0 if before == [EventPhase.TURN] else len(calls)


def _work_of(session: AgentSession) -> list[AgentStep]:
    """Returns the steps of a session, newest first, without those of commands such as this one.

    Where a host cannot carry out what is typed as a prompt, the model runs it as a tool: then the
    prompt, the tool and the end of that turn are no work.
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


def _base_ids(context: Context, session: AgentSession) -> tuple[SnapshotId, ...]:
    """Returns the states that are not the work of others, or none where that is not known.

    That is the end of the turn, if it is the newest of what is known of the session. A gap has no
    place among the steps but by its time: if the clock was set back meanwhile, there may be
    conflicts that are none.
    """
    steps = _work_of(session)
    if not steps or steps[0].phase is not EventPhase.END:
        return ()
    newest = steps[0].snapshot
    if any(gap.time_ns > newest.record.created_at_ns for gap in session.gaps):
        return ()
    base_ids = [newest.id]
    with opened(context, "rewind") as opened_session:
        snapshots = opened_session.store.snapshots.readable(opened_session.root.id)
        later = list(takewhile(lambda item: item.id != newest.id, snapshots))
        for ref in filter(None, map(restored_ref, later)):
            with suppress(NotFound):  # deleted since: more is a conflict than has to be
                base_ids.append(resolve_in(opened_session, ref).id)
    # What an undo went to has what others did since the turn ended.
    unknown = {snapshot.id for snapshot in later}
    return tuple(base_id for base_id in dict.fromkeys(base_ids) if base_id not in unknown)
