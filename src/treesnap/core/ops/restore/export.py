"""``restore --to``: a snapshot's files in another directory, all or nothing.

    record in the store where the files will be built, and lock the record
    build and verify           in a directory beside the target, or beside the topmost of its
                               parents that is not there
    move it into new parents there, out of it with them, give it its own mode, sync
    rename it to the target    the commit point
    remove the directory, then the record

Nothing can be renamed to a mount point, or to a subvolume of btrfs. There it goes

    build and verify           in a directory in the target
    list what will be moved    with the target's own metadata, sync
    move it up, name by name, give the target its metadata, sync
    remove that list           the commit point
    remove the directory, then the record in the store

:func:`sweep_exports` removes what one that was killed left.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import islice

from treesnap.core.codec.root_files import (
    EXPORT_MOVES,
    EXPORT_MOVES_NAME,
    EXPORT_STAGE_PREFIX,
    ExportMoves,
    ExportRecord,
    Move,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import opened_file, read_all, write_all
from treesnap.core.fs.mounts import Mounts
from treesnap.core.fs.os_errors import error_text
from treesnap.core.fs.real_path import OPEN_DIRECTORY, opened_real
from treesnap.core.fs.record_locks import opened_any
from treesnap.core.model import treepath
from treesnap.core.model.entries import ChangeKind, Entry
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    NotFound,
    Refused,
    TreesnapError,
    UnsupportedFormat,
    WarningCode,
    quoted,
)
from treesnap.core.model.events import Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.reserved_tags import is_fork_base
from treesnap.core.model.results import RestoreResult
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.privileges import PrivilegeList
from treesnap.core.ops.restore.plan import (
    MISSING_MAX,
    RestorePlan,
    count_of,
    make_plan,
    result_of,
    unread_paths,
    warn_of_degraded,
)
from treesnap.core.ops.tree_state import State, empty_state, require_paths
from treesnap.core.ops.trust import real_target, refuse_foreign_place
from treesnap.core.store.records import LockedRecord
from treesnap.core.worktree.apply.preconditions import conflict
from treesnap.core.worktree.apply.removal import remove_below, remove_paths
from treesnap.core.worktree.apply.stage import (
    Item,
    Participant,
    Stager,
    TreeSource,
    make_private_directory,
    new_stage_name,
)
from treesnap.core.worktree.attributes import apply_metadata, apply_owner
from treesnap.core.worktree.directory import DirectoryChain, open_directory

if TYPE_CHECKING:
    from treesnap.core.ops.restore.plan import Goal

_WHOLE = b"-whole"
"""Ends the name of a tree; before it is the name of the directory in which it was built."""
_PARENTS = b"parents"
"""The name in a stage of the topmost parent of the target that is not there."""
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})
_OCCUPIED = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""What renaming a directory to what another process has put there raises."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def export(session: Session, goal: Goal, target_path: str, *, dry_run: bool) -> RestoreResult:
    """Writes the goal's tree to a path that is absent or an empty directory.

    The target appears with one rename, after a sync, with everything that it holds.
    What a crash leaves beside it is removed by the next operation that writes. Unless the changes
    are to be listed, memory does not grow with the tree, but for its hard links.
    """
    _refuse_inside_store(session.context, target_path)
    refuse_occupied(target_path)
    target, left_out = goal.wanted(session, None)
    nothing = empty_state(session, target.root)
    require_paths(goal.paths, nothing, target)
    if goal.request.list_changes:
        spine = treepath.ancestors(goal.scope or ())
        plan = make_plan(nothing, target, spine, budget=session.path_budget())
    else:
        plan = RestorePlan()
        plan.counts[ChangeKind.ADDED] = count_of(target)
        plan.missing += islice(unread_paths(target), MISSING_MAX)
    if not dry_run:
        given = plan.privileges if not goal.request.list_changes else None
        Export(session, target, touch=goal.request.touch, given=given).write(target_path)
    return result_of(goal, plan, target, is_dry_run=dry_run, left_out=left_out)


def _refuse_inside_store(context: Context, target_path: str) -> None:
    """Raises Refused for a target in the store, where the files would count as the store's."""
    store = os.path.realpath(context.store_path)
    if os.path.commonpath([store, real_target(target_path)]) == store:
        raise Refused(
            f"The target {quoted(target_path)} is inside the store",
            code=ErrorCode.DANGEROUS_ROOT,
            path=target_path,
        )


