"""A watcher misses nothing: what it is unsure of is looked at again, and all of it if need be."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import treesnap
from mounting import mounting
from oracle import difference, record
from treesnap.core.codec import statcache
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.worktree.scan.statcache import PATH_SIZE_MAX
from treesnap.testing.doubles import Call
from watching import DIRECTORIES, Looks, WatchedWorld

pytestmark = pytest.mark.sampled(10)


def test_nothing_is_listed_when_nothing_changed(world):
    world.watch()

    assert world.listed_by_create() == 0


def test_a_change_costs_the_same_in_a_tree_of_any_size(world):
    def add_directories(numbers: range) -> None:
        for number in numbers:
            (world.root / "d0" / f"more-{number}").mkdir()
            (world.root / "d0" / f"more-{number}" / "file").write_text("x")

    def calls_of_a_change() -> int:
        for content in ("one", "two"):
            (world.root / "d1" / "deep" / "file").write_text(content)
            world.looks.calls = 0
            world.handle.create()
        return world.looks.calls

    add_directories(range(5))
    world.watch()
    in_small_tree = calls_of_a_change()
    add_directories(range(5, 205))
    world.handle.create()
    in_large_tree = calls_of_a_change()

    # Other processes come and go, and a create looks at each of them.
    assert in_large_tree < in_small_tree + 50
    assert world.listed_by_create() == 0


def test_nothing_is_listed_after_a_snapshot_of_many_changes(world, monkeypatch):
    monkeypatch.setattr("treesnap.core.worktree.scan.statcache.RECENT_ROWS_MIN", 0)
    world.watch()
    for path in sorted(world.root.rglob("file")):
        path.write_text("changed")

    assert world.listed_by_create() == 0
    assert world.listed_by_create() == 0


def rename_over(root: Path) -> None:
    (root / "new").write_text("another file")
    (root / "new").rename(root / "d0" / "other")


def swap(root: Path) -> None:
    (root / "d0").rename(root / "d")
    (root / "d1").rename(root / "d0")
    (root / "d").rename(root / "d1")


def exchange(one: Path, other: Path) -> None:
    fs = LocalFileSystem()
    with ExitStack() as opened:
        fds = [os.open(path.parent, os.O_RDONLY) for path in (one, other)]
        for fd in fds:
            opened.callback(os.close, fd)
        fs.exchange(one.name, other.name, source_dir_fd=fds[0], target_dir_fd=fds[1])


def edit_after_moving(root: Path) -> None:
    (root / "d0" / "deep").rename(root / "d1" / "moved")
    (root / "d1" / "moved" / "file").write_text("edited there")


def fill_a_new_directory(root: Path) -> None:
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "b" / "c" / "file").write_text("before it can be watched")


def replace_a_directory(root: Path) -> None:
    shutil.rmtree(root / "d0")
    (root / "d0" / "deep").mkdir(parents=True)
    (root / "d0" / "deep" / "file").write_text("new")


def edit_and_put_the_time_back(root: Path) -> None:
    path = root / "d0" / "other"
    before = path.stat()
    path.write_text("OTHER")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "edit": lambda root: (root / "d0" / "deep" / "file").write_text("edited"),
    "edit_and_put_the_time_back": edit_and_put_the_time_back,
    "truncate": lambda root: os.truncate(root / "d0" / "other", 1),
    "mode": lambda root: (root / "d0" / "other").chmod(0o600),
    "mode_of_a_directory": lambda root: (root / "d0").chmod(0o700),
    "mode_of_the_root": lambda root: root.chmod(0o711),
    "time": lambda root: os.utime(root / "d1" / "deep", ns=(1, 1)),
    "attribute": lambda root: os.setxattr(root / "d1", "user.note", b"x"),
    "remove": lambda root: (root / "d0" / "other").unlink(),
    "remove_a_directory": lambda root: shutil.rmtree(root / "d0"),
    "replace_a_directory": replace_a_directory,
    "rename": lambda root: (root / "d0").rename(root / "renamed"),
    "rename_over": rename_over,
    "swap": swap,
    "exchange": lambda root: exchange(root / "d0", root / "d1"),
    "exchange_at_two_depths": lambda root: exchange(root / "d0", root / "d1" / "deep"),
    "exchange_with_a_file": lambda root: exchange(root / "d0", root / "d1" / "other"),
    "edit_after_moving": edit_after_moving,
    "fill_a_new_directory": fill_a_new_directory,
    "link": lambda root: os.link(root / "d0" / "other", root / "d1" / "link"),
    "symlink": lambda root: (root / "d0" / "link").symlink_to("nowhere"),
    "file_becomes_directory": lambda root: (
        (root / "d0" / "other").unlink(),
        fill_a_new_directory(root),
        (root / "a").rename(root / "d0" / "other"),
    ),
    "exclude": lambda root: (root / "d0" / ".snapignore").write_text("deep\n"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("reads_ahead", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_alone(world, change, reads_ahead):
    world.watch(reads_ahead=reads_ahead)
    other = treesnap.open(world.root, world.directory / "other")
    CHANGES[change](world.root)

    for _ in range(2):
        world.looks.listed = 0
        made = world.handle.create()
        listed = world.looks.listed
        walked = other.create()

        assert made.snapshot.root_hash == walked.snapshot.root_hash
        assert made.snapshot.record.rules == walked.snapshot.record.rules
        assert made.skipped == walked.skipped
        # The other name of a file that gets one is reported nowhere.
        assert listed < DIRECTORIES or change == "link"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("change", CHANGES)
def test_after_every_change_the_next_one_is_seen_in_each_directory(world, change):
    world.watch(reads_ahead=False)
    CHANGES[change](world.root)
    world.handle.create()
    for number, directory in enumerate([path for path, _, _ in os.walk(world.root)]):
        (Path(directory) / f"later-{number}").touch()

    made = world.handle.create()

    walked = treesnap.open(world.root, world.directory / "other").create()
    assert made.snapshot.root_hash == walked.snapshot.root_hash


def test_what_is_done_in_a_directory_that_was_moved_out_is_seen_when_it_is_back(world, tmp_path):
    world.watch()
    away = tmp_path / "away"
    (world.root / "d0").rename(away)
    assert world.listed_by_create() == 0
    (away / "deep" / "file").write_text("edited outside")
    away.rename(world.root / "d0")

    world.listed_by_create()
    (world.root / "d0" / "deep" / "file").write_text("edited inside")

    assert world.listed_by_create() == 0


def test_exclusions_go_with_a_directory_that_is_removed_while_it_is_open(world):
    """The kernel reports no end of such a directory before it is closed."""
    (world.root / "d0" / "deep" / ".snapignore").write_text("*.log\n")
    world.watch()
    fd = os.open(world.root / "d0", os.O_RDONLY)
    shutil.rmtree(world.root / "d0")

    made = world.handle.create()
    os.close(fd)

    assert made.snapshot.record.rules == ()


def test_a_file_that_is_mapped_for_writing_is_looked_at_each_time(world):
    path = world.root / "d0" / "other"
    world.watch()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        file.close()
        world.listed_by_create()
        world.listed_by_create()  # and what was so young beside it that its times said nothing
        for number in range(3):
            mapped[0] = 65 + number

            assert world.listed_by_create() == 1
    assert world.listed_by_create() == 1
    assert world.listed_by_create() == 0


def test_a_file_with_a_name_outside_is_looked_at_each_time(world, tmp_path):
    os.link(world.root / "d0" / "other", tmp_path / "outside")
    world.watch()

    (tmp_path / "outside").write_text("changed under the other name")

    # That of the linked name, and one in it if it is so young that its times say nothing.
    assert 1 <= world.listed_by_create() <= 2


class Failing(Looks):
    """Cannot read one file until it can."""

    is_failing = False

    def around(self, call: Call) -> Any:
        if self.is_failing and call.method == "open" and call.path.endswith("d0/other"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return super().around(call)


def test_what_could_not_be_read_is_tried_each_time(world):
    world.looks = Failing(world.root, world.store)
    world.watch()
    (world.root / "d0" / "other").write_text("edited")
    world.looks.is_failing = True
    assert [item.path for item in world.handle.create().skipped] == [b"d0/other"]

    world.looks.is_failing = False

    assert 0 < world.listed_by_create() < DIRECTORIES
    assert world.listed_by_create() == 0


def test_hard_links_of_directories_that_nothing_changed_in_are_kept(world):
    os.link(world.root / "d0" / "other", world.root / "d1" / "link")
    world.watch()
    (world.root / "d2" / "other").write_text("edited")

    world.listed_by_create()

    assert world.handle.show("latest").record.links is not None


@pytest.fixture
def without_row(world, of_any_depth):
    """An open directory below the root whose path is too long for a row, with a file."""
    names = [b"d" * 250] * (PATH_SIZE_MAX // 250 + 1)
    fd = os.open(world.root / "d0", os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    yield fd
    os.close(fd)


def test_hard_links_of_directories_without_a_row_are_kept(world, without_row):
    os.link("file", "link", src_dir_fd=without_row, dst_dir_fd=without_row)
    world.watch()
    (world.root / "d2" / "other").write_text("edited")

    world.handle.create()

    assert world.handle.show("latest").record.links is not None


def test_a_directory_without_a_row_is_looked_at_each_time(world, without_row, tmp_path):
    world.watch()
    before = world.handle.create()
    os.link("file", tmp_path / "outside", src_dir_fd=without_row)
    (tmp_path / "outside").write_text("changed under the other name")

    made = world.handle.create()

    assert made.snapshot.root_hash != before.snapshot.root_hash


def test_what_was_left_out_is_known_without_looking(world):
    (world.root / "d0" / "deep" / ".snapignore").write_text("*.log\n")
    (world.root / "d0" / "deep" / "x.log").write_text("left out")
    world.watch()
    (world.root / "d1" / "other").write_text("edited")

    made = world.handle.create()

    assert [item.path for item in made.skipped] == [b"d0/deep/x.log"]
    assert made.snapshot.record.totals.skipped == 1
    (rule,) = made.snapshot.record.rules
    assert rule.directory == b"d0/deep"


@pytest.mark.usefixtures("of_any_depth")
def test_what_was_left_out_is_known_at_any_depth(world):
    depth = 1100
    fd = os.open(world.root / "d0", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.mknod("socket", stat.S_IFSOCK | 0o600, dir_fd=fd)
    os.close(fd)
    world.watch()
    (world.root / "d1" / "other").write_text("edited")

    made = world.handle.create()

    assert [item.path for item in made.skipped] == [b"d0/" + b"d/" * depth + b"socket"]


def test_sums_that_are_too_large_are_as_a_whole_walk_says(tmp_path):
    with mounting() as mounter:
        world = WatchedWorld(mounter.tmpfs(tmp_path / "mounted"))
        with world.stack:
            world.watch()
            for number in range(3):
                path = world.root / f"sparse-{number}"
                path.touch()
                os.truncate(path, (1 << 63) - 1)

            made = world.handle.create()

            walked = treesnap.open(world.root, world.directory / "other").create()
            assert made.snapshot.record.totals == walked.snapshot.record.totals
            assert made.snapshot.root_hash == walked.snapshot.root_hash


def test_a_directory_whose_names_cannot_be_remembered_is_listed(world, monkeypatch):
    monkeypatch.setattr(statcache, "LONG_ARRAY_LENGTH_MAX", 10)
    for number in range(20):
        (world.root / "d0" / f"file-{number}").write_text("x")
    world.watch()
    (world.root / "d0" / "file-3").write_text("edited")

    assert world.listed_by_create() < DIRECTORIES


def test_a_store_in_the_root_reports_nothing(tmp_path):
    world = WatchedWorld(tmp_path)
    world.store = world.looks.store = world.root / "d0" / "store"
    with world.stack:
        world.watch()
        world.looks.listed = 0

        made = world.handle.create(options=treesnap.CreateOptions(skip_unchanged=True))

        assert (made.unchanged, world.looks.listed) == (True, 0)


def test_a_restore_is_exact_and_lists_nothing_that_it_need_not(world):
    world.watch()
    before = record(world.root)
    made = world.handle.create()
    CHANGES["edit"](world.root)
    CHANGES["fill_a_new_directory"](world.root)
    CHANGES["remove_a_directory"](world.root)
    world.looks.listed = 0

    world.handle.restore(made.id)

    assert difference(before, record(world.root)) == []
    assert world.listed_by_create() < DIRECTORIES


def test_status_and_diff_tell_what_changed(world):
    world.watch()
    CHANGES["edit"](world.root)
    world.looks.listed = 0

    assert [change.path for change in world.handle.status().changes] == [b"d0/deep/file"]
    assert [change.path for change in world.handle.diff()] == [b"d0/deep/file"]
    assert world.looks.listed == 0


@pytest.mark.needs("notices")
def test_cookies_of_watchers_that_were_killed_are_removed(world):
    program = (
        "import os, sys, treesnap\n"
        "with treesnap.open(*sys.argv[1:]).watch() as handle:\n"
        "    handle.create()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    words = [sys.executable, "-c", program, str(world.root), str(world.store)]
    subprocess.run(words, check=False)
    assert len(list(world.store.glob("roots/*/watch/cookie-*"))) == 1

    with treesnap.open(world.root, world.store).watch():
        assert len(list(world.store.glob("roots/*/watch/cookie-*"))) == 1
    assert len(list(world.store.glob("roots/*/watch/cookie-*"))) == 0
