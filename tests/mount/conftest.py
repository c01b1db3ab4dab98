"""``snap mount`` in a process of its own, where this machine can mount by FUSE."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest

from capabilities import require
from treesnap.core.handle import Handle
from treesnap.core.model.errors import OperationFailed
from treesnap.core.ops.context import context_at
from treesnap.mount.fuse import load_binding
from treesnap.testing.doubles import UnsyncedFileSystem

PROGRAM = [sys.executable, "-P", "-m", "treesnap"]


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def handle(tmp_path, root) -> Handle:
    return Handle(
        context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
    )


class Mounted:
    """A history that a process serves."""

    def __init__(self, handle: Handle, place: Path, *options: str) -> None:
        self.place = place
        where = ["-C", handle.root, "--store", handle.store_path]
        self.process = subprocess.Popen(
            [*PROGRAM, "mount", *where, *options, place],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline()]
        if self.lines[0].startswith("Cleared"):
            self.lines.append(self.process.stdout.readline())
        if not self.lines[-1]:
            pytest.fail(f"it was not mounted: {self.process.communicate()[1]}")

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Ends the process by a signal; returns its exit code and what it reported."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


def require_fuse() -> None:
    """Skips a test where nothing can be mounted by FUSE."""
    require("mounts")
    try:
        load_binding()
    except OperationFailed as error:
        pytest.skip(str(error))
    if find_library("fuse3") is None:
        pytest.skip("libfuse 3 is not installed")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"this machine offers no FUSE: {error}")


@pytest.fixture
def mount(tmp_path, handle) -> Iterator[Callable[..., Mounted]]:
    """Mounts the history of the root at an empty directory; skips where that is not possible."""
    require_fuse()
    started: list[Mounted] = []

    def make(place: Path | None = None, *options: str) -> Mounted:
        where = place or tmp_path / "mounted"
        if place is None:
            where.mkdir()
        started.append(Mounted(handle, where, *options))
        return started[-1]

    yield make
    for mounted in started:
        mounted.end()
        if is_mounted(mounted.place):
            detach(mounted.place)


def detach(place: Path) -> None:
    """Ends a mount, also while a program uses it."""
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    command = [helper, "-u", "-z"] if helper else ["umount", "-l"]
    subprocess.run([*command, place], check=False)


def mount_points() -> list[Path]:
    """Returns where something is mounted, as the kernel lists it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split(" ")[4]) for line in lines]


def is_mounted(place: Path) -> bool:
    """Returns whether the kernel's list has a mount at a path."""
    return place in mount_points()
