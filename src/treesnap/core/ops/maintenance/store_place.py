"""``store``: where a store is, a second one like it, and another place for it.

A copy is made while other processes use the store. In order, because all that a snapshot needs
is there before it is, and the lock of the collector keeps packs from going away meanwhile:

1. the snapshots and what belongs to roots, then the index, then the packs, each as long as it is
   when its turn comes; what writers append later is of later snapshots
2. the format file, which makes a store of it
3. the whole copy is read and checked, and then renamed from ``DIR.partial`` to ``DIR``

Roots may be forgotten or moved meanwhile, and then the copy has half of what is gone. So whatever
the check finds is looked for again behind the closed gate, in a copy that was brought up to date:
only what is still wrong is damage.

While ``DIR.partial`` is written, it holds a *mark*: a file that its writer has locked, made before
all others and removed after them. So a mark that is not locked says that a killed copy left the
directory, and the next one removes it. It is removed before the renaming, or a whole store could
be taken for such remains.

A copy leaves out what belongs to processes at work and what can be made anew: locks, stat caches,
sockets, quarantine, and journals, because two stores must not finish the same restore. A move takes
along what killed processes left to be known: the records of restores to other directories, whose
remains can be found by no other, and the holds of steps that were not rolled back. No process has
one of these when the store is closed. Both take along what a killed collection condemned: packs
that index parts name and that are gone do not count as lost then.

A move on one file system exchanges the store with a link to its new place, atomically. To another
file system the store is copied beside writers, and read; then its gate is closed, what is new is
copied, and both directories say which name leads to the store (``moving``). The
old store is exchanged with the link and stays beside it, marked as only read. So every name under
which the store is known still leads to it, and no process writes where none looks. What becomes of
the links of earlier moves is in :mod:`treesnap.core.ops.maintenance.store_links`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from errno import EEXIST, ENOTDIR, ENOTEMPTY, EXDEV
from itertools import chain

from treesnap.core.codec.pack import PACK_ID_SIZE
from treesnap.core.fs.base import FileSystem, ReadingFileSystem, Unsupported
from treesnap.core.fs.durable import (
    Temporary,
    ensure_directories,
    is_there,
    opened_file,
    read_file,
    read_readable_at,
    replace_file,
    unlink_if_present,
    write_all_at,
)
from treesnap.core.fs.os_errors import is_unreadable, translating_os_errors
from treesnap.core.fs.pinned import pinned
from treesnap.core.fs.real_path import opened_real, path_beside
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    InvalidArgument,
    OperationFailed,
    Refused,
    TreesnapError,
    quoted,
)
from treesnap.core.model.events import Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import StoreCopy, StoreInfo, StoreMove, VerifyResult
from treesnap.core.ops.access import opened
from treesnap.core.ops.checkpoint_locks import kept_by
from treesnap.core.ops.context import Context, Session, absolute
from treesnap.core.ops.maintenance.store_links import (
    arrive,
    leads_to,
    links_left,
    make_way,
    note_links,
    own_link_target,
    place_before,
)
from treesnap.core.ops.maintenance.verify import verify
from treesnap.core.ops.trust import real_target, refuse_foreign, refuse_foreign_place
from treesnap.core.store.collector import read_state
from treesnap.core.store.fence import collector_held, collector_kept_out, mark_moved
from treesnap.core.store.layout import DIRECTORIES, PLAN_PREFIX, Layout, is_hex, root_names
from treesnap.core.store.lock import MOVE, closed_gate, is_held
from treesnap.core.store.moving import WAITING, NotedMove, note_move
from treesnap.core.store.ownership import WRITABLE_BY_OTHERS, is_controlled, note_made_here
from treesnap.core.store.roots import EXPORT_PREFIX, HOLD_PREFIX, registered_records
from treesnap.core.store.snapshots import SnapshotListing
from treesnap.core.store.store import FORMAT_SIZE_MAX, FORMAT_VERSION, Store, store_id
from treesnap.core.worktree.apply.removal import remove_directories, remove_paths
from treesnap.core.worktree.directory import NO_DIRECTORY

_PIECE_SIZE = 1 << 20
_ATTEMPTS = 10
"""How often an index is listed that writers keep replacing."""
_ROOT_FILES = frozenset({"root", "config.toml", "history", "elsewhere", "gaps", "marks", "joined"})
_SMALL_FILES = ("snapshots", "states", "roots", "index")
"""Directories of which a move copies everything again when the store is closed."""
_COPIES_OF_RECORDS = ("path-", "inode-")
_COPIED = frozenset(
    {*DIRECTORIES, "format", "made-here", "moving", "links", "config.toml", "remotes"}
)
"""All that a copy has in its top directory, but for its mark."""
_MARK = ".treesnap-copy-"
_MARK_DIGITS = 16


def store_info(context: Context) -> StoreInfo:
    """Returns what a store is; see :meth:`treesnap.Handle.store_info`."""
    import json

    with opened(context, "look at the store", recover=False) as session:
        store = session.store
        data = read_file(store.fs, store.layout.format, FORMAT_SIZE_MAX)
        fields = json.loads(data)  # opening the store has checked it
        files, size_bytes = _size(store.fs, os.path.realpath(store.path))
        return StoreInfo(
            path=store.path,
            real_path=os.path.realpath(store.path),
            id=store_id(fields),
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
        if not is_controlled(session.fs, session.store.layout):
            raise Refused(
                f"The store {quoted(context.store_path)} belongs to another user, or others may "
                "write to it",
                code=ErrorCode.STORE_NOT_TRUSTED,
                path=context.store_path,
            )
        note_made_here(session.fs, session.store.layout)


def _size(fs: ReadingFileSystem, top: str) -> tuple[int, int]:
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
    with _beside_writers(context, "copy", collector_kept_out) as session:
        _refuse_taken(path)  # by the process that had the lock first
        return _copy(session, path)


def move_store(context: Context, target: str) -> StoreMove:
    """Moves a store, and leaves a link; see :meth:`treesnap.Handle.store_move`."""
    path = _target(context, target, may_be_link=True)
    with _beside_writers(context, MOVE, collector_held) as session:
        old = os.path.realpath(context.store_path)
        if not _is_link_to_replace(path, old):
            _refuse_taken(path)  # by the process that had the lock first
        _refuse_mounted(session.fs, old)
        ensure_directories(session.fs, os.path.dirname(path))
        if _move_by_exchange(session, old, path):
            return StoreMove(old=old, new=path, left=None)
        return _move_by_copy(session, old, path)


@contextmanager
def _beside_writers(
    context: Context, operation: str, lock: Callable[..., AbstractContextManager[object]]
) -> Iterator[Session]:
    """Opens the store with the collector's lock, outside the gate; raises Busy."""
    doing = f"{operation} the store"
    with translating_os_errors(doing):
        refuse_foreign(context)
        layout = Store.open(context.fs, context.store_path, writing=True).layout
        with (
            lock(context.fs, layout, operation=operation, wait_s=context.wait_s),
            opened(context, doing, recover=False) as session,
        ):
            yield session


