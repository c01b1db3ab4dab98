"""What a restore is asked for, the plan for it, and what it returns.

The plan is pure, from two trees to the steps between them. Both trees are read through functions
and nothing is touched, so a plan can be printed, counted and tested on its own. Steps never nest:
a directory that only one side has is one step, whatever is in it, and every other step lies in a
directory that both sides have. So steps can be done in any order.

A name that either side skipped is left alone, and so is every directory that
holds one.

A restore may have a *base*: a third tree, the state up to which it undoes. What differs between
the base and the live tree was changed by others. Where the target differs there too, that is a
conflict: the path is left alone like a skipped one, unless conflicts are to be overwritten. With
several bases, what is as in any of them was not changed by others. A repository is one thing: its
files refer to each other, so a conflict in one is a conflict of all. Except its index, which
``git status`` writes too: where nothing else of a repository was changed by others, that is no
conflict, and the index stays unless the target has another one than the base. A database of SQLite
is one thing with its log and its journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from stat import S_ISGID, S_ISUID

from treesnap.core.codec.journal import Finish
from treesnap.core.codec.root_files import Moment, RestoreHistory
from treesnap.core.diff.trees import (
    change_at,
    changes_by_others,
    differing,
    is_time_alone,
    kind_of_change,
)
from treesnap.core.fs.processes import may_give_owners
from treesnap.core.model import treepath
from treesnap.core.model.entries import Change, ChangeKind, Entry, Skipped, SkipReason
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    WarningCode,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.model.quantities import first_few
from treesnap.core.model.requests import NOTHING_REVEALED, Revealed
from treesnap.core.model.results import Privileges, RestoreResult
from treesnap.core.model.snapshots import IgnoreRules, Snapshot, SnapshotId
from treesnap.core.ops.context import Session
from treesnap.core.ops.databases import (
    files_beside,
    may_be_database,
    may_have_files_beside,
    said_of_database,
    with_logs,
)
from treesnap.core.ops.privileges import DEVICES, PrivilegeList, is_own, wanted_state
from treesnap.core.ops.references import resolve_in
from treesnap.core.ops.tree_state import (
    State,
    effective_scope,
    recorded_state,
    relinked,
    subset_groups,
)
from treesnap.core.store.attachments import AttachmentChange
from treesnap.core.worktree.scan.hard_links import Groups, distinct_groups, relinked_paths
from treesnap.core.worktree.scan.ignore import given

HistoryStep = Callable[[RestoreHistory, Moment], RestoreHistory]
Approve = Callable[[str], None]
"""Gets the identity of the state that would be replaced; what it raises ends the restore."""

_NOTHING = Privileges()
KEEP, OVERWRITE = "keep", "overwrite"
"""What may become of conflicts."""

_SET_IDS = S_ISUID | S_ISGID
REPOSITORIES = {b".git": b"index", b".hg": b"dirstate", b".sl": b"dirstate", b".jj": b"index"}
"""Names of directories that hold a repository, each with its index. That of Jujutsu lies deeper,
and each of its operations refers to files of the one before."""
_INSIDE = {ChangeKind.REMOVED, ChangeKind.METADATA}
"""Changes of a directory that are none of those to be made when only some paths in it are."""


class WayBack(NamedTuple):
    """A roll-back of a failed step: see :func:`treesnap.core.ops.run.checkpoint.go_back`.

    What is in the root was left by that step, its ignore files too.
    """

    removes_first: bool = False
    """Whether what goes is removed before anything is put: there is no room for both."""
    not_kept: str | None = None
    """Why there is no room for a safety snapshot either, or None where one is made."""
    is_late: bool = False
    """Whether it comes after the step, which was killed or whose own roll-back failed."""


class RestoreRequest(NamedTuple):
    """What the caller of ``restore`` asked for."""

    ref: str
    paths: tuple[bytes, ...] = ()
    to: str | None = None
    dry_run: bool = False
    touch: bool = False
    force: bool = False
    reason: str | None = None
    """Why the root goes back, which is noted of the snapshot."""
    exclude: tuple[str, ...] = ()
    """Patterns in gitignore syntax of what is left alone, even where the snapshot holds it."""
    way_back: WayBack | None = None
    attachment: AttachmentChange | None = None
    """What changes with the files."""
    list_changes: bool = True
    """Whether the result lists what changed, or only counts it."""
    bases: tuple[str, ...] = ()
    """REFs of states; where there are any, others changed what differs from all of them."""
    conflicts: str = KEEP
    """What becomes of that where the restore would change it."""
    approve: Approve | None = None
    """Called under the root's lock before anything is changed, or in a dry run."""
    privileged: bool = False
    """Whether privileges are given although the snapshot may come from elsewhere."""
    spared: frozenset[SnapshotId] = frozenset()
    """Snapshots from which the goal was made: on a full disk they stay, so that it can be made
    again. Others are given up for room, even where the restore fails in the end."""


