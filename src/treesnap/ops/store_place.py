"""``store``: where a store is, a second one like it, and another place for it.

A copy is made while other processes use the store. In order, because all that a snapshot needs
is there before it is, and the lock of the collector keeps packs from going away meanwhile:

1. the snapshots and what belongs to roots, then the index, then the packs, each as long as it is
   when its turn comes; what writers append later is of later snapshots
2. the format file, which makes a store of it
3. the whole copy is read and checked, and then renamed from ``DIR.partial`` to ``DIR``

A copy leaves out what belongs to processes at work and what can be made anew: locks, stat caches,
sockets, quarantine, and journals, because two stores must not finish the same restore.

A move on one file system exchanges the store with a link to its new place, atomically. Between
file systems the store is copied while its roots are locked, and then the old store is exchanged
with the link and stays beside it. So every name under which the store is known still leads to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EINVAL, ENOSYS, EXDEV

from treesnap.errors import (
    Busy,
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    quoted,
)
from treesnap.events import Phase
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import (
    ensure_directories,
    opened_file,
    read_file,
    replace_file,
    sync_directory,
    write_all,
)
from treesnap.ops.access import opened
from treesnap.ops.context import Context, Session, absolute
from treesnap.ops.verify import verify
from treesnap.results import StoreCopy, StoreInfo, StoreMove
from treesnap.store.layout import DIRECTORIES, PLAN_PREFIX, Layout, is_hex
from treesnap.store.lock import held
from treesnap.store.ownership import is_own, note_made_here
from treesnap.store.roots import registered_records
from treesnap.store.store import FORMAT_VERSION

_PIECE_SIZE = 1 << 20
_FORMAT_SIZE_MAX = 1 << 16
_ATTEMPTS = 10
"""How often an index is listed that writers keep replacing."""
_ROOT_FILES = frozenset({"root", "config.toml", "history", "elsewhere", "gaps"})
_COPIES_OF_RECORDS = ("path-", "inode-")


def store_info(context: Context) -> StoreInfo:
    """Returns what a store is; see :meth:`treesnap.Handle.store_info`."""
    import json

    with opened(context, "look at the store", recover=False) as session:
        store = session.store
        data = read_file(store.fs, store.layout.format, _FORMAT_SIZE_MAX)
        fields = json.loads(data)  # opening the store has checked it
        files, size_bytes = _size(store.fs, os.path.realpath(store.path))
        return StoreInfo(
            path=store.path,
            real_path=os.path.realpath(store.path),
            id=str(fields.get("id", "")),
            format=int(fields.get("format", FORMAT_VERSION)),
            size_bytes=size_bytes,
            files=files,
            packs=len(store.packs.sizes()),
            snapshots=sum(1 for _ in store.snapshots.all_names()),
            roots=tuple(record.path for record in registered_records(store.fs, store.layout)),
            own=store.is_own,
        )


def trust_store(context: Context) -> None:
    """Notes that a store is this user's own; see :meth:`treesnap.Handle.store_trust`."""
    with opened(context, "trust the store", writing=True, recover=False) as session:
        note_made_here(session.fs, session.store.layout)
        if not is_own(session.fs, session.store.layout):
            raise Refused(
                f"The store {quoted(context.store_path)} belongs to another user, or others may "
                "write to it",
                code=ErrorCode.STORE_NOT_TRUSTED,
                path=context.store_path,
            )


