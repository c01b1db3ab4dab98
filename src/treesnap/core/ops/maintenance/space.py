"""Maintenance of a store: ``prune``, ``gc``, ``stats``, and what is removed automatically.

After every :data:`EVERY` snapshots of a root, the process that made the last one removes what
the policy does not keep, and collects garbage when the packs have grown by half since the last
collection. Where many snapshots stay, the policy is applied more rarely, in proportion. So each
byte and each record is read a bounded number of times, whatever the number of snapshots.
Maintenance does not wait: what is busy now is done next time. It cannot fail an operation,
whose snapshot is published already.

The command leaves what is due to a process of its own, at most one for each store, and ends. The
library does it before it returns, because no program expects processes that it did not start.
Restores of the command leave the files that they displaced in the same way. If a process is at
work already, the command removes those itself: a limit on what waits would be none otherwise.
A file is that process's lock, and says afterwards why it failed, for ``doctor`` and for the
command that starts the next one.

A create that finds the store full makes room itself. It waits for a collection that is under
way, because without room it fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from treesnap.core.fs.durable import has_other_names, open_lock, open_regular
from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    StorageFull,
    StoreMissing,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.events import CollectingMonitor, NullMonitor, Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, first_few
from treesnap.core.model.requests import WHOLE_ROOT, CaptureRequest
from treesnap.core.model.results import (
    GcResult,
    PolicySource,
    PrunePolicy,
    PruneResult,
    StatsResult,
)
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.model.type_names import TYPE_CHECKING, TypeVar
from treesnap.core.ops.access import exclusive_use, locked_root, opened, remove_displaced
from treesnap.core.ops.context import Context, Session, context_at
from treesnap.core.ops.known_changes import remove_dead_sockets
from treesnap.core.ops.maintenance.config import Settings, settings_of
from treesnap.core.own_program import python_words, start_in_background
from treesnap.core.store.collector import read_collected_size
from treesnap.core.store.maintenance.retention import DEFAULT, Policy
from treesnap.core.store.roots import Root, registered_roots
from treesnap.core.store.writer_slot import slot_states
from treesnap.core.worktree.scan.ignore import given

if TYPE_CHECKING:
    from treesnap.core.fs.base import FileSystem, ReadingFileSystem
    from treesnap.core.store.maintenance.prune import PruneRequest
    from treesnap.core.store.maintenance.retention import Decision
    from treesnap.core.store.store import Store


EVERY = 32
"""How many snapshots of a root lie between two runs."""
KEPT_SHARE = 5
"""A long history has grown by at least one part in this many before it is read again."""
ATTEMPTS = 3
"""How often a snapshot is tried when the store is full."""
ROOM_SHARES = (0.7, 0.3, 0.0)
"""What of a store a way back leaves to automatic snapshots on a full disk, attempt by attempt."""
_ROOM_ENOUGH_BYTES = 64 << 20
"""A disk with so much room is not what a way back failed for."""
GROWTH_BYTES_MIN = 64 << 20
"""Packs that grew by less are not worth a collection."""
_DAMAGED_SHOWN = 3
"""How many damaged snapshots a warning names."""

_PROGRAM = (
    "import sys; from treesnap.core.ops.maintenance.space import maintain_detached as maintain; "
    "maintain(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
)
_INTERRUPTED = "it was interrupted"
_LOCK_FD = 0
_NICENESS = 10
_NOTE_SIZE_MAX = 1000

_Result = TypeVar("_Result")


def prune(context: Context, request: PruneRequest) -> PruneResult:
    """Removes snapshots; see :meth:`treesnap.Handle.prune`."""
    from treesnap.core.store.maintenance.prune import decisions_of, prune_root

    now_ns = context.clock_ns()
    try:
        if request.dry_run:
            with opened(context, "look at the snapshots") as session:
                request, policy = _with_rules(request, settings_of(session))
                decisions = decisions_of(session.store, session.root, request, now_ns)
                return _result(decisions, policy, dry_run=True)
        with (
            opened(context, "remove snapshots", writing=True, recover=False) as session,
            locked_root(session, "prune", touches_tree=False),
        ):
            request, policy = _with_rules(request, settings_of(session))
            decisions = prune_root(session.store, session.root, request, now_ns)
            return _result(decisions, policy, dry_run=False)
    except StoreMissing:
        _, policy = _with_rules(request, None)
        return _result([], policy, dry_run=request.dry_run)


def rules_of(policy: Policy | None, settings: Settings | None) -> tuple[Policy, PrunePolicy]:
    """Returns the rules of a prune, and what its result says of them.

    Without any rule of the caller they are those of the settings, which only concern automatic
    snapshots; what the settings leave out, the default policy says.
    """
    if policy is not None and not policy.is_empty:
        return policy, PrunePolicy(PolicySource.GIVEN, policy.rules)
    policy = settings.policy if settings is not None else DEFAULT
    source = PolicySource.DEFAULT if policy == DEFAULT else PolicySource.SETTINGS
    return policy, PrunePolicy(source, policy.rules)


def _with_rules(
    request: PruneRequest, settings: Settings | None
) -> tuple[PruneRequest, PrunePolicy]:
    from treesnap.core.store.maintenance.prune import none_kept

    if request.policy.keeps_nothing and request.session is None:
        raise none_kept()
    if request.policy.is_empty and request.max_size_bytes is not None:
        return request, PrunePolicy(PolicySource.GIVEN, {})
    policy, shown = rules_of(request.policy, settings)
    is_asked = shown.source == PolicySource.GIVEN
    return request._replace(policy=policy, is_asked=is_asked), shown


def _result(decisions: list[Decision], policy: PrunePolicy, *, dry_run: bool) -> PruneResult:
    return PruneResult(
        kept=tuple(item.snapshot for item in decisions if item.is_kept),
        removed=tuple(item.snapshot for item in decisions if not item.is_kept),
        reasons={item.snapshot.id: item.reasons for item in decisions if item.is_kept},
        dry_run=dry_run,
        policy=policy,
    )


def gc(context: Context, *, dry_run: bool, is_automatic: bool = False) -> GcResult:
    """Collects garbage; see :meth:`treesnap.Handle.gc`.

    An automatic one deletes nothing when it meets damage, and returns why.
    """
    from treesnap.core.store.maintenance.collection import collect

    with exclusive_use(context, "collect garbage", operation="gc") as (session, proof):
        if not dry_run:
            remove_dead_sockets(context.fs, session.store.layout.roots)
        return collect(
            session.store,
            proof,
            monitor=context.monitor,
            wait_s=context.wait_s,
            dry_run=dry_run,
            is_automatic=is_automatic,
        )


def stats(context: Context) -> StatsResult:
    """Returns the sizes; see :meth:`treesnap.Handle.stats`."""
    from treesnap.core.store.maintenance.stats import measure

    try:
        with opened(context, "measure the store") as session:
            context.monitor.begin(Phase.MARK, None, None)
            return measure(session.store, session.root.id)
    except StoreMissing:
        numbers = [name for name in StatsResult._fields if not name.startswith("by_")]
        return StatsResult(by_root=(), by_snapshot=(), **dict.fromkeys(numbers, 0))


def settings_or_defaults(session: Session) -> Settings | None:
    """Returns the root's settings, or None, with a warning, where they cannot be understood.

    Then nothing is removed automatically, and nothing is limited.
    """
    try:
        return settings_of(session)
    except TreesnapError as error:
        session.monitor.warn(WarningCode.SETTINGS_IGNORED, error.message)
        return None


def with_settings(session: Session, request: CaptureRequest = WHOLE_ROOT) -> CaptureRequest:
    """Returns a request of a capture with what the root's settings add to it."""
    settings = settings_or_defaults(session)
    if settings is None:
        return request._replace(rules=given(request.exclude))
    return settings.completed(request)


