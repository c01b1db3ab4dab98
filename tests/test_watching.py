"""A watcher misses nothing: what it is unsure of is looked at again, and all of it if need be."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from oracle import difference, record
from treesnap import ErrorCode, Refused
from treesnap.ops import watching
from treesnap.ops.handle import Handle
from treesnap.worktree import watched, watcher
from watching import Forging, WatchedWorld

DIRECTORIES = 7
"""How many a whole walk of the world's tree lists."""


@pytest.fixture
def world(tmp_path: Path):
    made = WatchedWorld(tmp_path)
    with made.stack:
        yield made


def test_nothing_is_listed_when_nothing_changed(world):
    world.watch()

    assert world.listed_by_create() == 0


@pytest.mark.parametrize("count", [5, 200])
def test_a_change_costs_the_same_in_a_tree_of_any_size(world, count):
    for number in range(count):
        (world.root / "d0" / f"more-{number}").mkdir()
        (world.root / "d0" / f"more-{number}" / "file").write_text("x")
    world.watch()
    for content in ("one", "two"):
        (world.root / "d1" / "deep" / "file").write_text(content)
        world.looks.calls = 0
        world.handle.create()

    processes = len([name for name in os.listdir("/proc") if name.isdigit()])
    assert world.looks.calls < 150 + 5 * processes
    assert world.listed_by_create() == 0


def rename_over(root: Path) -> None:
    (root / "new").write_text("another file")
    (root / "new").rename(root / "d0" / "other")


def exchange(root: Path) -> None:
    (root / "d0").rename(root / "d")
    (root / "d1").rename(root / "d0")
    (root / "d").rename(root / "d1")


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
    "exchange": exchange,
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


def test_a_file_that_is_mapped_for_writing_is_looked_at_each_time(world):
    path = world.root / "d0" / "other"
    world.watch()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        file.close()
        for number in range(3):
            world.listed_by_create()
            mapped[0] = 65 + number
            mapped.flush()

            assert world.listed_by_create() == 0
            assert world.handle.cat("latest", "d0/other") is not None
    assert world.listed_by_create() == 0


def test_a_file_with_a_name_outside_is_looked_at_each_time(world, tmp_path):
    os.link(world.root / "d0" / "other", tmp_path / "outside")
    world.watch()

    (tmp_path / "outside").write_text("changed under the other name")

    assert world.listed_by_create() == 1  # the directory of the linked name


def test_hard_links_of_directories_that_nothing_changed_in_are_kept(world):
    os.link(world.root / "d0" / "other", world.root / "d1" / "link")
    world.watch()
    (world.root / "d2" / "other").write_text("edited")

    world.listed_by_create()

    assert world.handle.show("latest").record.links is not None


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


def test_a_store_in_the_root_reports_nothing(tmp_path):
    world = WatchedWorld(tmp_path)
    world.store = world.root / "d0" / "store"
    with world.stack:
        world.watch()
        world.looks.listed = 0

        made = world.handle.create(skip_unchanged=True)

        assert (made.unchanged, world.looks.listed) == (True, 0)


