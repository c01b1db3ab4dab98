"""Awkward trees from seeds.

:func:`build` makes one tree of every kind of entry, and depends on nothing but its
seed. What the file system or the user may not make is left out with a word on
standard error, never silently.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import volumes
from capabilities import HAS_DEVICES

LARGE_SIZE = 1_500_000
"""More than one chunk, whatever is in it."""
STILL = b"still"
"""A directory that mutations leave alone, for what no snapshot holds."""
PAST_NS = -2_000_000_000 * 10**9 + 123_456_789
"""A moment of the year 1906."""
FUTURE_NS = 7_500_000_000 * 10**9 + 987_654_321
"""A moment of the year 2207."""
PATH_SIZE_MAX = 4096
STEP_NS = 86_400 * 10**9

LONG_NAME = "ü".encode() * 127 + b"x"
ODD_NAME = b"\xff\xfe not utf-8" if volumes.can_keep(b"\xff") else b"in utf-8"
_NAMES = (
    b"plain",
    b"two words",
    ODD_NAME,
    b"new\nline",
    b"-rf",
    b"--",
    b" ",
    b"...",
    b"~",
    b"\x01\x7f\x1b[31m",
    b"back\\slash",
    b"quote\"'",
    "e\u0301 and \u00e9".encode(),
    LONG_NAME,
)
NAMES = tuple(filter(volumes.can_keep, _NAMES))

OWNER, NAMED_USER, GROUP, NAMED_GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
"""Tags of entries in an access control list; see acl(5)."""
NO_ID = 0xFFFFFFFF


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """Returns an access control list of (tag, rights, id) as the kernel takes it."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ACCESS = access_list(
    (OWNER, 6, NO_ID),
    (NAMED_USER, 4, 12345),
    (GROUP, 4, NO_ID),
    (NAMED_GROUP, 6, 54321),
    (MASK, 6, NO_ID),
    (OTHERS, 0, NO_ID),
)
DEFAULT = access_list(
    (OWNER, 7, NO_ID),
    (NAMED_USER, 5, 12345),
    (GROUP, 5, NO_ID),
    (MASK, 5, NO_ID),
    (OTHERS, 0, NO_ID),
)


@contextmanager
def wanted(what: str) -> Iterator[None]:
    """Runs a block that makes something; says so when it may not be made here."""
    try:
        yield
    except OSError as error:
        sys.stderr.write(f"left out: {what}: {error.strerror}\n")


def build(root: str | os.PathLike[str], seed: int, *, still: bool = True) -> None:
    """Makes a new directory with at least one of every kind of entry.

    ``still`` adds a directory with what no snapshot holds: a socket, and files
    that its own ``.snapignore`` excludes.
    """
    random = Random(seed)
    top = os.fsencode(root)
    os.mkdir(top)
    _build_files(top, random)
    _build_names(top, random)
    _build_directories(top, random)
    _build_links(top)
    _build_nodes(top)
    _build_attributes(top)
    if still:
        _build_still(top)
    _scatter_times(top, random)


def build_small(root: str | os.PathLike[str], seed: int) -> None:
    """Makes a new directory with so few entries that whatever befalls it hits the same ones."""
    random = Random(seed)
    top = os.fsencode(root)
    os.mkdir(top)
    os.mkdir(top + b"/a")
    os.mkdir(top + b"/a/b")
    write(top + b"/file", b"one of three names")
    os.link(top + b"/file", top + b"/a/file")
    os.link(top + b"/file", top + b"/a/b/file")
    write(top + b"/a/other", b"one of two names")
    os.link(top + b"/a/other", top + b"/other")
    os.symlink(b"a", top + b"/link")
    _scatter_times(top, random)


def write(path: bytes, content: bytes) -> None:
    """Makes a file."""
    with open(path, "wb") as file:
        file.write(content)


def write_sparse(path: bytes, size: int, *pieces: tuple[int, bytes]) -> None:
    """Makes a file that has data at some offsets and holes everywhere else."""
    with open(path, "wb") as file:
        for offset, content in pieces:
            file.seek(offset)
            file.write(content)
        file.truncate(size)


