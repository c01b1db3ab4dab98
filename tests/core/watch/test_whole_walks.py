"""What makes a watcher begin anew: the next snapshot is complete, and the one after it quick."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from treesnap import ErrorCode, Refused
from treesnap.core.fs import notifier
from treesnap.core.fs.notifier import CHANGED, Report
from treesnap.core.handle import Handle
from treesnap.core.ops import known_changes
from treesnap.core.ops.context import context_at
from treesnap.core.worktree import watcher
from watching import DIRECTORIES, Forging, WatchedWorld

pytestmark = pytest.mark.sampled(10)

DEADLINE_S = 30.0


class TestAWholeWalkIsDone:
    """Each time the next snapshot is complete, and the one after it lists nothing again."""

    def recovers(self, world: WatchedWorld) -> None:
        (world.root / "d2" / "deep" / "file").write_text("at the same time")
        assert world.listed_by_create() >= DIRECTORIES
        (world.root / "d2" / "deep" / "file").write_text("and later")
        assert world.listed_by_create() == 0

    @pytest.mark.needs("linux")
    def test_after_more_changes_than_the_queue_holds(self, world, monkeypatch):
        monkeypatch.setattr(notifier, "_UNREAD_MAX", 1)
        read = 4096  # at most, before the rest has to stay in the kernel's queue
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        world.watch(reads_ahead=False)
        fds = [os.open(world.root / "d0" / name, os.O_WRONLY) for name in ("other", "deep/file")]
        for number in range(limit + read + 100):
            os.pwrite(fds[number % 2], b"x", 0)
        for fd in fds:
            os.close(fd)

        self.recovers(world)
        assert world.watcher.why_lost == "the queue overflowed"

    def test_when_reports_are_late(self, world, monkeypatch):
        world.watch(lambda: self.forged(world))
        forged = world.notifiers[-1]
        forged.is_late = True
        (world.root / "d0" / "other").write_text("not reported yet")
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
                context_at(
                    root=world.root,
                    store_path=str(world.store),
                    fs=world.looks,
                    watcher=world.watcher,
                )
            )

            self.recovers(world)

    def test_after_an_hour(self, world):
        world.watch()
        now_ns = world.handle.context.clock_ns() + known_changes.WALK_EVERY_NS
        world.handle.context = world.handle.context._replace(clock_ns=lambda: now_ns)

        self.recovers(world)

    def test_when_the_clock_went_back(self, world):
        world.watch()
        now_ns = world.handle.context.clock_ns() - 10**9 * 3600
        world.handle.context = world.handle.context._replace(clock_ns=lambda: now_ns)

        self.recovers(world)

    def test_when_more_changed_than_it_can_remember(self, world, monkeypatch):
        monkeypatch.setattr(watcher, "CHANGES_MAX", 10)
        world.watch()
        for number in range(30):
            (world.root / f"new-{number}").write_text("x")

        self.recovers(world)

    def test_when_more_changed_than_is_worth_telling(self, world, monkeypatch):
        monkeypatch.setattr(known_changes, "CHANGES_MAX", 10)
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
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


def test_a_forked_child_that_leaves_the_block_ends_nothing(world):
    world.watch()
    mark = world.watcher.answer(None).mark
    child = os.fork()
    if child == 0:
        try:
            world.stack.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    (world.root / "d0" / "other").write_text("edited")

    assert world.watcher.answer(mark).paths == (b"d0/other",)


class Endless(Forging):
    """A queue into which more is reported than anybody can take."""

    def take(self) -> list[Report]:
        return [*super().take(), Report(-2, CHANGED, b"of a directory that is gone")]

    def wait(self, timeout_s: float) -> bool:
        return True


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_endless_reports_delay_no_other_thread(world, reads_ahead):
    world.watch(Endless, reads_ahead=reads_ahead)
    (world.root / "d0" / "other").write_text("edited")

    assert world.listed_by_create() == 0


@pytest.mark.needs("notices")
def test_a_queue_is_read_no_further_than_memory_allows(world, monkeypatch):
    monkeypatch.setattr(notifier, "_UNREAD_MAX", 2)
    names = {b"%0250d" % number for number in range(1000)}
    queue = notifier.Notifier()
    fd = os.open(world.root, os.O_RDONLY)
    queue.watch(fd, notifier.CREATED)
    os.close(fd)
    for name in names:
        os.mkdir(os.fsencode(world.root) + b"/" + name)

    with queue._state:
        assert queue._state.wait_for(lambda: len(queue._unread) == 2, DEADLINE_S)
        found = queue.take()
        pieces = len(queue._unread)
    while len(found) < len(names):
        assert queue.wait(DEADLINE_S)
        assert len(queue._unread) <= 2
        found += queue.take()
    queue.close()

    assert pieces == 1
    assert {report.name for report in found} == names


@pytest.mark.needs("notices")
def test_a_queue_is_made_without_another_program():
    program = (
        "import sys; from treesnap.core.fs.notifier import Notifier; events = []\n"
        "sys.addaudithook(lambda event, _: events.append(event))\n"
        "Notifier().close()\n"
        "print(*(event for event in events if event.split('.')[0] == 'subprocess'))\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout == b"\n"


@pytest.mark.needs("notices")
def test_no_thread_waits_for_a_queue_that_another_thread_closed():
    queue = notifier.Notifier()
    queue.close()

    assert queue.wait(timeout_s=0.0)


@pytest.mark.parametrize("path", ["", "d0", "d0/deep"])
def test_a_watch_that_ends_is_begun_anew(world, path):
    """Nothing is known of a directory whose watch the kernel ended, until it has one again."""
    world.watch(reads_ahead=False)
    tree = world.watcher._tree
    (number,) = (n for n, item in tree._directories.items() if item.path() == path.encode())
    tree._notifier.unwatch(number)
    (world.root / path / "new").write_text("unseen")

    world.listed_by_create()
    (world.root / path / "new").write_text("seen")

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
        watcher.refuse_unreported(treesnap.open(tmp_path).context.fs, "/proc/self")

    assert caught.value.code == ErrorCode.NOT_WATCHABLE
