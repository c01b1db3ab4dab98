"""The superuser restores in a directory of another user, who replaces what is being made there.

At the N-th call, for every N, that user moves away what the restore has made in the directory, puts
a link or a directory of their own in its place, and from then on replaces all that appears in that.
Outside the directory nothing is made, and no mode, owner, time or content changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mounting import mounting
from other_user import OTHER_ID, Other, as_the_other, replace_by
from sampling import sized
from state import differences, tree_state
from treesnap.core.fs.durable import opened_file
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.apply.removal import remove_below
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, UnsyncedFileSystem, WrappedFileSystem

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser becomes another user")

CALLS_MAX = 5000
STAGE_PREFIX = ".treesnap"


@pytest.fixture(autouse=True)
def no_safe_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no directory as safe, as most users do."""
    monkeypatch.delenv("SNAP_SAFE_DIRECTORIES", raising=False)


class Place:
    """A root of the superuser, a directory of the other user, and what must not change."""

    def __init__(self, base: Path) -> None:
        self.base, self.root, self.victim = base, base / "root", base / "victim"
        (self.root / "d" / "e").mkdir(parents=True)
        (self.root / "d").chmod(0o777)
        (self.root / "d" / "e" / "file").write_text("file")
        (self.root / "link").symlink_to("d")
        for name in ("fifo", "d/fifo"):
            os.mkfifo(self.root / name)
            (self.root / name).chmod(0o666)
        os.link(self.root / "fifo", self.root / "same")
        self.root.chmod(0o777)
        self.handle().create(name="wanted")
        (self.victim / "a").mkdir(parents=True)
        (self.victim / "secret").write_text("secret")
        (self.victim / "secret").chmod(0o600)
        (self.victim / "a").chmod(0o700)
        self.before = tree_state(self.victim)
        self.theirs = base / "theirs"
        self.theirs.mkdir()
        os.chown(self.theirs, OTHER_ID, OTHER_ID)
        self.put_mine_there()
        self._swaps = 0

    def put_mine_there(self) -> None:
        """Makes a directory of the superuser in that of the other user."""
        (self.theirs / "mine" / "sub").mkdir(parents=True)
        (self.theirs / "mine" / "sub" / "kept").write_text("kept")

    def check(self, number: int) -> None:
        """Fails if anything that the other user may not change was changed."""
        assert differences(tree_state(self.victim), self.before) == [], number
        assert len(list(self.theirs.rglob("kept"))) == 1, number

    def handle(self, fs: WrappedFileSystem | None = None) -> Handle:
        """Returns a handle of the superuser."""
        fs = fs or UnsyncedFileSystem()
        return Handle(context_at(self.root, str(self.base / "store"), fs=fs))

    def stages(self) -> list[Path]:
        """Returns what a restore has made in the directory of the other user."""
        return [path for path in self.theirs.iterdir() if path.name.startswith(STAGE_PREFIX)]

    def put_links(self, is_first: bool) -> bool:
        """Puts links to the victim in the place of what a restore made, and of what it will."""
        stages = self.stages()
        for path in [*stages, self.theirs / "new"]:
            if not path.is_symlink():
                self.swap(path, lambda fd, name: os.symlink(self.victim, name, dir_fd=fd))
        return is_first and bool(stages)

    def put_own(self, is_first: bool) -> bool:
        """Puts directories in its place, and links to the victim in the place of all in them."""
        stages = self.stages()
        for path in stages:
            if is_first:
                self.swap(path, lambda fd, name: os.mkdir(name, dir_fd=fd))
            with suppress(OSError):
                if path.stat().st_uid == OTHER_ID:
                    self._swap_below(path)
        return bool(stages)

    def put_mine(self, is_first: bool) -> bool:
        """Puts the superuser's directory in its place."""
        stages = self.stages()
        if is_first and stages:
            self.swap(
                stages[-1],
                lambda fd, name: os.rename("mine", name, src_dir_fd=fd, dst_dir_fd=fd),
            )
        return bool(stages)

    def _swap_below(self, path: Path) -> None:
        path.chmod(0o777)
        for below in path.iterdir():
            if not below.is_symlink():
                target = self.victim if below.is_dir() else self.victim / "secret"
                self.swap(below, lambda fd, name, to=target: os.symlink(to, name, dir_fd=fd))

    def swap(self, path: Path, put: Callable[[int, str], None]) -> None:
        """Moves away what has a name, if anything, and puts something else there."""
        self._swaps += 1
        replace_by(path, self.theirs / f"x{self._swaps}", put)


TARGETS = {"beside": "new", "below": "new/a/b"}
ACTS = {
    "links": Place.put_links,
    "directories": Place.put_own,
    "the superuser's": Place.put_mine,
}


