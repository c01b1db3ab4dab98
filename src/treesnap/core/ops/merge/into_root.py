"""``revert`` and ``adopt``: merges into the root, each with one restore.

    capture the root           a safety snapshot, unless the newest snapshot is the same
    merge                      with the state to bring in, since a state that both had
    refuse conflicts           unless a rule says what becomes of them
    publish the merge          a safety snapshot, so ``latest`` stays what was saved last
    restore it                 all or nothing; what others changed since the capture stays

A kill before the restore leaves one or two snapshots more, and the tree as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise

from treesnap.core.diff.three_way import TEXT_SIZE_MAX, Labels
from treesnap.core.features import functions
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    MergeConflict,
    NotFound,
    RanTogether,
    Refused,
    StoreMissing,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, first_few
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags, facts_of
from treesnap.core.model.results import MergeResult, StepGroup
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.model.treepath import PathLike
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import Context, Session, context_at, no_directory
from treesnap.core.ops.create import create
from treesnap.core.ops.databases import with_logs
from treesnap.core.ops.history.steps import StepExtent, is_before_step
from treesnap.core.ops.merge.trees import ConflictRule, MergeOutcome, MergeRequest, merge
from treesnap.core.ops.origin import base_of, origin_in
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.restore.attempt import refuse_covered
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import refuse_dangerous_restore, restore
from treesnap.core.store.snapshots import restored_ref

_RANGE = ".."


class MergeSides(NamedTuple):
    """What is merged into the root."""

    theirs: Snapshot
    base: Snapshot | None
    """The state from which both come; None for the root as it is."""
    scope: tuple[bytes, ...] = ()
    """The paths that both snapshots hold; none where that is the whole root."""
    merged_before: tuple[Snapshot, ...] = ()
    """States of their side that were merged since the base, oldest first."""
    keeps_record: bool = False
    """Whether a later merge with that side begins at this one."""

    @property
    def ids(self) -> tuple[SnapshotId, SnapshotId | None]:
        """The ids of their side and of the base."""
        return self.theirs.id, self.base.id if self.base is not None else None


class MergeIntoRoot(NamedTuple):
    """How to merge into the root."""

    verb: str
    label: str
    rule: ConflictRule
    labels: Labels
    paths: tuple[bytes, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    dry_run: bool = False
    force: bool = False


def revert(
    context: Context,
    ref: str,
    paths: tuple[bytes, ...],
    *,
    session_id: str | None,
    rule: str,
    together: bool,
    dry_run: bool,
    force: bool,
) -> MergeResult:
    """Undoes what happened between two snapshots; see :meth:`treesnap.Handle.revert`."""
    conflict_rule = _rule(rule)
    try:
        with opened(context, "revert") as session:
            refuse_covered(session)
            before, after, group = _change(session, ref, session_id, paths)
    except StoreMissing as error:
        raise NotFound(f"There is no snapshot {quoted(ref)}: nothing was captured yet") from error
    if group is not None and not (together or dry_run):
        raise RanTogether(f"{group.text}; nothing was reverted", *group)
    scope = _common_scope([before, *([after] if after is not None else [])], paths)
    sides = MergeSides(before, after, scope)
    what = f"{before.id[:12]}..{after.id[:12] if after is not None else 'now'}"
    asked = MergeIntoRoot(
        verb="revert",
        label=f"revert of {what}",
        rule=conflict_rule,
        labels=Labels("now", f"before {what}"),
        paths=paths,
        tags=tuple(fact_tags(reverted=what).items()),
        dry_run=dry_run,
        force=force,
    )
    return merge_into_root(context, lambda _: sides, asked)._replace(together=group)


def adopt(
    context: Context,
    directory: PathLike,
    paths: tuple[bytes, ...],
    *,
    rule: str,
    as_it_is: bool,
    dry_run: bool,
    force: bool,
) -> MergeResult:
    """Brings the state of a fork into its origin; see :meth:`treesnap.Handle.adopt`."""
    address = context_at(directory, context.store_path, fs=context.fs)
    fork = context._replace(root=address.root, given_root=address.given_root, watcher=None)
    what, here = os.path.basename(fork.root), os.path.basename(context.root)
    if not (fork.has_root() and os.path.isdir(fork.root)):
        raise no_directory(fork.root)
    with opened(context, "adopt") as session, opened(fork, "adopt") as fork_session:
        refuse_covered(session)
        fork_root = fork_session.root
        origin = origin_in(session.store, fork_root)
        if origin is None or origin.root_id != session.root.id:
            reason = "" if origin is not None else ", or its snapshot 'forked' was deleted"
            raise Refused(
                f"{quoted(fork.root)} was not forked from {quoted(context.root)}{reason}",
                code=ErrorCode.NOT_A_FORK,
                path=fork.root,
            )
        if not force and fork_root.is_replaced():
            raise Refused(
                f"{quoted(fork.root)} is another directory than the fork that was there, so what "
                "is not in it would count as deleted",
                code=ErrorCode.FORK_REPLACED,
                path=fork.root,
            )
    theirs = _captured(fork, f"adopted into {printable(here)}", force=force)

    def sides(session: Session) -> MergeSides:
        base = base_of(session.store, session.store.root(os.fsencode(fork.root)))
        if base is None:
            raise NotFound(f"The snapshot that {quoted(fork.root)} began with was deleted")
        adopted = _adopted(session, fork.root)
        is_new = theirs.id not in {item.id for item in (base, *adopted)}
        if as_it_is:
            return MergeSides(theirs, None, keeps_record=is_new)
        return MergeSides(theirs, base, merged_before=adopted, keeps_record=is_new)

    asked = MergeIntoRoot(
        verb="adopt",
        label=f"adoption of {printable(what)}",
        rule=_rule(rule),
        labels=Labels(printable(here), printable(what)),
        paths=paths,
        tags=tuple(fact_tags(adopted=theirs.id).items()),
        dry_run=dry_run,
        force=force,
    )
    return merge_into_root(context, sides, asked)


def _captured(context: Context, label: str, *, force: bool) -> Snapshot:
    """Captures a side of a merge, unless it is as in its newest snapshot; returns that."""
    request = CaptureRequest(
        label=label, kind=SnapshotKind.SAFETY, skip_unchanged=True, force=force
    )
    return create(context, request).snapshot


def merge_into_root(
    context: Context, sides_in: Callable[[Session], MergeSides], asked: MergeIntoRoot
) -> MergeResult:
    """Merges another state into the root, and restores the outcome.

    The root must not be covered by a mount: what is captured here counts as the root.
    ``sides_in`` is called under the root's lock. Raises MergeConflict, and what a create and a
    restore raise; then nothing was changed in the root.
    """
    refuse_dangerous_restore(context, force=asked.force)
    mine = _captured(context, f"before the {asked.label}", force=asked.force)
    with (
        opened(context, asked.verb, writing=True, recover=False) as session,
        locked_root(session, asked.verb),
    ):
        sides = sides_in(session)
        sources = (sides.theirs, sides.base or mine, *sides.merged_before)
        with ExitStack() as stack:
            for snapshot in sources:
                stack.enter_context(reading(session, snapshot))
            merged = _merged(session, mine, sides, asked)
    if merged.conflicts and asked.rule is ConflictRule.REFUSE and not asked.dry_run:
        named = first_few(merged.conflicts, lambda path: quoted(path or b"."))
        raise MergeConflict(
            f"{count_text(len(merged.conflicts), 'path')} changed on both sides, nothing was "
            f"changed: {named}{_too_large_text(merged.too_large)}",
            merged.conflicts,
        )
    if merged.snapshot is None:
        return MergeResult(
            *sides.ids,
            None if asked.dry_run else mine,
            merged.conflicts,
            tuple(merged.changes),
            None,
            dry_run=asked.dry_run,
            too_large=merged.too_large,
            left_out=merged.left_out,
        )
    request = RestoreRequest(
        ref=merged.snapshot.id,
        bases=(mine.id,),
        force=asked.force,
        spared=frozenset(snapshot.id for snapshot in sources),
    )
    done = restore(context, request)
    kept = {change.path for change in done.conflicts}
    changes = tuple(change for change in merged.changes if change.path not in kept)
    return MergeResult(
        *sides.ids,
        merged.snapshot,
        merged.conflicts,
        changes,
        done.safety_id,
        done.conflicts,
        too_large=merged.too_large,
        left_out=merged.left_out,
    )


def _too_large_text(paths: tuple[bytes, ...]) -> str:
    """Returns the end of a message about conflicts that a merge by lines might have solved."""
    if not paths:
        return ""
    limit = f"{TEXT_SIZE_MAX >> 20} MiB"
    return f"; larger than {limit}, so not merged by lines: {first_few(paths, quoted)}"


def _merged(
    session: Session, mine: Snapshot, sides: MergeSides, asked: MergeIntoRoot
) -> MergeOutcome:
    named, snapshots = asked.paths or sides.scope, (mine, sides.theirs, sides.base or mine)
    trees, tops = session.store.trees(), [item.record.root for item in snapshots]
    logs = (
        log
        for log in with_logs(session, snapshots, named)[len(named) :]
        if any(trees.find(top, log) is not None for top in tops)
    )
    request = MergeRequest(
        label=asked.label,
        rule=asked.rule,
        kind=SnapshotKind.SAFETY,  # no one has seen this state; a kill leaves it without effect
        takes_owners=True,
        takes_times=True,
        paths=(*named, *logs),
        tags=dict(asked.tags),
        merged_before=sides.merged_before,
        keeps_record=sides.keeps_record,
        labels=asked.labels,
        dry_run=asked.dry_run,
    )
    return merge(session, mine, sides.theirs, [sides.base or mine], request)


def _adopted(session: Session, fork_path: str) -> tuple[Snapshot, ...]:
    """Returns the snapshots of a fork that the root adopted and that still exist, oldest first."""
    store = session.store
    fork_id = store.root(os.fsencode(fork_path)).id
    listing = store.snapshots.listing(fork_id)
    key = next(iter(fact_tags(adopted=""))).encode()
    by_id: dict[str, Snapshot] = {}
    for merged in store.snapshots.readable(session.root.id, may_matter=lambda data: key in data):
        identity = facts_of(merged).get("adopted", "")
        name = listing.find(identity)
        if name is not None and identity not in by_id:
            by_id[identity] = store.snapshots.load(fork_id, name)
    return tuple(reversed(by_id.values()))


def _rule(word: str) -> ConflictRule:
    try:
        return ConflictRule(word)
    except ValueError:
        rules = ", ".join(repr(rule.value) for rule in ConflictRule)
        raise InvalidArgument(f"conflicts is one of {rules}, not {word!r}") from None


def _change(
    session: Session, ref: str, session_id: str | None, paths: Sequence[bytes]
) -> tuple[Snapshot, Snapshot | None, StepGroup | None]:
    """Returns the states before and after what a REF means; None for the root as it is.

    And what else ran meanwhile, if anything was changed then. ``A..B`` names both states. A
    snapshot that was taken for a step whose extent is known stands for that, with all that ran at
    the same time. One that was taken before any other step, as of agents and plans, stands for
    what the step did: up to the next snapshot. Any other stands for what changed since the one
    before it, and not for a restore that came between them.
    """
    from treesnap.core.ops.references import Filter

    in_session = Filter(session=session_id)
    first, is_range, last = ref.partition(_RANGE)
    if is_range:
        if not first:
            raise InvalidArgument(f"{quoted(ref)} names no snapshot before the dots")
        if last.startswith("."):
            raise InvalidArgument(f"{quoted(ref)} has three dots, and A..B has two")
        before = resolve_in(session, first, criteria=in_session, paths=paths)
        after = resolve_in(session, last, criteria=in_session, paths=paths) if last else None
        return before, after, None
    snapshot = resolve_in(session, ref, criteria=in_session, paths=paths)
    extents: list[StepExtent | None] = [find(session, snapshot) for find in functions("extents")]
    for extent in filter(None, extents):
        before, after, group = extent
        is_alone = group.is_one or before.record.root == after.record.root
        return before, after, None if is_alone else group
    scope = tuple(paths) or snapshot.record.scope or ()
    history = [
        item
        for item in session.store.snapshots.readable(session.root.id)
        if item.id == snapshot.id or item.record.covers(scope)
    ]
    if is_before_step(snapshot):
        newer = {older.id: item for item, older in pairwise(history)}
        return snapshot, newer.get(snapshot.id), None
    older = {item.id: older for item, older in pairwise(history)}
    if snapshot.id not in older:
        raise NotFound(
            f"There is no snapshot before {snapshot.id[:12]}, so what it changed is not known"
        )
    return _left_by(session, older[snapshot.id]), snapshot, None


def _left_by(session: Session, snapshot: Snapshot) -> Snapshot:
    """Returns the state in which the root was after a snapshot: what was restored, if anything."""
    ref = restored_ref(snapshot)
    if ref is None:
        return snapshot
    try:
        return resolve_in(session, ref)
    except NotFound as error:
        raise NotFound(
            f"Snapshot {ref}, which was restored before this change, was deleted: name what to "
            "undo as A..B"
        ) from error


def _common_scope(snapshots: Sequence[Snapshot], paths: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns the paths that snapshots hold; raises InvalidArgument where ``paths`` are others."""
    scopes = [item.record.scope for item in snapshots if item.record.scope is not None]
    for snapshot in snapshots:
        scope = tuple(paths) or next(iter(scopes), ())
        if not snapshot.record.covers(scope):
            raise InvalidArgument(
                f"Snapshot {snapshot.id[:12]} was not taken of all paths to revert"
            )
    return scopes[0] if scopes else ()
