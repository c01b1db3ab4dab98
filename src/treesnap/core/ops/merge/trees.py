"""Merging what two sides did with one tree since a state that both had.

That state is a *base*. What only one side changed since then is taken from that side, for each
path by itself, and of one path for its content, its mode and each extended attribute by itself.
What both changed, and not in the same way, is merged line by line if it is text
(``three_way``). All else is a *conflict*, and a rule says what becomes of that. With
several bases, what is as in any of them was not changed, and texts are not merged. A directory that
one side moved is moved first, and then what the other side did in it is merged. One that a side
removed exists while anything is left in it, such as a file that the other side added. A
repository is one thing, because its files refer to each other, and so are a database of SQLite, its
log and its journal. Of each two paths it is merged
whether they are names of one file.

A modification time is never a conflict. Where no content changed, it is merged too, or stays as it
is here. So are owners: every file that a user clones becomes theirs, which is not a change they
made.

The result is a snapshot. To restore it is another step, with what that promises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from treesnap.core.codec.reader import Get, TreeReader, read_content
from treesnap.core.codec.tree import Put, put_tree
from treesnap.core.diff.three_way import TEXT_SIZE_MAX, Labels, are_texts, merge_texts
from treesnap.core.model import treepath
from treesnap.core.model.entries import ChangeList, Entry, EntryKind, Skipped, Totals, Xattrs
from treesnap.core.model.errors import ErrorCode, NotFound, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind, SnapshotRecord
from treesnap.core.model.type_names import Any, TypeVar
from treesnap.core.ops.context import Session
from treesnap.core.ops.databases import (
    files_beside,
    is_database,
    may_have_files_beside,
    said_of_database,
)
from treesnap.core.ops.merge.renames import Moves, are_apart, can_move, find_moves, moved
from treesnap.core.ops.privileges import MERGED, elsewhere_tags
from treesnap.core.ops.restore.plan import REPOSITORIES
from treesnap.core.ops.tree_state import State, compared, subset_groups, totals_of_entry
from treesnap.core.store.writer import Writer, retry_overtaken
from treesnap.core.worktree.scan.file_reader import store_bytes, store_xattrs
from treesnap.core.worktree.scan.hard_links import Groups, load_groups, store_groups

_Value = TypeVar("_Value")


class ConflictRule(StrEnum):
    """What becomes of conflicts."""

    REFUSE = "refuse"
    """Nothing is merged at all."""
    MINE = "mine"
    """They stay as they are here."""
    THEIRS = "theirs"
    """They become what they are on the other side."""
    MARKERS = "markers"
    """Both sides are written into a text; anything else stays as it is here."""


class MergeRequest(NamedTuple):
    """How to merge, and what the result is called."""

    label: str
    kind: SnapshotKind = SnapshotKind.MANUAL
    rule: ConflictRule = ConflictRule.MINE
    takes_owners: bool = False
    """Whether an owner that only the other side changed is taken; for users who may set owners."""
    takes_times: bool = False
    """Whether a modification time that only the other side changed is taken."""
    paths: tuple[bytes, ...] = ()
    """What alone is merged; all else stays."""
    tags: Mapping[str, str] = {}
    merged_before: tuple[Snapshot, ...] = ()
    """States of the other side that were merged into mine since the base, oldest first."""
    keeps_record: bool = False
    """Whether a merge without a change is published too, because later ones begin at it."""
    labels: Labels = Labels("here", "there")
    """What the sides are called in texts with markers."""
    dry_run: bool = False


class MergeOutcome(NamedTuple):
    """Outcome of a merge."""

    snapshot: Snapshot | None
    """None where nothing was published: in a dry run, after a refusal, or without a change."""
    conflicts: tuple[bytes, ...]
    """Paths that both sides changed, sorted; of a repository its own path."""
    changes: ChangeList
    """What differs from my side."""
    too_large: tuple[bytes, ...] = ()
    """Of the conflicts, the texts that are too large to be merged line by line."""
    left_out: tuple[Skipped, ...] = ()
    """What the other side changed at paths that either side skipped, and what stays as it is."""


def merge(
    session: Session,
    mine: Snapshot,
    theirs: Snapshot,
    bases: Sequence[Snapshot],
    request: MergeRequest,
) -> MergeOutcome:
    """Publishes a snapshot of the root with what both sides changed; durable after return.

    ``mine`` is a snapshot of the whole root, and so are the others, unless they hold the paths
    that are merged. The caller holds the root's lock. Reads the directories that differ, and the
    texts that both sides changed. Raises Busy, Corrupt, StorageFull, and NotFound where a snapshot
    was deleted since it was looked up.
    """

    def publish(_: object) -> MergeOutcome:
        store, root = session.store, session.root
        with Writer(store) as writer:
            outcome, record = _merged(session, writer, (mine, theirs, *bases), request)
            is_refused = bool(outcome.conflicts) and request.rule is ConflictRule.REFUSE
            is_same = (record.root, record.links) == (mine.record.root, mine.record.links)
            if request.dry_run or is_refused or (is_same and not request.keeps_record):
                return outcome
            sequence = store.snapshots.listing(root.id).next_sequence
            sources = (mine, theirs, *bases, *request.merged_before)
            _, name = writer.publish(record, root.id, sequence, sources)
        return outcome._replace(snapshot=store.snapshots.load(root.id, name))

    return retry_overtaken("the merge", publish)


def _merged(
    session: Session, writer: Writer, snapshots: Sequence[Snapshot], request: MergeRequest
) -> tuple[MergeOutcome, SnapshotRecord]:
    """Stores the merged tree of some snapshots: mine, theirs, then the bases.

    take the trees
    advance the base           past what was merged before
    align directories          that a side moved
    walk the trees             side by side, where they differ
    store the directories      that hold something new
    join the hard links

    Returns the record of that, and the outcome as long as it is not published.
    """
    trees = TreeReader(writer.get)
    sides = _Sides(trees, writer.put, session.path_budget)
    for snapshot in snapshots:
        sides.add(snapshot.record.root, load_groups(snapshot.record.links, writer.get))
    sides.require(request.paths)
    now_ns = session.context.clock_ns()
    for snapshot in request.merged_before:
        merged = load_groups(snapshot.record.links, writer.get)
        sides.advance_base(snapshot.record.root, merged, writer.get)
    work = _Merge(writer.get, writer.put, trees, request, now_ns, session.path_budget())
    work.conflicts += sides.align(request)
    work.run(*sides.roots)
    top, totals = applied(
        sides.roots[0], work.taken, work.metadata, work.missing, trees, writer.put
    )
    others = [
        subset_groups(groups, lambda path: _is_wanted(path, request.paths))
        for groups in sides.groups[1:]
    ]
    groups = _groups(trees, top, [sides.groups[0], *others])
    before = snapshots[0].record
    record = before._replace(
        root=top,
        links=store_groups(set(groups.values()), writer.put),
        totals=totals,
        created_at_ns=now_ns,
        **_metadata(session, snapshots, request),
    )
    changes = compared(
        State(before.root, trees, load_groups(before.links, writer.get)),
        State(top, trees, groups),
        None,
        session.path_budget(),
    )
    outcome = MergeOutcome(
        None,
        conflicts=tuple(sorted(set(work.conflicts))),
        changes=changes,
        too_large=tuple(sorted(work.too_large)),
        left_out=tuple(sorted(work.left_out)),
    )
    return outcome, record


def _metadata(
    session: Session, snapshots: Sequence[Snapshot], request: MergeRequest
) -> dict[str, Any]:
    """Returns the fields of a merge's record that its trees do not decide."""
    return {
        "kind": request.kind,
        "unstable": (),
        "parent": snapshots[0].id,
        "added_bytes": None,
        "host": os.uname().nodename,
        "label": request.label,
        "name": None,
        "session": None,
        "step": None,
        "tags": {**request.tags, **elsewhere_tags(session, *snapshots)},
        "attachment": None,
    }


