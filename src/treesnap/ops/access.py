"""Beginning an operation: opens the store, and finishes what a crash left in the root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from treesnap.errors import Busy, StoreMissing, TreesnapError, WarningCode
from treesnap.ops.session import Session, open_session

if TYPE_CHECKING:
    from treesnap.ops.context import Context


@contextmanager
def opened(
    context: Context,
    doing: str,
    *,
    create: bool = False,
    writing: bool = False,
    recover: bool = True,
    sweep: bool = False,
) -> Iterator[Session]:
    """Opens the store; finishes an interrupted restore of the root first.

    Operations that write, and others with ``sweep``, remove what killed restores to other
    directories left. That costs one listing of the root's files.

    While another process works in the root, there is nothing to recover yet. A restore that
    cannot be finished is only a warning: history can still be read, and operations that touch
    the tree try again and fail. Turns OSError into OperationFailed or StorageFull.
    """
    with open_session(context, doing, create=create, writing=writing) as session:
        if recover and session.root.is_interrupted:
            from treesnap.ops.restore.recover import recover_locked

            try:
                with session.root.locked(doing, 0.0):
                    recover_locked(session)
            except Busy:
                pass
            except (TreesnapError, OSError) as error:
                context.monitor.warn(
                    WarningCode.RESTORE_UNFINISHED,
                    f"An interrupted restore could not be finished: {error}",
                )
        if create or writing or sweep:
            _sweep_exports(session)
        yield session


def _sweep_exports(session: Session) -> None:
    names = session.root.export_names()
    if names:
        from treesnap.ops.restore.export import sweep_exports

        sweep_exports(session, names)


def _refuse_link(session: Session) -> None:
    """Raises Refused for a symbolic link in the place of a root with a history.

    The target of the link is another root. If that has a history, it is the one that is meant.
    """
    if session.context.given_root == session.context.root or session.root.is_registered():
        return
    if session.store.root(os.fsencode(session.context.given_root)).is_registered():
        from treesnap.ops.places import replaced_by_link

        raise replaced_by_link(session.context)


@contextmanager
def locked_root(session: Session, operation: str) -> Iterator[None]:
    """Locks the root against other writers; finishes an interrupted restore first.

    Raises Refused when a symbolic link has taken the root's place.
    """
    _refuse_link(session)
    with session.root.locked(operation, session.context.wait_s):
        if session.root.is_interrupted:
            from treesnap.ops.restore.recover import recover_locked

            recover_locked(session)
        yield


def recover(context: Context) -> str | None:
    """Finishes an interrupted restore; returns what was done, or None."""
    from treesnap.ops.restore.recover import recover_locked

    try:
        with open_session(context, "finish an interrupted restore") as session:
            if not session.root.is_interrupted:
                return None
            with session.root.locked("recover", context.wait_s):
                return recover_locked(session)
    except StoreMissing:
        return None