def _move_by_exchange(session: Session, old: str, path: str) -> bool:
    """Exchanges the store with a link; returns False where that takes another file system."""
    fs = session.fs
    place = place_before(path, old)
    with _closed(session):
        _refuse_use(session)
        note_links(fs, session.store.layout, _links_to_be(session, old, place, path))
        make_way(fs, old, place, path)
        try:
            if place != old:  # else a move there was killed
                _exchange_with_link(fs, old, link=place, target=place)
        except OSError as error:
            if error.errno != EXDEV:
                raise
            return False
        arrive(fs, old, place, path)
    return True


def _links_to_be(session: Session, old: str, place: str, path: str) -> list[str]:
    """Returns what leads to a store while it moves: if that is killed, the next one has to know."""
    links = links_left(session.fs, session.store.layout)
    return [*links, old] if place == path else [*links, path, old]


def _move_by_copy(session: Session, old: str, path: str) -> StoreMove:
    """Copies the store beside writers, then closes it, copies what is new, and exchanges it."""
    fs = session.fs
    _refuse_interrupted(session)
    _refuse_no_exchange(session, old)
    with _partial(fs, path) as partial:
        made = _copied(session, partial, is_moved=True)
        with _closed(session):
            _refuse_use(session)
            _refuse_interrupted(session)
            verified = _looked_at_again(session, partial, made, is_moved=True)
            if made.unreadable:
                raise OperationFailed(
                    f"{quoted(made.unreadable[0])} cannot be read, and the store was not moved",
                    path=os.path.join(old, made.unreadable[0]),
                )
            if not verified.ok:
                raise Corrupt(
                    f"The store {quoted(old)} has damage, and was not moved; 'store copy' copies "
                    "it with the damage",
                    path=old,
                )
            with _closed_as_well(partial):
                left = _exchanged_with_copy(session, partial, old, path)
    return StoreMove(old=old, new=path, left=left)