def refuse_occupied(target_path: str) -> None:
    """Raises Refused unless a path is absent, or an empty directory."""
    if not os.path.lexists(target_path):
        return
    if os.path.islink(target_path) or not os.path.isdir(target_path) or os.listdir(target_path):
        raise _occupied(target_path)


def _occupied(target_path: str) -> Refused:
    return Refused(
        f"The target {quoted(target_path)} exists and is not an empty directory",
        code=ErrorCode.TARGET_NOT_EMPTY,
        path=target_path,
    )


class Export:
    """A tree that is written to a directory.

    Of a fork, ``participant`` takes part in building it, and ``before_rename`` is called with the
    finished tree, open and durable, before that is renamed to the target.
    """

    def __init__(
        self,
        session: Session,
        target: State,
        *,
        touch: bool = False,
        given: PrivilegeList | None = None,
        fork: bytes | None = None,
        participant: Participant | None = None,
        before_rename: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._fs = session.fs
        self._target = target
        self._touch = touch
        self._given = given
        self._fork = fork
        self._participant = participant
        self._before_rename = before_rename
        self._degraded: list[bytes] = []
        self._made: dict[bytes, os.stat_result] = {}
        """The directories that were made beside the target, or in it, by name."""
        self.is_committed: bool = False
        """Whether the tree is at the target."""
        self.owns_root = False
        """Whether the root of a fork was registered for this tree, and goes where it fails."""
        self.root_lock: ExitStack[bool | None] = ExitStack()
        """What keeps that root locked until the tree has its name: before, another command that
        cleans up behind a fork to the same path which was killed would forget it."""

    def write(self, target_path: str) -> None:
        """Builds the tree beside the target, with its absent parents, and renames it there."""
        target = self._target
        target.trees.walk().begin(target.root.tree_id, is_whole=True)
        self._write(target_path)
        warn_of_degraded(self._session, self._degraded)

    def _write(self, target_path: str) -> None:
        fs = self._fs
        if is_fixed(fs, target_path):
            self._fill(real_target(target_path))
            return
        parent, names = _existing_parent(target_path)
        parent = real_target(parent)
        stage_name = new_stage_name(EXPORT_STAGE_PREFIX)
        with (
            opened_real(fs, parent) as parent_fd,
            self._recorded(parent_fd, os.path.join(os.fsencode(parent), stage_name)),
        ):
            try:
                stage_fd = make_private_directory(fs, parent_fd, stage_name)
            except OSError as error:
                error.filename = parent  # the name of the stage would tell people nothing
                raise
            try:
                self._made[stage_name] = fs.fstat(stage_fd)
                whole = stage_name + _WHOLE
                self._build(parent_fd, stage_fd, whole, [os.fsencode(name) for name in names[1:]])
            finally:
                fs.close(stage_fd)
            try:
                fs.rename(whole, names[0], source_dir_fd=parent_fd, target_dir_fd=parent_fd)
            except OSError as error:
                if error.errno in _OCCUPIED:
                    raise _occupied(target_path) from error
                raise
            self.is_committed = True
            self.root_lock.close()
            fs.sync(parent_fd)
            self._session.monitor.begin(Phase.TIDY, None, None)

    def _fill(self, place: str) -> None:
        """Builds the tree in an empty directory and moves it up there, all or nothing."""
        fs = self._fs
        stage_name = new_stage_name(EXPORT_STAGE_PREFIX)
        stage_path = os.path.join(os.fsencode(place), stage_name)
        with opened_real(fs, place) as place_fd:
            before = fs.fstat(place_fd)
            with self._recorded(place_fd, stage_path, in_place=True):
                try:
                    stage_fd = make_private_directory(fs, place_fd, stage_name)
                except OSError as error:
                    error.filename = place
                    with suppress(OSError):
                        fs.change_times(place_fd, before.st_mtime_ns)
                    raise
                try:
                    self._made[stage_name] = fs.fstat(stage_fd)
                    fs.change_times(place_fd, before.st_mtime_ns)
                    self._fill_from(stage_fd, place_fd, before)
                finally:
                    fs.close(stage_fd)

    def _fill_from(self, stage_fd: int, place_fd: int, before: os.stat_result) -> None:
        fs, root, trees = self._fs, self._target.root, self._target.trees
        entries = [entry for entry in trees.entries(root.tree_id) if not entry.is_skipped]
        items = [Item(entry, entry.name, (b"n%d" % n,)) for n, entry in enumerate(entries)]
        self._put(stage_fd, items)
        moves = ExportMoves(
            tuple(
                Move(entry.name, fs.lstat(staged, dir_fd=stage_fd).st_ino)
                for entry, _, (staged,) in items
            ),
            stat_module.S_IMODE(before.st_mode),
            before.st_uid,
            before.st_gid,
            before.st_mtime_ns,
        )
        fd = fs.open(EXPORT_MOVES_NAME, _CREATE, 0o600, dir_fd=stage_fd)
        try:
            write_all(fs, fd, EXPORT_MOVES.seal(moves))
        finally:
            fs.close(fd)
        monitor = self._session.monitor
        monitor.begin(Phase.SYNC, None, None)
        fs.sync_file_system(stage_fd)
        for (entry, name, (staged,)), (_, inode) in zip(items, moves.moves, strict=True):
            fs.rename_to_absent(staged, name, source_dir_fd=stage_fd, target_dir_fd=place_fd)
            if entry.is_directory:
                _finish_moved(fs, place_fd, entry, inode, touch=self._touch)
        if not apply_metadata(fs, place_fd, root, trees.xattrs(root), touch=self._touch):
            self._degraded.append(treepath.ROOT)
        monitor.begin(Phase.SYNC, None, None)
        fs.sync_file_system(place_fd)
        fs.unlink(EXPORT_MOVES_NAME, dir_fd=stage_fd)
        fs.sync(stage_fd)
        monitor.begin(Phase.TIDY, None, None)

    def _put(self, stage_fd: int, items: list[Item]) -> None:
        """Builds entries of the target in a staging directory."""
        target, monitor = self._target, self._session.monitor
        totals = target.trees.totals(target.root.tree_id)
        monitor.begin(Phase.STAGE, totals.files + totals.others, totals.size_bytes)
        stager = Stager(
            self._fs,
            stage_fd,
            TreeSource(self._session.store.get, target.trees, target.groups, target.root.tree_id),
            monitor,
            touch=self._touch,
            participant=self._participant,
        )
        try:
            stager.put_all(items)
        finally:
            stager.close()
        self._degraded += stager.degraded
        if self._given is not None:
            for path, entry in stager.privileged:
                self._given.add_given(path, entry, target.trees.xattrs(entry))

    def _build(self, parent_fd: int, stage_fd: int, whole: bytes, below: Sequence[bytes]) -> None:
        """Builds the whole tree, durably, under a name beside the target.

        ``below`` are the names of new directories that the tree lies in: parents of the target
        that do not exist yet come with it, in one rename, or not at all. They are made in the
        stage, where no other user can put anything in their place, and moved out of it with it.

        A directory without write permission can be renamed where it is, but not moved to another
        directory. So it gets its mode between the two renames, and is open since before the first.
        """
        fs, root = self._fs, self._target.root
        self._put(stage_fd, [Item(root, b"", (b"n0",))])
        with open_directory(fs, b"n0", stage_fd) as tree_fd:
            top = _put_below(fs, stage_fd, b"n0", below)
            self._made[whole] = fs.lstat(top, dir_fd=stage_fd)
            fs.rename(top, whole, source_dir_fd=stage_fd, target_dir_fd=parent_fd)
            fs.change_mode(tree_fd, root.mode)
            self._session.monitor.begin(Phase.SYNC, None, None)
            fs.sync_file_system(tree_fd)
            if self._before_rename is not None:
                self._before_rename(tree_fd)

    def _is_made(self, name: bytes, status: os.stat_result) -> bool:
        made = self._made.get(name)
        return made is not None and os.path.samestat(made, status)

    @contextmanager
    def _recorded(
        self, place_fd: int, stage_path: bytes, *, in_place: bool = False
    ) -> Iterator[None]:
        """Records in the store what a crash would leave; removes in the end what is left.

        A store on a full or read-only medium can be restored from without the record.
        """
        record: LockedRecord[ExportRecord] | None = None
        try:
            record = self._session.root.begin_export(
                ExportRecord(stage_path, in_place=in_place, fork=self._fork)
            )
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            self._session.monitor.warn(
                WarningCode.EXPORT_NOT_RECORDED,
                f"The store cannot be written to ({error.strerror}): if this restore is killed, "
                f"{quoted(stage_path)} is left",
            )
        with record if record is not None else nullcontext():
            try:
                yield
            finally:
                self._clean_up(place_fd, stage_path, record, in_place=in_place)

    def _clean_up(
        self,
        place_fd: int,
        stage_path: bytes,
        record: LockedRecord[ExportRecord] | None,
        *,
        in_place: bool,
    ) -> None:
        """Removes what is left beside the target, then the record; warns when it cannot."""
        try:
            self.root_lock.close()
            if self._fork is not None and self.owns_root and not self.is_committed:
                with suppress(NotFound):
                    forget_fork(self._session, self._fork)
            name = os.path.basename(stage_path)
            _remove_stage(self._fs, place_fd, name, self._is_made, in_place=in_place)
            if name not in self._made:  # it could be made, and not be opened
                with suppress(OSError):
                    time_ns = self._fs.fstat(place_fd).st_mtime_ns
                    self._fs.remove_directory(name, dir_fd=place_fd)
                    if in_place:
                        self._fs.change_times(place_fd, time_ns)
            if record is not None:
                record.remove()
        except (OSError, TreesnapError) as error:
            self._session.monitor.warn(
                WarningCode.NOT_CLEANED_UP,
                f"{quoted(stage_path)} could not be removed yet: {error_text(error)}",
            )


@contextmanager
def removing_root(session: Session) -> Iterator[None]:
    """Removes the directory of the root; the block does what has to be done when it is gone.

    One rename to a name beside it takes it from its path, durably: no part of it is ever there. If
    the block fails, the directory goes back to its path. What a kill leaves beside it goes as what
    a killed export leaves. The caller has the root's lock, and has captured it.
    """
    fs = session.fs
    place, name = os.path.split(os.fsencode(session.context.root))
    aside = new_stage_name(EXPORT_STAGE_PREFIX)
    with (
        opened_real(fs, place) as place_fd,
        session.root.begin_export(ExportRecord(os.path.join(place, aside))) as record,
    ):
        try:
            _rename_durably(fs, place_fd, name, aside)
        except OSError:
            record.remove()
            raise
        try:
            yield
        except BaseException:
            _rename_durably(fs, place_fd, aside, name)
            record.remove()
            raise
        remove_paths(fs, place_fd, [aside])
        fs.sync(place_fd)
        record.remove()


def _rename_durably(fs: FileSystem, place_fd: int, name: bytes, new_name: bytes) -> None:
    fs.rename_to_absent(name, new_name, source_dir_fd=place_fd, target_dir_fd=place_fd)
    fs.sync(place_fd)


def is_fixed(fs: FileSystem, target_path: str) -> bool:
    """Returns whether a directory is there that no other one can be renamed to."""
    if not os.path.lexists(target_path):
        return False
    path = os.path.realpath(target_path)
    above = fs.lstat(os.path.dirname(path)).st_dev
    return fs.lstat(path).st_dev != above or Mounts(fs).is_point(os.fsencode(path))


def _put_below(fs: FileSystem, stage_fd: int, tree: bytes, names: Sequence[bytes]) -> bytes:
    """Moves a tree of a stage into new directories there; returns the name of the topmost.

    That has a name of the stage; ``names`` are those of what is below it, the tree last.
    """
    if not names:
        return tree
    with DirectoryChain(fs, stage_fd) as chain:
        above = [_PARENTS]
        fs.make_directory(_PARENTS, dir_fd=stage_fd)
        for name in names[:-1]:
            fs.make_directory(name, dir_fd=chain.open_names(above))
            above.append(name)
        fs.rename(tree, names[-1], source_dir_fd=stage_fd, target_dir_fd=chain.open_names(above))
    return _PARENTS


def _finish_moved(fs: FileSystem, place_fd: int, entry: Entry, inode: int, *, touch: bool) -> None:
    """Sets mode and time of a directory again, which got write permission to be moved."""
    with opened_any(fs, entry.name, place_fd, is_directory=True) as fd:
        status = fs.fstat(fd)
        if status.st_ino != inode:
            raise conflict(entry.name)
        if not touch and status.st_mtime_ns != entry.mtime_ns:
            fs.change_times(fd, entry.mtime_ns)
        if stat_module.S_IMODE(status.st_mode) != entry.mode:
            fs.change_mode(fd, entry.mode)


def _empty_again(fs: FileSystem, place_fd: int, stage_fd: int) -> int:
    """Moves back what was moved up into a directory, if there is a list of that.

    Returns the modification time that the directory has to have in the end. A list that a
    power cut left damaged was not synced, and then nothing was moved.
    """
    record = _listed_moves(fs, stage_fd)
    if record is None:
        return fs.fstat(place_fd).st_mtime_ns
    for number, (name, inode) in enumerate(record.moves):
        with suppress(FileNotFoundError):
            if fs.lstat(name, dir_fd=place_fd).st_ino == inode:
                with _opened_if_wanted(fs, place_fd, name, _any) as moved:
                    if moved is not None:  # or it cannot be moved to another directory
                        _make_writable(fs, moved)
                back = b"b%d" % number
                fs.rename_to_absent(name, back, source_dir_fd=place_fd, target_dir_fd=stage_fd)
    apply_owner(fs, place_fd, record.uid, record.gid)
    fs.change_mode(place_fd, record.mode)
    fs.sync_file_system(place_fd)
    return record.mtime_ns


def _listed_moves(fs: FileSystem, stage_fd: int) -> ExportMoves | None:
    try:
        fd = fs.open(EXPORT_MOVES_NAME, os.O_RDONLY | os.O_NONBLOCK, dir_fd=stage_fd)
    except FileNotFoundError:
        return None
    try:
        data = read_all(fs, fd, EXPORT_MOVES.size_max)
    finally:
        fs.close(fd)
    try:
        return EXPORT_MOVES.unseal(data, "list of moves")
    except Corrupt:
        return None


def _existing_parent(target_path: str) -> tuple[str, list[str]]:
    """Returns the nearest directory above a path that is there, and the names from it on."""
    parent, name = os.path.split(target_path)
    names = [name]
    while not os.path.lexists(parent):
        parent, name = os.path.split(parent)
        names.insert(0, name)
    return parent, names


def _remove_stage(
    fs: FileSystem,
    parent_fd: int,
    stage_name: bytes,
    is_made: Callable[[bytes, os.stat_result], bool],
    *,
    in_place: bool,
) -> bool | None:
    """Removes what an export made, durably; returns whether there was anything.

    That is the directory in which a tree was built, and the tree; a power cut may leave
    either. None means that one exists, but belongs to another user. The tree may have any owner
    while the directory is there and ours; alone it must be ours itself. ``is_made`` returns whether
    a directory of the name is the one that was made: a user who may rename things there may have
    put another one of ours in its place.
    """
    whole = stage_name + _WHOLE
    with (
        _opened_if_wanted(fs, parent_fd, stage_name, is_made) as stage,
        _opened_if_wanted(fs, parent_fd, whole, is_made) as tree,
    ):
        if stage is not None and stage.owner_id != os.geteuid():
            return None
        if stage is None and tree is None:
            return False
        if stage is None and tree is not None and tree.owner_id != os.geteuid():
            return None
        for each in (tree, stage):
            if each is not None:
                _make_writable(fs, each)
        if tree is not None:
            with opened_file(fs, b".", OPEN_DIRECTORY, tree.place_fd) as fd:
                remove_below(fs, fd)
            fs.remove_directory(whole, dir_fd=parent_fd)
        if stage is not None:
            with opened_file(fs, b".", OPEN_DIRECTORY, stage.place_fd) as fd:
                mtime_ns = _empty_again(fs, parent_fd, fd) if in_place else None
                remove_below(fs, fd)
            fs.remove_directory(stage_name, dir_fd=parent_fd)
            if mtime_ns is not None:
                fs.change_times(parent_fd, mtime_ns)
    fs.sync(parent_fd)
    return True


def _any(_name: bytes, _status: os.stat_result) -> bool:
    return True


class _Opened(NamedTuple):
    place_fd: int
    """Only what is below it can be reached by this."""
    owner_id: int
    mode: int


def _make_writable(fs: FileSystem, directory: _Opened) -> None:
    """Lets this user remove what is in a directory of theirs."""
    if directory.mode & 0o700 != 0o700 and directory.owner_id == os.geteuid():
        fs.change_mode(directory.place_fd, directory.mode | 0o700)


@contextmanager
def _opened_if_wanted(
    fs: FileSystem,
    parent_fd: int,
    name: bytes,
    is_wanted: Callable[[bytes, os.stat_result], bool],
) -> Iterator[_Opened | None]:
    """Yields a directory that may be removed, by its name.

    Yields None where the name is absent, is not a directory (a link is not), or is not wanted.
    """
    try:
        place_fd = fs.open_any(name, dir_fd=parent_fd, is_directory=True)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        status = fs.fstat(place_fd)
        if not is_wanted(name, status):
            yield None
            return
        yield _Opened(place_fd, status.st_uid, stat_module.S_IMODE(status.st_mode))
    finally:
        fs.close(place_fd)


def sweep_exports(session: Session, names: Sequence[str]) -> None:
    """Removes what killed exports left behind, and warns of it; never raises OSError.

    Those that are still running, and those of other users, are left alone. Follows no link, and
    removes only directories of this user whose names say what they are: the store may come from
    anywhere. In a directory of another user the superuser removes nothing: that user may have given
    the name to another directory of the superuser.
    """
    for name in names:
        try:
            record = session.root.abandoned_export(name)
            if record is not None:
                with record:
                    _sweep(session, record)
        except (OSError, TreesnapError) as error:
            session.monitor.warn(
                WarningCode.NOT_CLEANED_UP,
                f"What an interrupted restore, fork or removal left could not be removed: {error}",
            )


def _sweep(session: Session, record: LockedRecord[ExportRecord]) -> None:
    context = session.context
    try:
        export = record.read()
    except UnsupportedFormat:
        return  # a newer version made it, and removes it
    except Corrupt as error:
        if record.remove():
            context.monitor.warn(
                WarningCode.EXPORT_CLEANED_UP,
                f"Removed the record of an interrupted restore: {error}",
            )
        return
    stage_path = export.stage_path
    directory = os.path.dirname(stage_path)
    if export.in_place and not is_fixed(context.fs, os.fsdecode(directory)):
        return  # not mounted at present
    try:
        refuse_foreign_place("directory", os.fsdecode(stage_path))
    except Refused:
        record.remove()
        raise
    is_removed: bool | None = False
    if os.path.realpath(directory) == directory:
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            open_directory(context.fs, directory) as parent_fd,
        ):
            name = os.path.basename(stage_path)
            if export.fork is not None:
                _forget_unfinished(session, export.fork, parent_fd, name + _WHOLE)
            is_removed = _remove_stage(context.fs, parent_fd, name, _any, in_place=export.in_place)
    if is_removed is None:
        return
    record.remove()
    if is_removed:
        context.monitor.warn(
            WarningCode.EXPORT_CLEANED_UP,
            f"Removed what an interrupted restore, fork or removal had left: {quoted(stage_path)}",
        )


def _forget_unfinished(session: Session, path: bytes, parent_fd: int, whole: bytes) -> None:
    """Forgets the root of a fork whose tree was not renamed to its path.

    As long as the tree is there it was not. The store may come from anywhere: so a root with
    more than the snapshot that it begins with stays, and one with something at its path.
    """
    try:
        session.fs.lstat(whole, dir_fd=parent_fd)
    except FileNotFoundError:
        return
    with suppress(NotFound):
        forget_fork(session, path)


def forget_fork(session: Session, path: bytes) -> None:
    """Forgets a root that was made for a fork that failed. Raises NotFound, Busy.

    Does nothing where something lies at its path, or where it has more than the base.
    """
    store = session.store
    root = store.root(path)
    with root.locked("fork", session.context.wait_s):
        names = store.snapshots.names(root.id)
        is_base = all(is_fork_base(store.snapshots.load(root.id, name)) for name in names)
        if len(names) > 1 or not is_base or not _is_vacant(path):
            return
        store.snapshots.forget(root.id)
        store.snapshots.finish_forgetting()
        root.forget()


def _is_vacant(path: bytes) -> bool:
    try:
        return not os.listdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
