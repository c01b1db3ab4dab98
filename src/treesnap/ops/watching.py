"""Asking a watcher what changed: the handle's own, or one that runs by itself.

No answer is never an error: whoever gets none looks at everything.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Protocol

from treesnap.codec.message import pack
from treesnap.codec.watch import (
    Answer,
    Asked,
    Mark,
    Question,
    WatchNote,
    decode_answer,
    encode_question,
)
from treesnap.errors import Corrupt, ErrorCode, Refused, shown
from treesnap.fs.durable import read_file
from treesnap.fs.failure import reported
from treesnap.hashing import checksum
from treesnap.ops.access import Opened, opened
from treesnap.ops.places import check_root
from treesnap.worktree.changed import Changed, changed_from
from treesnap.worktree.scanned import ScanResult
from treesnap.worktree.statcache import StatCache

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.worktree.watcher import Watcher

WALK_EVERY_NS = 3600 * 10**9
"""After this time a walk looks at everything again, for what no kernel reports."""
CHANGES_MAX = 50_000
"""With more changes a whole walk is no slower."""
_STATUS_SIZE_MAX = 4 << 20
_RIGHTS = (b"Uid:", b"Gid:", b"Groups:", b"CapEff:")
"""Lines of a process's status that decide what it may read; see proc_pid_status(5)."""


class ChangeSource(Protocol):
    """Something that knows what changed."""

    def answer(self, since: Mark | None) -> Answer | None:
        """Returns what changed since a mark, or None when it cannot work."""


class Outlook(NamedTuple):
    """What is known before a walk."""

    mark: Mark | None = None
    """Given by a watcher just now, or None without one."""
    changed: Changed | None = None
    """What to look at, or None for everything."""
    note: WatchNote | None = None
    """What the walk before noted, when it is known what changed since."""
    asked_ns: int | None = None
    """When the watcher was asked, in ns since the epoch."""
    mapped: frozenset[int] | None = None
    """Inode numbers of files that were mapped for writing then."""
    written: frozenset[int] = frozenset()
    """Inode numbers of files that the watcher saw closed, and whose times may say nothing."""


NOTHING_KNOWN = Outlook()


def outlook(handle: Handle, pair: Opened, cache: StatCache | None) -> Outlook:
    """Asks the watcher, if there is one, what changed since the stat cache was made.

    To be called before the walk. Costs a look, or a question.
    """
    note = cache.watch if cache is not None else None
    since = note.mark if note is not None else None
    if note is not None and not 0 <= handle.clock_ns() - note.walked_ns < WALK_EVERY_NS:
        note = None
    if cache is not None and cache.is_grown:
        note = None
    asked_ns = handle.clock_ns()
    if handle.watcher is not None:
        answer = handle.watcher.answer(since)
    else:
        answer = ask_other_process(handle, pair, since)
    if answer is None:
        return NOTHING_KNOWN
    known = Outlook(
        answer.mark,
        asked_ns=asked_ns,
        mapped=frozenset(answer.mapped),
        written=frozenset(answer.written),
    )
    if note is None or answer.paths is None:
        return known
    if len(answer.paths) + len(answer.whole) > CHANGES_MAX:
        return known
    changed = changed_from(answer.paths, answer.whole, note.listed)
    return known._replace(changed=changed, note=note)


def surely(
    walk: Callable[[Outlook], ScanResult], known: Outlook, scope: tuple[bytes, ...] | None
) -> tuple[Outlook, ScanResult]:
    """Returns what a walk found, and what was known before it; does it twice if need be.

    A name that a file gets elsewhere is reported there and nowhere else. So when a file has
    names that a walk of changes did not find, they may be where nobody looked, unless it was
    the same after the walk before. And a walk of changes may meet a damaged row, or a damaged
    tree that no whole walk needs.
    """
    try:
        result = walk(known)
    except Corrupt:
        if known.changed is None:
            raise
    else:
        noted = known.note.unfinished_links if known.note is not None and scope is None else b""
        if known.note is None or result.unfinished_links == noted:
            return known, result
    known = Outlook(known.mark, written=known.written)
    return known, walk(known)


def ask_other_process(handle: Handle, pair: Opened, since: Mark | None) -> Answer | None:
    """Returns the answer of the watcher that has the root's socket, or None."""
    directory = pair.root.file("watch")
    try:
        handle.fs.lstat(os.path.join(directory, "socket"))
    except OSError:
        return None  # the usual case, which costs this one look
    from treesnap.ops.watch_socket import ask

    try:
        question = Question(Asked.CHANGES, since, view_of(handle))
        return decode_answer(ask(handle.fs, directory, encode_question(question)))
    except (OSError, Corrupt):
        return None


def view_of(handle: Handle) -> bytes:
    """Returns bytes that are equal in processes that see the same below the root.

    In another mount namespace another directory may have the root's path, or hold other file
    systems. With other rights, or in another user namespace, where the same ones mean less, a
    watcher may have been kept out of what this process can read. Raises OSError.
    """
    stat = handle.fs.lstat(handle.root)
    namespaces = [handle.fs.read_link(b"/proc/self/ns/" + kind) for kind in (b"mnt", b"user")]
    status = read_file(handle.fs, "/proc/self/status", _STATUS_SIZE_MAX).splitlines()
    rights = [line for line in status if line.startswith(_RIGHTS)]
    return checksum(pack((stat.st_dev, stat.st_ino, *namespaces, tuple(rights))), 16)


def watch_directory(handle: Handle) -> str:
    """Returns the directory of the root's watchers, made if need be, and the store too."""
    with opened(handle, "watch", create=True) as pair:
        pair.root.register()
        path = pair.root.file("watch")
        with suppress(FileExistsError):
            handle.fs.make_directory(path)
        return path


def refuse_unwatchable(handle: Handle, *, force: bool) -> None:
    """Raises NotFound or Refused for a root that cannot be watched, before anything is made."""
    from treesnap.worktree.watcher import refuse_unreported

    check_root(handle, force=force)
    refuse_unreported(handle.fs, handle.root)


@contextmanager
def watched(handle: Handle, *, force: bool = False) -> Iterator[tuple[Handle, Watcher]]:
    """Watches the handle's root while the body runs; yields a handle that uses the watcher."""
    from treesnap.ops.capture import identity_of
    from treesnap.worktree.watcher import Watcher

    refuse_unwatchable(handle, force=force)
    cookies = watch_directory(handle)
    store = identity_of(handle.fs, handle.store_path)
    watcher = Watcher(handle.fs, handle.root, cookies, store=store)
    with reported("watch"), _limit_named(handle.root):
        watcher.__enter__()
    try:
        other = copy(handle)
        other.watcher = watcher
        yield other, watcher
    finally:
        watcher.__exit__(None, None, None)


@contextmanager
def watching(handle: Handle, *, force: bool) -> Iterator[Handle]:
    """Does the same for who needs the handle alone; see :meth:`treesnap.Handle.watch`."""
    with watched(handle, force=force) as (other, _):
        yield other


@contextmanager
def _limit_named(root: str) -> Iterator[None]:
    """Raises Refused when the kernel gives the user no more queues; it speaks of files."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE or error.filename is not None:
            raise
        raise Refused(
            f"{shown(root)!r} cannot be watched: the kernel gives this user no more queues; "
            "see fs.inotify.max_user_instances",
            code=ErrorCode.NOT_WATCHABLE,
            path=root,
        ) from error
