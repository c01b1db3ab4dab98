"""Watching a root while a program runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treesnap.core.codec.reader import TreeCache
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import ErrorCode, Refused, quoted
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, check_root, store_identities
from treesnap.core.store.layout import Layout
from treesnap.core.store.roots import registered_records
from treesnap.core.store.snapshots import RecordCache

if TYPE_CHECKING:
    from treesnap.core.worktree.watcher import Watcher

_NO_MORE = "the kernel gives this user no more queues (fs.inotify.max_user_instances)"
_NO_QUEUE = "the system has no inotify"


def watch_directory(context: Context) -> str:
    """Returns the directory of the root's watchers; makes it, and the store, if absent."""
    with opened(context, "watch", create=True) as session:
        session.root.register()
        path = session.root.file("watch")
        with suppress(FileExistsError):
            context.fs.make_directory(path)
        return path


def registered_path(context: Context, directory: str) -> str | None:
    """Returns where the root is that has a directory of watchers; None if that is not known."""
    layout = Layout(context.store_path)
    root_id = os.path.basename(os.path.dirname(directory))
    records = (it for it in registered_records(context.fs, layout) if it.id == root_id)
    record = next(records, None)
    return os.fsdecode(record.path) if record is not None else None


def refuse_unwatchable(context: Context, *, force: bool) -> None:
    """Raises NotFound or Refused for a root that cannot be watched, before anything is made."""
    from treesnap.core.worktree.watcher import refuse_unreported

    check_root(context, force=force)
    refuse_unreported(context.fs, context.root)


@contextmanager
def watched(context: Context, *, force: bool = False) -> Iterator[tuple[Context, Watcher]]:
    """Watches the root while the body runs; yields a context that uses the watcher."""
    from treesnap.core.worktree.watcher import Watcher

    refuse_unwatchable(context, force=force)
    cookies = watch_directory(context)
    store = store_identities(context)
    watcher = Watcher(context.fs, context.root, cookies, store=store)
    with translating_os_errors("watch"):
        try:
            watcher.__enter__()
        except OSError as error:
            # Of too few queues the kernel says that too many files are open.
            is_missing = isinstance(error, Unsupported)
            if not is_missing and (error.errno != errno.EMFILE or error.filename is not None):
                raise
            reason = _NO_QUEUE if is_missing else _NO_MORE
            raise Refused(
                f"{quoted(context.root)} cannot be watched: {reason}",
                code=ErrorCode.NOT_WATCHABLE,
                path=context.root,
            ) from error
    try:
        caching = context._replace(tree_cache=TreeCache(), record_cache=RecordCache())
        yield caching._replace(watcher=watcher), watcher
    finally:
        watcher.__exit__(None, None, None)
