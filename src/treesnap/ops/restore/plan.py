"""What a restore is asked for, the plan for it, and what it returns.

The plan is pure, from two trees to the steps between them. Both trees are read through functions
and nothing is touched, so a plan can be printed, counted and tested on its own. Steps never nest:
a directory that only one side has is one step, whatever is in it, and every other step lies in a
directory that both sides have. So steps can be done in any order.

A name that either side skipped is left alone, and so is every directory that
holds one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from treesnap import treepath
from treesnap.codec.journal import Finish
from treesnap.codec.root_files import Moment, RestoreHistory
from treesnap.compare import change_at, differing, kind_of_change
from treesnap.errors import ErrorCode, Refused, quoted
from treesnap.model import (
    Change,
    ChangeKind,
    Entry,
    IgnoreRules,
    Retag,
    Skipped,
    Snapshot,
    SnapshotId,
)
from treesnap.named_tuple import NamedTuple
from treesnap.ops.context import Session
from treesnap.ops.references import resolve_in
from treesnap.ops.state import State, effective_scope, recorded_state
from treesnap.results import RestoreResult
from treesnap.store.plan_files import PlanMove

HistoryStep = Callable[[RestoreHistory, Moment], RestoreHistory]


class WayBack(NamedTuple):
    """A roll-back of a failed step: see :func:`treesnap.ops.checkpoint.go_back`.

    What is in the root was left by that step, its ignore files too.
    """

    removes_first: bool = False
    """Whether what goes is removed before anything is put: there is no room for both."""
    not_kept: str | None = None
    """Why there is no room for a safety snapshot either, or None where one is made."""


class RestoreRequest(NamedTuple):
    """What the caller of ``restore`` asked for."""

    ref: str
    paths: tuple[bytes, ...] = ()
    to: str | None = None
    dry_run: bool = False
    touch: bool = False
    force: bool = False
    retag: Retag | None = None
    """What becomes of the snapshot's later tags once the root is as in it."""
    way_back: WayBack | None = None
    move: PlanMove | None = None
    """The plan that goes with the files."""
    list_changes: bool = True
    """Whether the result lists what changed, or only counts it."""


class Goal(NamedTuple):
    """A snapshot to go to, restricted to some paths or not."""

    snapshot: Snapshot
    scope: tuple[bytes, ...] | None
    paths: tuple[bytes, ...] = ()
    """What the caller named; each has to be in one of both states."""
    touch: bool = False
    force: bool = False
    way_back: WayBack | None = None
    label: str = "before restore"
    history_step: HistoryStep = RestoreHistory.restored
    removes_root: bool = False
    """Whether the goal is that there is no root; the snapshot holds an empty one."""
    move: PlanMove | None = None
    list_changes: bool = True

    @property
    def rules(self) -> tuple[IgnoreRules, ...]:
        """The exclusions of the snapshot, which hold beside today's."""
        return self.snapshot.record.rules

    @property
    def not_kept(self) -> str | None:
        """Why the state before cannot be kept in a safety snapshot, or None where it is."""
        return self.way_back.not_kept if self.way_back is not None else None

    def state(self, session: Session) -> State:
        """Returns the snapshot's tree, with nothing but the paths in scope."""
        return recorded_state(session, self.snapshot.record, self.scope)


def goal_of(session: Session, request: RestoreRequest) -> Goal:
    """Returns what a request asks for; raises NotFound or InvalidArgument."""
    anywhere = request.to is not None
    snapshot = resolve_in(session, request.ref, paths=request.paths, anywhere=anywhere)
    return Goal(
        snapshot=snapshot,
        scope=effective_scope(snapshot, request.paths or None),
        paths=request.paths if snapshot.record.scope is None else (),
        touch=request.touch,
        force=request.force,
        way_back=request.way_back,
        move=request.move,
        list_changes=request.list_changes,
    )


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
        """Directories that the new state lacks, but that hold something to leave alone."""
        self.untouched: list[Skipped] = []
        self.blocked: list[bytes] = []
        """Directories that should be replaced, but hold something to leave alone."""
        self.counts: Counter[ChangeKind] = Counter()
        """How many paths change in each way."""
        self.changes: tuple[Change, ...] = ()
        """Each of them, unless they are only counted."""

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
    scope: tuple[bytes, ...] | None,
    made_since: AbstractSet[bytes] = frozenset(),
    *,
    list_changes: bool = True,
) -> RestorePlan:
    """Returns the steps from the current state to the target.

    With a ``scope``, both trees hold nothing but the paths in it and the
    directories above them, which are then not part of the restore themselves. Except those of
    ``made_since``, which hold nothing else, and were absent in the target. A list of changes takes
    some 500 bytes for each path, also below directories that are one step.
    """
    return _Planner(current, target, scope, made_since, list_changes=list_changes).plan()