@contextmanager
def _closed(session: Session) -> Iterator[None]:
    """Closes the gate of the store; tells the user while it waits for others to leave."""
    fs, layout = session.fs, session.store.layout
    with ExitStack() as gate:
        with suppress(OSError):  # on a full disk it waits like any other
            note_move(fs, layout, WAITING)
        try:
            gate.enter_context(closed_gate(fs, session.store.path, session.context.wait_s))
        finally:
            with suppress(OSError):  # the next writer does it
                unlink_if_present(fs, layout.moving)
        yield


@contextmanager
def _closed_as_well(partial: _Partial) -> Iterator[None]:
    """Keeps all processes out of a copy until it has its name and all links lead to it."""
    fs, layout = partial.fs, Layout(partial.path)
    with ExitStack() as gate:
        gate.enter_context(collector_held(fs, layout, operation=MOVE, wait_s=0.0))
        with suppress(OperationFailed):  # its file system has no locks of directories
            gate.enter_context(closed_gate(fs, partial.path, 0.0))
        yield


def _exchanged_with_copy(session: Session, partial: _Partial, old: str, path: str) -> str:
    """Puts a copy in the store's place; returns where the old one is. Both gates are closed."""
    fs = session.fs
    place = place_before(path, old)
    move = NotedMove(old, place)
    make_way(fs, old, place, path)
    note_links(partial.fs, Layout(partial.path), _links_to_be(session, old, place, path))
    try:
        note_move(partial.fs, Layout(partial.path), move)
        note_move(fs, session.store.layout, move)
        _put_in_place(partial, place)
        left = _free_name(path_beside(old, ".moved"))
        _exchange_with_link(fs, old, link=left, target=place)
    except BaseException:
        if not os.path.islink(old):
            _stay(session, partial, place)
        raise
    try:
        arrive(fs, old, place, path)
    finally:
        with suppress(OSError):  # this version sees where the store is; others do not
            mark_moved(fs, Layout(left), os.path.realpath(old))
    return left


def _looked_at_again(
    session: Session, partial: _Partial, made: _Copied, *, is_moved: bool
) -> VerifyResult:
    """Brings a copy up to date, and checks it; the gate is closed.

    Content is read once more only if something was found before: what went away while it was
    copied is not damage. What could not be read now is added to what could not before.
    """
    covered, unreadable = _copy_again(session, partial, is_moved=is_moved)
    made.unreadable.extend(name for name in unreadable if name not in made.unreadable)
    if made.verified.ok:
        _read_new(partial, covered)
    return verify(made.context, read_data=not made.verified.ok, repair=False, sample=None)


def _copy_again(
    session: Session, partial: _Partial, *, is_moved: bool
) -> tuple[dict[bytes, int], list[str]]:
    """Brings a copy up to date: all small files anew, and of packs what is not verified yet.

    No process writes meanwhile. What index parts of the copy cover of a pack was read and is as it
    was; behind that, a writer may have truncated and written something else. Returns how much of
    each pack they covered, and what could not be read.
    """
    fs = partial.fs
    with Store.open(fs, partial.path) as store:
        covered = store.index.covered()
    copier = _Copier(session, partial)
    going = [os.path.join(partial.path, name) for name in (*_SMALL_FILES, "remotes")]
    remove_directories(fs, [path for path in going if is_there(fs, path)])
    unlink_if_present(fs, os.path.join(partial.path, "config.toml"))
    _copy_small_files(copier, is_moved=is_moved)
    names = set(copier.names("packs"))
    for name in fs.list_names(os.path.join(partial.path, "packs")):
        if name not in names:
            fs.unlink(os.path.join(partial.path, "packs", name))
    for name in names:
        is_pack = is_hex(name, 2 * PACK_ID_SIZE)
        begin = covered.get(bytes.fromhex(name), 0) if is_pack else 0
        copier.file(os.path.join("packs", name), begin)
    _sync_all(session, partial)
    return covered, copier.unreadable