def _build_files(top: bytes, random: Random) -> None:
    for number, mode in enumerate((0o644, 0o600, 0o444, 0o4755, 0o2755, 0o6711, 0o1644, 0o777)):
        path = top + b"/mode-%d" % number
        write(path, random.randbytes(random.randrange(1, 3000)))
        os.chmod(path, mode)
    write(top + b"/empty", b"")
    write(top + b"/large", random.randbytes(LARGE_SIZE))
    write(top + b"/zeros", bytes(300_000))
    write_sparse(top + b"/all-hole", 5_000_000)
    write_sparse(top + b"/tiny-hole", 100)
    write_sparse(top + b"/holes", 3_000_001, (0, b"begin"), (1 << 20, random.randbytes(600_000)))
    write_sparse(top + b"/hole-first", 2_000_000, (1_999_999, b"!"))
    if os.geteuid() == 0:
        write(top + b"/forbidden", b"no user may read")
        os.chmod(top + b"/forbidden", 0)


def _build_names(top: bytes, random: Random) -> None:
    os.mkdir(top + b"/names")
    for name in NAMES:
        write(top + b"/names/" + name, random.randbytes(20))
    os.mkdir(top + b"/names/dir-" + ODD_NAME)
    write(top + b"/names/dir-" + ODD_NAME + b"/" + NAMES[3], b"deeper")