class _Planner:
    def __init__(
        self,
        current: State,
        target: State,
        scope: tuple[bytes, ...] | None,
        made_since: AbstractSet[bytes],
        *,
        list_changes: bool,
    ) -> None:
        self._current = current
        self._target = target
        self._spine = treepath.ancestors(scope) - made_since if scope is not None else set()
        self._list_changes = list_changes
        self._plan = RestorePlan()
        self._paired: dict[bytes, tuple[Entry, Entry | None]] = {}
        """Directories that differ and are not put or removed as a whole."""

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
        if directory in self._spine or (new is not None and not new.is_directory):
            new = None
        if old is not None:
            plan.directories[directory] = (old, new)

    def _compare(self) -> None:
        """Walks both trees side by side, once: for the steps, and for what changes."""
        plan = self._plan
        current, target = self._current, self._target
        found: list[Change] = []
        whole = b"/"
        for path, old, new in differing(
            current.root, target.root, current.trees.entries, target.trees.entries
        ):
            if not path.startswith(whole) and not self._decide(path, old, new):
                whole = path + b"/"
            if path in plan.retained:
                continue
            change = change_at(path, old, new)
            if change is not None and (
                path not in self._spine or change.change == ChangeKind.ADDED
            ):
                plan.counts[change.change] += 1
                if self._list_changes:
                    found.append(change)
        plan.changes = tuple(found)

    def _pair(self, path: bytes, old: Entry, new: Entry) -> None:
        """Records two directories whose content is compared path by path."""
        self._paired[path] = (old, new)
        if path not in self._spine and old._replace(content=None, name=b"") != new._replace(
            content=None, name=b""
        ):
            self._plan.directories[path] = (old, new)

    def _decide(self, path: bytes, old: Entry | None, new: Entry | None) -> bool:
        """Plans one path; returns whether what is below it must be planned by itself."""
        plan = self._plan
        if (old is not None and old.is_skipped) or (new is not None and new.is_skipped):
            self._leave_alone(path, old, new)
            return False
        if old is None:
            assert new is not None
            plan.puts[path] = (new, None)
            return False
        if new is None:
            return self._decide_removal(path, old)
        if old.is_directory and new.is_directory:
            self._pair(path, old, new)
            return True
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
            self._plan.retained.add(path)
            self._paired[path] = (old, None)
            return True
        self._plan.removals[path] = old
        return False

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
        found: list[Skipped] = []
        for item in untouched:
            above = [path for path in treepath.parents(item.path) if path in retained]
            retained.difference_update(above)
            found += [Skipped(path, item.reason) for path in sorted(above)]
            found.append(item)
        return found

    def _relink(self) -> None:
        """Puts all names of each hard-link group of which one is put, or that is new.

        Also replaces a file that has names elsewhere, which must not change, by another one.
        """
        plan = self._plan
        current, target = self._current.groups, self._target.groups
        wanted = {path for path in {*current, *target} if current.get(path) != target.get(path)}
        wanted.update(path for path in plan.metadata if path in self._current.shared)
        for path in list(plan.puts):
            wanted.update(target.get(path, ()))
        for path in sorted(wanted):
            if path not in plan.puts:
                wanted.update(target.get(path, ()))
        for path in sorted(wanted):
            if not self._is_covered(path):
                old, new = self._current.entry(path), self._target.entry(path)
                if old is None or new is None or old.is_skipped or new.is_skipped:
                    continue
                if not new.is_directory and not old.is_directory:
                    plan.metadata.pop(path, None)
                    plan.puts[path] = (new, old)

    def _is_covered(self, path: bytes) -> bool:
        plan = self._plan
        return any(at in plan.puts or at in plan.removals for at in (path, *treepath.parents(path)))


def count_of(state: State) -> int:
    """Returns how many paths a state holds, without its root and what it skipped."""
    totals = state.trees.totals(state.root.tree_id)
    return totals.files + totals.directories + totals.others


def result_of(
    goal: Goal,
    plan: RestorePlan,
    current: State,
    target: State,
    *,
    safety_id: SnapshotId | None = None,
    is_dry_run: bool = False,
) -> RestoreResult:
    """Returns the outcome of a plan that was carried out, or would be."""
    created, deleted = plan.counts[ChangeKind.ADDED], plan.counts[ChangeKind.REMOVED]
    restored = plan.counts.total() - created - deleted
    held = count_of(target)
    return RestoreResult(
        snapshot=goal.snapshot,
        scope=goal.scope,
        restored=restored,
        created=created,
        deleted=deleted,
        unchanged=max(0, held - created - restored),
        untouched=tuple(plan.untouched),
        changes=plan.changes,
        safety_id=safety_id,
        dry_run=is_dry_run,
        links_broken=tuple(sorted(current.linked_outside.intersection(plan.puts))),
        plan_id=goal.move.before.plan_id if goal.move is not None else None,
    )
