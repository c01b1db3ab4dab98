"""Mounts that come and go while a watcher adds directories: the kernel does not report them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import treesnap
from mounting import Mounter, mounting
from treesnap.testing.doubles import Call, WrappedFileSystem
from watching import DIRECTORIES


class Binding(WrappedFileSystem):
    """Shows another directory in the place of one while that is opened, the first time."""

    def __init__(self, mounter: Mounter, shown: Path, place: Path) -> None:
        super().__init__()
        self._mounter = mounter
        self._shown = shown
        self._place = place
        self._is_done = False

    def around(self, call: Call) -> Any:
        if self._is_done or (call.method, call.path) != ("open", str(self._place)):
            return call.proceed()
        self._is_done = True
        self._mounter.bind(self._shown, self._place)
        try:
            return call.proceed()
        finally:
            subprocess.run(["umount", "--lazy", self._place], check=True)
            self._mounter.places.remove(self._place)


class OfOldKernel(Binding):
    """Does the same where no kernel says through which mount something was opened."""

    def around(self, call: Call) -> Any:
        return None if call.method == "mount_id" else super().around(call)


def test_a_directory_that_is_shown_elsewhere_for_a_moment_is_watched_on(world):
    """It has one watch, which the place where it was shown must not take over."""
    place = world.root / "new"
    with mounting() as mounter:
        world.watch(fs=Binding(mounter, world.root / "d0", place), reads_ahead=False)
        place.mkdir()
        (place / "other").write_text("another one")

        world.listed_by_create()
        (world.root / "d0" / "other").write_text("edited")
        assert world.listed_by_create() == 0

    assert "mounted" in world.watcher.why_lost


def test_the_root_that_is_shown_below_itself_for_a_moment_is_watched_on(world):
    place = world.root / "new"
    with mounting() as mounter:
        world.watch(fs=OfOldKernel(mounter, world.root, place), reads_ahead=False)
        place.mkdir()

        assert world.listed_by_create() >= DIRECTORIES
        (world.root / "d0" / "other").write_text("edited")
        assert world.listed_by_create() == 0

    assert world.watcher.why_lost == "the root is below itself"


@pytest.mark.needs("mounts")
def test_a_file_system_knows_through_which_mount_something_was_opened(tmp_path):
    fs = treesnap.open(tmp_path).context.fs
    for name in ("plain", "shown"):
        (tmp_path / name).mkdir()
    with mounting() as mounter:
        mounter.bind(tmp_path / "plain", tmp_path / "shown")
        fds = [os.open(tmp_path / name, os.O_RDONLY) for name in (".", "plain", "shown")]
        here, plain, shown = map(fs.mount_id, fds)
        for fd in fds:
            os.close(fd)

    assert here == plain != shown