def _read_new(partial: _Partial, covered: Mapping[bytes, int]) -> None:
    """Reads what index parts of a copy cover now and did not before; raises Corrupt."""
    with Store.open(partial.fs, partial.path) as store:
        for pack_id, end in store.index.covered().items():
            begin = covered.get(pack_id, 0)
            for entry in store.inventory(pack_id, begin).entries if end > begin else ():
                if entry.offset < end:
                    store.packs.read(entry)


def _target(context: Context, target: str, *, may_be_link: bool = False) -> str:
    """Returns the absolute path of a new store; raises where it cannot be."""
    if not target:
        raise InvalidArgument("The new place of the store must be a path, not an empty one")
    above, name = os.path.split(os.path.abspath(absolute(target)))
    _refuse_dangling(above)
    path = os.path.join(real_target(above), name)
    refuse_foreign_place("store", path)
    source = os.path.realpath(context.store_path)
    if path == source or path.startswith(source + os.sep):
        raise InvalidArgument(f"{quoted(path)} is the store or lies inside it", path=path)
    if source.startswith(path + os.sep):
        raise InvalidArgument(f"{quoted(path)} is a directory above the store", path=path)
    if not (may_be_link and _is_link_to_replace(path, source)):
        _refuse_taken(path)
    return path


def _refuse_dangling(path: str) -> None:
    """Raises InvalidArgument where a link to nothing would decide what is made, and where."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.exists(path):
        raise InvalidArgument(f"{quoted(path)} is a link to nothing", path=path)


def _is_link_to_replace(path: str, store: str) -> bool:
    """Returns whether a path is a link that a killed move left, or one that leads to a store."""
    return own_link_target(path) == path or leads_to(path, store)


def _refuse_taken(path: str) -> None:
    if _is_taken(path):
        raise _taken(path)
    partial = path_beside(path, ".partial")
    if _is_taken(partial) and not _is_leftover(os.lstat(partial), os.listdir(partial)):
        what = "is not what a copy leaves that is killed: rename it or remove it"
        if os.path.lexists(Layout(partial).format):
            what = f"is a store, perhaps a whole copy: rename it to {quoted(path)} or remove it"
        raise Refused(
            f"{quoted(path)} would be made in {quoted(partial)}, which {what}",
            code=ErrorCode.TARGET_NOT_EMPTY,
            path=partial,
        )


def _is_taken(path: str) -> bool:
    return os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path))


def _is_leftover(status: os.stat_result, names: list[str]) -> bool:
    """Returns whether a directory can be what a killed copy of this user left: it has its mark."""
    marks = _marks(names)
    return _is_ours(status) and bool(marks) and {*names} - {*marks} <= _COPIED


def _is_ours(status: os.stat_result) -> bool:
    """Returns whether it is a directory into which no other user writes."""
    is_own = status.st_uid == os.geteuid() and not status.st_mode & WRITABLE_BY_OTHERS
    return is_own and stat.S_ISDIR(status.st_mode)


def _marks(names: list[str]) -> list[str]:
    marked = [name for name in names if name.startswith(_MARK)]
    return [name for name in marked if is_hex(name.removeprefix(_MARK), _MARK_DIGITS)]


def _taken(path: str) -> Refused:
    return Refused(
        f"{quoted(path)} exists and is not an empty directory",
        code=ErrorCode.TARGET_NOT_EMPTY,
        path=path,
    )


@contextmanager
def _refused_if_taken(path: str) -> Iterator[None]:
    """Lets only one process make something at a path; raises Refused for the others."""
    try:
        yield
    except OSError as error:
        if error.errno in (EEXIST, ENOTEMPTY, ENOTDIR):
            raise _taken(path) from error
        raise


def _refuse_use(session: Session) -> None:
    """Raises Busy where a process that is not inside needs the store where it is."""
    fs, layout = session.fs, session.store.layout
    for root_id in root_names(fs, layout.roots):
        root = session.store.root_by_id(root_id)
        for hold in chain.from_iterable(root.holds().values()):
            raise kept_by(f"The root {quoted(root.path)} has a snapshot that", hold)
        names = fs.list_names(layout.root_directory(root_id))
        exports = set(root.export_names(names))
        for name in names:
            is_lock = name.endswith("lock") or name in exports
            if is_lock and is_held(fs, root.file(name)):
                raise Busy(f"The root {quoted(root.path)} is in use by another process")


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
    """Makes a link to a target at one name, and exchanges it with another name, durably.

    Raises OperationFailed where the file system has no exchange. Leaves the names as they were
    when it raises, unless they were exchanged by then.
    """
    above, name = os.path.split(link)
    with (
        opened_file(fs, above, os.O_RDONLY | os.O_DIRECTORY) as there,
        opened_file(fs, os.path.dirname(old), os.O_RDONLY | os.O_DIRECTORY) as here,
    ):
        replaced = None
        if os.path.isdir(link) and not os.path.islink(link):
            with _refused_if_taken(link):
                replaced = fs.lstat(link)
                fs.remove_directory(link)
        try:
            if own_link_target(link) != target:  # else of a move that was killed
                with _refused_if_taken(link):
                    fs.make_symlink(os.fsencode(target), os.fsencode(name), dir_fd=there)
            with _no_exchange_told(old):
                fs.exchange(os.path.basename(old), name, source_dir_fd=here, target_dir_fd=there)
            if own_link_target(old) != target:
                fs.exchange(os.path.basename(old), name, source_dir_fd=here, target_dir_fd=there)
                raise _taken(link)
        except BaseException:
            with suppress(OSError):
                if own_link_target(link) == target:
                    fs.unlink(link)
                    if replaced is not None:
                        fs.make_directory(link, stat.S_IMODE(replaced.st_mode))
            raise
        fs.sync(there)
        fs.sync(here)


@contextmanager
def _no_exchange_told(old: str) -> Iterator[None]:
    try:
        yield
    except Unsupported as error:
        raise OperationFailed(
            f"The file system of {quoted(old)} cannot exchange two names, and the store was "
            "not moved",
            path=old,
            errno=error.errno,
        ) from error


def _refuse_mounted(fs: FileSystem, path: str) -> None:
    """Raises OperationFailed where a store is a mounted file system: no link can take its place."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    with (
        opened_file(fs, path, flags) as here,
        opened_file(fs, os.path.dirname(path), flags) as above,
    ):
        devices = {fs.fstat(fd).st_dev for fd in (here, above)}
        if len(devices) > 1 or fs.mount_id(here) != fs.mount_id(above):
            raise OperationFailed(
                f"{quoted(path)} is where a file system is mounted, and no link can take its "
                "place: mount it elsewhere, or copy the store",
                path=path,
            )