def ended(action: Callable[[], object]) -> str:
    """Returns how an operation ended."""
    try:
        action()
    except (TreesnapError, OSError) as error:
        return type(error).__name__
    return "done"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_restore_elsewhere_changes_nothing_else(tmp_path, target, act):
    ends: set[str] = set()
    number, left = 0, 0
    while left <= 0:
        number += sized(23, 1)
        assert number < CALLS_MAX
        place = Place(tmp_path / "place")
        fs = Other(number, lambda first, place=place: ACTS[act](place, first))
        to = place.theirs / TARGETS[target]
        ends.add(ended(lambda fs=fs, place=place, to=to: place.handle(fs).restore("wanted", to=to)))
        place.check(number)
        left = fs.left
        shutil.rmtree(place.base)

    assert "done" in ends
    assert len(ends) > 1


@pytest.mark.parametrize("has_swapped", [False, True])
def test_what_a_killed_one_left_there_is_named_and_stays(tmp_path, has_swapped):
    place = Place(tmp_path / "place")
    at_rename = Fault(methods=frozenset({"rename"}), where=lambda call: "n0" in call.path)
    ended = killed(
        lambda fs: place.handle(fs).restore("wanted", to=place.theirs / "new"), at_rename
    )
    assert ended.was_killed, ended.error
    (left,) = place.stages()
    if has_swapped:
        place.put_mine(is_first=True)
    handle = place.handle()
    monitor = CollectingMonitor()
    handle.context = handle.context._replace(monitor=monitor)

    handle.create()
    handle.create()

    place.check(0)
    assert left.exists()
    (said,) = [line for line in monitor.warnings if str(left) in line]
    assert f"which belongs to user {OTHER_ID}" in said


@pytest.mark.sampled(3)
@pytest.mark.parametrize("act", ["links", "directories"])
def test_nor_does_one_in_a_mount_point(tmp_path, act):
    """There each name is moved up by itself, and a directory gets its mode after that."""
    number, left = 0, 0
    while left <= 0:
        number += sized(23, 1)
        assert number < CALLS_MAX
        place = Place(tmp_path / "place")
        with mounting() as mounter:
            mounter.tmpfs(place.theirs)
            os.chown(place.theirs, OTHER_ID, OTHER_ID)

            def meddle(first: bool, place: Place = place) -> bool:
                has_begun = ACTS[act](place, first)
                if (place.theirs / "d").is_dir() and not (place.theirs / "d").is_symlink():
                    place.swap(
                        place.theirs / "d",
                        lambda fd, name, place=place: os.symlink(place.victim, name, dir_fd=fd),
                    )
                return has_begun

            fs = Other(number, meddle)
            ended(lambda fs=fs, place=place: place.handle(fs).restore("wanted", to=place.theirs))
            assert differences(tree_state(place.victim), place.before) == [], number
        left = fs.left
        shutil.rmtree(place.base)


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("way", ["tmpfs", "bind"])
def test_nothing_of_what_is_mounted_is_removed(tmp_path, way):
    """The directory above a mount point can be moved into one that is about to be removed."""
    there, disk = tmp_path / "stage" / "sub" / "disk", tmp_path / "disk"
    there.mkdir(parents=True)
    disk.mkdir()
    with (
        mounting() as mounter,
        opened_file(UnsyncedFileSystem(), str(tmp_path / "stage"), os.O_RDONLY) as fd,
    ):
        mounter.tmpfs(there) if way == "tmpfs" else mounter.bind(disk, there)
        (there / "kept").write_text("kept")

        with pytest.raises(OSError, match="mounted"):
            remove_below(UnsyncedFileSystem(), fd)

        assert (there / "kept").read_text() == "kept"


@pytest.mark.parametrize("act", ["exchange", "replace"])
def test_removing_a_directory_of_another_user_changes_nothing_else(tmp_path, act):
    """Its owner has it open, and puts links in the place of what lies in it while that goes."""
    number, left = 0, 0
    while left <= 0:
        number += sized(7, 1)
        assert number < CALLS_MAX
        base = tmp_path / "base"
        victim, evil = base / "victim", base / "evil"
        victim.mkdir(parents=True)
        (victim / "secret").write_text("secret")
        (victim / "secret").chmod(0o600)
        evil.mkdir()
        for name in ("x", "y", "z"):
            (evil / name).mkdir()
            (evil / name / "file").write_text("file")
            (evil / name).chmod(0o077)
        for path in [*evil.rglob("*"), evil]:
            os.chown(path, OTHER_ID, OTHER_ID)
        before = tree_state(victim)
        fd = os.open(evil, os.O_RDONLY | os.O_DIRECTORY)

        def swap(first: bool, fd: int = fd, victim: Path = victim) -> bool:
            with as_the_other():
                for name in os.listdir(fd):
                    if name in {"x", "y", "z"} and (first or act == "exchange"):
                        target = victim / "secret" if name == "x" else victim
                        os.rename(name, f"{name}0", src_dir_fd=fd, dst_dir_fd=fd)
                        os.symlink(target, name, dir_fd=fd)
            return True

        fs = Other(number, swap)
        ended(lambda fs=fs, fd=fd: remove_below(fs, fd))
        os.close(fd)
        assert differences(tree_state(victim), before) == [], number
        left = fs.left
        shutil.rmtree(base)

    assert number > 10
