"""What is known of a tree before a walk: what a watcher says has changed, if there is one.

No answer is never an error: without one, everything is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

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
from treesnap.errors import Corrupt
from treesnap.fs.durable import read_file
from treesnap.hashing import checksum
from treesnap.ops.context import Context
from treesnap.ops.session import Session
from treesnap.worktree.scan.changed import Changed, changed_from
from treesnap.worktree.scan.scanner import ScanResult
from treesnap.worktree.scan.statcache import StatCache

WALK_EVERY_NS = 3600 * 10**9
"""After this time a walk looks at everything again, for what no kernel reports."""
CHANGES_MAX = 50_000
"""With more changes a whole walk is no slower."""
_STATUS_SIZE_MAX = 4 << 20
_RIGHTS = (b"Uid:", b"Gid:", b"Groups:", b"CapEff:")
"""Lines of a process's status that decide what it may read; see proc_pid_status(5)."""


class KnownChanges(NamedTuple):
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


NOTHING_KNOWN = KnownChanges()


def query_watcher(session: Session, cache: StatCache | None) -> KnownChanges:
    """Asks the watcher, if there is one, what changed since the stat cache was made.

    To be called before the walk. Costs a look, or a question.
    """
    note = cache.watch if cache is not None else None
    since = note.mark if note is not None else None
    if note is not None and not 0 <= session.context.clock_ns() - note.walked_ns < WALK_EVERY_NS:
        note = None
    if cache is not None and cache.is_grown:
        note = None
    asked_ns = session.context.clock_ns()
    if session.context.watcher is not None:
        answer = session.context.watcher.answer(since)
    else:
        answer = ask_other_process(session, since)
    if answer is None:
        return NOTHING_KNOWN
    known = KnownChanges(
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


def walk_with_fallback(
    walk: Callable[[KnownChanges], ScanResult], known: KnownChanges, scope: tuple[bytes, ...] | None
) -> tuple[KnownChanges, ScanResult]:
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
    known = KnownChanges(known.mark, written=known.written)
    return known, walk(known)


def ask_other_process(session: Session, since: Mark | None) -> Answer | None:
    """Returns the answer of the watcher that has the root's socket, or None."""
    directory = session.root.file("watch")
    try:
        session.fs.lstat(os.path.join(directory, "socket"))
    except OSError:
        return None  # the usual case, which costs this one look
    from treesnap.ops.watch_socket import ask

    try:
        question = Question(Asked.CHANGES, since, view_of(session.context))
        return decode_answer(ask(session.fs, directory, encode_question(question)))
    except (OSError, Corrupt):
        return None


def view_of(context: Context) -> bytes:
    """Returns bytes that are equal in processes that see the same below the root.

    In another mount namespace another directory may have the root's path, or hold other file
    systems. With other rights, or in another user namespace, where the same ones mean less, a
    watcher may have been kept out of what this process can read. Raises OSError.
    """
    stat = context.fs.lstat(context.root)
    namespaces = [context.fs.read_link(b"/proc/self/ns/" + kind) for kind in (b"mnt", b"user")]
    status = read_file(context.fs, "/proc/self/status", _STATUS_SIZE_MAX).splitlines()
    rights = [line for line in status if line.startswith(_RIGHTS)]
    return checksum(pack((stat.st_dev, stat.st_ino, *namespaces, tuple(rights))), 16)