def merged_id(snapshot: Snapshot) -> SnapshotId | None:
    """Returns the snapshot of the other side, of which a snapshot is a merge; None for others."""
    identity = snapshot.record.tags.get(MERGED)
    return SnapshotId(identity) if identity else None


_MINE, _THEIRS, _BASE = range(3)
"""The places of the trees of a merge with one base, see :class:`_Sides`."""


class _Sides:
    """The trees of a merge, and their hard-link groups: mine, theirs, then the bases."""

    def __init__(self, trees: TreeReader, put: Put, new_budget: Callable[[], PathBudget]) -> None:
        self._trees = trees
        self._put = put
        self._new_budget = new_budget
        self.roots: list[Entry] = []
        self.groups: list[Groups] = []

    def add(self, root: Entry, groups: Groups) -> None:
        """Takes one more tree."""
        self.roots.append(root)
        self.groups.append(groups)

    def advance_base(self, later: Entry, groups: Groups, get: Get) -> None:
        """Makes a later state of the other side the base of each path that my side took from it.

        That is so where merging it once more would change nothing here, whether it was merged or
        came otherwise. Where a merge was undone, the base stays. No record has to say which.
        """
        moves = find_moves(self._trees, self.roots[_BASE], later, self._new_budget())
        for source, target in moves.items():
            here = self._trees.find(self.roots[_MINE], target)
            is_gone = self._trees.find(self.roots[_MINE], source) is None
            if is_gone and here is not None and here.is_directory:
                self._move({_BASE: {source: target}})
        mine, _, base = self.roots
        again = _Merge(get, self._put, self._trees, MergeRequest(label=""), 0, self._new_budget())
        again.run(mine, later, base)
        taken: dict[bytes, Entry | None] = {}
        metadata: dict[bytes, Entry] = {}
        left_out = {item.path for item in again.left_out}
        for path in {*again.taken, *again.metadata, *again.conflicts, *left_out}:
            before = self._trees.find(base, path)
            if not again.has_entered(path):
                taken[path] = before
            elif before is not None and before.is_directory:
                metadata[path] = before
        if taken or metadata:
            missing: dict[bytes, Entry] = {}
            for path in treepath.ancestors(taken):
                was = self._trees.find(base, path)
                if was is not None and self._trees.find(later, path) is None:
                    missing[path] = was
            changed = {
                path: entry
                for path, entry in taken.items()
                if entry is not None or self._trees.find(later, path) is not None
            }
            later = applied(later, changed, metadata, missing, self._trees, self._put)[0]
        self.roots[_BASE] = later
        own, old = self.groups[_MINE], self.groups[_BASE]
        self.groups[_BASE] = {
            path: group
            for path in {*groups, *old}
            if (group := (groups if own.get(path) == groups.get(path) else old).get(path))
        }

    def require(self, paths: Sequence[bytes]) -> None:
        """Raises NotFound for a path that no side holds: it is most likely mistyped."""
        for path in paths:
            if not any(self._trees.find(root, path) for root in self.roots):
                raise NotFound(
                    f"There is no {quoted(path)}, neither now nor before or after what is merged",
                    code=ErrorCode.PATH_NOT_FOUND,
                    path=path,
                )

    def align(self, request: MergeRequest) -> list[bytes]:
        """Moves directories in each tree to where a side moved them; returns the conflicts.

        A directory that both sides moved, to different places, is where the rule wants it.
        """
        mine, theirs, *bases = self.roots
        if len(bases) != 1:
            return []
        here = self._moves(bases[0], mine, request)
        there = self._moves(bases[0], theirs, request)
        both = here.keys() & there.keys()
        conflicts = [source for source in both if here[source] != there[source]]
        for source in sorted(both):
            goal, other, side = here[source], there[source], _THEIRS
            if request.rule is ConflictRule.THEIRS:
                goal, other, side = other, goal, _MINE
            self._move({_BASE: {source: goal}, **({side: {other: goal}} if goal != other else {})})
        mine_alone = {source: here[source] for source in sorted(here.keys() - both)}
        theirs_alone = {source: there[source] for source in sorted(there.keys() - both)}
        for source, target in list(theirs_alone.items()):
            if self._is_closed(_MINE, target):  # it cannot come there, so it stays
                self._move({_THEIRS: {target: source}})
                del theirs_alone[source]
        for source, target in mine_alone.items():
            self._move({_THEIRS: {source: target}, _BASE: {source: target}})
        for source, target in theirs_alone.items():
            if are_apart({source: target}, here):
                self._move({_MINE: {source: target}, _BASE: {source: target}})
        return conflicts

    def _is_closed(self, number: int, path: bytes) -> bool:
        """Returns whether a tree skipped a path, or something above it."""
        above = (self._trees.find(self.roots[number], at) for at in (path, *treepath.parents(path)))
        return any(entry is not None and entry.is_skipped for entry in above)

    def _moves(self, base: Entry, side: Entry, request: MergeRequest) -> Moves:
        targets = find_moves(self._trees, base, side, self._new_budget())
        return {
            source: target
            for source, target in targets.items()
            if _is_wanted(source, request.paths) and _is_wanted(target, request.paths)
        }

    def _move(self, moves_of: Mapping[int, Moves]) -> None:
        """Moves directories in some trees, or in none where one of these has no room for it."""
        trees = self._trees
        for number, moves in moves_of.items():
            if not all(can_move(trees, self.roots[number], *move) for move in moves.items()):
                return
        whole = self.roots[:]
        for number, moves in moves_of.items():
            ((source, target),) = moves.items()
            root = self.roots[number]
            entry = trees.find(root, source)
            assert entry is not None
            name = treepath.split(target)[1]
            missing = {
                path: like
                for path in treepath.parents(target)
                if trees.find(root, path) is None
                and (like := next(filter(None, (trees.find(item, path) for item in whole)), None))
            }
            taken = {source: None, target: entry._replace(name=name)}
            self.roots[number] = applied(root, taken, {}, missing, trees, self._put)[0]
            self.groups[number] = {
                moved(path, moves): tuple(sorted(moved(item, moves) for item in group))
                for path, group in self.groups[number].items()
            }