class Goal(NamedTuple):
    """What a request asks for, once its snapshots are found."""

    request: RestoreRequest
    snapshot: Snapshot
    """The state to go to."""
    scope: tuple[bytes, ...] | None
    """The paths that are restored, or None for the whole root."""
    bases: tuple[Snapshot, ...] = ()
    left_alone: tuple[IgnoreRules, ...] = ()
    """What the caller excludes."""
    label: str = "before restore"
    history_step: HistoryStep = RestoreHistory.restored
    removes_root: bool = False
    """Whether the goal is that there is no root; the snapshot holds an empty one."""
    left_by: Snapshot | None = None
    """What the operation that this undoes made the root like; None if it undoes none."""
    privileged: bool = True
    """Whether privileges are given, as :mod:`treesnap.core.ops.privileges` says."""
    is_asked: bool = False
    """Whether that is because the caller, or this process alone, knows that they may."""

    @property
    def paths(self) -> tuple[bytes, ...]:
        """What the caller named of a whole root; each has to be in one of both states."""
        return self.request.paths if self.snapshot.record.scope is None else ()

    @property
    def rules(self) -> tuple[IgnoreRules, ...]:
        """The exclusions of the snapshot and the caller, which hold beside today's."""
        return tuple(dict.fromkeys((*self.snapshot.record.rules, *self.left_alone)))

    @property
    def overwrites(self) -> bool:
        """Whether conflicts are restored like all else."""
        return self.request.conflicts == OVERWRITE

    @property
    def not_kept(self) -> str | None:
        """Why the state before cannot be kept in a safety snapshot, or None where it is."""
        way_back = self.request.way_back
        return way_back.not_kept if way_back is not None else None

    def state(self, session: Session) -> State:
        """Returns the snapshot's tree, with nothing but the paths in scope."""
        return recorded_state(session, self.snapshot.record, self.scope)

    @property
    def is_step(self) -> bool:
        """Whether this undoes another operation."""
        return self.history_step is not RestoreHistory.restored

    def written(self, session: Session, skipped: Iterable[Skipped]) -> Revealed:
        """Returns what the operation that this undoes wrote, of what a walk left out.

        Nothing where the snapshot that it made the root like cannot be read any more.
        """
        left = self.left_state(session)
        with suppress(Corrupt, NotFound):
            if left is not None:
                return written_of(skipped, self.state(session), left)
        return NOTHING_REVEALED

    def wanted(self, session: Session, live: State | None) -> tuple[State, Privileges]:
        """Returns the tree to go to beside the live one, and what is left out of it."""
        record, scope = self.snapshot.record, self.scope
        return wanted_state(session, record, scope, live, privileged=self.privileged)

    def budget(self, session: Session) -> PathBudget | None:
        """Returns the budget of the changes to list, or None where they are only counted."""
        return session.path_budget() if self.request.list_changes else None

    def judged(self, session: Session) -> Goal:
        """Returns the goal with the decision whether privileges are given."""
        privileged = self.request.privileged
        own = is_own(session, self.snapshot)
        is_asked = privileged or (own and not session.store.is_own)
        return self._replace(privileged=own or privileged, is_asked=is_asked)

    def left_state(self, session: Session) -> State | None:
        """Returns the state that the operation left which this undoes; None if it is lost."""
        if self.left_by is not None:
            with suppress(Corrupt, NotFound):
                return recorded_state(session, self.left_by.record, self.scope)
        return None

    def concerns(self, path: bytes) -> bool:
        """Returns whether a path is in scope."""
        return self.scope is None or any(treepath.is_within(path, own) for own in self.scope)

    def reaching(self, names: Iterable[bytes]) -> Goal:
        """Returns the same goal for some paths more; for a whole root they are in it."""
        if self.scope is None:
            return self
        return self._replace(scope=treepath.without_nested([*self.scope, *names]))

    def base_states(self, session: Session) -> tuple[State, ...]:
        """Returns the trees of the bases, with nothing but the paths in scope."""
        return tuple(recorded_state(session, base.record, self.scope) for base in self.bases)


