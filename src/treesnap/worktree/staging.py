"""The directory in the root in which a restore stages files and keeps old ones aside.

It lies in the root, because only there it is sure to be on the root's own file
system; captures never include it, and it exists only during a restore.

Nothing can be renamed from one btrfs subvolume to another. So each subvolume in the
root in which a path changes has a staging directory of the same name at its top.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from treesnap import treepath
from treesnap.codec.journal import STAGE_PREFIX
from treesnap.fs.base import FileSystem
from treesnap.fs.forked import Report, helper_count, share_out
from treesnap.worktree.attributes import read_xattrs
from treesnap.worktree.directory import (
    NO_DIRECTORY,
    OPEN_DIRECTORY,
    DirectoryChain,
    path_of,
)

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
BUILDING = b"building"
"""A file that is there while what will be put is built: nothing is kept aside yet."""
RESERVE = b"reserve"
"""A file that holds space until the commit point."""
HELPED_REMOVALS_MIN = 1024
"""Files of a directory from which on other processes help to remove them."""
_RUN_COUNT = 64
"""Files that are removed as one share."""


def new_stage_name(prefix: bytes = STAGE_PREFIX) -> bytes:
    """Returns a name that no staging directory had before."""
    return prefix + os.urandom(8).hex().encode()


class StagePlaces:
    """Which directory holds the staging directory for each path of a restore.

    ``tops`` has the topmost directory of each subvolume by the directories in it that were
    asked for; all others belong to the root.
    """

    def __init__(self, tops: Mapping[bytes, bytes]) -> None:
        self._tops = tops
        self.subvolumes: tuple[bytes, ...] = tuple(sorted(set(tops.values())))
        """Directories other than the root that hold a staging directory, in order."""

    def of(self, path: bytes) -> bytes:
        """Returns the directory that holds the staging directory for a path."""
        return self._tops.get(treepath.split(path)[0], treepath.ROOT)


def stage_places(fs: FileSystem, root_fd: int, paths: Iterable[bytes]) -> StagePlaces:
    """Returns where to stage what some paths get. Costs a look at each directory above one.

    A directory that is gone belongs to the root; applying finds out.
    """
    root_device = fs.fstat(root_fd).st_dev
    tops: dict[bytes, bytes] = {}
    with DirectoryChain(fs, root_fd) as chain:

        def device(directory: bytes) -> int:
            try:
                return fs.fstat(chain.open(directory)).st_dev
            except OSError as error:
                if error.errno in NO_DIRECTORY:
                    return root_device
                raise

        for directory in sorted({treepath.split(path)[0] for path in paths}):
            own = device(directory)
            if own == root_device:
                continue
            top = directory
            while (above := treepath.split(top)[0]) and device(above) == own:
                top = above
            tops[directory] = top
    return StagePlaces(tops)


@contextmanager
def open_stages(
    fs: FileSystem, root_fd: int, name: bytes, places: StagePlaces
) -> Iterator[dict[bytes, int]]:
    """Makes all staging directories; yields a descriptor of each by what holds it."""
    stages: dict[bytes, int] = {}
    try:
        stages[treepath.ROOT] = make_stage(fs, root_fd, name)
        with DirectoryChain(fs, root_fd) as chain:
            for top in places.subvolumes:
                stages[top] = make_stage(fs, chain.open(top), name)
        yield stages
    finally:
        for fd in stages.values():
            fs.close(fd)


def remove_stages(fs: FileSystem, root_fd: int, name: bytes, subvolumes: Iterable[bytes]) -> None:
    """Removes the staging directories of subvolumes, then the root's own.

    The root's shows that this is the tree of the journal, so that it goes last.
    """
    remove_subvolume_stages(fs, root_fd, name, subvolumes)
    remove_stage(fs, root_fd, name)


def remove_subvolume_stages(
    fs: FileSystem, root_fd: int, name: bytes, subvolumes: Iterable[bytes]
) -> None:
    """Removes the staging directories of subvolumes that are still there."""
    with DirectoryChain(fs, root_fd) as chain:
        for top in subvolumes:
            try:
                fd = chain.open(top)
            except OSError as error:
                if error.errno in NO_DIRECTORY:
                    continue
                raise
            remove_stage(fs, fd, name)


def make_stage(fs: FileSystem, root_fd: int, name: bytes) -> int:
    """Makes the staging directory and returns a descriptor of it.

    A root without write permission gets it for its owner; the journal has the
    root's own metadata, which is put back at the end. Inherited ACLs are taken
    off, so that nothing staged inherits them. Recovery has left an empty one.
    """
    try:
        with suppress(FileExistsError):
            fs.make_directory(name, 0o700, dir_fd=root_fd)
    except PermissionError as refused:
        own = fs.fstat(root_fd)
        try:
            fs.change_mode(root_fd, stat_module.S_IMODE(own.st_mode) | 0o700)
        except PermissionError:
            raise _foreign(fs, root_fd, refused) from None
        fs.make_directory(name, 0o700, dir_fd=root_fd)
    return _opened_private(fs, root_fd, name)


def make_private_directory(fs: FileSystem, parent_fd: int, name: bytes) -> int:
    """Makes a directory for staging where nobody's permissions may be changed for it."""
    try:
        fs.make_directory(name, 0o700, dir_fd=parent_fd)
    except PermissionError as refused:
        raise _foreign(fs, parent_fd, refused) from None
    return _opened_private(fs, parent_fd, name)


