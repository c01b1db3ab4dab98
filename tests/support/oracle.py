"""A naive oracle: what a tree is, read with system calls alone.

It shares no code with the product, keeps everything in memory, and is slow and
simple on purpose. Every component is reached through a descriptor of the
directory before it, so that paths longer than PATH_MAX are no special case.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

READ_SIZE = 1 << 20
PAGE_SIZE = 4096
ZEROS = bytes(PAGE_SIZE)
UNSUPPORTED = frozenset({errno.ENOTSUP, errno.ENODATA, errno.EPERM})
KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFSOCK: "socket",
}

Extents = tuple[tuple[int, int], ...]
Path = bytes | str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a restore must bring back of one path."""

    kind: str
    mode: int
    """All twelve permission bits."""
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    """Bytes of a file."""
    digest: str = ""
    """BLAKE2b of what a file holds, whatever of its zeros is stored."""
    extents: Extents = ()
    """Where a file has data, as (start, end); the rest is holes. Others may have less."""
    target: bytes = b""
    """Where a symlink points to."""
    device: int = 0
    """Number of a device node."""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    """Extended attributes, POSIX ACLs among them."""
    links: tuple[bytes, ...] = ()
    """All names of the same file below the root, when there are several."""


Record = dict[bytes, Facts]
"""Facts by path below the root; the root itself has the empty path."""

Linked = dict[tuple[int, int], tuple[int, bytes]]
"""Where the copy of each file with several names is: an open directory, and a name in it."""


def record(root: Path) -> Record:
    """Returns what a tree is."""
    with opened(root, os.O_RDONLY | os.O_DIRECTORY) as fd:
        found: Record = {b"": _directory_facts(fd)}
        groups: dict[tuple[int, int], list[bytes]] = {}
        _record_below(fd, b"", found, groups)
    for paths in groups.values():
        if len(paths) > 1:
            for path in paths:
                found[path] = replace(found[path], links=tuple(sorted(paths)))
    return found