def _refuse_no_exchange(session: Session, old: str) -> None:
    """Raises OperationFailed where names cannot be exchanged, before the store is copied.

    Tries it with two files in the store, which is on the same file system as its name.
    """
    for attempt in (1, 2, 3):
        try:
            _exchange_two(session, old)
        except FileNotFoundError:  # a sweep took one before it was locked
            if attempt == 3:
                raise
        else:
            return


def _exchange_two(session: Session, old: str) -> None:
    fs, layout = session.fs, session.store.layout
    flags = os.O_RDONLY | os.O_DIRECTORY
    with opened_file(fs, layout.temporary, flags) as directory, ExitStack() as files:
        names = []
        for _ in range(2):
            file = Temporary(fs, layout.temporary)
            files.callback(file.discard)
            names.append(os.path.basename(file.path))
        with _no_exchange_told(old):
            fs.exchange(*names, source_dir_fd=directory, target_dir_fd=directory)


def _stay(session: Session, partial: _Partial, path: str) -> None:
    """Undoes what a move has done that could not exchange the names in the end.

    As far as it can be; what is left then says that it is only read.
    """
    fs = session.fs
    with suppress(OSError, TreesnapError):
        source, target = os.path.basename(path), os.path.basename(partial.path)
        above_fd = partial.above_fd
        if partial.has_name(source):
            fs.rename(source, target, source_dir_fd=above_fd, target_dir_fd=above_fd)
            partial.mark()
        unlink_if_present(fs, session.store.layout.moving)


def _free_name(path: str) -> str:
    number, free_path = 1, path
    while os.path.lexists(free_path):
        number += 1
        free_path = path_beside(path, f"-{number}")
    return free_path