class _MergePlace(NamedTuple):
    """A path, and what stands there: None for nothing."""

    path: bytes
    mine: Entry | None
    theirs: Entry | None
    bases: Sequence[Entry | None]
    """For each base, what stood there."""


class _Merge:
    """Walks all trees side by side, where they differ. Does not recurse."""

    def __init__(
        self,
        get: Get,
        put: Put,
        trees: TreeReader,
        request: MergeRequest,
        now_ns: int,
        budget: PathBudget,
    ) -> None:
        self._budget = budget
        self._trees = trees
        self._get, self._put = get, put
        self._request = request
        self._now_ns = now_ns
        self.taken: dict[bytes, Entry | None] = {}
        """What changes here, with all below it; None for what is removed."""
        self.metadata: dict[bytes, Entry] = {}
        """Directories that get other metadata."""
        self.missing: dict[bytes, Entry] = {}
        """Directories that do not exist here and hold something that is taken."""
        self.conflicts: list[bytes] = []
        self.too_large: set[bytes] = set()
        self.left_out: list[Skipped] = []
        """What is not merged, because a side skipped it."""
        self._entered: set[bytes] = set()
        self._roots: tuple[Entry, ...] = ()
        """Mine, theirs, and those of the bases."""

    def has_entered(self, path: bytes) -> bool:
        """Returns whether a path is a directory on both sides, merged by what is in it."""
        return path in self._entered

    def run(self, my_root: Entry, their_root: Entry, *base_roots: Entry) -> None:
        """Finds what the merge changes in ``my_root``."""
        self._roots = (my_root, their_root, *base_roots)
        stack: list[_MergePlace] = [_MergePlace(treepath.ROOT, my_root, their_root, base_roots)]
        halves: list[_MergePlace] = []
        while stack:
            place = stack.pop()
            if place.mine is not None and place.theirs is not None:
                self._entered.add(place.path)
                self._merge_directory(place.path, place.mine, place.theirs, place.bases)
            else:
                halves.append(place)
            by_name = [
                _named(self._trees, entry) for entry in (place.mine, place.theirs, *place.bases)
            ]
            for name in by_name[0].keys() | by_name[1].keys():
                mine, theirs, *bases = (entries.get(name) for entries in by_name)
                if mine == theirs or theirs in bases:
                    continue
                below = _MergePlace(treepath.join(place.path, name), mine, theirs, bases)
                if not _is_concerned(below.path, self._request.paths):
                    continue
                self._budget.hold(below.path)
                if _is_skipped(mine) or _is_skipped(theirs):
                    self._leave_out(below)
                    continue
                is_wanted = _is_wanted(below.path, self._request.paths)
                if not is_wanted:
                    below = _directories_in(below)
                is_whole = is_wanted and name in REPOSITORIES
                if not is_whole and _may_enter(below, is_wanted=is_wanted):
                    stack.append(below)
                elif is_wanted:
                    self._merge_whole(below)
                elif self._is_blocked(below):
                    self.conflicts.append(below.path)
        for place in reversed(halves):  # what lies deeper comes first
            self._decide_directory(place)

    def _leave_out(self, place: _MergePlace) -> None:
        """Notes what a side skipped, if the other side may have changed something there."""
        mine, theirs, bases = place.mine, place.theirs, place.bases
        held = [base for base in bases if not _is_skipped(base)]
        if (theirs is None and not any(held)) or self._is_alike_any(theirs, held):
            return
        skipped = mine if mine is not None and mine.is_skipped else theirs
        assert skipped is not None
        self.left_out.append(Skipped(place.path, skipped.skip_reason))

    def _is_blocked(self, place: _MergePlace) -> bool:
        """Returns whether a path cannot come here because what is above it is not a directory."""
        for chosen in self._request.paths:
            if treepath.is_within(chosen, place.path):
                rest = chosen[len(place.path) + 1 :]
                wanted_entry, *before = (
                    None if entry is None else self._trees.find(entry, rest)
                    for entry in (place.theirs, *place.bases)
                )
                if wanted_entry is not None and wanted_entry not in before:
                    return True
        return False

    def _merge_whole(self, place: _MergePlace) -> None:
        """Decides on what is not a directory on one side, or is a repository."""
        mine, theirs, bases = place.mine, place.theirs, place.bases
        if self._splits_database(place):
            self._take(place, self._in_conflict(place))
            return
        if mine in bases and self._request.takes_times:
            result = theirs
        elif self._is_alike_any(theirs, [mine, *bases]):
            result = mine
        elif self._is_alike_any(mine, bases):
            result = theirs
        else:
            result = self._merged_parts(place)
            if result is None:
                self._take(place, self._in_conflict(place))
                return
        if result is not None and mine is not None and theirs is not None:
            result = self._with_rest(result, mine, theirs, bases)
        self._take(place, result)

    def _splits_database(self, place: _MergePlace) -> bool:
        """Returns whether each side changed another file of one database, which would damage it."""
        if self._is_alike_any(place.theirs, [place.mine, *place.bases]):
            return False
        for path in self._files_beside(place):
            mine, *others = (said_of_database(path, entry) for entry in self._all_at(path))
            if mine not in others:
                return True
        return False

    def _files_beside(self, place: _MergePlace) -> tuple[bytes, ...]:
        if not may_have_files_beside(place.path, place.mine, place.theirs, *place.bases):
            return ()
        return files_beside(
            place.path,
            lambda path: any(is_database(self._get, entry) for entry in self._all_at(path)),
        )

    def _all_at(self, path: bytes) -> list[Entry | None]:
        return [self._trees.find(root, path) for root in self._roots]

    def _take(self, place: _MergePlace, result: Entry | None) -> None:
        if result != place.mine:
            self.taken[place.path] = result

    def _in_conflict(self, place: _MergePlace) -> Entry | None:
        """Notes a conflict; returns the side that the rule wants, as it is there."""
        self.conflicts.append(place.path)
        mine, theirs = place.mine, place.theirs
        if self._request.rule is not ConflictRule.THEIRS:
            return mine
        for path in self._files_beside(place):
            here, there, *_ = self._all_at(path)
            self._take(_MergePlace(path, here, there, ()), there)
        if mine is None or theirs is None or self._request.takes_owners:
            return theirs
        return theirs._replace(uid=mine.uid, gid=mine.gid)

    def _decide_directory(self, place: _MergePlace) -> None:
        """Decides on a directory that one side does not have, once all below it is decided.

        It exists while anything is left in it.
        """
        path, mine, theirs = place.path, place.mine, place.theirs
        below = [treepath.join(path, name) for name in _named(self._trees, mine or theirs)]
        is_wanted = _is_wanted(path, self._request.paths)
        if mine is not None:
            is_empty = all(self.taken.get(item, mine) is None for item in below)
            if is_empty and is_wanted and self._is_settled(place):
                for item in below:
                    del self.taken[item]
                self.taken[path] = None
        elif theirs is not None:
            is_empty = all(
                item not in self.missing and self.taken.get(item) is None for item in below
            )
            if not is_empty or (is_wanted and not self._is_settled(place)):
                self.missing[path] = self.metadata[path] = theirs

    def _is_settled(self, place: _MergePlace) -> bool:
        """Returns whether an empty directory is removed, or stays so."""
        one = place.mine or place.theirs
        assert one is not None
        before = [_essence(item) for item in place.bases if item is not None]
        return _essence(one) in before or self._in_conflict(place) is None

    def _merged_parts(self, place: _MergePlace) -> Entry | None:
        """Returns what two sides made of one file or the like; None for a conflict."""
        path, mine, theirs = place.path, place.mine, place.theirs
        bases = [entry for entry in place.bases if entry is not None]
        if mine is None or theirs is None or len(bases) < len(place.bases):
            return None
        if {entry.kind for entry in (mine, theirs, *bases)} != {mine.kind} or mine.is_directory:
            return None
        result = self._merged_properties(mine, theirs, bases)
        if result is None:
            return None
        contents = [(entry.content, entry.size) for entry in (mine, theirs, *bases)]
        content = _chosen(contents[0], contents[1], contents[2:])
        if content is not None:
            time_ns = mine.mtime_ns if content == contents[0] else theirs.mtime_ns
            return result._replace(content=content[0], size=content[1], mtime_ns=time_ns)
        if mine.kind != EntryKind.FILE or len(bases) != 1:
            return None
        return self._merged_text(path, result, [bases[0], mine, theirs])

    def _merged_text(self, path: bytes, entry: Entry, sides: Sequence[Entry]) -> Entry | None:
        """Returns an entry with the merge of a text, its base first; None for a conflict."""
        if any(side.size > TEXT_SIZE_MAX for side in sides):
            self.too_large.add(path)
            return None
        base, mine, theirs = (self._content(side) for side in sides)
        if not are_texts(base, mine, theirs):
            return None
        marks = self._request.rule is ConflictRule.MARKERS
        text, is_conflict = merge_texts(base, mine, theirs, self._request.labels if marks else None)
        if is_conflict:
            if not marks:
                return None
            self.conflicts.append(path)
        for side, content in zip(sides[1:], (mine, theirs), strict=True):
            if text == content:
                return entry._replace(content=side.content, size=side.size, mtime_ns=side.mtime_ns)
        return entry._replace(
            content=store_bytes(text, self._put), size=len(text), mtime_ns=self._now_ns
        )

    def _content(self, entry: Entry) -> bytes:
        return b"".join(read_content(entry.file_content, self._get))

    def _merge_directory(
        self, path: bytes, mine: Entry, theirs: Entry, bases: Sequence[Entry | None]
    ) -> None:
        """Decides on a directory's own metadata."""
        if not _is_wanted(path, self._request.paths):
            return
        before = [entry for entry in bases if entry is not None and entry.is_directory]
        merged = self._merged_properties(mine, theirs, before)
        if merged is not None:
            result: Entry | None = self._with_rest(merged, mine, theirs, before)
        else:
            result = self._in_conflict(_MergePlace(path, mine, theirs, bases))
        if result is not None and result != mine:
            self.metadata[path] = result

    def _merged_properties(
        self, mine: Entry, theirs: Entry, bases: Sequence[Entry]
    ) -> Entry | None:
        """Returns my entry with merged mode and attributes, or None for a conflict."""
        mode = _chosen(mine.mode, theirs.mode, [entry.mode for entry in bases])
        if mode is None:
            return None
        xattrs = _chosen((mine.xattrs,), (theirs.xattrs,), [(entry.xattrs,) for entry in bases])
        if xattrs is not None:
            return mine._replace(mode=mode, xattrs=xattrs[0])
        by_name = [dict(self._trees.xattrs(entry)) for entry in (mine, theirs, *bases)]
        merged: dict[bytes, bytes] = {}
        for name in sorted({*by_name[0], *by_name[1]}):
            my_value, their_value, *base_values = ((item.get(name),) for item in by_name)
            value = _chosen(my_value, their_value, base_values)
            if value is None:
                return None
            if value[0] is not None:
                merged[name] = value[0]
        attributes: Xattrs = tuple(merged.items())
        try:
            return mine._replace(mode=mode, xattrs=store_xattrs(attributes, self._put))
        except OSError:  # together they are more than an entry can have
            return None

    def _with_rest(
        self, entry: Entry, mine: Entry, theirs: Entry, bases: Sequence[Entry | None]
    ) -> Entry:
        """Returns an entry with the owner that it should have here, and the time."""
        my_owner, their_owner = (mine.uid, mine.gid), (theirs.uid, theirs.gid)
        before = [item for item in bases if item is not None]
        owners = [(item.uid, item.gid) for item in before]
        takes = self._request.takes_owners and my_owner in owners and their_owner not in owners
        uid, gid = their_owner if takes else my_owner
        time_ns = entry.mtime_ns
        if self._request.takes_times and time_ns in {item.mtime_ns for item in before}:
            time_ns = theirs.mtime_ns
        return entry._replace(uid=uid, gid=gid, mtime_ns=time_ns)

    def _is_alike_any(self, one: Entry | None, others: Sequence[Entry | None]) -> bool:
        return any(self._is_alike(one, other) for other in others)

    def _is_alike(self, one: Entry | None, other: Entry | None) -> bool:
        """Returns whether entries, and all below them, are equal but for times and owners."""
        stack = [(one, other)]
        while stack:
            first, second = stack.pop()
            if first is None or second is None:
                return first is second
            if _essence(first) != _essence(second):
                return False
            if first.is_directory and first.content != second.content:
                below, others = _named(self._trees, first), _named(self._trees, second)
                if below.keys() != others.keys():
                    return False
                stack += [(below[name], others[name]) for name in below]
        return True


