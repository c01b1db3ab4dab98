"""An open store with one root of it, for the length of one operation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from treesnap.errors import WarningCode, printable, quoted
from treesnap.events import Monitor
from treesnap.fs.base import FileSystem
from treesnap.fs.os_errors import reported
from treesnap.ops.context import Context
from treesnap.store.roots import Root
from treesnap.store.store import Store


@dataclass(frozen=True, slots=True)
class Session:
    """A store that is open, and the root in it that an operation is about."""

    context: Context
    store: Store
    root: Root

    @property
    def fs(self) -> FileSystem:
        """The file system of the context."""
        return self.context.fs

    @property
    def monitor(self) -> Monitor:
        """The monitor of the context."""
        return self.context.monitor


@contextmanager
def open_session(
    context: Context, doing: str, *, create: bool = False, writing: bool = False
) -> Iterator[Session]:
    """Opens the store; does not finish an interrupted restore.

    Takes over the history of a root that was moved here. Turns OSError into OperationFailed or
    StorageFull.
    """
    with (
        reported(doing),
        Store.open(context.fs, context.store_path, create=create, writing=writing) as store,
    ):
        if store.is_new:
            context.monitor.warn(WarningCode.STORE_MADE, f"Made the store {printable(store.path)}")
        session = Session(context, store, store.root(os.fsencode(context.root)))
        if session.root.record is None:
            session = _where_root_was(session, writing=create or writing)
        yield session


def _where_root_was(session: Session, *, writing: bool) -> Session:
    """Takes over the history of a root that was moved here, if there is one.

    Otherwise warns of what is likely: that another root was moved here, or this one away.
    """
    from treesnap.store.roots import find_moved

    context, store = session.context, session.store
    moved = find_moved(context.fs, store.layout, session.root.path)
    if moved is None:
        away = session.root.moved_to if not os.path.lexists(context.root) else None
        if away is not None:
            context.monitor.warn(
                WarningCode.ROOT_MOVED,
                f"The root {quoted(context.root)} was moved to {quoted(away)}",
            )
        return session
    old, new = printable(moved.record.path), printable(context.root)
    if not moved.is_certain:
        context.monitor.warn(
            WarningCode.ROOT_MAY_HAVE_MOVED,
            f"This may be the root {old!r}, moved",
        )
        return session
    root = store.root_by_id(moved.record.id, moved.record.path)
    try:
        with root.locked("move", context.wait_s):
            if root.path == moved.record.path:  # else another process was faster
                root.move(os.fsencode(context.root))
                context.monitor.warn(
                    WarningCode.ROOT_MOVED,
                    f"The root {old!r} was moved to {new!r}: its history too",
                )
    except OSError as error:
        if writing:
            raise
        context.monitor.warn(
            WarningCode.ROOT_MOVED, f"The root {old!r} was moved to {new!r}; not recorded: {error}"
        )
        root.path = os.fsencode(context.root)
        return replace(session, root=root)
    return replace(session, root=store.root(os.fsencode(context.root)))