class _Partial:
    """The open directory of a copy, because its name may lead to another one at any moment."""

    def __init__(self, fs: FileSystem, path: str, fd: int, above_fd: int) -> None:
        self.fs = pinned(fs, path, fd)
        """In which the path is the opened directory, wherever its name leads."""
        self.path = path
        self.fd = fd
        self.above_fd = above_fd
        self._mark: Temporary | None = None

    def mark(self) -> None:
        """Marks it as an incomplete copy for as long as this process lives."""
        try:
            mark = Temporary(self.fs, self.path, prefix=_MARK)
        except FileNotFoundError as error:  # another process took it for an empty one
            raise _taken(self.path) from error
        if not mark.is_held:  # another process takes it for what a killed one left
            mark.discard()
            raise _taken(self.path)
        self._mark = mark

    def unmark(self) -> None:
        """Removes the mark."""
        if self._mark is not None:
            unlink_if_present(self.fs, self._mark.path)
            self.close()

    def close(self) -> None:
        """Leaves the mark, if there is one, to the next copy."""
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def remove(self) -> None:
        """Removes it if it still has its first name; raises Refused if not."""
        name = os.path.basename(self.path)
        self.refuse_replaced(name)
        _remove_copied(self.fs, self.fd, self.fs.list_names(self.path))
        self.unmark()
        self.fs.remove_directory(name, dir_fd=self.above_fd)

    def has_name(self, name: str) -> bool:
        """Returns whether a name beside the copy, or its own, is that of the copy."""
        try:
            status = self.fs.lstat(name, dir_fd=self.above_fd)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, self.fs.fstat(self.fd))

    def refuse_replaced(self, name: str) -> None:
        """Raises Refused where a name beside the copy, or its own, is not that of the copy."""
        if not self.has_name(name):
            raise Refused(
                f"{quoted(self.path)} was replaced by another process while it was written",
                code=ErrorCode.FOREIGN_OWNER,
                path=self.path,
            )