def _chosen(mine: _Value, theirs: _Value, bases: Sequence[_Value]) -> _Value | None:
    """Returns what a property becomes, or None for a conflict."""
    if mine == theirs or theirs in bases:
        return mine
    return theirs if mine in bases else None


def _is_wanted(path: bytes, paths: Sequence[bytes]) -> bool:
    """Returns whether a path is one of those to be merged, or below one; without any, all are."""
    return not paths or any(treepath.is_within(path, chosen) for chosen in paths)


def _is_concerned(path: bytes, paths: Sequence[bytes]) -> bool:
    """Returns whether a path is to be merged, or may hold one that is."""
    return _is_wanted(path, paths) or any(treepath.is_within(chosen, path) for chosen in paths)


def _essence(entry: Entry) -> Entry:
    """Returns an entry without time and owner, and without what is below a directory."""
    content = None if entry.is_directory else entry.content
    return entry._replace(mtime_ns=0, uid=0, gid=0, content=content)


def _named(trees: TreeReader, directory: Entry | None) -> dict[bytes, Entry]:
    if directory is None or not directory.is_directory:
        return {}
    return {entry.name: entry for entry in trees.entries(directory.tree_id)}


def _is_skipped(entry: Entry | None) -> bool:
    return entry is not None and entry.is_skipped