def maintain(context: Context, sequence: int | None = None) -> None:
    """Removes what the policy does not keep, when it is due; warns instead of raising.

    Call it after a snapshot of the root was published, without the root's lock. ``sequence`` is
    the snapshot's number, by default that of the newest one. With a number it costs nothing when
    it is not due.
    """
    if sequence is not None and sequence % EVERY:
        return
    try:
        with opened(context, "maintain the store", recover=False) as session:
            names = session.store.snapshots.names(session.root.id)
            number = sequence or (names[0].sequence if names else 0)
            is_turn = number > 0 and number % EVERY == 0
            sweeps = sequence is None and bool(session.store.displaced())
            if not is_turn and not sweeps:
                return
            settings = settings_or_defaults(session)
            prunes = collects = may_leave = False
            if settings is not None:
                may_leave = context.may_start_processes and settings.is_in_background
                if is_turn and settings.is_automatic:
                    has_limit = settings.root_size_bytes_max is not None
                    prunes = has_limit or number % period(len(names)) == 0
                    collects = _has_grown(session.store)
            is_left = (prunes or collects or sweeps) and may_leave and _leave(session, number)
            if is_left is True:
                return
            if sweeps:
                remove_displaced(session)
            if is_left is None:
                return
            if prunes:
                assert settings is not None
                with suppress(Busy):
                    _prune(session, settings)
        if collects:
            with suppress(Busy):
                _collect(context, wait_s=0.0)
    except (TreesnapError, OSError) as error:
        context.monitor.warn(
            WarningCode.MAINTENANCE_FAILED,
            f"The maintenance of the store failed: {error_text(error)}",
        )