def safety_label(goal: Goal) -> str:
    """Returns the label of the snapshot of the state before; ``restored_ref`` reads it."""
    return f"{goal.label} {goal.snapshot.id[:12]}"


def written_of(skipped: Iterable[Skipped], before: State, after: State) -> Revealed:
    """Returns what an operation wrote, of what is excluded now and was left out of a walk.

    ``before`` and ``after`` are the states that it found and made. The first one holds each of
    these paths, or proves that it was absent; what either skipped, the operation did not touch.
    Costs a look at each path that was left out.
    """
    written: set[bytes] = set()
    tops: set[bytes] = set()
    for item in skipped:
        if item.reason != SkipReason.EXCLUDED:
            continue
        if before.is_hidden(item.path) or after.is_hidden(item.path):
            continue
        tops.add(item.path)
        old, new = before.entry(item.path), after.entry(item.path)
        if old == new:
            continue
        walks = before.trees.walk(), after.trees.walk()
        for path, mine, theirs in differing(old, new, walks[0].entries, walks[1].entries):
            if not any(entry is not None and entry.is_skipped for entry in (mine, theirs)):
                written.add(treepath.join(item.path, path) if path else item.path)
    for path in relinked(before, after) if tops else ():
        if path in tops or not tops.isdisjoint(treepath.parents(path)):
            entries = before.entry(path), after.entry(path)
            if all(entry is not None and not entry.is_skipped for entry in entries):
                written.add(path)
    return Revealed(paths=frozenset(written))


def goal_of(session: Session, request: RestoreRequest) -> Goal:
    """Returns what a request asks for; raises NotFound or InvalidArgument."""
    anywhere = request.to is not None
    snapshot = resolve_in(session, request.ref, paths=request.paths, anywhere=anywhere)
    paths = request.paths if request.bases else with_logs(session, [snapshot], request.paths)
    scope = effective_scope(snapshot, paths or None)
    bases = tuple(resolve_in(session, base, paths=scope or ()) for base in request.bases)
    for base in bases:
        if not base.record.covers(scope or ()):
            raise InvalidArgument(
                f"The base, snapshot {base.id[:12]}, was not taken of all paths to restore"
            )
    return Goal(request, snapshot, scope, bases=bases, left_alone=given(request.exclude)).judged(
        session
    )


MISSING_MAX = 1000
"""How many paths a plan lists that no live tree bounds: a forged store may have any number."""


class RestorePlan:
    """What has to be done to turn one state into the other."""

    def __init__(self) -> None:
        self.puts: dict[bytes, tuple[Entry, Entry | None]] = {}
        """By path: what is put, and what was there."""
        self.removals: dict[bytes, Entry] = {}
        self.metadata: dict[bytes, tuple[Entry, Entry]] = {}
        """By path: metadata before and after, for what is not a directory."""
        self.directories: dict[bytes, tuple[Entry, Entry | None]] = {}
        """By path: metadata before, and after, or None to keep it."""
        self.retained: set[bytes] = set()
        """Directories that the new state does not have, but that hold something to leave alone."""
        self.untouched: list[Skipped] = []
        self.missing: list[bytes] = []
        """What could not be read when the new state was captured, and is not there: the first."""
        self.blocked: list[bytes] = []
        """Directories that should be replaced, but hold something to leave alone."""
        self.counts: Counter[ChangeKind] = Counter()
        """How many paths change in each way."""
        self.changes: tuple[Change, ...] = ()
        """Each of them, unless they are only counted."""
        self.conflicts: list[Change] = []
        """What others changed, of paths that differ from the new state."""
        self.privileges: PrivilegeList = PrivilegeList()
        """Those that paths get."""
        self.kept_count = 0
        """How many paths of the new state are not put because of what is kept."""
        self.links_broken: list[bytes] = []
        """Files to be replaced that have names elsewhere, which keep the old file; sorted."""

    @property
    def is_empty(self) -> bool:
        """Whether both states are the same."""
        return not (self.puts or self.removals or self.metadata or self.directories)

    @property
    def touched(self) -> list[bytes]:
        """All paths with a step of their own, unordered."""
        return [*self.puts, *self.removals, *self.metadata]

    @property
    def removed(self) -> list[bytes]:
        """What is removed or replaced, in order; none is below another."""
        replaced = [path for path, (_, old) in self.puts.items() if old is not None]
        return sorted([*self.removals, *replaced])

    @property
    def displaced(self) -> list[Entry]:
        """What was at the paths of :attr:`removed`, unordered."""
        replaced = [old for _, old in self.puts.values() if old is not None]
        return [*self.removals.values(), *replaced]

    @property
    def paths(self) -> tuple[bytes, ...]:
        """All paths with a step of their own; they do not nest."""
        return treepath.without_nested(self.touched)

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """What happens to directories in the end."""
        return tuple(Finish(path, old, new) for path, (old, new) in self.directories.items())


