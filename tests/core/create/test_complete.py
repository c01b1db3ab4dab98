"""A snapshot holds everything: each kind of entry is made, captured, damaged and restored.

The naive oracle looks before and after; it shares no code with the product.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import trees
import treesnap
from capabilities import HAS_DEVICES
from mutations import mutate
from oracle import copy_tree, difference, opened, record, without
from sampling import sized
from trees import is_directory, is_file, paths_below, remove_tree, write, write_sparse
from treesnap.core.handle import Handle

pytestmark = pytest.mark.sampled(3)

IS_ROOT = os.geteuid() == 0
GIBIBYTE = 1 << 30
LONG_AGO_NS = 1_000_000_000 * 10**9


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the tree will be."""
    return tmp_path / "root"


@pytest.fixture
def handle(tmp_path: Path, root: Path) -> Handle:
    """A handle on the tree."""
    return treesnap.open(root, tmp_path / "store")


def make_modes(top: bytes) -> None:
    for mode in (0o000, 0o400, 0o644, 0o755, 0o777, 0o1644, 0o2755, 0o4711, 0o7777):
        write(top + b"/file-%o" % mode, b"%o" % mode)
        os.mkdir(top + b"/directory-%o" % mode)
        write(top + b"/directory-%o/inside" % mode, b"x")
        for name in (b"file", b"directory"):
            if IS_ROOT or mode & 0o700:
                os.chmod(top + b"/%s-%o" % (name, mode), mode)


def make_times(top: bytes) -> None:
    moments = (trees.PAST_NS, -1, 0, 1, 999_999_999, 1_600_000_000_123_456_789, trees.FUTURE_NS)
    for number, moment in enumerate(moments):
        os.mkdir(top + b"/d%d" % number)
        write(top + b"/d%d/file" % number, b"x")
        os.symlink(b"file", top + b"/d%d/link" % number)
        os.mkfifo(top + b"/d%d/fifo" % number)
        for name in (b"/file", b"/link", b"/fifo", b""):
            path = top + b"/d%d" % number + name
            os.utime(path, ns=(moment, moment), follow_symlinks=False)
            assert os.lstat(path).st_mtime_ns == moment
    os.utime(top, ns=(trees.PAST_NS, trees.PAST_NS))


def make_attributes(top: bytes) -> None:
    write(top + b"/file", b"x")
    os.mkdir(top + b"/directory")
    write(top + b"/directory/inside", b"x")
    for path in (top + b"/file", top + b"/directory", top):
        set_attribute(path, "user.empty", b"")
        set_attribute(path, "user.bytes", b"\0\xff\n")
        set_attribute(path, "user.large", bytes(range(256)) * 7)


def set_attribute(path: bytes, name: str, value: bytes) -> None:
    """Sets an extended attribute, or skips the test where there are none."""
    try:
        os.setxattr(path, name, value, follow_symlinks=False)
    except OSError as error:
        pytest.skip(f"{name} cannot be set here: {error}")


def make_access_lists(top: bytes) -> None:
    write(top + b"/file", b"x")
    os.mkdir(top + b"/directory")
    set_attribute(top + b"/file", "system.posix_acl_access", trees.ACCESS)
    set_attribute(top + b"/directory", "system.posix_acl_default", trees.DEFAULT)
    set_attribute(top, "system.posix_acl_default", trees.DEFAULT)
    write(top + b"/directory/heir", b"with rights that were handed down")
    os.mkdir(top + b"/directory/below")
    os.mkdir(top + b"/bare")
    os.removexattr(top + b"/bare", "system.posix_acl_default")
    os.removexattr(top + b"/bare", "system.posix_acl_access")


def make_trusted_attributes(top: bytes) -> None:
    write(top + b"/able", b"#!")
    os.symlink(b"able", top + b"/link")
    os.mkfifo(top + b"/fifo")
    for name in (b"able", b"link", b"fifo"):
        set_attribute(top + b"/" + name, "trusted.note", b"of " + name)
    set_attribute(top + b"/able", "security.capability", b"\x01\0\0\2\0\4" + bytes(14))


def make_hard_links(top: bytes) -> None:
    os.makedirs(top + b"/a/b")
    write(top + b"/one", b"three names")
    os.link(top + b"/one", top + b"/a/two")
    os.link(top + b"/one", top + b"/a/b/three")
    write(top + b"/alike", b"three names")
    os.symlink(b"nowhere", top + b"/link")
    os.link(top + b"/link", top + b"/a/link", follow_symlinks=False)
    os.mkfifo(top + b"/fifo")
    os.link(top + b"/fifo", top + b"/a/fifo")


def make_holes(top: bytes) -> None:
    write_sparse(top + b"/only", 10_000_000)
    write_sparse(top + b"/less-than-a-block", 100)
    write_sparse(top + b"/first", 2_000_000, (1_999_999, b"!"))
    write_sparse(top + b"/last", 2_000_000, (0, b"!"))
    write_sparse(top + b"/both", 9_000_001, (1 << 20, b"!"), (5 << 20, bytes(700_000)))
    write(top + b"/zeros-become-a-hole", bytes(1_000_000))