def _build_directories(top: bytes, random: Random) -> None:
    for path in (b"empty-dir", b".git", b".git/objects", b"nested", b"nested/.git", b"shut"):
        os.mkdir(top + b"/" + path)
    write(top + b"/.git/HEAD", b"ref: refs/heads/main\n")
    write(top + b"/nested/.git/config", b"[core]\n")
    write(top + b"/.gitignore", b"/*\n")
    write(top + b"/nested/.ignore", b"*\n")
    write(top + b"/shut/inside", b"the directory is read-only")
    os.mkdir(top + b"/shut/below")
    write(top + b"/shut/below/inside", b"and so is this one")
    path = top + b"/deep"
    for _ in range(30):
        os.mkdir(path)
        path += b"/" + b"d" * 40
    write(path, b"at the bottom")
    os.mkdir(top + b"/many")
    for number in range(random.randrange(50, 300)):
        write(top + b"/many/%05d" % number, b"%d" % (number // 3))
    for name, mode in ((b"sticky", 0o1777), (b"setgid", 0o2775)):
        os.mkdir(top + b"/" + name)
        write(top + b"/" + name + b"/inside", b"of " + name)
        os.chmod(top + b"/" + name, mode)
    os.chmod(top + b"/shut/below", 0o500)
    os.chmod(top + b"/shut", 0o555)


def _build_links(top: bytes) -> None:
    for name, target in (
        (b"dangling", b"no/such/file"),
        (b"absolute", b"/etc/hostname"),
        (b"to-dir", b"nested"),
        (b"to-self", b"to-self"),
        (b"loop-a", b"loop-b"),
        (b"loop-b", b"loop-a"),
        (b"upwards", b"../../../.."),
        (b"odd", b"\xff\n -"),
        (b"long", b"x/" * 2000),
    ):
        with wanted(f"a link of {len(target)} bytes"):
            os.symlink(target, top + b"/link-" + name)
    os.mkdir(top + b"/linked")
    os.link(top + b"/mode-0", top + b"/linked/mode-0")
    os.link(top + b"/mode-0", top + b"/nested/mode-0 again")
    os.link(top + b"/large", top + b"/linked/large")
    os.link(top + b"/link-dangling", top + b"/linked/dangling", follow_symlinks=False)


def _build_nodes(top: bytes) -> None:
    os.mkfifo(top + b"/fifo", 0o620)
    os.link(top + b"/fifo", top + b"/linked/fifo")
    if not HAS_DEVICES:
        return
    with wanted("device nodes"):
        os.mknod(top + b"/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(top + b"/loop", stat.S_IFBLK | 0o640, os.makedev(7, 200))


def _build_attributes(top: bytes) -> None:
    os.mkdir(top + b"/attributes")
    write(top + b"/attributes/file", b"with attributes")
    with wanted("user attributes"):
        os.setxattr(top + b"/attributes", "user.directory", b"\0\xff")
        os.setxattr(top + b"/attributes/file", "user.empty", b"")
        os.setxattr(top + b"/attributes/file", "user.long", bytes(range(256)) * 8)
    with wanted("access control lists"):
        os.setxattr(top + b"/attributes/file", "system.posix_acl_access", ACCESS)
        os.setxattr(top + b"/attributes", "system.posix_acl_default", DEFAULT)
    os.mkdir(top + b"/attributes/heir")
    write(top + b"/attributes/heir/file", b"with what its directory handed down")
    with wanted("attributes of links and nodes"):
        os.symlink(b"file", top + b"/attributes/link")
        os.setxattr(top + b"/attributes/link", "trusted.of", b"a link", follow_symlinks=False)
        os.mkfifo(top + b"/attributes/fifo")
        os.setxattr(top + b"/attributes/fifo", "trusted.of", b"a fifo")
    with wanted("capabilities"):
        write(top + b"/attributes/able", b"#!")
        capability = struct.pack("<IIIII", 0x02000001, 0x400, 0, 0, 0)
        os.setxattr(top + b"/attributes/able", "security.capability", capability)
    with wanted("other owners"):
        os.chown(top + b"/mode-3", 1234, 4321)
        os.chmod(top + b"/mode-3", 0o4755)
        os.chown(top + b"/link-odd", 77, 78, follow_symlinks=False)
        os.chown(top + b"/setgid", 0, 4321)
        os.chmod(top + b"/setgid", 0o2775)


def make_socket(path: bytes) -> None:
    """Makes a socket with a path of any length."""
    directory, name = os.path.split(path)
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(directory)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
    finally:
        os.fchdir(before)
        os.close(before)


LEFT_OUT = (STILL + b"/socket", STILL + b"/a.scratch", STILL + b"/cache")
"""The paths below :data:`STILL` that no snapshot holds."""


def _build_still(top: bytes) -> None:
    os.mkdir(top + b"/still")
    write(top + b"/still/.snapignore", b"# what is not worth it\n*.scratch\n/cache/\n")
    os.mkdir(top + b"/still/cache")
    write(top + b"/still/cache/inside", b"excluded with its directory")
    write(top + b"/still/a.scratch", b"excluded")
    write(top + b"/still/kept", b"captured")
    make_socket(top + b"/still/socket")


def _scatter_times(top: bytes, random: Random) -> None:
    """Gives everything a modification time in nanoseconds, some of them strange."""
    for path in [*reversed(paths_below(top)), top]:
        moment = random.choice((PAST_NS, -1, 0, 1, FUTURE_NS, 1_600_000_000 * 10**9))
        if random.random() < 0.7:
            moment = 1_600_000_000 * 10**9 + random.randrange(STEP_NS)
        os.utime(path, ns=(moment, moment), follow_symlinks=False)


def paths_below(top: bytes) -> list[bytes]:
    """Returns all paths that may be mutated, directories before what they hold.

    What lies so deep that its path is longer than a path may be is left out.
    """
    found = []
    for directory, directories, files in os.walk(top):
        directories[:] = sorted(
            name for name in directories if os.path.join(directory, name) != top + b"/" + STILL
        )
        found += [os.path.join(directory, name) for name in sorted([*directories, *files])]
    return [path for path in found if len(path) < PATH_SIZE_MAX]


def is_directory(path: bytes) -> bool:
    """Returns whether a path is a directory, and no link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def is_file(path: bytes) -> bool:
    """Returns whether a path is a regular file, and no link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def remove_tree(path: bytes) -> None:
    """Removes whatever is at a path."""
    if is_directory(path):
        for below in (path, *(item for item in paths_below(path) if is_directory(item))):
            os.chmod(below, 0o700)
        shutil.rmtree(path)
    else:
        os.unlink(path)