class _Copier:
    """Copies files of one store; what cannot be read is noted."""

    def __init__(self, session: Session, partial: _Partial) -> None:
        self._fs = partial.fs
        self._monitor = session.monitor
        self._source = session.store.layout.path
        self._snapshots = session.store.snapshots
        self._partial = partial
        self._target = partial.path
        self.files = self.size_bytes = 0
        self.unreadable: list[str] = []

    def directory(self, name: str) -> None:
        """Makes a directory like the original; none where that went away, or is a link."""
        with suppress(FileNotFoundError):
            status = self._fs.lstat(os.path.join(self._source, name))
            if not stat.S_ISDIR(status.st_mode):
                return
            path = os.path.join(self._target, name)
            with suppress(FileExistsError):
                self._fs.make_directory(path)
            self._give(path, status)

    def collection(self) -> Iterator[str]:
        """Yields the file of a collection that was killed: of what it removed, index parts know."""
        state = Layout("").collector_state
        with suppress(Corrupt):  # a damaged one stays behind, as what it says is not known
            if read_state(self._fs, Layout(self._source)).condemned:
                yield state

    def going(self) -> set[str]:
        """Returns the ids of the snapshots of roots that are being forgotten.

        What a killed ``root forget`` left of these is not copied, so neither are their states:
        the copy would miss snapshots that it is said to hold.
        """
        return {item.id for _, names in self._snapshots.forgotten() for item in names}

    def names(self, name: str) -> list[str]:
        """Returns the names in a directory; none in what is absent, or none.

        A stranger's store may have a link there, which leads to other files of this user.
        """
        path = os.path.join(self._source, name)
        try:
            with opened_file(self._fs, path, os.O_RDONLY | os.O_DIRECTORY) as directory:
                return sorted(self._fs.list_names(directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            self.unreadable.append(name)
            return []

    def file(self, name: str, begin: int = 0) -> bool:
        """Copies a file as long as it is now; returns whether it was there.

        What is before ``begin`` is in the copy already. Raises Refused for a copy that another
        process has replaced.
        """
        self._partial.refuse_replaced(os.path.basename(self._target))
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
            self._write(name, source, status, begin)
        finally:
            self._fs.close(source)
        return True

    def _write(self, name: str, source: int, status: os.stat_result, begin: int) -> None:
        path = os.path.join(self._target, name)
        with opened_file(self._fs, path, os.O_WRONLY | os.O_CREAT) as target:
            self._fs.truncate(target, begin)
            end = status.st_size
            for start, stop in _data_ranges(self._fs, source, begin, end):
                if not self._write_range(name, source, target, start, stop):
                    end = 0
                    break
            end = min(end, self._fs.fstat(source).st_size)
            if end > self._fs.fstat(target).st_size:
                self._fs.truncate(target, end)  # it ends with a hole
            size_bytes = self._fs.fstat(target).st_size
        self._give(path, status)
        self.files += 1
        self.size_bytes += size_bytes
        self._monitor.advance(1, 0)

    def _write_range(self, name: str, source: int, target: int, start: int, stop: int) -> bool:
        """Copies some bytes of a file; returns False where it ends before, or cannot be read."""
        while start < stop:
            size = min(_PIECE_SIZE, stop - start)
            try:
                data = self._fs.read_at(source, size, start)
            except OSError as error:
                if name not in self.unreadable[-1:]:
                    self.unreadable.append(name)
                if not is_unreadable(error):
                    return False
                data = read_readable_at(self._fs, source, size, start)
            if not data:
                return False
            write_all_at(self._fs, target, data, start)
            start += len(data)
            self._monitor.advance(0, len(data))
        return True

    def _give(self, path: str, status: os.stat_result) -> None:
        """Gives what root copies to the owner of the original."""
        if os.geteuid() == 0:
            self._fs.change_owner(path, status.st_uid, status.st_gid)


def _data_ranges(fs: ReadingFileSystem, fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields where a file has data, not holes, between two positions.

    A collection on a full disk leaves holes in packs; those of a stranger's store may be of any
    size.
    """
    while begin < end and (start := fs.next_data(fd, begin)) is not None and start < end:
        begin = min(end, fs.next_hole(fd, start))
        yield start, begin


def _copy(session: Session, path: str) -> StoreCopy:
    """Copies the store to a path; an error leaves nothing, a crash ``DIR.partial``."""
    with _partial(session.fs, path) as partial:
        made = _copied(session, partial, is_moved=False)
        verified = made.verified
        if not verified.ok:
            with ExitStack() as gate:
                try:
                    gate.enter_context(
                        closed_gate(session.fs, session.store.path, session.context.wait_s)
                    )
                except (Busy, OperationFailed):
                    pass  # it may be damage, so it is said
                else:
                    verified = _looked_at_again(session, partial, made, is_moved=False)
        _put_in_place(partial, path)
    return StoreCopy(
        source=session.store.path,
        target=path,
        files=made.files,
        size_bytes=made.size_bytes,
        unreadable=tuple(made.unreadable),
        verified=verified,
    )


@contextmanager
def _partial(fs: FileSystem, path: str) -> Iterator[_Partial]:
    """Makes the directory of a copy, for this process alone; an error removes it.

    Raises Refused where another process puts something else in its place.
    """
    partial = path_beside(path, ".partial")
    above, name = os.path.split(partial)
    ensure_directories(fs, above)
    with opened_real(fs, above) as above_fd:
        with suppress(FileNotFoundError), _refused_if_taken(partial):
            _remove_leftover(fs, partial, above_fd)
            fs.remove_directory(name, dir_fd=above_fd)
        with _refused_if_taken(partial):
            fs.make_directory(name, dir_fd=above_fd)
        with (
            _refused_if_taken(partial),
            opened_file(fs, name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=above_fd) as fd,
        ):
            made = _Partial(fs, partial, fd, above_fd)
            if not _is_ours(fs.fstat(fd)) or made.fs.list_names(partial):
                raise _taken(partial)  # it is not the one that was made
            try:
                made.mark()
                yield made
            except BaseException:  # Ctrl-C leaves no second store either
                with suppress(OSError, Refused):
                    made.remove()
                raise
            finally:
                made.close()


def _remove_leftover(fs: FileSystem, path: str, above_fd: int) -> None:
    """Empties the directory that a killed copy left at a path; raises Refused for one at work.

    Leaves anything else there as it is.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    with (
        opened_file(fs, os.path.basename(path), flags, dir_fd=above_fd) as fd,
        ExitStack() as locks,
    ):
        names = pinned(fs, path, fd).list_names(path)
        if not _is_leftover(fs.fstat(fd), names):
            return
        marks = _marks(names)
        for name in marks:
            mark = locks.enter_context(opened_file(fs, name, os.O_RDWR, dir_fd=fd))
            # One that is gone was removed by a copy that has just ended.
            if not fs.lock(mark, exclusive=True) or not fs.fstat(mark).st_nlink:
                raise Refused(
                    f"{quoted(path)} is being written by another copy",
                    code=ErrorCode.TARGET_NOT_EMPTY,
                    path=path,
                )
            locks.callback(fs.unlock, mark)
        _remove_copied(fs, fd, names)
        for name in marks:
            fs.unlink(name, dir_fd=fd)


def _remove_copied(fs: FileSystem, fd: int, names: list[str]) -> None:
    """Removes all that a copy has in its directory, but for the mark."""
    remove_paths(fs, fd, [os.fsencode(name) for name in names if name in _COPIED])


def _put_in_place(partial: _Partial, path: str) -> None:
    """Gives a copy its name; raises Refused where another process replaced it before or after."""
    source, target = os.path.basename(partial.path), os.path.basename(path)
    partial.refuse_replaced(source)
    partial.unmark()
    with _refused_if_taken(path):
        partial.fs.rename(
            source, target, source_dir_fd=partial.above_fd, target_dir_fd=partial.above_fd
        )
    partial.fs.sync(partial.above_fd)
    partial.refuse_replaced(target)


class _Copied(NamedTuple):
    """A whole copy under a preliminary name."""

    context: Context
    files: int
    size_bytes: int
    unreadable: list[str]
    verified: VerifyResult


def _copied(session: Session, partial: _Partial, *, is_moved: bool) -> _Copied:
    """Copies the store, durably, and reads the copy."""
    context, fs, store = session.context, partial.fs, session.store
    copier = _Copier(session, partial)
    session.monitor.begin(Phase.COPY, None, store.size_bytes())
    for name in DIRECTORIES:
        copier.directory(name)
    _copy_small_files(copier, is_moved=is_moved)
    for name in copier.names("packs"):
        copier.file(os.path.join("packs", name))
    _sync_all(session, partial)
    data = read_file(fs, store.layout.format, FORMAT_SIZE_MAX)
    layout = Layout(partial.path)
    replace_file(fs, layout.format, data, temporary=layout.temporary)
    if store.is_own:
        note_made_here(fs, layout)
    copied = context._replace(
        fs=fs, store_path=partial.path, watcher=None, record_cache=None, tree_cache=None
    )
    verified = verify(copied, read_data=True, repair=False, sample=None)
    return _Copied(
        copied, copier.files + 1, copier.size_bytes + len(data), copier.unreadable, verified
    )


def _sync_all(session: Session, partial: _Partial) -> None:
    session.monitor.begin(Phase.SYNC, None, None)
    partial.fs.sync_file_system(partial.fd)


def _copy_small_files(copier: _Copier, *, is_moved: bool) -> None:
    """Copies all but packs: the index last."""
    for name in _SMALL_FILES:
        copier.directory(name)
    for name in _metadata(copier, is_moved=is_moved):
        copier.file(name)
    _copy_index(copier)


def _metadata(copier: _Copier, *, is_moved: bool) -> Iterator[str]:
    """Yields all files but packs and index parts: snapshots first, and makes directories."""
    copied: set[str] = set()
    for root_id in copier.names("snapshots"):
        if is_hex(root_id, 32):
            inner = os.path.join("snapshots", root_id)
            copier.directory(inner)
            names = copier.names(inner)
            copied.update(item.id for item in SnapshotListing(names))
            yield from (os.path.join(inner, name) for name in names)
    going = copier.going() - copied
    states = (name for name in copier.names("states") if name not in going)
    yield from (os.path.join("states", name) for name in states)
    yield "config.toml"
    yield from copier.collection()
    caches = {"cache", "cache-recent"} if is_moved else set()
    left = (EXPORT_PREFIX, HOLD_PREFIX) if is_moved else ()
    prefixes = ("pushed-", "delivered-", PLAN_PREFIX, *left)
    for name in copier.names("roots"):
        inner = os.path.join("roots", name)
        if name.startswith(_COPIES_OF_RECORDS):
            yield inner
        if not is_hex(name, 32):
            continue
        copier.directory(inner)
        for each in copier.names(inner):
            if each in _ROOT_FILES | caches or each.startswith(prefixes):
                yield os.path.join(inner, each)
    # A copy is another machine to a remote, and signs with a key of its own.
    remotes = [name for name in copier.names("remotes") if is_moved or not name.startswith(".")]
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
