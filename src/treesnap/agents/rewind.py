"""Going back to before a prompt or a tool call of an agent, and keeping what others did since.

    capture the root           a safety snapshot, unless the newest snapshot is the same
    take the states            since the target, and the marks of what hosts told meanwhile
    judge each path            ``attribution`` says which of its versions stays
    publish the outcome        a safety snapshot of versions from several states
    restore it                 all or nothing; what changed since the capture stays

A kill before the restore leaves one or two snapshots more, and the tree as it was.
"""

from __future__ import annotations

from itertools import takewhile

from treesnap.agents.attribution import Verdict, Whose
from treesnap.agents.git_head import git_head, parsed_head
from treesnap.agents.hosts.table import HOSTS
from treesnap.agents.marks import MarkPhase, marks_in
from treesnap.agents.root_history import JudgedPath, RootHistory
from treesnap.agents.sessions import AgentSession, agent_session, agent_sessions, work_of
from treesnap.core.codec.root_files import Gap
from treesnap.core.model import treepath
from treesnap.core.model.entries import ChangeKind, ChangeList
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags, facts_of
from treesnap.core.model.results import RestoreResult
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.create import create
from treesnap.core.ops.history.steps import AgentStep, EventPhase
from treesnap.core.ops.merge.selection import PathSelection, select
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.restore.attempt import refuse_covered
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import refuse_dangerous_restore, restore
from treesnap.core.worktree.scan.ignore import IGNORE_FILE

_PROMPTS_DIGITS_MAX = 3
"""More digits are the beginning of an id, which takes four at least."""
_STEP = "step:"
_BACK = (Verdict.UNDONE, Verdict.PERHAPS, Verdict.BACK_TO_OTHERS)
"""What a rewind did with a path that is not as it was before it."""


class RewindRequest(NamedTuple):
    """What the caller of ``rewind`` asked for."""

    where: str = "1"
    """How many prompts to go back, ``step:N`` of the session, or any other REF."""
    session_id: str | None = None
    """The session, or None for the one that did something last; commands are nothing."""
    paths: tuple[bytes, ...] = ()
    """What alone goes back; none for all."""
    overwrites: bool = False
    """Whether all is restored, also what others changed."""
    widened: frozenset[Whose] = frozenset()
    """What is undone as well: SHARED, UNKNOWN, or both."""
    dry_run: bool = False
    list_changes: bool = True


class MovedBranch(NamedTuple):
    """A branch that stands elsewhere than before the work that was undone."""

    name: str
    """Empty where none is checked out."""
    before: str
    """The commit at which it stood then."""
    now: str


class RewindResult(NamedTuple):
    """Outcome of ``rewind``."""

    session: AgentSession
    step: AgentStep | None
    """The step that the root went back to, or None for a REF that is none of the session's."""
    restore: RestoreResult
    """Its ``conflicts`` are all paths that differ from the target because they are kept; or that
    did so, where all was overwritten."""
    gaps: tuple[Gap, ...]
    """What was not captured since then, newest first."""
    paths: tuple[JudgedPath, ...] = ()
    """Every path that changed since then, with what became of it, or would have."""
    outside: tuple[bytes, ...] = ()
    """Directories outside of the root in which the agent worked since then: none is captured."""
    branch: MovedBranch | None = None
    """The branch of the root, where it stands elsewhere than then."""
    restores: int = 1
    """How many were made: two where an ignore file went back, and then what it had excluded."""