def refuse_blocked(plan: RestorePlan) -> None:
    """Raises Refused when something to leave alone is in the way."""
    if plan.blocked:
        path = plan.blocked[0]
        raise Refused(
            f"The directory {quoted(path)} would be replaced, but it holds paths that no "
            "snapshot has",
            code=ErrorCode.CONFLICT,
            path=path,
        )


def make_plan(
    current: State,
    target: State,
    spine: AbstractSet[bytes] = frozenset(),
    *,
    reached: AbstractSet[bytes] = frozenset(),
    budget: PathBudget | None = None,
    bases: Sequence[State] = (),
    base_budget: PathBudget | None = None,
    overwrites: bool = False,
) -> RestorePlan:
    """Returns the steps from the current state to the target.

    For a scope, both trees hold nothing but the paths in it and the directories above them. Those
    of the ``spine`` are not part of the restore themselves, and get new times where something in
    them changes. Those of ``reached`` are above the scope for the sake of hard links alone: a name
    in them is put again, and they keep their times. With a ``budget``, the
    plan lists the changes, which takes some 500 bytes for each path, also below directories that
    are one step; raises OperationFailed for more new paths than it has room for. As much takes
    what differs from the ``bases``, whether it is kept or ``overwrites`` is given; of these paths
    the ``base_budget`` counts those that are gone.
    """
    others = _Others(bases, current, base_budget, overwrites=overwrites)
    return _Planner(current, target, spine, reached, others, budget=budget).plan()


class _Others:
    """What others changed: what differs between the live tree and all bases, if there are any."""

    def __init__(
        self,
        bases: Sequence[State],
        live: State,
        budget: PathBudget | None,
        *,
        overwrites: bool,
    ) -> None:
        self._budget = budget
        self._changes: dict[bytes, Change] = {}
        """By path."""
        self._repositories: dict[bytes, Change] = {}
        """By path, those with changes by others: one change stands for all."""
        self._indexes: dict[bytes, list[Entry]] = {}
        """By path, what the bases have of indexes of which others changed nothing else."""
        self.overwrites = overwrites
        """Whether nothing of it is kept."""
        if bases:
            self._compare(bases, live)
            self._find_repositories(bases, live)
            self._find_databases((live, *bases))
        there = [path for path, change in self._changes.items() if change.new is not None]
        self.holders = treepath.ancestors([] if overwrites else [*there, *self._repositories])
        """Directories that hold something that is kept."""

    def _compare(self, bases: Sequence[State], live: State) -> None:
        hold = self._budget.hold if self._budget is not None else lambda _: None
        first, *others = (
            changes_by_others(
                base.root, live.root, base.trees.walk().entries, live.trees.entries, hold
            )
            for base in bases
        )
        self._changes = {
            path: change
            for path, change in first.items()
            if all(path in each and not _is_owner_lost(each[path]) for each in (first, *others))
        }

    def _find_repositories(self, bases: Sequence[State], live: State) -> None:
        """Finds those of which more has changed than the index.

        An index by itself is not a conflict: the prompts of shells run ``git status`` all the time.
        """
        changed: dict[bytes, list[bytes]] = {}
        for path in self._changes:
            top = repository_of(path)
            if top is not None:
                changed.setdefault(top, []).append(path)
        for top, paths in changed.items():
            here = live.entry(top)
            if paths == [treepath.join(top, REPOSITORIES[treepath.split(top)[1]])]:
                del self._changes[paths[0]]
                entries = [base.entry(paths[0]) for base in bases]
                self._indexes[paths[0]] = [entry for entry in entries if entry is not None]
            elif here is not None and here.is_directory:
                whole = Change(top, ChangeKind.MODIFIED, bases[0].entry(top), here)
                self._repositories[top] = self._changes.get(top, whole)

    def _find_databases(self, states: Sequence[State]) -> None:
        """Lets a change of one file of a database count for all: a mix of two states is damaged."""

        def may_be_at(path: bytes) -> bool:
            return any(may_be_database(state.entry(path)) for state in states)

        for path, change in list(self._changes.items()):
            if not may_have_files_beside(path, change.old, change.new):
                continue
            now, *before = (said_of_database(path, state.entry(path)) for state in states)
            for each in files_beside(path, may_be_at) if now not in before else ():
                new, old, *_ = (state.entry(each) for state in states)
                kind = ChangeKind.REMOVED if new is None else ChangeKind.MODIFIED
                self._changes.setdefault(each, Change(each, kind, old, new))

    def at(self, path: bytes) -> Change | None:
        """Returns what others did to a path, or to the repository that it is in."""
        if self._repositories:
            top = repository_of(path)
            if top is not None and top in self._repositories:
                return self._repositories[top]
        return self._changes.get(path)

    def is_index_kept(self, path: bytes, target: Entry | None) -> bool:
        """Returns whether a path is an index that stays: there is nothing of it to undo.

        The target has it as a base has it, and what others staged since then is theirs.
        """
        if self.overwrites or target is None or target.is_skipped:
            return False
        changes = (change_at(path, base, target) for base in self._indexes.get(path, ()))
        return any(change is None or is_time_alone(change) for change in changes)

    def without_kept(
        self, groups: Groups, conflicts: Iterable[Change], indexes: Iterable[bytes]
    ) -> Groups:
        """Returns the hard-link groups without the names that are kept, or that are not put.

        Nothing is put below what others removed or made a file.
        """
        kept = set(indexes)
        closed: set[bytes] = set()
        for change in conflicts:
            kept.add(change.path)
            if change.new is None or not change.new.is_directory:
                closed.add(change.path)
        return subset_groups(
            groups,
            lambda path: (
                path not in kept
                and closed.isdisjoint(treepath.parents(path))
                and repository_of(path) not in self._repositories
            ),
        )


