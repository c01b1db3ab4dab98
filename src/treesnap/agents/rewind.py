"""Going back to before a prompt or a tool call of an agent, and keeping what others did since.

    capture the root           a safety snapshot, unless the newest snapshot is the same
    take the states            since the target, and the marks of what hosts told meanwhile
    judge each path            ``attribution`` says which of its versions stays
    publish the outcome        a safety snapshot of versions from several states
    restore it                 all or nothing; what changed since the capture stays

A kill before the restore leaves one or two snapshots more, and the tree as it was. A repository is
one path, because its files refer to each other. Except its index, which the prompts of shells
write all the time: it goes where the repository goes, but only if the agent may have changed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile, zip_longest
from stat import S_ISGID, S_ISUID

from treesnap.agents.attribution import (
    Attribution,
    Judgement,
    Span,
    Verdict,
    Version,
    Whose,
    calls_by_span,
    calls_in,
)
from treesnap.agents.hook import PROMPT_COMMANDS
from treesnap.agents.hosts.table import HOSTS
from treesnap.agents.marks import ToldMark, marks_in, with_steps
from treesnap.agents.sessions import AgentSession, agent_session, agent_sessions
from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.root_files import Gap
from treesnap.core.diff.trees import change_at, differing
from treesnap.core.fs.owner import may_give_owners
from treesnap.core.model import treepath
from treesnap.core.model.entries import Change, ChangeKind, ChangeList, Entry
from treesnap.core.model.errors import Corrupt, InvalidArgument, NotFound, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import IMPORTED, fact_tags, facts_of
from treesnap.core.model.results import RestoreResult
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.create import create
from treesnap.core.ops.history.steps import AgentStep, EventPhase
from treesnap.core.ops.merge.selection import PathSelection, Pick, select
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.restore.attempt import refuse_covered
from treesnap.core.ops.restore.plan import REPOSITORIES, RestoreRequest, repository_of
from treesnap.core.ops.tree_state import MemoryObjects
from treesnap.core.ops.undo import refuse_dangerous_restore, restore
from treesnap.core.store.snapshots import restored_ref
from treesnap.core.worktree.scan.hard_links import load_groups

_PROMPTS_DIGITS_MAX = 3
"""More digits are the beginning of an id, which takes four at least."""
_STEP = "step:"
_WORDS_MAX = 3
"""Of ``snap rewind N``; options do not count."""
_MERGES = ("reverted", "adopted", "rewound")
"""Facts of snapshots that were never in the root as they are, but were restored."""
_WORKTREES = b"worktrees"
"""In a repository: what belongs to other directories with the same repository."""
_SET_IDS = S_ISUID | S_ISGID


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


class JudgedPath(NamedTuple):
    """What a rewind did with a path that changed since."""

    path: bytes
    verdict: Verdict
    sessions: tuple[str, ...]
    """Of others that worked when the version was made that stays; none for the user."""


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
    session = _session(context, request.session_id)
    if target is None:
        found = _before_prompt(session, int(where)) if is_number else _step_named(session, where)
        target = found.snapshot
    target_id, since_ns = target.id, target.record.created_at_ns
    result, judged = _undone(context, request, session, target)
    return RewindResult(
        session,
        next((step for step in session.steps if step.snapshot.id == target_id), None),
        result,
        tuple(gap for gap in session.gaps if gap.time_ns >= since_ns),
        judged,
    )


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
        history = _History(opened_session, session, target, mine)
        picks, judged, conflicts = history.picks(request)
        selection = PathSelection(None, ChangeList())
        if not request.overwrites:
            label, tags = f"rewind to {target.id[:12]}", fact_tags(rewound=target.id)
            selection = select(
                opened_session, mine, picks, label=label, tags=tags, dry_run=request.dry_run
            )
    if request.overwrites:
        result = restore(context, all_of_it)
    elif selection.snapshot is None:
        result = _planned(target, mine, selection, request)
    else:
        asked = RestoreRequest(
            ref=selection.snapshot.id, bases=(mine.id,), list_changes=request.list_changes
        )
        result = restore(context, asked)
    known = {change.path for change in conflicts}
    late = tuple(change for change in result.conflicts if change.path not in known)
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


class _History:
    """The states of a root since a target, and what changed between them."""

    def __init__(
        self, session: Session, agent: AgentSession, target: Snapshot, mine: Snapshot
    ) -> None:
        self._session = session
        self._agent = agent
        self.trees = MemoryObjects(session.store).trees()
        all_snapshots = list(session.store.snapshots.readable(session.root.id))
        self._snapshots = [item for item in all_snapshots if item.sequence <= mine.sequence]
        between = [
            item
            for item in self._snapshots
            if target.sequence < item.sequence < mine.sequence and _was_there(item)
        ]
        self._states = [target, *reversed(between), *([mine] if mine.id != target.id else [])]
        if target.sequence > mine.sequence or target not in self._snapshots:
            raise InvalidArgument(
                f"Snapshot {target.id[:12]} is not an earlier state of this root, so it can only "
                "be restored"
            )
        self._entries: list[dict[bytes, tuple[Entry | None, Entry | None]]] = []
        self._indexes: dict[bytes, set[int]] = defaultdict(set)
        """By repository: the spans in which its index changed."""
        self._spans = self._compared()

    def _compared(self) -> list[Span]:
        """Returns what lies between the states; leaves out a state that cannot be read any more."""
        spans: list[Span] = [Span({})]
        self._entries = [{}]
        states = self._states[:1]
        restored = self._restored()
        for state in self._states[1:]:
            is_needed = state is self._states[-1]
            try:
                span = self._span(states[-1], state, len(spans))
            except (Corrupt, NotFound):
                if is_needed:
                    raise
                continue
            sources = [
                safety
                for safety in restored
                if states[-1].sequence <= safety[0].sequence < state.sequence
            ]
            if sources:
                span = span._replace(restored=self._versions_in(sources))
            states.append(state)
            spans.append(span)
        self._states = states
        return spans

    def _restored(self) -> list[tuple[Snapshot, Snapshot]]:
        """Returns each safety snapshot of a restore, and what was restored after it."""
        listing = self._session.store.snapshots.listing(self._session.root.id)
        known = {item.id: item for item in self._snapshots}
        pairs = []
        for safety in self._snapshots:
            ref = restored_ref(safety)
            names = listing.beginning(ref) if ref is not None else []
            pairs += [(safety, known[name.id]) for name in names[:1] if name.id in known]
        return pairs

    def _versions_in(self, sources: Sequence[tuple[Snapshot, Snapshot]]) -> _Restored:
        return _Restored(self.trees, [(safety.record.scope, source) for safety, source in sources])

    def _span(self, old: Snapshot, new: Snapshot, place: int) -> Span:
        """Returns what changed between two states."""
        trees = self.trees
        entries: dict[bytes, tuple[Entry | None, Entry | None]] = {}
        changes: dict[bytes, tuple[Version, Version]] = {}
        inside: dict[bytes, list[bytes]] = defaultdict(list)
        walks = trees.walk(), trees.walk()
        for path, before, after in differing(
            old.record.root, new.record.root, walks[0].entries, walks[1].entries
        ):
            if any(entry is not None and entry.is_skipped for entry in (before, after)):
                continue
            versions = _version(before), _version(after)
            if versions[0] == versions[1]:
                continue
            repository = repository_of(path)
            if repository is not None:
                inside[repository].append(path)
                continue
            entries[path] = before, after
            changes[path] = versions
        shared = set()
        for repository, paths in inside.items():
            if _index_of(repository) in paths:
                self._indexes[repository].add(place)
            if paths == [_index_of(repository)]:
                continue
            found = [trees.find(state.record.root, repository) for state in (old, new)]
            entries[repository] = found[0], found[1]
            changes[repository] = (
                _version_of_repository(trees, found[0]),
                (_version_of_repository(trees, found[1])),
            )
            elsewhere = treepath.join(repository, _WORKTREES)
            if any(treepath.is_within(path, elsewhere) for path in paths):
                shared.add(repository)
        self._entries.append(entries)
        return Span(changes, shared=shared)

    def _marks(self) -> list[ToldMark]:
        """Returns what was told of all sessions, without the commands that this one ran."""
        marks = with_steps(marks_in(self._session), self._snapshots)
        work = {step.snapshot.id for step in _work_of(self._agent)}
        commands = {
            (step.phase.value, step.snapshot.sequence)
            for step in self._agent.steps
            if step.snapshot.id not in work
        }
        own = self._agent.id
        of_commands = [
            mark for mark in marks if mark.session == own and (mark.phase, mark.at) in commands
        ]
        calls = {mark.call for mark in of_commands if mark.call}
        left_out = {id(mark) for mark in of_commands}
        return [
            mark
            for mark in marks
            if id(mark) not in left_out and (mark.session != own or mark.call not in calls)
        ]

    def picks(
        self, request: RewindRequest
    ) -> tuple[dict[bytes, Pick], tuple[JudgedPath, ...], tuple[Change, ...]]:
        """Returns what paths become, what became of each, and what stays other than the target."""
        numbers = [state.sequence for state in self._states]
        calls = calls_by_span(calls_in(self._marks(), numbers[-1]), numbers)
        groups = load_groups(self._states[-1].record.links, self._session.store.get)
        attribution = Attribution(
            self._agent.id,
            self._spans,
            calls,
            widened=request.widened,
            names=lambda path: groups.get(path, (path,)),
        )
        picks: dict[bytes, Pick] = {}
        judged: list[JudgedPath] = []
        conflicts: list[Change] = []
        wanted = request.paths
        for path, judgement in sorted(attribution.judged().items()):
            if wanted and not any(treepath.is_within(path, top) for top in wanted):
                continue
            judged.append(JudgedPath(path, judgement.verdict, judgement.sessions))
            if not judgement.is_live:
                self._pick(picks, path, judgement, attribution)
            change = self._difference(path, judgement)
            if change is not None:
                conflicts.append(change)
        return picks, tuple(judged), tuple(conflicts)

    def _pick(
        self,
        picks: dict[bytes, Pick],
        path: bytes,
        judgement: Judgement,
        attribution: Attribution,
    ) -> None:
        """Adds what a path becomes."""
        source = self._states[judgement.stop or 0]
        is_repository = repository_of(path) is not None
        picks[path] = Pick(self._entry(path, judgement.stop), source, is_repository)
        places = self._indexes.get(path, set())
        if is_repository and not any(attribution.is_own(path, place) for place in places):
            index = _index_of(path)
            live = self.trees.find(self._states[-1].record.root, index)
            if live is not None:
                picks[index] = Pick(live, None)

    def _entry(self, path: bytes, stop: int | None) -> Entry | None:
        """Returns what is at a path at the end of a span, or in the target."""
        if stop is not None:
            return self._entries[stop][path][1]
        return next(entries[path][0] for entries in self._entries if path in entries)

    def _difference(self, path: bytes, judgement: Judgement) -> Change | None:
        """Returns how a path that is kept differs from the target, or None."""
        if judgement.verdict in (Verdict.UNDONE, Verdict.PERHAPS):
            return None
        target, kept = self._entry(path, None), self._entry(path, judgement.stop)
        return change_at(path, target, kept) if target is not kept else None


class _Restored:
    """The versions of paths in what was restored."""

    def __init__(
        self, trees: TreeReader, sources: Sequence[tuple[tuple[bytes, ...] | None, Snapshot]]
    ) -> None:
        self._trees = trees
        self._sources = sources

    def __call__(self, path: bytes) -> Collection[Version]:
        """Returns the version of a path in each of them that concerned it."""
        return list(self._versions(path))

    def _versions(self, path: bytes) -> Iterator[Version]:
        for scope, source in self._sources:
            if scope is None or any(treepath.is_within(path, top) for top in scope):
                with suppress(Corrupt, NotFound):
                    entry = self._trees.find(source.record.root, path)
                    is_repository = repository_of(path) is not None
                    yield (
                        _version_of_repository(self._trees, entry)
                        if is_repository
                        else _version(entry)
                    )


def _was_there(snapshot: Snapshot) -> bool:
    """Returns whether the whole root was as in a snapshot when that was taken."""
    facts = facts_of(snapshot)
    return (
        snapshot.record.scope is None
        and IMPORTED not in snapshot.record.tags
        and not any(fact in facts for fact in _MERGES)
    )


def _version(entry: Entry | None) -> Version:
    """Returns what tells an entry from others, without its time and what is in a directory.

    Without privileges a restore gives no owners, so they tell nothing then.
    """
    if entry is None:
        return None
    content = None if entry.is_directory else entry.content
    alike = entry._replace(name=b"", mtime_ns=0, content=content)
    if may_give_owners():
        return alike
    return alike._replace(uid=0, gid=0, mode=entry.mode & ~_SET_IDS)


def _version_of_repository(trees: TreeReader, entry: Entry | None) -> Version:
    """Returns what tells a repository from others, without its index."""
    if entry is None or not entry.is_directory:
        return _version(entry)
    index = REPOSITORIES[entry.name]
    return tuple(
        (inner.name, inner.kind, inner.mode, inner.content)
        for inner in trees.entries(entry.tree_id)
        if inner.name != index
    )


def _index_of(repository: bytes) -> bytes:
    return treepath.join(repository, REPOSITORIES[treepath.split(repository)[1]])


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