def rewind(context: Context, request: RewindRequest) -> RewindResult:
    """Undoes what a session did since a prompt or a step, all or nothing.

    Costs a comparison of each two states since then. Raises NotFound where there is no such
    session, prompt or step, InvalidArgument, and what :meth:`treesnap.Handle.restore` does.
    """
    where = request.where
    is_number = where.isdecimal() and len(where) <= _PROMPTS_DIGITS_MAX
    if is_number and int(where) == 0:
        raise InvalidArgument("The number of prompts to go back is 1 or more")
    target = None
    if not is_number and not where.startswith(_STEP):
        with opened(context, "rewind") as opened_session:
            target = resolve_in(opened_session, where)
    session = session_of_work(context, request.session_id)
    if target is None:
        found = _before_prompt(session, int(where)) if is_number else _step_named(session, where)
        target = found.snapshot
    target_id, since_ns = target.id, target.record.created_at_ns
    result, judged = _undone(context, request, session, target)
    restores = 1
    if _has_revealed(judged) and not request.dry_run:
        then = _undone(context, request, session, target)
        restores += then[0].safety_id is not None
        result, judged = _also(result, judged, then)
    return RewindResult(
        session,
        next((step for step in session.steps if step.snapshot.id == target_id), None),
        result,
        tuple(gap for gap in session.gaps if gap.time_ns >= since_ns),
        judged,
        _outside(context, session, target),
        _moved_branch(context, target, judged),
        restores,
    )


def _has_revealed(judged: tuple[JudgedPath, ...]) -> bool:
    """Returns whether something was left alone that is excluded no longer, after the rewind.

    An ignore file that the agent wrote must not keep its work; a restore leaves alone what is
    excluded when it begins.
    """
    is_left = any(item.verdict is Verdict.EXCLUDED for item in judged)
    names = (treepath.split(item.path)[1] for item in judged if item.verdict in _BACK)
    return is_left and IGNORE_FILE in names


def _also(
    first: RestoreResult,
    judged: tuple[JudgedPath, ...],
    then: tuple[RestoreResult, tuple[JudgedPath, ...]],
) -> tuple[RestoreResult, tuple[JudgedPath, ...]]:
    """Returns the outcome of two rewinds to one state as that of one."""
    second, conflicts = then
    earlier = {item.path: item for item in judged if item.verdict in _BACK}
    both = {**earlier, **{item.path: item for item in conflicts}}
    for path, item in earlier.items():
        if both[path].verdict is Verdict.KEPT:  # for it is back already
            both[path] = item
    merged = second._replace(
        restored=first.restored + second.restored,
        created=first.created + second.created,
        deleted=first.deleted + second.deleted,
        changes=(*first.changes, *second.changes),
        safety_id=second.safety_id or first.safety_id,
    )
    return merged, tuple(both[path] for path in sorted(both))


def _outside(context: Context, session: AgentSession, target: Snapshot) -> tuple[bytes, ...]:
    """Returns the directories outside of the root in which a session worked since a state."""
    with opened(context, "look where the agent worked", recover=False) as opened_session:
        paths = {
            path
            for mark in marks_in(opened_session)
            if mark.phase is MarkPhase.OUTSIDE and mark.session == session.id
            if mark.at >= target.sequence
            for path in mark.paths or ()
        }
    return tuple(sorted(paths))


def _moved_branch(
    context: Context, target: Snapshot, judged: tuple[JudgedPath, ...]
) -> MovedBranch | None:
    """Returns the branch that stands elsewhere than at a state; None where it went back, too."""
    then, now = parsed_head(facts_of(target).get("git", "")), git_head(context.root)
    undone = (Verdict.UNDONE, Verdict.PERHAPS)
    is_back = any(item.path == b".git" and item.verdict in undone for item in judged)
    if then is None or now is None or is_back or then.branch != now.branch or then == now:
        return None
    return MovedBranch(then.branch, then.commit, now.commit)