def _directories_in(place: _MergePlace) -> _MergePlace:
    """Returns a place where what is not a directory on the other side or before counts as absent.

    Nothing is below it, and it is not itself to be merged.
    """
    theirs, *bases = (
        entry if entry is not None and entry.is_directory else None
        for entry in (place.theirs, *place.bases)
    )
    return place._replace(theirs=theirs, bases=bases)


def _may_enter(place: _MergePlace, *, is_wanted: bool) -> bool:
    """Returns whether a path is decided by what is below it.

    A directory that one side does not have is, unless the other side left it as it was.
    """
    sides = [entry for entry in (place.mine, place.theirs) if entry is not None]
    if not all(entry.is_directory for entry in sides):
        return False
    if len(sides) > 1 or not is_wanted:
        return len(sides) > 1 or len(place.bases) == 1
    before = [entry for entry in place.bases if entry is not None and entry.is_directory]
    return len(place.bases) == len(before) == 1 and place.mine not in place.bases


def applied(
    root: Entry,
    taken: Mapping[bytes, Entry | None],
    metadata: Mapping[bytes, Entry],
    missing: Mapping[bytes, Entry],
    trees: TreeReader,
    put: Put,
) -> tuple[Entry, Totals]:
    """Stores the directories that hold something new; returns the topmost one, and its sums.

    ``missing`` directories are made, with the metadata of what stands there.
    """
    made: dict[bytes, Entry] = {}
    children: dict[bytes, list[bytes]] = {}
    directories = treepath.ancestors([*taken, *metadata]) | {*metadata}
    for path in {*directories, *taken} - {treepath.ROOT}:
        children.setdefault(treepath.split(path)[0], []).append(path)
    highest_first = sorted(directories - {treepath.ROOT}, key=treepath.components)
    there: dict[bytes, Entry | None] = {treepath.ROOT: root}
    for path in highest_first:  # each from the one above it: from the root it costs the depth
        above, name = treepath.split(path)
        parent = there[above]
        is_inside = parent is not None and parent.is_directory
        there[path] = trees.lookup(parent.tree_id, name) if parent and is_inside else None
    totals = Totals()
    for path in [*reversed(highest_first), treepath.ROOT]:
        directory = there[path]
        entries = _named(trees, directory) if directory is not None else {}
        directory = directory or missing[path]
        for child in children.get(path, ()):
            name = treepath.split(child)[1]
            entry = made[child] if child in made else taken[child]
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        totals = Totals()
        for entry in entries.values():
            totals = totals.plus(totals_of_entry(entry, trees))
        ordered = [entries[name] for name in sorted(entries)]
        own = metadata.get(path, directory)
        made[path] = own._replace(content=put_tree(ordered, totals, put))
    return made[treepath.ROOT], totals


