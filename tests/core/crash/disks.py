"""Disks whose plug can be pulled: loop-mounted images, cloned while they are written to.

The image lies on a file system that clones files at an instant, an XFS of its own in
another image. A clone holds what had reached the disk by then, and nothing of what the
kernel kept in memory: what is there when the power is gone.

All mounts are in a mount namespace of this process, and the outer image has no name
any more once it is mounted, so that nothing is left even when the process is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOST_SIZE = 8 << 30
"""Bytes of the outer image; it takes only what is written to it."""
DISK_SIZE = 400 << 20
KINDS = ("ext4", "xfs", "btrfs")
OPTIONS = {"ext4": ("-q", "-F", "-b", "4096"), "xfs": ("-q",), "btrfs": ("-q",)}
"""What a file system is made with; small blocks would have no room for long links."""
BACKGROUND_S = 60
"""How long what a command leaves in the background may use a disk."""
UNSHARE = ("unshare", "--mount", "--propagation", "private")


class NotPossible(Exception):
    """Raised where this machine lacks a program or the permission to mount."""


def run(*words: str | Path) -> None:
    """Runs a program that has to succeed; raises NotPossible with what it said."""
    try:
        ended = subprocess.run([*map(str, words)], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise NotPossible(f"{words[0]} is not installed") from error
    if ended.returncode != 0:
        said = ended.stderr.decode("utf-8", "replace").strip()
        raise NotPossible(f"{' '.join(map(str, words))}: {said}")


def require(kind: str) -> None:
    """Raises NotPossible unless file systems of a kind can be made."""
    if shutil.which(f"mkfs.{kind}") is None:
        raise NotPossible(f"mkfs.{kind} is not installed")


def enter_private_mounts(module: str, mark: str) -> None:
    """Goes on as the same process in a mount namespace of its own; raises NotPossible.

    The module is run again, with ``mark`` as its first argument.
    """
    run(*UNSHARE, "true")
    sys.stdout.flush()
    words = [*UNSHARE, sys.executable, "-m", module, mark, *sys.argv[1:]]
    os.execvp(words[0], words)


@contextmanager
def host(directory: Path) -> Iterator[Path]:
    """Mounts a new file system that clones files, for as long as the block runs."""
    image, place = directory / "host.img", directory / "host"
    place.mkdir()
    try:
        _make_image(image, "xfs", HOST_SIZE, "-m", "reflink=1")
        run("mount", "-o", "loop", image, place)
    finally:
        image.unlink(missing_ok=True)
    try:
        yield place
    finally:
        run("umount", "--lazy", place)


def _make_image(image: Path, kind: str, size: int, *options: str) -> None:
    require(kind)
    with image.open("wb") as file:
        file.truncate(size)
    run(f"mkfs.{kind}", *OPTIONS[kind], *options, image)


class Disk:
    """A disk of one kind of file system, always mounted at the same place."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.kind = kind
        self.place = directory / "mounted"
        """Where the disk is mounted."""
        self._images = directory
        self.place.mkdir(parents=True)
        _make_image(self.image("live"), kind, DISK_SIZE)

    def image(self, name: str) -> Path:
        """Path of an image."""
        return self._images / f"{name}.img"

    @contextmanager
    def mounted(self, name: str) -> Iterator[Path]:
        """Mounts an image for as long as the block runs."""
        if self.kind == "btrfs":
            run("btrfs", "device", "scan", "--forget")  # a clone has the same identity
        run("mount", "-o", "loop", self.image(name), self.place)
        try:
            yield self.place
        except BaseException:
            run("umount", "--lazy", self.place)
            raise
        self._unmount()

    def _unmount(self) -> None:
        """Unmounts when the background process of the last command has ended."""
        deadline = time.monotonic() + BACKGROUND_S
        while subprocess.run(["umount", self.place], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.place} is still in use")
            time.sleep(0.02)

    def clone(self, source: str, target: str) -> None:
        """Makes a copy of an image at one instant."""
        run("cp", "--reflink=always", self.image(source), self.image(target))

    def drop(self, name: str) -> None:
        """Removes an image."""
        self.image(name).unlink()

    def settle(self) -> None:
        """Puts everything that was written so far on the mounted disk."""
        run("sync", "--file-system", self.place)