def _has_grown(store: Store) -> bool:
    """Returns whether the store has grown enough to be worth a collection."""
    collected_bytes = read_collected_size(store.fs, store.layout)
    growth_bytes_min = max(GROWTH_BYTES_MIN, collected_bytes // 2)
    return store.size_bytes() >= collected_bytes + growth_bytes_min


def _leave(session: Session, sequence: int) -> bool | None:
    """Starts a process that maintains the store; returns False where none can be started.

    Returns None, and does nothing, while another one is at work. Warns if the last one failed.
    The new process has the lock from its start, and keeps it until it ends in any way.
    """
    context, fs = session.context, session.fs
    words = python_words("-c", _PROGRAM, context.root, context.store_path, str(sequence))
    try:
        fd = open_lock(fs, session.store.layout.background)
        try:
            if not fs.lock(fd, exclusive=True):
                return None
            failure = _failure(fs, fd)
            if failure is not None:
                context.monitor.warn(
                    WarningCode.MAINTENANCE_FAILED,
                    f"The last maintenance of the store in the background failed: {failure}",
                )
            with suppress(OSError):  # on a full disk a kill leaves no trace
                _note(fs, fd, _INTERRUPTED)
            try:
                start_in_background(words, stdin=fd)
            except OSError:
                _note(fs, fd, "")  # none was interrupted
                raise
        finally:
            fs.close(fd)  # not unlocked: the process has the same lock
    except (OSError, Corrupt):
        return False
    return True


def maintain_detached(root: str, store_path: str, sequence: int) -> None:
    """Maintains the store as a process of its own. Standard input is the lock, which it keeps.

    Leaves in the lock's file what failed, or nothing.
    """
    os.nice(_NICENESS)
    monitor = CollectingMonitor()
    context = context_at(root, store_path, monitor=monitor)
    try:
        with opened(context, "remove displaced files", recover=False) as session:
            remove_displaced(session)
    except TreesnapError as error:
        monitor.warn(
            WarningCode.MAINTENANCE_FAILED,
            f"What a restore displaced could not be removed: {error_text(error)}",
        )
    maintain(context, sequence)
    _note(context.fs, _LOCK_FD, "; ".join(monitor.warnings))


def failure_in_background(store: Store) -> str | None:
    """Returns why the last maintenance in the background failed; None while one is at work."""
    fs = store.fs
    try:
        fd = open_regular(fs, store.layout.background)
    except (OSError, Corrupt):  # there was none yet, or something else is in its place
        return None
    try:
        if not fs.lock(fd, exclusive=False):
            return None
        failure = _failure(fs, fd)  # before another one begins and writes that it has not ended
        fs.unlock(fd)
        return failure
    finally:
        fs.close(fd)


def _note(fs: FileSystem, fd: int, text: str) -> None:
    if has_other_names(fs.fstat(fd)):
        return
    fs.truncate(fd, 0)
    fs.write_at(fd, text.encode("utf-8", "replace")[:_NOTE_SIZE_MAX], 0)


def _failure(fs: ReadingFileSystem, fd: int) -> str | None:
    if has_other_names(fs.fstat(fd)):  # no process wrote what it says
        return None
    return printable(fs.read_at(fd, _NOTE_SIZE_MAX, 0).decode("utf-8", "replace")) or None


def period(count: int) -> int:
    """Returns how many snapshots lie between two runs over a history of ``count``.

    A run reads the record of each. So it waits until a fifth of their number was added, and each
    snapshot costs five records at most, however long the history is.
    """
    between = EVERY
    while between * KEPT_SHARE <= count:
        between *= 2
    return between


def with_room(
    context: Context, attempt: Callable[[], _Result], spared: frozenset[SnapshotId] | None = None
) -> _Result:
    """Returns the outcome of an attempt; when the store is full, makes room and tries again.

    A way back passes the snapshots that it needs as ``spared``. On a full disk automatic snapshots
    other than these are given up for it, the oldest first, whatever the policies keep; but not
    where it is the disk of the root that is full.

    Automatic snapshots of all roots go first, as their policies allow, then garbage, which
    includes what the failed attempt left. Tries again whether or not that freed anything:
    another process may have made room, or may take it. Raises StorageFull at once when the
    attempt is known to need more room than was made, with no other process at work in the
    store, which might free some. Otherwise raises it after :data:`ATTEMPTS`; but while others
    take the room under the store's limit, tries again for ``wait_s`` at most. What the attempts
    wrote is garbage by then, and collected.
    """
    why = None
    left = ATTEMPTS
    deadline = time.monotonic() + context.wait_s
    while True:
        left -= 1
        try:
            result = attempt()
        except StorageFull as error:
            given_up = (
                None if spared is None else _GivenUp(spared, ROOM_SHARES[ATTEMPTS - 1 - left])
            )
            room = make_room(context, error, given_up)
            if room is None:
                raise
            has_room = error.needed_bytes <= room.size_bytes
            if not has_room and not room.is_contested:
                raise
            is_taken = error.limit_bytes is not None and (has_room or room.is_contested)
            if left <= 0 and not (is_taken and time.monotonic() < deadline):
                raise
            why = error.message  # not the error: its frames keep files of the store open
            continue
        if why is not None:
            context.monitor.warn(WarningCode.ROOM_MADE, f"{why}; room was made for it")
        return result


class _GivenUp(NamedTuple):
    """Which automatic snapshots go beyond what the policies say, on a full disk."""

    spared: frozenset[SnapshotId]
    """Those that do not."""
    kept_share: float
    """What the others may still take, as a part of the store's size."""


class Room(NamedTuple):
    """What there is after room was made."""

    size_bytes: int
    """How much the store may grow, by the limit that was hit, or by what is free on the disk."""
    is_contested: bool
    """Whether other processes worked meanwhile, which use room or keep it from being freed."""


def make_room(context: Context, full: StorageFull, given_up: _GivenUp | None = None) -> Room | None:
    """Removes what may go automatically and collects; returns the room that there is then.

    Only garbage goes where ``full`` says that the limit itself is too small. The store's own
    limit decides what goes, not that of one command. Returns None when no room could be made.
    Waits for another collection, which is likely to make room as well.
    """
    from treesnap.core.store.maintenance.prune import free_bytes, trim_outputs

    limit_bytes = full.limit_bytes
    is_contested = False
    try:
        with opened(context, "maintain the store", writing=True, recover=False) as session:
            if given_up is not None and free_bytes(session.store) > _ROOM_ENOUGH_BYTES:
                return None  # another disk is full: that of the root
            slots = slot_states(context.fs, session.store.layout)
            settings = settings_or_defaults(session)
            is_hopeless = limit_bytes is not None and full.needed_bytes > limit_bytes
            if settings is not None and settings.is_automatic and not is_hopeless:
                trim_outputs(session.store, limit_bytes)
                limit = settings.store_size_bytes_max
                is_contested = _prune_all_roots(
                    session, limit, given_up if not limit_bytes else None
                )
        _collect(context, wait_s=context.wait_s)
        with opened(context, "maintain the store", recover=False) as session:
            store = session.store
            slots_after = slot_states(store.fs, store.layout)
            is_contested |= slots_after != slots or any(slot.is_busy for slot in slots_after)
            if limit_bytes is None:
                return Room(free_bytes(store), is_contested)
            return Room(max(0, limit_bytes - store.size_bytes()), is_contested and not is_hopeless)
    except StoreMissing:  # it could not even be made
        return None
    except (TreesnapError, OSError) as error:
        context.monitor.warn(
            WarningCode.MAINTENANCE_FAILED,
            f"The maintenance of the store failed: {error_text(error)}",
        )
        return None


def _prune_all_roots(
    opened_session: Session, size_bytes_max: int | None, given_up: _GivenUp | None
) -> bool:
    """Removes snapshots of every root that allows it; returns whether one was left in use."""
    from treesnap.core.store.maintenance.prune import ROOM_SHARE, prune_store

    store = opened_session.store
    roots = []
    is_in_use = False

    def tell(root: Root, error: OSError) -> None:
        opened_session.monitor.warn(
            WarningCode.MAINTENANCE_FAILED,
            f"Old snapshots of {quoted(root.path)} could not be removed: {error_text(error)}",
        )

    for path in registered_roots(store.fs, store.layout):
        session = opened_session._replace(root=store.root(path))
        with suppress(TreesnapError, OSError):  # damaged: left as it is
            settings = settings_of(session)
            if settings.is_automatic:
                roots.append(session.root)
                try:
                    _prune(session, settings)
                except Busy:
                    is_in_use = True
                except OSError as error:
                    tell(session.root, error)
    if size_bytes_max is not None:
        target_bytes = int(size_bytes_max * ROOM_SHARE)
        is_in_use |= prune_store(store, roots, target_bytes, size_bytes_max, tell=tell)
    if given_up is not None:
        size_bytes = store.size_bytes()
        target_bytes = int(size_bytes * given_up.kept_share)
        is_in_use |= prune_store(store, roots, target_bytes, size_bytes, given_up.spared, tell)
    return is_in_use


def _prune(session: Session, settings: Settings) -> None:
    """Removes snapshots of a root, unless a restore of it was interrupted; raises Busy."""
    from treesnap.core.store.maintenance.prune import PruneRequest, prune_root

    policy = settings.policy
    if policy.keep_last == 0:
        policy = policy._replace(keep_last=1)  # what was just made, and whose id was returned
    request = PruneRequest(
        policy=policy, max_size_bytes=settings.root_size_bytes_max, is_asked=False
    )
    with session.root.locked("prune", 0.0):
        if not session.root.is_interrupted:
            prune_root(session.store, session.root, request, session.context.clock_ns())


def _collect(context: Context, *, wait_s: float) -> None:
    """Collects garbage without showing any progress; deletes nothing where it meets damage."""
    quiet = context._replace(monitor=NullMonitor(), wait_s=wait_s)
    result = gc(quiet, dry_run=False, is_automatic=True)
    if result.damaged:
        shown = first_few(result.damaged, lambda identity: identity[:12], _DAMAGED_SHOWN)
        context.monitor.warn(
            WarningCode.GARBAGE_KEPT,
            f"No garbage was collected, because snapshots are damaged: {shown}",
        )
    elif result.newer:
        context.monitor.warn(
            WarningCode.SNAPSHOT_NEWER,
            "No garbage was collected, because a newer treesnap wrote "
            f"{count_text(result.newer, 'snapshot')}",
        )