def _size(fs: FileSystem, top: str) -> tuple[int, int]:
    """Returns the number and the bytes of all files; those that vanish meanwhile do not count."""
    files = size_bytes = 0
    pending = [top]
    while pending:
        directory = pending.pop()
        with suppress(FileNotFoundError, NotADirectoryError), fs.scan(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(os.path.join(directory, entry.name))
                    continue
                with suppress(FileNotFoundError):
                    size_bytes += entry.stat(follow_symlinks=False).st_size
                    files += 1
    return files, size_bytes


def copy_store(context: Context, target: str) -> StoreCopy:
    """Makes a second store like this one; see :meth:`treesnap.Handle.store_copy`."""
    path = _target(context, target)
    with (
        opened(context, "copy the store", writing=True, recover=False) as session,
        _without_collector(session),
    ):
        return _copy(session, path)


def move_store(context: Context, target: str) -> StoreMove:
    """Moves a store, and leaves a link; see :meth:`treesnap.Handle.store_move`."""
    path = _target(context, target, may_be_link=True)
    old = os.path.realpath(context.store_path)
    with (
        opened(context, "move the store", writing=True, recover=False) as session,
        _without_collector(session),
        _roots_locked(session),
    ):
        fs = session.fs
        ensure_directories(fs, os.path.dirname(path))
        try:
            _exchange_with_link(fs, old, link=path, target=path)
        except OSError as error:
            if error.errno in (ENOSYS, EINVAL):
                raise OperationFailed(
                    f"The file system of {quoted(old)} cannot exchange two names", path=old
                ) from error
            if error.errno != EXDEV:
                raise
            _remove_own_link(fs, path)
        else:
            return StoreMove(old=old, new=path, left=None)
        _refuse_interrupted(session)
        copied = _copy(session, path, with_caches=True)
        if not copied.verified.ok:
            raise OperationFailed(
                f"The copy at {quoted(path)} has damage, and the store was not moved", path=path
            )
        left = _free_name(f"{old}.moved")
        _exchange_with_link(fs, old, link=left, target=path)
        return StoreMove(old=old, new=path, left=left)


def _target(context: Context, target: str, *, may_be_link: bool = False) -> str:
    """Returns the absolute path of a new store; raises where it cannot be."""
    if not target:
        raise InvalidArgument("The new place of the store must be a path, not an empty one")
    above, name = os.path.split(os.path.abspath(absolute(target)))
    path = os.path.join(os.path.realpath(above), name)
    source = os.path.realpath(context.store_path)
    if path == source or path.startswith(source + os.sep):
        raise InvalidArgument(f"{quoted(path)} is the store or lies inside it", path=path)
    if source.startswith(path + os.sep):
        raise InvalidArgument(f"{quoted(path)} is a directory above the store", path=path)
    if may_be_link and os.path.islink(path) and os.readlink(path) == path:
        return path  # of a move that was killed
    for each in (path, f"{path}.partial"):
        if os.path.lexists(each) and not (os.path.isdir(each) and not os.listdir(each)):
            raise Refused(
                f"{quoted(each)} exists and is not an empty directory",
                code=ErrorCode.TARGET_NOT_EMPTY,
                path=each,
            )
    return path


@contextmanager
def _without_collector(session: Session) -> Iterator[None]:
    lock = session.store.layout.collector_lock
    what = "The garbage collector"
    wait_s = session.context.wait_s
    with held(session.fs, lock, operation="copy", what=what, wait_s=wait_s):
        yield


@contextmanager
def _roots_locked(session: Session) -> Iterator[None]:
    """Keeps captures and restores of all roots out; raises Busy for those at work."""
    with ExitStack() as stack:
        for record in registered_records(session.fs, session.store.layout):
            root = session.store.root_by_id(record.id, record.path)
            with suppress(NotFound):
                stack.enter_context(root.locked("move", session.context.wait_s))
            for hold in root.holds().values():
                user = f"process {hold.process_id}" if hold is not None else "a process"
                purpose = hold.purpose if hold is not None else "needs"
                raise Busy(f"The root {quoted(root.path)} has a snapshot that {user} {purpose}")
        yield


def _refuse_interrupted(session: Session) -> None:
    for record in registered_records(session.fs, session.store.layout):
        root = session.store.root_by_id(record.id, record.path)
        if root.is_interrupted:
            raise Refused(
                f"A restore of {quoted(root.path)} was interrupted, and its journal is not copied",
                code=ErrorCode.RESTORE_INTERRUPTED,
                path=root.path,
            )


def _exchange_with_link(fs: FileSystem, old: str, *, link: str, target: str) -> None:
    """Makes a link to a target at one name, and exchanges it with another name, durably."""
    if os.path.isdir(link) and not os.path.islink(link):
        fs.remove_directory(link)  # it is empty
    above, name = os.path.split(link)
    with (
        opened_file(fs, above, os.O_RDONLY | os.O_DIRECTORY) as there,
        opened_file(fs, os.path.dirname(old), os.O_RDONLY | os.O_DIRECTORY) as here,
    ):
        if not os.path.islink(link):
            fs.make_symlink(os.fsencode(target), os.fsencode(name), dir_fd=there)
        fs.exchange(os.path.basename(old), name, source_dir_fd=here, target_dir_fd=there)
        fs.sync(there)
        fs.sync(here)


def _remove_own_link(fs: FileSystem, path: str) -> None:
    if os.path.islink(path):
        fs.unlink(path)


def _free_name(path: str) -> str:
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = f"{path}-{number}"
    return found


class _Copier:
    """Copies files of one store; what cannot be read is noted."""

    def __init__(self, session: Session, target: str) -> None:
        self._fs = session.fs
        self._monitor = session.monitor
        self._source = session.store.layout.path
        self._target = target
        self.files = self.size_bytes = 0
        self.unreadable: list[str] = []

    def directory(self, name: str) -> None:
        path = os.path.join(self._target, name)
        with suppress(FileExistsError):
            self._fs.make_directory(path)
        self._give(path, self._fs.lstat(os.path.join(self._source, name)))

    def names(self, name: str) -> list[str]:
        try:
            return sorted(self._fs.list_names(os.path.join(self._source, name)))
        except FileNotFoundError:
            return []

    def file(self, name: str) -> bool:
        """Copies a file as long as it is now; returns whether it was there."""
        path = os.path.join(self._source, name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            source = self._fs.open(path, flags)
        except FileNotFoundError:
            return False
        except OSError:
            self.unreadable.append(name)
            return True
        try:
            status = self._fs.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                return True
            self._write(name, source, status)
        finally:
            self._fs.close(source)
        return True

    def _write(self, name: str, source: int, status: os.stat_result) -> None:
        path = os.path.join(self._target, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with opened_file(self._fs, path, flags) as target:
            done = 0
            while done < status.st_size:
                try:
                    data = self._fs.read_at(source, min(_PIECE_SIZE, status.st_size - done), done)
                except OSError:
                    self.unreadable.append(name)
                    break
                if not data:
                    break
                write_all(self._fs, target, data)
                done += len(data)
                self._monitor.advance(0, len(data))
        self._give(path, status)
        self.files += 1
        self.size_bytes += done
        self._monitor.advance(1, 0)

    def _give(self, path: str, status: os.stat_result) -> None:
        """Gives what root copies to the owner of the original."""
        if os.geteuid() == 0:
            self._fs.change_owner(path, status.st_uid, status.st_gid)


def _copy(session: Session, path: str, *, with_caches: bool = False) -> StoreCopy:
    """Copies the store to a path; an error leaves nothing, a crash ``DIR.partial``."""
    try:
        return _copied(session, path, with_caches=with_caches)
    except Exception:
        from treesnap.worktree.apply.removal import remove_directories

        with suppress(OSError):
            remove_directories(session.fs, [f"{path}.partial"])
        raise


def _copied(session: Session, path: str, *, with_caches: bool) -> StoreCopy:
    context, fs, store = session.context, session.fs, session.store
    partial = f"{path}.partial"
    ensure_directories(fs, partial)
    copier = _Copier(session, partial)
    session.monitor.begin(Phase.COPY, None, store.size_bytes())
    for name in DIRECTORIES:
        copier.directory(name)
    for name in _metadata(copier, with_caches=with_caches):
        copier.file(name)
    _copy_index(copier)
    for name in copier.names("packs"):
        copier.file(os.path.join("packs", name))
    with opened_file(fs, partial, os.O_RDONLY | os.O_DIRECTORY) as fd:
        session.monitor.begin(Phase.SYNC, None, None)
        fs.sync_file_system(fd)
    data = read_file(fs, store.layout.format, _FORMAT_SIZE_MAX)
    layout = Layout(partial)
    replace_file(fs, layout.format, data, temporary=layout.temporary)
    if store.is_own:
        note_made_here(fs, layout)
    copied = context._replace(store_path=partial, watcher=None, record_cache=None, tree_cache=None)
    verified = verify(copied, read_data=True, repair=False, sample=None)
    fs.rename(partial, path)
    sync_directory(fs, os.path.dirname(path))
    return StoreCopy(
        source=store.path,
        target=path,
        files=copier.files + 1,
        size_bytes=copier.size_bytes + len(data),
        unreadable=tuple(copier.unreadable),
        verified=verified,
    )


def _metadata(copier: _Copier, *, with_caches: bool) -> Iterator[str]:
    """Yields all files but packs and index parts: snapshots first, and makes directories."""
    for root_id in copier.names("snapshots"):
        if is_hex(root_id, 32):
            inner = os.path.join("snapshots", root_id)
            copier.directory(inner)
            yield from (os.path.join(inner, name) for name in copier.names(inner))
    yield from (os.path.join("states", name) for name in copier.names("states"))
    yield "config.toml"
    caches = {"cache", "cache-recent"} if with_caches else set()
    for name in copier.names("roots"):
        inner = os.path.join("roots", name)
        if name.startswith(_COPIES_OF_RECORDS):
            yield inner
        if not is_hex(name, 32):
            continue
        copier.directory(inner)
        for each in copier.names(inner):
            if each in _ROOT_FILES | caches or each.startswith(("pushed-", PLAN_PREFIX)):
                yield os.path.join(inner, each)
    remotes = [name for name in copier.names("remotes") if not name.startswith(".")]
    if remotes:
        copier.directory("remotes")
    yield from (os.path.join("remotes", name) for name in remotes)


def _copy_index(copier: _Copier) -> None:
    """Copies all index parts; lists them again while writers replace what was listed."""
    copied: set[str] = set()
    for _ in range(_ATTEMPTS):
        names = set(copier.names("index")) - copied
        missed = {name for name in names if not copier.file(os.path.join("index", name))}
        copied |= names - missed
        if not missed:
            return