def _is_owner_lost(change: Change) -> bool:
    """Returns whether a path is as a restore leaves it that may not set its owner or group.

    Then nothing else differs but bits that go with them, and the time.
    """
    old, new = change.old, change.new
    if change.change != ChangeKind.METADATA or old is None or new is None or may_give_owners():
        return False
    rest = [
        entry._replace(uid=0, gid=0, mode=entry.mode & ~_SET_IDS, mtime_ns=0, content=None)
        for entry in (old, new)
    ]
    return (old.uid, old.gid) != (new.uid, new.gid) and rest[0] == rest[1]


def repository_of(path: bytes) -> bytes | None:
    """Returns the path of the repository that a path is in, or is; None if it is in none."""
    names = treepath.components(path)
    for count, name in enumerate(names, 1):
        if name in REPOSITORIES:
            return b"/".join(names[:count])
    return None


class _Planner:
    def __init__(
        self,
        current: State,
        target: State,
        spine: AbstractSet[bytes],
        reached: AbstractSet[bytes],
        others: _Others,
        *,
        budget: PathBudget | None,
    ) -> None:
        self._current = current
        self._target = target
        self._spine = spine
        self._reached = reached
        self._budget = budget
        self._plan = RestorePlan()
        self._paired: dict[bytes, tuple[Entry, Entry | None]] = {}
        """Directories that differ and are not put or removed as a whole."""
        self._others = others
        self._kept_indexes: set[bytes] = set()

    def plan(self) -> RestorePlan:
        """Returns the whole plan."""
        plan = self._plan
        self._compare()
        plan.untouched = self._with_retained(plan.untouched)
        self._relink()
        for path in [*plan.puts, *plan.removals]:
            self._touch(treepath.split(path)[0])
        if not plan.is_empty:
            # The staging directory is made and removed in the root, which changes its times.
            root = self._current.root
            plan.directories.setdefault(treepath.ROOT, (root, root))
        return plan

    def _touch(self, directory: bytes) -> None:
        """Records that a directory's content changes, so that its metadata must be set again."""
        plan = self._plan
        if directory in plan.directories:
            return
        old, new = self._paired.get(directory) or (
            self._current.entry(directory),
            self._target.entry(directory),
        )
        if directory in self._reached:
            new = old
        elif directory in self._spine or (new is not None and not new.is_directory):
            new = None
        if old is not None:
            plan.directories[directory] = (old, new)

    def _compare(self) -> None:
        """Walks both trees side by side, once: for the steps, and for what changes."""
        plan, others = self._plan, self._others
        current, target = self._current, self._target
        changes: list[Change] = []
        whole = kept = b"/"
        walks = current.trees.walk(), target.trees.walk()
        for path, old, new in differing(
            current.root, target.root, walks[0].entries, walks[1].entries
        ):
            if others.is_index_kept(path, new):
                self._kept_indexes.add(path)
                plan.kept_count += 1
                continue
            change = change_at(path, old, new)
            theirs = others.at(path)
            if theirs is not None and (change is None or is_time_alone(change)):
                theirs = None
            is_kept = theirs is not None and not others.overwrites
            if old is None and _is_unread(new) and len(plan.missing) < MISSING_MAX:
                plan.missing.append(path)
            if not path.startswith(whole) and not self._decide(path, old, new, is_kept=is_kept):
                whole = path + b"/"
                if is_kept:
                    kept = whole
            if change is None or (path in self._spine and change.change in _INSIDE):
                continue
            if theirs is not None and theirs not in plan.conflicts[-1:]:
                plan.conflicts.append(theirs)
            if is_kept or path in plan.retained or path.startswith(kept):
                plan.kept_count += new is not None
                continue
            plan.counts[change.change] += 1
            if new is not None and (new.mode & _SET_IDS or new.xattrs or new.kind in DEVICES):
                plan.privileges.add_given(path, new, target.trees.xattrs(new))
            if self._budget is not None:
                if old is None:
                    self._budget.hold(path)
                changes.append(change)
        plan.changes = tuple(changes)

    def _pair(self, path: bytes, old: Entry, new: Entry, *, is_kept: bool) -> None:
        """Records two directories whose content is compared path by path."""
        if is_kept:
            self._paired[path] = (old, None)
            return
        self._paired[path] = (old, new)
        if path not in self._spine and old._replace(content=None, name=b"") != new._replace(
            content=None, name=b""
        ):
            self._plan.directories[path] = (old, new)

    def _decide(self, path: bytes, old: Entry | None, new: Entry | None, *, is_kept: bool) -> bool:
        """Plans one path; returns whether what is below it must be planned by itself."""
        plan = self._plan
        if (old is not None and old.is_skipped) or (new is not None and new.is_skipped):
            self._leave_alone(path, old, new)
            return False
        if is_kept and (old is None or not old.is_directory):
            return False
        if old is None:
            assert new is not None
            plan.puts[path] = (new, None)
            return False
        if old.is_directory and new is not None and new.is_directory:
            self._pair(path, old, new, is_kept=is_kept)
            return True
        if is_kept or path in self._others.holders:
            return self._retain(path, old)
        if new is None:
            return self._decide_removal(path, old)
        if kind_of_change(old, new) == ChangeKind.METADATA:
            plan.metadata[path] = (old, new)
            return False
        if old.is_directory and self._holds_skipped(old):
            plan.blocked.append(path)
            return False
        plan.puts[path] = (new, old)
        return False

    def _decide_removal(self, path: bytes, old: Entry) -> bool:
        if old.is_directory and (path in self._spine or self._holds_skipped(old)):
            return self._retain(path, old)
        self._plan.removals[path] = old
        return False

    def _retain(self, path: bytes, old: Entry) -> bool:
        """Plans that a directory stays, and some of what is in it."""
        self._plan.retained.add(path)
        self._paired[path] = (old, None)
        return True

    def _holds_skipped(self, directory: Entry) -> bool:
        return self._current.trees.totals(directory.tree_id).skipped > 0

    def _leave_alone(self, path: bytes, old: Entry | None, new: Entry | None) -> None:
        """Records what stays as it is, unless both states skipped it, or nothing is there."""
        if old is None:
            return
        if old.is_skipped and (new is None or not new.is_skipped):
            self._plan.untouched.append(Skipped(path, old.skip_reason))
        elif new is not None and not old.is_skipped:
            self._plan.untouched.append(Skipped(path, new.skip_reason))

    def _with_retained(self, untouched: list[Skipped]) -> list[Skipped]:
        """Returns what is left alone, and the directories that stay because they hold it."""
        retained = self._plan.retained - self._spine
        left_alone: list[Skipped] = []
        for item in untouched:
            above = [path for path in treepath.parents(item.path) if path in retained]
            retained.difference_update(above)
            left_alone += [Skipped(path, item.reason) for path in sorted(above)]
            left_alone.append(item)
        return left_alone

    def _relink(self) -> None:
        """Puts all names of each hard-link group of which one is put, or that is new.

        Also replaces a file that has names elsewhere, which must not change, by another one.
        """
        plan = self._plan
        linked, target = self._current.groups, self._target.groups
        current = linked
        indexes = self._kept_indexes
        if not self._others.overwrites and (plan.conflicts or indexes or self._others.holders):
            current = self._others.without_kept(linked, plan.conflicts, indexes)
            target = self._others.without_kept(target, plan.conflicts, indexes)
        # In order, because few pages of a wide directory are kept.
        unseen = {path for path in sorted(relinked_paths(current, target)) if self._is_unseen(path)}
        if unseen:  # their links are left alone as they are
            current, target = (
                subset_groups(groups, lambda path: path not in unseen)
                for groups in (current, target)
            )

        separated = relinked_paths(linked, current) if current is not linked else set[bytes]()
        paths = relinked_paths(current, target)
        paths.update((self._current.shared | separated).intersection(plan.metadata))
        for group in distinct_groups(target, [*plan.puts, *paths]).values():
            paths.update(group)
        for path in sorted(paths):
            if not self._is_covered(path):
                old, new = self._current.entry(path), self._target.entry(path)
                if old is None or new is None or old.is_skipped or new.is_skipped:
                    continue
                if not new.is_directory and not old.is_directory:
                    plan.metadata.pop(path, None)
                    plan.puts[path] = (new, old)
        plan.links_broken = sorted(
            path for path in plan.puts if path in self._current.linked_outside or path in separated
        )

    def _is_unseen(self, path: bytes) -> bool:
        """Returns whether something is left alone at a path, or above it, by either state."""
        for state in (self._current, self._target):
            entry = state.entry(path)
            if state.is_hidden(path) if entry is None else entry.is_skipped:
                return True
        return False

    def _is_covered(self, path: bytes) -> bool:
        plan = self._plan
        return any(at in plan.puts or at in plan.removals for at in (path, *treepath.parents(path)))