def _foreign(fs: FileSystem, fd: int, refused: PermissionError) -> PermissionError:
    """Returns the error for a directory that cannot be written to: it names that, not the new name.

    The error that was met first counts: what was tried to get around it may fail otherwise.
    """
    reason = "the directory belongs to another user, and cannot be written to"
    if fs.fstat(fd).st_uid == os.geteuid():
        reason = os.strerror(refused.errno or 0)
    return PermissionError(refused.errno, reason, path_of(fs, fd))


def _opened_private(fs: FileSystem, parent_fd: int, name: bytes) -> int:
    fd = fs.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
    try:
        for attribute, _ in read_xattrs(fs, fd) or ():
            if attribute.startswith(b"system.posix_acl_"):
                fs.remove_xattr(fd, os.fsdecode(attribute))
        fs.change_mode(fd, 0o700)
    except BaseException:
        fs.close(fd)
        raise
    return fd


def begin_building(fs: FileSystem, stage_fd: int) -> None:
    """Notes that nothing in the directory is complete."""
    fs.close(fs.open(BUILDING, _CREATE, dir_fd=stage_fd))


def end_building(fs: FileSystem, stage_fd: int) -> None:
    """Notes that everything to put is complete; old files may be kept aside from now on."""
    fs.unlink(BUILDING, dir_fd=stage_fd)


def is_building(fs: FileSystem, stage_fd: int) -> bool:
    """Returns whether nothing was kept aside yet."""
    try:
        fs.lstat(BUILDING, dir_fd=stage_fd)
    except FileNotFoundError:
        return False
    return True


def reserve(fs: FileSystem, stage_fd: int, size_bytes: int) -> None:
    """Takes space that :func:`release` gives back; raises OSError when there is none."""
    fd = fs.open(RESERVE, _CREATE, dir_fd=stage_fd)
    try:
        fs.allocate(fd, size_bytes)
    except OSError as error:
        if error.errno != errno.EFBIG:  # a limit of the process, which says nothing of the disk
            raise
    finally:
        fs.close(fd)


def release(fs: FileSystem, stage_fd: int) -> None:
    """Gives back the space that was reserved; at the latest it goes with the directory."""
    with suppress(OSError):
        fs.unlink(RESERVE, dir_fd=stage_fd)


def open_stage(fs: FileSystem, root_fd: int, name: bytes) -> int | None:
    """Returns a descriptor of the staging directory, or None when there is none."""
    try:
        return fs.open(name, OPEN_DIRECTORY, dir_fd=root_fd)
    except FileNotFoundError:
        return None


def remove_stage(fs: FileSystem, root_fd: int, name: bytes) -> None:
    """Removes the staging directory and everything in it; does nothing when it is gone."""
    fd = open_stage(fs, root_fd, name)
    if fd is None:
        return
    try:
        remove_below(fs, fd)
    finally:
        fs.close(fd)
    fs.remove_directory(name, dir_fd=root_fd)


def clear_stage(fs: FileSystem, root_fd: int, name: bytes) -> None:
    """Leaves an empty staging directory: it shows that this is the tree of the journal."""
    fd = open_stage(fs, root_fd, name)
    if fd is None:
        fd = make_stage(fs, root_fd, name)
    try:
        remove_below(fs, fd)
    finally:
        fs.close(fd)


def remove_below(fs: FileSystem, fd: int) -> None:
    """Removes everything in a directory, read-only directories included.

    Follows no link and needs no memory beyond one directory per level. Other processes
    help where a directory holds many files: freeing their space takes longer than the names.
    """
    pending: list[tuple[list[bytes], bool]] = [([], False)]
    with DirectoryChain(fs, fd) as chain:
        while pending:
            names, is_empty = pending.pop()
            if is_empty:
                parent = chain.open_names(names[:-1])
                fs.remove_directory(names[-1], dir_fd=parent)
                continue
            if names:
                pending.append((names, True))
            below = _remove_files(fs, _opened_writable(fs, chain, names))
            pending.extend(([*names, name], False) for name in below)


def _opened_writable(fs: FileSystem, chain: DirectoryChain, names: list[bytes]) -> int:
    if names:
        parent = chain.open_names(names[:-1])
        mode = stat_module.S_IMODE(fs.lstat(names[-1], dir_fd=parent).st_mode)
        if mode & 0o700 != 0o700:
            fs.change_mode(names[-1], mode | 0o700, dir_fd=parent)
    return chain.open_names(names)


def _remove_files(fs: FileSystem, fd: int) -> list[bytes]:
    """Removes what is no directory; returns the names of the directories."""
    directories: list[bytes] = []
    files: list[bytes] = []
    with fs.scan(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            (directories if entry.is_dir(follow_symlinks=False) else files).append(name)
    _unlink_all(fs, fd, files)
    return directories


def _unlink_all(fs: FileSystem, fd: int, names: Sequence[bytes]) -> None:
    """Removes names of a directory, here and in helpers if they are many."""

    def unlink(runs: Sequence[Sequence[bytes]]) -> None:
        for run in runs:
            for name in run:
                fs.unlink(name, dir_fd=fd)

    def help_with(runs: Sequence[Sequence[bytes]], report: Report) -> None:
        unlink(runs)
        report(b"done")

    def take(runs: Sequence[Sequence[bytes]], reports: bytes) -> None:
        for run in runs if not reports else ():
            for name in run:
                with suppress(FileNotFoundError):
                    fs.unlink(name, dir_fd=fd)

    runs = [names[start : start + _RUN_COUNT] for start in range(0, len(names), _RUN_COUNT)]
    helpers = helper_count() if len(names) >= HELPED_REMOVALS_MIN else 0
    share_out(
        runs, [len(run) for run in runs], helpers, work=unlink, help_with=help_with, take=take
    )