def make_nodes(top: bytes) -> None:
    os.mkfifo(top + b"/fifo", 0o620)
    if IS_ROOT and HAS_DEVICES:
        os.mknod(top + b"/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(top + b"/large-number", stat.S_IFCHR | 0o600, os.makedev(300, 70_000))
        os.mknod(top + b"/block", stat.S_IFBLK | 0o640, os.makedev(7, 200))


def make_names(top: bytes) -> None:
    for name in trees.NAMES:
        os.mkdir(top + b"/" + name)
        for below in trees.NAMES:
            write(top + b"/" + name + b"/" + below, below)


def make_symlinks(top: bytes) -> None:
    os.mkdir(top + b"/directory")
    write(top + b"/directory/file", b"x")
    targets = (b"no/such", b"/etc/passwd", b"directory", b"4", b"../../..", b"\xff\n", b"x" * 4000)
    for number, target in enumerate(targets):
        os.symlink(target, top + b"/%d" % number)


def make_empty(top: bytes) -> None:
    os.makedirs(top + b"/directory/below/below")
    write(top + b"/file", b"")


def make_git(top: bytes) -> None:
    for path in (b".git/objects/ab", b"vendored/.git/refs", b"vendored/.svn"):
        os.makedirs(top + b"/" + path)
    write(top + b"/.git/objects/ab/cdef", b"x\x01\x03\0\0\0\0\x01")
    write(top + b"/.git/HEAD", b"ref: refs/heads/main\n")
    write(top + b"/vendored/.git/HEAD", b"ref: refs/heads/other\n")


def make_ignore_files_of_others(top: bytes) -> None:
    for name in (b".gitignore", b".ignore", b".dockerignore", b".rsync-filter", b".npmignore"):
        write(top + b"/" + name, b"*\n/*\n")
    os.mkdir(top + b"/node_modules")
    write(top + b"/node_modules/file.o", b"x")
    write(top + b"/node_modules/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55")
    write(top + b"/.nobackup", b"")


def make_read_only_directories(top: bytes) -> None:
    os.makedirs(top + b"/shut/below/deeper")
    for path in (b"shut/file", b"shut/below/file", b"shut/below/deeper/file"):
        write(top + b"/" + path, path)
    os.chmod(top + b"/shut/below/deeper", 0o555)
    os.chmod(top + b"/shut/below", 0o500)
    os.chmod(top + b"/shut", 0o555)
    os.chmod(top, 0o555)


def make_large_files(top: bytes) -> None:
    random = Random(4)
    for size in (262_143, 262_144, 262_145, 1 << 20, 20_000_000):
        write(top + b"/%d" % size, random.randbytes(size))
    write(top + b"/repeated", random.randbytes(1000) * 5000)


def make_deep(top: bytes) -> None:
    """Makes a path of 300 names of 40 bytes: three times longer than PATH_MAX."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(300):
        os.mkdir(b"d" * 40, dir_fd=fd)
        below = os.open(b"d" * 40, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    with open(b"bottom", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=fd)) as file:
        file.write(b"out of reach of any path")
    os.symlink(b"bottom", b"link", dir_fd=fd)
    os.mkfifo(b"fifo", dir_fd=fd)
    os.close(fd)


def make_owners(top: bytes) -> None:
    if not IS_ROOT:
        pytest.skip("only the superuser gives files away")
    write(top + b"/setuid", b"x")
    os.mkdir(top + b"/setgid")
    write(top + b"/setgid/inside", b"x")
    os.symlink(b"x", top + b"/link")
    os.mkfifo(top + b"/fifo")
    for number, name in enumerate((b"setuid", b"setgid", b"setgid/inside", b"link", b"fifo")):
        os.chown(top + b"/" + name, 1000 + number, 4_000_000_000 + number, follow_symlinks=False)
    os.chmod(top + b"/setuid", 0o6755)
    os.chmod(top + b"/setgid", 0o2775)


MAKERS = (
    make_access_lists,
    make_attributes,
    make_deep,
    make_empty,
    make_git,
    make_hard_links,
    make_holes,
    make_ignore_files_of_others,
    make_large_files,
    make_modes,
    make_names,
    make_nodes,
    make_owners,
    make_read_only_directories,
    make_symlinks,
    make_times,
    make_trusted_attributes,
)


def remove_everything(top: bytes) -> None:
    """Leaves an empty root."""
    os.chmod(top, 0o700)
    for name in os.listdir(top):
        remove_tree(top + b"/" + name)


def disturb_metadata(top: bytes) -> None:
    """Changes all metadata, and no content."""
    for path in [*paths_below(top), top]:
        if not os.path.islink(path):
            os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) ^ 0o1020)
            for name in os.listxattr(path, follow_symlinks=False):
                if not name.startswith("system."):
                    os.removexattr(path, name)
        elif IS_ROOT:
            for name in os.listxattr(path, follow_symlinks=False):
                os.setxattr(path, name, b"changed", follow_symlinks=False)
        if IS_ROOT:
            os.chown(path, 5, 6, follow_symlinks=False)
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS), follow_symlinks=False)


def edit_content(top: bytes) -> None:
    """Changes a byte of every file in place."""
    for path in paths_below(top):
        if is_file(path) and os.path.getsize(path):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            os.chmod(path, 0o600)
            with open(path, "r+b") as file:
                file.write(b"\xa5")
            os.chmod(path, mode)


def swap_types(top: bytes) -> None:
    """Puts a directory where a file was, and a file where a directory was."""
    os.chmod(top, 0o700)
    for name in os.listdir(top):
        path = top + b"/" + name
        was_directory = is_directory(path)
        remove_tree(path)
        if was_directory:
            write(path, b"no directory any more")
        else:
            os.makedirs(path + b"/now/a/directory")


def swap_places(top: bytes) -> None:
    """Moves every name of the root to where another one was."""
    os.chmod(top, 0o700)
    names = sorted(os.listdir(top))
    for name in names:
        os.rename(top + b"/" + name, top + b"/.aside-" + name[:200])
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        os.rename(top + b"/.aside-" + name[:200], top + b"/" + other)


DAMAGES = (remove_everything, disturb_metadata, edit_content, swap_types, swap_places)


def round_trip(handle: Handle, root: Path, damage: Callable[[bytes], None]) -> None:
    """Captures, damages, restores, takes that back and does it again; compares each time."""
    top = os.fsencode(root)
    before = record(root)
    result = handle.create()
    damage(top)
    damaged = record(root)
    handle.restore(result.id)
    assert difference(before, record(root)) == []
    if damaged == before:
        return
    handle.undo()
    assert difference(damaged, record(root)) == []
    handle.redo()
    assert difference(before, record(root)) == []


@pytest.mark.sampled(7)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("make", MAKERS)
def test_every_kind_of_entry_comes_back_from_every_kind_of_damage(handle, root, make, damage):
    root.mkdir()
    make(os.fsencode(root))
    try:
        round_trip(handle, root, damage)
    finally:
        root.chmod(0o700)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_an_awkward_tree_comes_back_from_many_changes(handle, root, tmp_path, seed):
    trees.build(root, seed)
    copy_tree(root, tmp_path / "copy")

    round_trip(handle, root, lambda _: mutate(root, Random(seed), 50) and None)

    copied = without(record(tmp_path / "copy"), *trees.LEFT_OUT)
    assert difference(copied, without(record(root), *trees.LEFT_OUT)) == []


def test_a_sparse_file_of_10_gib_costs_neither_time_nor_disk(handle, root, tmp_path):
    root.mkdir()
    path = os.fsencode(root / "sparse")
    write_sparse(path, 10 * GIBIBYTE, (0, b"begin"), (7 * GIBIBYTE, b"middle"))
    blocks = os.stat(path).st_blocks
    before = record(root)

    result = handle.create()
    assert result.stats.size_bytes == 10 * GIBIBYTE
    assert result.stats.read_bytes <= 2 * 65_536
    assert result.stats.added_bytes <= 65_536
    os.truncate(path, 0)
    handle.restore(result.id)
    assert difference(before, record(root)) == []
    assert os.stat(path).st_blocks == blocks
    handle.undo()
    assert os.stat(path).st_size == 0
    handle.restore(result.id, to=tmp_path / "elsewhere")
    assert difference(before, record(tmp_path / "elsewhere")) == []


@pytest.mark.parametrize(
    "count", [sized(5_000, 20_000), pytest.param(200_000, marks=pytest.mark.slow)], ids=str
)
def test_a_directory_of_very_many_entries(handle, root, count):
    root.mkdir()
    top = os.fsencode(root)
    for number in range(count):
        write(top + b"/%06d" % number, b"%d" % number)
    before = record(root)
    first = handle.create()
    assert first.stats.files == count
    os.unlink(top + b"/000777")
    write(top + b"/004321", b"changed")
    write(top + b"/new", b"new")
    damaged = record(root)

    second = handle.create()
    assert second.stats.added_bytes <= 400_000
    result = handle.restore(first.id)
    assert (result.created, result.restored, result.deleted) == (1, 1, 1)
    assert difference(before, record(root)) == []
    handle.undo()
    assert difference(damaged, record(root)) == []


def test_the_oracle_sees_a_path_that_is_longer_than_any_path(root):
    root.mkdir()
    make_deep(os.fsencode(root))

    longest = max(record(root), key=len)

    assert len(longest) > 12_000
    with opened(root, os.O_RDONLY) as fd, pytest.raises(OSError, match="too long"):
        os.stat(longest, dir_fd=fd)