def _undone(
    context: Context, request: RewindRequest, session: AgentSession, target: Snapshot
) -> tuple[RestoreResult, tuple[JudgedPath, ...]]:
    """Undoes the changes of a session since a state; returns that, and what became of each path."""
    refuse_dangerous_restore(context, force=False)
    if target.record.scope is not None:
        raise InvalidArgument(
            f"Snapshot {target.id[:12]} was not taken of the whole root, so it can only be restored"
        )
    all_of_it = RestoreRequest(
        ref=target.id,
        paths=request.paths,
        dry_run=request.dry_run,
        list_changes=request.list_changes,
    )
    if not context.has_root():  # no one has a version of anything that could be kept
        return restore(context, all_of_it), ()
    before = CaptureRequest(
        label=f"before the rewind to {target.id[:12]}",
        kind=SnapshotKind.SAFETY,
        skip_unchanged=True,
    )
    mine = create(context, before).snapshot
    with (
        opened(context, "rewind", writing=True, recover=False) as opened_session,
        locked_root(opened_session, "rewind"),
        reading(opened_session, target),
    ):
        refuse_covered(opened_session)
        history = RootHistory(opened_session, session, target, mine)
        widened = frozenset[Whose]() if request.overwrites else request.widened
        picks, judged, conflicts = history.picks(request.paths, widened)
        selection = PathSelection(None, ChangeList())
        if not request.overwrites:
            label = f"rewind to {target.id[:12]}"
            tags = fact_tags(rewound=target.id, rewound_of=session.id)
            selection = select(
                opened_session, mine, picks, label=label, tags=tags, dry_run=request.dry_run
            )
    blocked = frozenset(selection.left_out)
    judged = tuple(
        item._replace(verdict=Verdict.BLOCKED) if item.path in blocked else item for item in judged
    )
    if request.overwrites:
        result = restore(context, all_of_it._replace(spared=history.ids))
        left = [item.path for item in result.untouched]  # as what is excluded by now
        conflicts = tuple(
            change
            for change in conflicts
            if not any(treepath.is_within(change.path, path) for path in left)
        )
    elif selection.snapshot is None:
        result = _planned(target, mine, selection, request)
    else:
        asked = RestoreRequest(
            ref=selection.snapshot.id,
            bases=(mine.id,),
            list_changes=request.list_changes,
            spared=history.ids,
        )
        result = restore(context, asked)
    told_before = {change.path for change in conflicts}
    late = tuple(change for change in result.conflicts if change.path not in told_before)
    kept_count = 0 if request.overwrites else sum(change.new is not None for change in conflicts)
    result = result._replace(
        snapshot=target,
        base_ids=(),
        conflicts=(*conflicts, *late),
        unchanged=max(0, result.unchanged - kept_count),
    )
    return result, judged


def _planned(
    target: Snapshot, mine: Snapshot, selection: PathSelection, request: RewindRequest
) -> RestoreResult:
    """Returns the outcome of a rewind that changes nothing, or that is not carried out."""
    kinds = [change.change for change in selection.changes]
    created, deleted = kinds.count(ChangeKind.ADDED), kinds.count(ChangeKind.REMOVED)
    restored = len(kinds) - created - deleted
    totals = mine.record.totals
    held = totals.files + totals.directories + totals.others
    return RestoreResult(
        snapshot=target,
        scope=None,
        restored=restored,
        created=created,
        deleted=deleted,
        unchanged=max(0, held - restored - deleted),
        untouched=(),
        changes=selection.changes if request.list_changes else (),
        safety_id=None,
        dry_run=request.dry_run,
    )


def session_of_work(context: Context, session_id: str | None) -> AgentSession:
    """Returns a session, by default the one that did something last; raises NotFound."""
    if session_id is None:
        for session in agent_sessions(context):
            if session.gaps or work_of(session):
                return session
    return agent_session(context, session_id)


def _step_named(session: AgentSession, where: str) -> AgentStep:
    for step in session.steps:
        if where == f"{_STEP}{step.number}":
            return step
    raise NotFound(f"The session {quoted(session.id)} has no {quoted(where)}")


def _before_prompt(session: AgentSession, count: int) -> AgentStep:
    """Returns the step before the newest prompt, the second newest, and so on."""
    work = work_of(session)
    turns = [position for position, step in enumerate(work) if step.phase is EventPhase.TURN]
    if count > len(turns):
        held = count_text(len(turns), "prompt")
        raise NotFound(
            f"Of the session {quoted(session.id)}, {held} can be undone",
            code=ErrorCode.PROMPT_NOT_FOUND,
        )
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
