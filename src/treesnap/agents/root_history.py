"""The states of a root in order, what changed between them, and whose that was.

A repository is one path, because its files refer to each other. Except its index, which the
prompts of shells write all the time: it goes where the repository goes, but only if the agent may
have changed it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from treesnap.agents.hosts.table import HOSTS
from treesnap.agents.marks import MarkPhase, ToldMark, marks_in, with_steps
from treesnap.agents.sessions import AgentSession, work_of
from treesnap.core.codec.reader import TreeReader
from treesnap.core.diff.trees import change_at, differing
from treesnap.core.fs.processes import may_give_owners
from treesnap.core.model import treepath
from treesnap.core.model.entries import Change, Entry
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.reserved_tags import IMPORTED, facts_of
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.ops.context import Session
from treesnap.core.ops.databases import (
    files_beside,
    is_database,
    may_have_files_beside,
    said_of_database,
)
from treesnap.core.ops.history.steps import EventPhase, step_of
from treesnap.core.ops.merge.selection import Pick
from treesnap.core.ops.restore.plan import REPOSITORIES, repository_of
from treesnap.core.ops.tree_state import MemoryObjects
from treesnap.core.store.roots import registered_roots
from treesnap.core.store.snapshots import restored_ref
from treesnap.core.worktree.scan.hard_links import load_groups

_MERGES = ("reverted", "adopted", "rewound")
"""Facts of snapshots that were never in the root as they are, but were restored."""
_WORKTREES = b"worktrees"
"""In a repository: what belongs to other directories with the same repository."""
_SET_IDS = S_ISUID | S_ISGID


class JudgedPath(NamedTuple):
    """What a rewind does with a path that changed since."""

    path: bytes
    verdict: Verdict
    sessions: tuple[str, ...]
    """Of others that worked when the version was made that stays; none for the user."""


class RootHistory:
    """The states of a root since a target, and what changed between them."""

    def __init__(
        self, session: Session, agent: AgentSession, target: Snapshot, mine: Snapshot
    ) -> None:
        self._session = session
        self._agent = agent
        self.trees: TreeReader = MemoryObjects(session.store).trees()
        all_snapshots = list(session.store.snapshots.readable(session.root.id))
        self._snapshots = [item for item in all_snapshots if item.sequence <= mine.sequence]
        between = [
            item
            for item in self._snapshots
            if target.sequence < item.sequence < mine.sequence and was_there(item)
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
        self._times: list[Span] = []
        """What lies between the states of the times of directories alone."""
        self._has_excluded = False
        """Whether anything was excluded in one of two states that follow each other."""
        self._elsewhere = self._with_own_history(target)
        self._spans = self._compared()
        if self._has_excluded:
            self._add_unseen()

    @property
    def ids(self) -> frozenset[SnapshotId]:
        """The ids of the states."""
        return frozenset(state.id for state in self._states)

    def _with_own_history(self, target: Snapshot) -> list[bytes]:
        """Returns the roots below this one in which agents worked since the target.

        What they did was told there, so here no call of theirs is known.
        """
        session, own = self._session, self._session.root.path
        since_ns = target.record.created_at_ns
        paths = []
        for path in registered_roots(session.fs, session.store.layout):
            if path == own or not treepath.is_within(path, own.rstrip(b"/")):
                continue
            with suppress(Corrupt):
                marks = marks_in(session._replace(root=session.store.root(path)))
                if any(mark.time_ns >= since_ns for mark in marks):
                    paths.append(os.path.relpath(path, own))
        return paths

    def _compared(self) -> list[Span]:
        """Returns what lies between the states; leaves out a state that cannot be read any more."""
        spans: list[Span] = [Span({})]
        self._entries, self._times = [{}], [Span({})]
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
                span = span._replace(restored=self._versions_in(sources, _version))
                restored_times = self._versions_in(sources, _time_of_directory)
                self._times[-1] = self._times[-1]._replace(restored=restored_times)
            states.append(state)
            spans.append(span)
        self._states = states
        return spans

    def _restored(self) -> list[tuple[Snapshot, Snapshot]]:
        """Returns each safety snapshot of a restore, and what was restored after it."""
        listing = self._session.store.snapshots.listing(self._session.root.id)
        by_id = {item.id: item for item in self._snapshots}
        pairs = []
        for safety in self._snapshots:
            ref = restored_ref(safety)
            names = listing.beginning(ref) if ref is not None else []
            pairs += [(safety, by_id[name.id]) for name in names[:1] if name.id in by_id]
        return pairs

    def _versions_in(
        self,
        sources: Sequence[tuple[Snapshot, Snapshot]],
        version: Callable[[Entry | None], Version],
    ) -> _Restored:
        scopes = [
            (safety.record.scope, source, facts_of(source).get("rewound_of") == self._agent.id)
            for safety, source in sources
        ]
        return _Restored(self.trees, scopes, version)

    def _span(self, old: Snapshot, new: Snapshot, place: int) -> Span:
        """Returns what changed between two states."""
        trees = self.trees
        entries: dict[bytes, tuple[Entry | None, Entry | None]] = {}
        changes: dict[bytes, tuple[Version, Version]] = {}
        times: dict[bytes, tuple[Version, Version]] = {}
        inside: dict[bytes, list[bytes]] = defaultdict(list)
        walks = trees.walk(), trees.walk()
        for path, before, after in differing(
            old.record.root, new.record.root, walks[0].entries, walks[1].entries
        ):
            if any(entry is not None and entry.is_skipped for entry in (before, after)):
                self._has_excluded = True
                continue
            versions = _version(before), _version(after)
            repository = repository_of(path)
            of_directory = _time_of_directory(before), _time_of_directory(after)
            if repository is None and None not in of_directory:
                times[path] = of_directory
            if versions[0] == versions[1]:
                continue
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
            both = [trees.find(state.record.root, repository) for state in (old, new)]
            entries[repository] = both[0], both[1]
            changes[repository] = (
                _version_of_repository(trees, both[0]),
                (_version_of_repository(trees, both[1])),
            )
            elsewhere = treepath.join(repository, _WORKTREES)
            if any(treepath.is_within(path, elsewhere) for path in paths):
                shared.add(repository)
        self._entries.append(entries)
        self._times.append(Span({path: pair for path, pair in times.items() if pair[0] != pair[1]}))
        for inner in self._elsewhere:
            shared.update(path for path in changes if treepath.is_within(path, inner))
        return Span(changes, shared=shared)

    def _add_unseen(self) -> None:
        """Adds what changed while it was excluded, to the last span in which that can have been.

        A path that was excluded for some states may have any version when it is there again, and
        who made that is not known.
        """
        last = len(self._states) - 1
        roots = (self._states[0].record.root, self._states[-1].record.root)
        places: dict[bytes, list[int]] = defaultdict(list)
        for place, span in enumerate(self._spans):
            for path in span.changes:
                places[path].append(place)
        walks = self.trees.walk(), self.trees.walk()
        for path, *_ in differing(*roots, walks[0].entries, walks[1].entries):
            places.setdefault(path, [])
        for path, changed in places.items():
            if repository_of(path) is not None:
                continue
            captured, live = (self.trees.find(root, path) for root in roots)
            if changed and self._is_excluded(roots[0], path):
                captured = self._entries[changed[0]][path][0]
            for place in changed:
                before, after = self._entries[place][path]
                self._add_change(path, place - 1, captured, before)
                captured = after
            if not self._is_excluded(roots[1], path):
                self._add_change(path, last, captured, live)

    def _add_change(self, path: bytes, place: int, old: Entry | None, new: Entry | None) -> None:
        """Adds to a span a change of a path that is not seen in it, if there is one."""
        is_skipped = any(entry is not None and entry.is_skipped for entry in (old, new))
        if place < 1 or is_skipped or _version(old) == _version(new):
            return
        span = self._spans[place]
        self._entries[place][path] = old, new
        self._spans[place] = span._replace(
            changes={**span.changes, path: (_version(old), _version(new))},
            unseen={*span.unseen, path},
        )

    def _is_excluded(self, root: Entry, path: bytes) -> bool:
        """Returns whether a state left a path out, or a directory above it."""
        above = (self.trees.find(root, each) for each in (path, *treepath.parents(path)))
        return any(entry is not None and entry.is_skipped for entry in above)

    def _marks(self) -> list[ToldMark]:
        """Returns what was told of all sessions, without the commands that this one ran.

        What the prompt of a command ended has ended all the same.
        """
        marks = with_steps(marks_in(self._session), self._snapshots)
        work = {step.snapshot.id for step in work_of(self._agent)}
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
        ends = {id(mark) for mark in of_commands if mark.phase in (MarkPhase.TURN, MarkPhase.END)}
        left_out = {id(mark) for mark in of_commands} - ends
        return [
            mark._replace(phase=MarkPhase.END) if id(mark) in ends else mark
            for mark in marks
            if id(mark) not in left_out and (mark.session != own or mark.call not in calls)
        ]

    def attribution(self, widened: Collection[Whose] = ()) -> Attribution:
        """Returns whose the changes are; ``widened`` are classes that are undone as well."""
        return self._attribution(self._spans, widened)

    def _attribution(self, spans: Sequence[Span], widened: Collection[Whose]) -> Attribution:
        numbers = [state.sequence for state in self._states]
        calls = calls_by_span(
            calls_in(self._marks(), numbers[-1], telling_sessions(self._snapshots)), numbers
        )
        groups = load_groups(self._states[-1].record.links, self._session.store.get)
        return Attribution(
            self._agent.id,
            spans,
            calls,
            widened=widened,
            names=lambda path: groups.get(path, (path,)),
        )

    def changes(self) -> Iterator[tuple[int, bytes, Whose]]:
        """Yields each change: the number of the state after it, its path, and whose it is."""
        attribution = self.attribution()
        for place, span in enumerate(self._spans):
            for path in span.changes:
                if not attribution.is_restored(path, place):
                    yield self._states[place].sequence, path, attribution.whose(path, place)[0]

    def _require(self, paths: Sequence[bytes]) -> None:
        """Raises NotFound for a path that none of the states holds: it is most likely mistyped."""
        for path in paths:
            changed = any(path in span.changes for span in self._spans)
            roots = (self._states[0].record.root, self._states[-1].record.root)
            if not changed and not any(self.trees.find(root, path) for root in roots):
                raise NotFound(
                    f"There is no {quoted(path)}, neither now nor since then",
                    code=ErrorCode.PATH_NOT_FOUND,
                    path=path,
                )

    def picks(
        self, tops: Sequence[bytes] = (), widened: Collection[Whose] = ()
    ) -> tuple[dict[bytes, Pick], tuple[JudgedPath, ...], tuple[Change, ...]]:
        """Returns what paths become, what became of each, and what stays other than the target."""
        attribution = self.attribution(widened)
        picks: dict[bytes, Pick] = {}
        self._require(tops)
        judged: list[JudgedPath] = []
        conflicts: list[Change] = []
        live = self._states[-1].record.root
        for path, judgement in sorted(self._judged(attribution).items()):
            if tops and not any(treepath.is_within(path, top) for top in tops):
                continue
            verdict = judgement.verdict
            is_back = not judgement.is_live
            if is_back and self._has_excluded and self._is_excluded(live, path):
                is_back, verdict = False, Verdict.EXCLUDED
            judged.append(JudgedPath(path, verdict, judgement.sessions))
            if is_back:
                self._pick(picks, path, judgement, attribution)
            change = self._difference(path, judgement)
            if change is not None:
                conflicts.append(change)
        self._pick_times(picks, tops, widened)
        return picks, tuple(judged), tuple(conflicts)

    def _judged(self, attribution: Attribution) -> dict[bytes, Judgement]:
        """Returns what a rewind does with each path; a database that it would leave with a log of
        another state stays as it is.
        """
        judged = attribution.judged()
        waiting = list(judged)
        while waiting:
            path = waiting.pop()
            if judged[path].is_live:
                continue
            files = self._files_beside(path)
            if any(self._is_of_another_state(path, each, judged) for each in files):
                last = max(at for at, entries in enumerate(self._entries) if path in entries)
                judged[path] = Judgement(Verdict.CONFLICT, last, is_live=True)
                waiting += [each for each in files if each in judged]
        return judged

    def _files_beside(self, path: bytes) -> tuple[bytes, ...]:
        ends = self._states[0].record.root, self._states[-1].record.root

        def entries(at: bytes) -> list[Entry | None]:
            return [self.trees.find(root, at) for root in ends]

        if not may_have_files_beside(path, *entries(path)):
            return ()
        get = self._session.store.get
        return files_beside(path, lambda at: any(is_database(get, each) for each in entries(at)))

    def _is_of_another_state(
        self, path: bytes, other: bytes, judged: Mapping[bytes, Judgement]
    ) -> bool:
        """Returns whether a file would not be as in the state from which another one comes back."""
        there = self.trees.find(self._states[judged[path].stop or 0].record.root, other)
        judgement = judged.get(other)
        if judgement is not None and not judgement.is_live:
            here = self._entry(other, judgement.stop)
        else:
            here = self.trees.find(self._states[-1].record.root, other)
        return said_of_database(other, there) != said_of_database(other, here)

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

    def _pick_times(
        self, picks: dict[bytes, Pick], tops: Sequence[bytes], widened: Collection[Whose]
    ) -> None:
        """Adds the times of directories, which go back as versions of files do.

        They change with the names in a directory, so what is undone there would leave its own.
        """
        for path, judgement in self._attribution(self._times, widened).judged().items():
            if tops and not any(treepath.is_within(path, top) for top in tops):
                continue
            pick = picks.get(path)
            root = self._states[-1].record.root
            entry = pick.entry if pick is not None else self.trees.find(root, path)
            if judgement.is_live or entry is None or not entry.is_directory:
                continue
            changes = [span.changes[path] for span in self._times if path in span.changes]
            stop = judgement.stop
            time_ns = changes[0][0] if stop is None else self._times[stop].changes[path][1]
            assert isinstance(time_ns, int)
            entry = entry._replace(mtime_ns=time_ns)
            picks[path] = pick._replace(entry=entry) if pick is not None else Pick(entry, None)

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
        self,
        trees: TreeReader,
        sources: Sequence[tuple[tuple[bytes, ...] | None, Snapshot, bool]],
        version: Callable[[Entry | None], Version],
    ) -> None:
        self._trees = trees
        self._sources = sources
        self._version = version

    def __call__(self, path: bytes) -> Mapping[Version, bool]:
        """Returns the version of a path in each that concerned it, and which were own rewinds."""
        versions: dict[Version, bool] = {}
        for version, is_own in self._versions(path):
            versions[version] = is_own or versions.get(version, False)
        return versions

    def _versions(self, path: bytes) -> Iterator[tuple[Version, bool]]:
        for scope, source, is_own in self._sources:
            if scope is None or any(treepath.is_within(path, top) for top in scope):
                with suppress(Corrupt, NotFound):
                    entry = self._trees.find(source.record.root, path)
                    is_repository = repository_of(path) is not None
                    version = (
                        _version_of_repository(self._trees, entry)
                        if is_repository
                        else self._version(entry)
                    )
                    yield version, is_own


def telling_sessions(snapshots: Iterable[Snapshot]) -> set[str]:
    """Returns the sessions of hosts whose hooks tell each call of a tool.

    There a turn in which none was told has changed nothing, also the first one.
    """
    steps = filter(None, map(step_of, snapshots))
    return {
        step.snapshot.record.session or ""
        for step in steps
        if step.host in HOSTS and EventPhase.PRE in HOSTS[step.host].phases.values()
    }


def was_there(snapshot: Snapshot) -> bool:
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


def _time_of_directory(entry: Entry | None) -> int | None:
    return entry.mtime_ns if entry is not None and entry.is_directory else None


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