def _groups(trees: TreeReader, root: Entry, sides: Sequence[Groups]) -> Groups:
    """Returns the hard-link groups of a merged tree; ``sides`` are mine, theirs, then the bases.

    Of each two paths it is merged whether they are names of one file, which cannot be a conflict.
    Names of one file on the other side may differ here: of two files that became one there, one is
    in a conflict, or keeps another owner. Those that differ stay different files.
    """
    mine, theirs, *bases = sides
    joined: dict[bytes, bytes] = {}

    def top(path: bytes) -> bytes:
        while (next_path := joined.get(path, path)) != path:
            path = next_path
        return path

    def join(paths: Sequence[bytes]) -> None:
        first = top(paths[0])
        for path in paths:
            joined[top(path)] = first

    def are_apart(one: bytes, other: bytes, groups: Groups) -> bool:
        return one != other and other not in groups.get(one, ())

    both: dict[object, list[bytes]] = {}
    for path in mine.keys() & theirs.keys():
        both.setdefault((mine[path], theirs[path]), []).append(path)
    for paths in both.values():
        join(paths)
    for group in set(mine.values()):
        if any(are_apart(group[0], path, base) for path in group for base in bases):
            join(group)
    for group in set(theirs.values()):
        new = [path for path in group if all(are_apart(group[0], path, base) for base in bases)]
        if new:
            join([group[0], *new])
            rest = [path for path in group if all(are_apart(new[0], path, base) for base in bases)]
            join([new[0], *rest])
    chosen: dict[tuple[bytes, Entry], list[bytes]] = {}
    for path in {*mine, *theirs}:
        entry = trees.find(root, path)
        if entry is not None:
            chosen.setdefault((top(path), entry._replace(name=b"")), []).append(path)
    return {
        path: group
        for names in chosen.values()
        if len(names) > 1
        for group in [tuple(sorted(names))]
        for path in group
    }
