"""What is known of a tree before a walk: what a watcher says has changed, if there is one.

The watcher is one of this process, or of another process that has a socket in the store. No
answer is never an error: without one, everything is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from treesnap.core.codec.message import pack
from treesnap.core.fs import processes
from treesnap.core.fs.base import FileSystem
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import checksum
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import Context, Session
from treesnap.core.worktree.scan.listing import path_tree
from treesnap.core.worktree.scan.scanner import NOTHING_KNOWN, KnownChanges, ScanResult
from treesnap.core.worktree.scan.statcache import StatCache

if TYPE_CHECKING:
    from treesnap.core.codec.watch import Answer, Mark

WALK_EVERY_NS = 3600 * 10**9
"""After this time a walk looks at everything again, for what no kernel reports."""
CHANGES_MAX = 50_000
"""With more changes a whole walk is as fast."""


def query_watcher(session: Session, cache: StatCache | None) -> KnownChanges:
    """Asks the watcher, if there is one, what changed since the stat cache was made.

    Call it before the walk. Costs a system call, or a question to the watcher.
    """
    note = cache.watch if cache is not None else None
    since = note.mark if note is not None else None
    if note is not None and not 0 <= session.context.clock_ns() - note.walked_ns < WALK_EVERY_NS:
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
    changed = path_tree(answer.paths, whole=answer.whole, listed=note.listed)
    return known._replace(changed=changed, note=note)


def walk_with_fallback(
    walk: Callable[[KnownChanges], ScanResult], known: KnownChanges, scope: tuple[bytes, ...] | None
) -> tuple[KnownChanges, ScanResult]:
    """Returns what a walk found, and what was known before it; walks a second time if need be.

    A new hard link is reported in the directory of the link only. So when a file has names that
    a walk of changes did not find, they may be in a directory that was not looked at, unless the
    walk before did not find them either. And a walk of changes may meet a damaged row, or a
    damaged tree that a whole walk does not need.
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
        return None  # the usual case, which costs this one call
    from treesnap.core.codec.watch import Asked, Question, decode_answer, encode_question

    try:
        question = Question(Asked.CHANGES, since, view_of(session.context))
        return decode_answer(ask(directory, encode_question(question)))
    except (OSError, Corrupt):
        return None


def view_of(context: Context) -> bytes:
    """Returns bytes that are equal in processes that see the same below the root.

    In another mount namespace another directory may have the root's path, or hold other file
    systems. With other rights, or in another user namespace, where the same ones mean less, a
    watcher may have been kept out of what this process can read. Raises OSError.
    """
    stat = context.fs.lstat(context.root)
    return checksum(pack((stat.st_dev, stat.st_ino, *processes.view())), 16)


def ask(directory: str, question: bytes, patience_s: float | None = None) -> bytes:
    """Returns the answer of the watcher whose socket is in a directory; raises OSError.

    That is FileNotFoundError or ConnectionRefusedError when there is none, TimeoutError when it is
    suspended.
    """
    from treesnap.core.codec.watch import ANSWER_SIZE_MAX
    from treesnap.core.fs.peers import connected, received

    connection, _ = connected(directory, patience_s=patience_s, question=question)
    try:
        return received(connection, ANSWER_SIZE_MAX)[0]
    finally:
        connection.close()


def remove_dead_sockets(fs: FileSystem, directory: str) -> None:
    """Removes the sockets for hooks that killed watchers left among the files of all roots.

    Otherwise only the next watcher of the same directory would, which may be gone.
    """
    with suppress(OSError):
        for name in fs.list_names(directory):
            if name.startswith("hook-") and _is_dead(directory, name):
                fs.unlink(os.path.join(directory, name))


def _is_dead(directory: str, name: str) -> bool:
    from treesnap.core.fs.peers import connected

    try:
        connection, _ = connected(directory, name, patience_s=0)  # a suspended one is not dead
        connection.close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False