@contextmanager
def opened(name: Path, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    """Opens something for as long as the block runs; never through a symlink."""
    fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def names_in(fd: int) -> list[bytes]:
    """Returns the names in an open directory, sorted."""
    return sorted(os.fsencode(name) for name in os.listdir(fd))


def _record_below(
    fd: int, parent: bytes, found: Record, groups: dict[tuple[int, int], list[bytes]]
) -> None:
    for name in names_in(fd):
        path = parent + b"/" + name if parent else name
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            with opened(name, os.O_RDONLY | os.O_DIRECTORY, fd) as below:
                found[path] = _directory_facts(below)
                _record_below(below, path, found, groups)
            continue
        found[path] = _leaf_facts(fd, name, status)
        groups.setdefault((status.st_dev, status.st_ino), []).append(path)


def _common_facts(status: os.stat_result, xattrs: tuple[tuple[str, bytes], ...]) -> Facts:
    return Facts(
        kind=KINDS[stat.S_IFMT(status.st_mode)],
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        mtime_ns=status.st_mtime_ns,
        xattrs=xattrs,
    )


def _directory_facts(fd: int) -> Facts:
    return _common_facts(os.fstat(fd), _xattrs(f"/proc/self/fd/{fd}/."))


def _leaf_facts(dir_fd: int, name: bytes, status: os.stat_result) -> Facts:
    where = os.fsencode(f"/proc/self/fd/{dir_fd}/") + name
    facts = _common_facts(status, _xattrs(where))
    if facts.kind == "symlink":
        return replace(facts, target=os.readlink(name, dir_fd=dir_fd))
    if facts.kind.endswith("device"):
        return replace(facts, device=status.st_rdev)
    if facts.kind != "file":
        return facts
    with opened(name, os.O_RDONLY, dir_fd) as fd:
        extents = tuple(data_extents(fd, status.st_size))
        return replace(
            facts, size=status.st_size, digest=_digest(fd, status.st_size, extents), extents=extents
        )


def _xattrs(where: str | bytes) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(where, follow_symlinks=False)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return ()
    return tuple((name, os.getxattr(where, name, follow_symlinks=False)) for name in sorted(names))


def data_extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields where an open file has data.

    Space that xfs keeps behind what was written counts as data where it lies in the cache, as by
    readahead; so what is clean goes from there first.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        position = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, min(position, size)


def _digest(fd: int, size: int, extents: Extents) -> str:
    """Returns a digest of the size and of each page that is not zeros; equal for equal bytes."""
    digest = hashlib.blake2b(str(size).encode(), digest_size=32)
    position = 0
    for start, end in extents:
        position = max(position, start - start % PAGE_SIZE)
        while position < end:
            piece = os.pread(fd, READ_SIZE, position)
            assert piece
            for offset in range(0, len(piece), PAGE_SIZE):
                page = piece[offset : offset + PAGE_SIZE]
                if page != ZEROS[: len(page)]:
                    digest.update(b"%d:%d:" % (position + offset, len(page)) + page)
            position += len(piece)
    return digest.hexdigest()


def _pages(extents: Extents) -> set[int]:
    """Returns the numbers of the pages in which a file has data."""
    return {
        page for start, end in extents for page in range(start // PAGE_SIZE, -(-end // PAGE_SIZE))
    }


def _is_as_expected(name: str, expected: Facts, actual: Facts) -> bool:
    """Returns whether a fact is what it has to be: zeros that were stored may be holes."""
    if name == "extents":
        return _pages(actual.extents) <= _pages(expected.extents)
    return bool(getattr(expected, name) == getattr(actual, name))


def difference(expected: Mapping[bytes, Facts], actual: Mapping[bytes, Facts]) -> list[str]:
    """Returns how two records differ, one line per fact; nothing when all is as expected."""
    lines = []
    for path in sorted({*expected, *actual}):
        if path not in actual:
            lines.append(f"{path!r}: missing {expected[path].kind}")
        elif path not in expected:
            lines.append(f"{path!r}: unexpected {actual[path].kind}")
        else:
            lines += [
                f"{path!r}: {field.name} is {getattr(actual[path], field.name)!r},"
                f" not {getattr(expected[path], field.name)!r}"
                for field in fields(Facts)
                if not _is_as_expected(field.name, expected[path], actual[path])
            ]
    return lines


def without(record: Record, *left_out: bytes) -> Record:
    """Returns a record without some paths and everything below them."""
    return {
        path: facts
        for path, facts in record.items()
        if not any(path == item or path.startswith(item + b"/") for item in left_out)
    }


def copy_tree(source: Path, target: Path) -> None:
    """Copies a tree exactly into a directory that does not exist yet; sockets are left out."""
    os.mkdir(target, 0o700)
    linked: Linked = {}
    with (
        opened(source, os.O_RDONLY | os.O_DIRECTORY) as source_fd,
        opened(target, os.O_RDONLY | os.O_DIRECTORY) as target_fd,
    ):
        _copy_below(source_fd, target_fd, linked)
        status, xattrs = os.fstat(source_fd), _xattrs(f"/proc/self/fd/{source_fd}/.")
        _give_metadata(target_fd, b".", status, xattrs)
    for fd, _ in linked.values():
        os.close(fd)


def _copy_below(source_fd: int, target_fd: int, linked: Linked) -> None:
    """Copies what is in a directory."""
    directory = os.O_RDONLY | os.O_DIRECTORY
    for name in names_in(source_fd):
        status = os.stat(name, dir_fd=source_fd, follow_symlinks=False)
        identity = (status.st_dev, status.st_ino)
        xattrs = _xattrs(os.fsencode(f"/proc/self/fd/{source_fd}/") + name)
        if stat.S_ISSOCK(status.st_mode):
            continue
        if identity in linked:
            made_fd, made_name = linked[identity]
            os.link(
                made_name, name, src_dir_fd=made_fd, dst_dir_fd=target_fd, follow_symlinks=False
            )
            continue
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(name, 0o700, dir_fd=target_fd)
            with (
                opened(name, directory, source_fd) as below,
                opened(name, directory, target_fd) as made,
            ):
                _copy_below(below, made, linked)
        else:
            _copy_leaf(source_fd, target_fd, name, status)
            if status.st_nlink > 1:
                linked[identity] = (os.dup(target_fd), name)
        _give_metadata(target_fd, name, status, xattrs)


def _copy_leaf(source_fd: int, target_fd: int, name: bytes, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source_fd), name, dir_fd=target_fd)
    elif not stat.S_ISREG(status.st_mode):
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target_fd)
    else:
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target_fd)
        try:
            with opened(name, os.O_RDONLY, source_fd) as fd:
                for start, end in data_extents(fd, status.st_size):
                    for position in range(start, end, READ_SIZE):
                        piece = os.pread(fd, min(READ_SIZE, end - position), position)
                        assert os.pwrite(made, piece, position) == len(piece)
            os.ftruncate(made, status.st_size)
        finally:
            os.close(made)


def _give_metadata(
    dir_fd: int, name: bytes, status: os.stat_result, xattrs: tuple[tuple[str, bytes], ...]
) -> None:
    os.chown(name, status.st_uid, status.st_gid, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=dir_fd)
    for attribute, value in xattrs:
        where = os.fsencode(f"/proc/self/fd/{dir_fd}/") + name
        os.setxattr(where, attribute, value, follow_symlinks=False)
    times = (status.st_mtime_ns, status.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=dir_fd, follow_symlinks=False)
