"""Changes that the kernel reports under a name that a file has no more, or not at all."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.worktree.scan import mapped_files
from watching import DIRECTORIES, WatchedWorld

pytestmark = pytest.mark.sampled(10)

LIBC = ctypes.CDLL(None, use_errno=True)


def new_name_of_an_open_file(root: Path) -> int:
    fd = os.open(root / "d0" / "other", os.O_WRONLY)
    os.link(root / "d0" / "other", root / "d1" / "name")
    (root / "d0" / "other").unlink()
    return fd


def first_name_of_an_open_file(root: Path) -> int:
    fd = os.open(root / "d0", os.O_WRONLY | os.O_TMPFILE)
    here = os.open(root, os.O_RDONLY)  # without a descriptor Python asks for a link to the link
    os.link(f"/proc/self/fd/{fd}", "d1/name", src_dir_fd=here, dst_dir_fd=here)
    os.close(here)
    return fd


@pytest.mark.parametrize("name", [new_name_of_an_open_file, first_name_of_an_open_file])
def test_a_file_that_changes_under_a_name_that_it_has_no_more_is_seen(world, name):
    world.watch()
    fd = name(world.root)
    world.listed_by_create()
    world.listed_by_create()
    for number in range(2):
        os.pwrite(fd, b"written under the old name", number)
        assert world.listed_by_create() >= DIRECTORIES
        assert world.listed_by_create() == 0
    os.close(fd)
    world.listed_by_create()


def test_a_file_that_was_exchanged_costs_no_more_than_another(world):
    world.watch()
    fds = [os.open(world.root / name, os.O_RDONLY) for name in ("d0", "d1")]
    LocalFileSystem().exchange("other", "other", source_dir_fd=fds[0], target_dir_fd=fds[1])
    for content in ("one", "two"):
        for directory in ("d0", "d1"):
            (world.root / directory / "other").write_text(content)
        assert world.listed_by_create() == 0
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("name", ["a\nb", "a\\012b"])
def test_a_mapped_file_may_have_any_name(world, name):
    path = world.root / name
    path.write_text("content")
    world.watch()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        world.listed_by_create()
        mapped[0] = 65
        mapped.flush()
        world.listed_by_create()


def mapped_at(path: Path) -> int:
    """Maps a file and closes it; a mapping of Python's has the file open, too."""
    LIBC.mmap.restype = ctypes.c_void_p
    with path.open("r+b") as file:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        size = ctypes.c_size_t(mmap.PAGESIZE)
        found = LIBC.mmap(None, size, protection, mmap.MAP_SHARED, file.fileno(), 0)
    return int(found)


def test_what_was_written_until_the_end_of_a_mapping_on_an_overlay_is_seen(tmp_path):
    with mounting() as mounter:
        world = WatchedWorld(mounter.overlay(tmp_path))
        with world.stack:
            world.watch()
            address = mapped_at(world.root / "d0" / "other")
            ctypes.memmove(address, b"1", 1)
            world.listed_by_create()
            ctypes.memmove(address, b"2", 1)
            LIBC.munmap(ctypes.c_void_p(address), mmap.PAGESIZE)
            world.listed_by_create()


def test_more_mappings_than_are_remembered_are_forgotten_knowingly(world, monkeypatch):
    monkeypatch.setattr(mapped_files, "_SEEN_MAX", 1)
    world.watch()
    for name, listed_min in (("d0", 0), ("d1", DIRECTORIES)):
        with (world.root / name / "other").open("r+b") as file, mmap.mmap(file.fileno(), 0):
            assert world.listed_by_create() >= listed_min
    assert world.listed_by_create() == 1
    assert world.listed_by_create() == 0


@pytest.mark.parametrize("is_listed", [False, True], ids=["known", "listed"])
@pytest.mark.parametrize("how", ["moved away", "left out", "replaced by a file", "restored"])
def test_rules_go_with_the_directory_above_theirs(world, how, is_listed):
    """Of a directory that is listed in any case, what went is not known by its name."""
    if is_listed:
        (world.root / "one").write_text("a file with two names")
        os.link(world.root / "one", world.root / "two")
    watched = world.watch()
    without = watched.create().id
    deep = world.root / "d1" / "deep"
    if how == "restored":
        deep = world.root / "new" / "deep"
        deep.mkdir(parents=True)
    (deep / ".snapignore").write_text("hidden\n")
    held = watched.create().snapshot
    assert len(held.record.rules) == 1
    if how == "left out":
        (world.root / ".snapignore").write_text("d1\n")
    elif how == "restored":
        for ref in (without, held.id, without):
            watched.restore(ref)
    else:
        (world.root / "d1").rename(world.directory / "elsewhere")
    if how == "replaced by a file":
        (world.root / "d1").write_text("now a file")

    rules = watched.create().snapshot.record.rules

    expected = treesnap.open(world.root, world.directory / "other").create().snapshot.record.rules
    assert rules == expected