class TestAWholeWalkIsDone:
    """Each time the next snapshot is complete, and the one after it lists nothing again."""

    def recovers(self, world: WatchedWorld) -> None:
        (world.root / "d2" / "deep" / "file").write_text("at the same time")
        assert world.listed_by_create() >= DIRECTORIES
        (world.root / "d2" / "deep" / "file").write_text("and later")
        assert world.listed_by_create() == 0

    def test_after_more_changes_than_the_queue_holds(self, world):
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        world.watch(reads_ahead=False)
        fds = [os.open(world.root / "d0" / name, os.O_WRONLY) for name in ("other", "deep/file")]
        for number in range(limit + 100):
            os.pwrite(fds[number % 2], b"x", 0)
        for fd in fds:
            os.close(fd)

        self.recovers(world)
        assert world.watcher.why_lost == "the queue overflowed"

    def test_when_reports_are_late(self, world, monkeypatch):
        world.watch(lambda: self.forged(world))
        forged = world.notifiers[-1]
        forged.is_late = True
        (world.root / "d0" / "other").write_text("nobody has heard of it")
        assert world.watcher.answer(None, timeout_s=0.0).paths is None

        self.recovers(world)
        assert world.watcher.why_lost == "the kernel's reports were late"

    def forged(self, world: WatchedWorld) -> Forging:
        world.notifiers.append(Forging())
        return world.notifiers[-1]

    def test_when_another_directory_has_the_roots_place(self, world):
        world.watch()
        world.root.rename(world.directory / "old")
        shutil.copytree(world.directory / "old", world.root)
        (world.root / "d0" / "other").write_text("another tree")

        self.recovers(world)

    def test_when_the_root_was_gone(self, world):
        world.watch()
        shutil.rmtree(world.root)
        with pytest.raises(treesnap.NotFound):
            world.handle.create()
        world.watcher._not_before_s = 0.0
        treesnap.open(world.root, world.store).restore("latest")

        self.recovers(world)

    def test_when_something_is_mounted(self, world):
        with mounting() as mounter:
            world.watch()
            mounter.tmpfs(world.root / "d0")
            (world.root / "d0" / "file").write_text("of another file system")

            made = world.handle.create()
            assert [item.path for item in made.skipped] == [b"d0"]
        self.recovers(world)

    def test_when_another_process_made_a_snapshot_without_it(self, world):
        world.watch()
        (world.root / "d0" / "other").write_text("captured by another")
        treesnap.open(world.root, world.store).create()

        self.recovers(world)

    def test_when_it_is_another_watcher(self, world):
        world.watch()
        world.stack.close()
        (world.root / "d0" / "other").write_text("between two watchers")
        with world.stack:
            (cookies,) = world.store.glob("roots/*/watch")
            world.watcher = world.stack.enter_context(
                watcher.Watcher(world.looks, str(world.root), str(cookies))
            )
            world.handle = Handle(
                root=world.root,
                store_path=str(world.store),
                fs=world.looks,
                watcher=world.watcher,
            )

            self.recovers(world)

    def test_after_an_hour(self, world):
        world.watch()
        now_ns = world.handle.clock_ns() + watching.WALK_EVERY_NS
        world.handle.clock_ns = lambda: now_ns

        self.recovers(world)

    def test_when_the_clock_went_back(self, world):
        world.watch()
        now_ns = world.handle.clock_ns() - 10**9 * 3600
        world.handle.clock_ns = lambda: now_ns

        self.recovers(world)

    def test_when_more_changed_than_it_can_remember(self, world, monkeypatch):
        monkeypatch.setattr(watched, "CHANGES_MAX", 10)
        world.watch()
        for number in range(30):
            (world.root / f"new-{number}").write_text("x")

        self.recovers(world)

    def test_when_more_changed_than_is_worth_telling(self, world, monkeypatch):
        monkeypatch.setattr(watching, "CHANGES_MAX", 10)
        world.watch()
        for number in range(30):
            (world.root / f"new-{number}").write_text("x")

        self.recovers(world)

    def test_when_the_kernel_gives_no_more_watches(self, world):
        def forged() -> Forging:
            made = Forging()
            made.watches_max = DIRECTORIES + 2  # the cookies' directory, and one new one
            return made

        world.watch(forged)
        for name in ("new-1", "new-2"):
            (world.root / name).mkdir()
            (world.root / name / "file").write_text("x")

        assert world.listed_by_create() >= DIRECTORIES
        (world.root / "new-2" / "file").write_text("not watched")
        assert world.listed_by_create() >= DIRECTORIES
        assert "max_user_watches" in world.watcher.why_lost

        shutil.rmtree(world.root / "new-1")
        world.watcher._not_before_s = 0.0
        self.recovers(world)

    def test_in_a_forked_child(self, world):
        world.watch()
        (world.root / "d0" / "other").write_text("seen by the parent alone")
        child = os.fork()
        if child == 0:
            listed = 0
            try:
                world.looks.listed = 0
                world.handle.create()
                listed = world.looks.listed
            finally:
                os._exit(listed)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) >= DIRECTORIES


def test_a_watch_that_ends_is_begun_anew(world):
    """Nothing is known of a directory whose watch the kernel ended, until it has one again."""
    world.watch(reads_ahead=False)
    tree = world.watcher._tree
    (number,) = (n for n, item in tree._directories.items() if item.path() == b"d0/deep")
    tree._notifier.unwatch(number)
    (world.root / "d0" / "deep" / "file").write_text("unseen")

    world.listed_by_create()
    (world.root / "d0" / "deep" / "file").write_text("seen")

    assert world.listed_by_create() == 0


def test_is_refused_when_there_are_too_few_watches(world):
    def forged() -> Forging:
        made = Forging()
        made.watches_max = 3
        return made

    with pytest.raises(Refused) as caught:
        world.watch(forged)

    assert caught.value.code == ErrorCode.NOT_WATCHABLE
    assert "max_user_watches" in caught.value.message


def test_is_refused_where_others_can_change_files(tmp_path):
    with pytest.raises(Refused) as caught:
        watcher.refuse_unreported(treesnap.open(tmp_path).fs, "/proc/self")

    assert caught.value.code == ErrorCode.NOT_WATCHABLE


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
