"""``root``: list the roots of a store, move one, forget one.

The next operation in a root notices when its directory was moved; see ``ops.context``. Where
that is impossible, as after a move to another file system, ``root move`` says so. ``root
forget`` removes a whole history.
"""

from __future__ import annotations

import os
import re
from itertools import chain

from treesnap.core.fs.os_errors import error_text
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StoreMissing,
    TreesnapError,
    WarningCode,
    quoted,
)
from treesnap.core.model.reserved_tags import HOST, is_fork_base
from treesnap.core.model.results import RootDirectory, RootInfo
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import opened
from treesnap.core.ops.checkpoint_locks import kept_by
from treesnap.core.ops.context import (
    Context,
    Session,
    absolute,
    context_at,
    is_root_there,
    no_directory,
    refuse_dangerous,
)
from treesnap.core.ops.known_changes import remove_dead_sockets
from treesnap.core.ops.origin import origin_in
from treesnap.core.ops.restore.recover import is_its_tree, recover_locked, refuse_stranger
from treesnap.core.store.layout import root_names
from treesnap.core.store.lock import is_held
from treesnap.core.store.roots import (
    Root,
    history_at,
    holds_of,
    needed_of,
    read_journal,
    registered_records,
)

if TYPE_CHECKING:
    from treesnap.core.store.store import Store

_NO_HISTORY = frozenset({"root", "lock", "gaps", "marks", "joined"})
"""Files of a root of which there is no snapshot."""
_ID_BEGINNING = re.compile(r"[0-9a-f]{4,32}\Z")


def list_roots(context: Context) -> tuple[RootInfo, ...]:
    """Returns all roots of the store, by path; an absent store has none."""
    try:
        with opened(context, "list the roots") as session:
            return tuple(_info(session.store, root) for root in _all_roots(session.store))
    except StoreMissing:
        return ()


def _all_roots(store: Store) -> list[Root]:
    """Returns the roots with a record, by path, then those that only have snapshots."""
    registered = [record.id for record in registered_records(store.fs, store.layout)]
    others = [name for name in store.snapshots.root_ids() if name not in registered]
    roots = [store.root_by_id(name) for name in registered]
    for name in others:
        path = _last_path(store, name)
        if path is not None:
            roots.append(store.root_by_id(name, path))
    return roots


def _last_path(store: Store, name: str) -> bytes | None:
    for snapshot_name in store.snapshots.listing(name):
        try:
            return store.snapshots.load(name, snapshot_name).record.root_path
        except TreesnapError:
            continue
    return None


def _info(store: Store, root: Root) -> RootInfo:
    newest = next(store.snapshots.readable(root.id), None)
    history = history_at(root.path)
    return RootInfo(
        id=root.id,
        path=root.path,
        snapshots=len(store.snapshots.names(root.id)),
        newest_at_ns=newest.record.created_at_ns if newest is not None else None,
        directory=_directory(store, root),
        interrupted=root.is_interrupted,
        earlier_paths=root.record.earlier if root.record is not None else (),
        fetched=f"{history.remote}/{history.name}" if history is not None else None,
        origin=origin_in(store, root) if history is None else None,
    )


def _directory(store: Store, root: Root) -> RootDirectory:
    try:
        store.fs.lstat(root.path)
    except OSError:
        return RootDirectory.ABSENT
    return RootDirectory.REPLACED if root.is_replaced() else RootDirectory.PRESENT


def _real(path: str) -> str:
    return os.path.realpath(absolute(path))


def find_registered(store: Store, given: str) -> Root:
    """Returns the root that a path, or the beginning of an id, names; raises NotFound."""
    for path in (_real(given), os.path.abspath(absolute(given))):
        root = store.root(os.fsencode(path))
        if root.is_registered() or store.snapshots.listing(root.id).newest is not None:
            return store.root_by_id(root.id, root.path)
    matches = []
    if _ID_BEGINNING.match(given):
        names = {*root_names(store.fs, store.layout.roots), *store.snapshots.root_ids()}
        ids = sorted(name for name in names if name.startswith(given))
        roots = [store.root_by_id(name, _last_path(store, name) or b"") for name in ids]
        matches = [root for root in roots if root.path]
    if len(matches) > 1:
        raise InvalidArgument(
            f"The id {given!r} fits {len(matches)} roots", code=ErrorCode.AMBIGUOUS_REF
        )
    if not matches:
        raise _unknown(given)
    return matches[0]


def _unknown(given: str) -> NotFound:
    return NotFound(
        f"The store knows no root {quoted(given)}", code=ErrorCode.UNKNOWN_ROOT, path=given
    )


def move_root(context: Context, old: str, new: str, *, force: bool) -> RootInfo:
    """Gives a root's history to another directory; see :meth:`treesnap.Handle.root_move`."""
    path = _real(new)
    if not (is_root_there(context.fs, path) and os.path.isdir(path)):
        raise no_directory(path)
    if not force:
        refuse_dangerous(path, context.store_path)
    try:
        with opened(context, "move a root", writing=True, recover=False) as session:
            there = session.store.root(os.fsencode(path))
            was_noticed = (
                there.record is not None and os.fsencode(_real(old)) in there.record.earlier
            )
            root = there if was_noticed else find_registered(session.store, old)
            with root.locked("move", context.wait_s):
                if root.is_interrupted:
                    refuse_stranger(session._replace(root=root))
                _refuse_other_tree(context, root, path)
                _forget_empty(context, session.store, there, root.id)
                if history_at(root.path) is not None:  # which the new path does not say
                    newest = session.store.snapshots.listing(root.id).next_sequence - 1
                    root.note_from_elsewhere(newest)
                root.move(os.fsencode(path))
                if root.is_interrupted:
                    recover_locked(session._replace(context=_context_of(context, path), root=root))
            return _info(session.store, root)
    except StoreMissing as error:
        raise _unknown(old) from error