def unread_paths(state: State) -> Iterator[bytes]:
    """Yields what a snapshot knows of, but could not read."""
    if state.trees.totals(state.root.tree_id).incomplete:
        entries = state.trees.walk().entries
        for path, _, entry in differing(None, state.root, entries, entries):
            if _is_unread(entry):
                yield path


def _is_unread(entry: Entry | None) -> bool:
    return entry is not None and entry.is_skipped and entry.skip_reason is SkipReason.UNREADABLE


def count_of(state: State) -> int:
    """Returns how many paths a state holds, without its root and what it skipped."""
    totals = state.trees.totals(state.root.tree_id)
    return totals.files + totals.directories + totals.others


def result_of(
    goal: Goal,
    plan: RestorePlan,
    target: State,
    *,
    safety_id: SnapshotId | None = None,
    is_dry_run: bool = False,
    left_out: Privileges = _NOTHING,
) -> RestoreResult:
    """Returns the outcome of a plan that was carried out, or would be."""
    attachment = goal.request.attachment
    created, deleted = plan.counts[ChangeKind.ADDED], plan.counts[ChangeKind.REMOVED]
    restored = plan.counts.total() - created - deleted
    held = count_of(target)
    return RestoreResult(
        snapshot=goal.snapshot,
        scope=goal.scope,
        restored=restored,
        created=created,
        deleted=deleted,
        unchanged=max(0, held - created - restored - plan.kept_count),
        untouched=tuple(plan.untouched),
        missing=tuple(plan.missing),
        changes=plan.changes,
        safety_id=safety_id,
        dry_run=is_dry_run,
        links_broken=tuple(plan.links_broken),
        plan_id=attachment.before.name if attachment is not None else None,
        conflicts=tuple(plan.conflicts),
        base_ids=tuple(base.id for base in goal.bases),
        privileges=left_out.plus(plan.privileges.result()),
    )


def warn_of_degraded(session: Session, paths: Sequence[bytes]) -> None:
    """Warns of paths whose owner or privileged attributes were not permitted to be put back."""
    if paths:
        named = first_few(sorted(paths), lambda path: quoted(path or b"."))
        session.monitor.warn(
            WarningCode.METADATA_NOT_RESTORED,
            "The owner or some attributes could not be put back, which needs privileges "
            f"or another file system: {named}",
        )