def _forget_empty(context: Context, store: Store, there: Root, but: str) -> None:
    """Forgets a root that a command registered which failed before its first snapshot.

    So the history of another root can be moved there, as such a command suggests.
    """
    if there.record is None or there.id == but:
        return
    with there.locked("move", context.wait_s):
        names = store.fs.list_names(store.layout.root_directory(there.id))
        is_empty = all(name in _NO_HISTORY or name.endswith("-lock") for name in names)
        if is_empty and not store.snapshots.names(there.id):
            there.forget()


def _refuse_other_tree(context: Context, root: Root, path: str) -> None:
    """Raises Refused where a restore was interrupted, but not in the directory at a path."""
    journal = read_journal(root)
    if journal is None or journal.commit is None:
        return
    with opened_real(context.fs, path) as fd:
        if is_its_tree(context.fs, fd, journal):
            return
    raise Refused(
        f"A restore of {quoted(root.path)} was interrupted, and {quoted(path)} is not the "
        f"directory that was restored: that one holds {quoted(journal.stage_name)}",
        code=ErrorCode.RESTORE_INTERRUPTED,
        path=path,
    )


def forget_root(context: Context, given: str, *, force: bool) -> RootInfo:
    """Removes a root's whole history; see :meth:`treesnap.Handle.root_forget`."""
    try:
        with opened(context, "forget a root", writing=True, recover=False) as session:
            root = find_registered(session.store, given)
            with root.locked("forget", context.wait_s):
                if root.record is None and not session.store.snapshots.names(root.id):
                    raise _unknown(given)
                _refuse_in_use(session._replace(root=root))
                if not force:
                    _refuse_kept(session.store, root)
                info = _info(session.store, root)
                session.store.snapshots.forget(root.id)
                try:
                    session.store.snapshots.finish_forgetting()
                    root.forget()
                    remove_dead_sockets(session.fs, session.store.layout.roots)
                except (TreesnapError, OSError) as error:
                    session.monitor.warn(
                        WarningCode.NOT_CLEANED_UP,
                        f"The history of {quoted(root.path)} is gone, but some files of the store "
                        f"about that root could not be removed: {error_text(error)}",
                    )
            return info
    except StoreMissing as error:
        raise _unknown(given) from error


def _refuse_in_use(session: Session) -> None:
    """Raises Busy while a process uses the root, and Refused for an unfinished restore."""
    from treesnap.core.ops.restore.export import sweep_exports

    root = session.root
    what = f"The root {quoted(root.path)}"
    if root.is_interrupted:
        raise Refused(
            f"A restore of {quoted(root.path)} was interrupted, and needs its snapshots",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=root.path,
        )
    ids = {name.id for name in session.store.snapshots.names(root.id)}
    if ids & needed_of(root):
        raise Refused(
            f"A restore was interrupted that needs a snapshot of {quoted(root.path)}",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=root.path,
        )
    held = {key: records for key, records in holds_of(root).items() if key in ids} | root.holds()
    for record in chain.from_iterable(held.values()):
        raise kept_by(f"{what} has a snapshot that", record)
    for name, user in (("plans-lock", "a plan"), (os.path.join("watch", "lock"), "'watch'")):
        if is_held(session.fs, root.file(name)):
            raise Busy(f"{what} is in use by {user}")
    sweep_exports(session, root.export_names())
    if root.export_names():
        raise Busy(f"{what} is in use by a restore to another directory")


def _refuse_kept(store: Store, root: Root) -> None:
    """Raises Refused for snapshots that policies never remove, and for unreadable ones."""
    kept = 0
    names = store.snapshots.names(root.id)
    for name in names:
        is_pinned = store.snapshots.state(name.id).pinned
        try:
            snapshot = store.snapshots.load(root.id, name)
        except NotFound:
            continue
        except Corrupt:
            kept += 1
            continue
        if is_fork_base(snapshot):
            continue  # it is pinned for the fork's sake; what it holds came from the origin
        kept += is_pinned or snapshot.record.name is not None or _is_asked_for(snapshot)
    if kept:
        raise Refused(
            f"{kept} of {len(names)} snapshots of the root {quoted(root.path)} are pinned, named, "
            "made by hand or labelled steps of a session",
            code=ErrorCode.HISTORY_KEPT,
            path=root.path,
        )


def _is_asked_for(snapshot: Snapshot) -> bool:
    """Returns whether a person made a snapshot, or a program that says what it is.

    A program's are steps of a session with a label of its own. What the hooks of an agent's host
    capture comes unasked.
    """
    record = snapshot.record
    if record.kind == SnapshotKind.AUTOMATIC:
        is_labelled = record.session is not None and record.label is not None
        return is_labelled and HOST not in snapshot.tags
    return record.kind == SnapshotKind.MANUAL


def _context_of(context: Context, path: str) -> Context:
    """Returns the context of another root of the same store."""
    return context_at(
        path, context.store_path, fs=context.fs, monitor=context.monitor, wait_s=context.wait_s
    )
