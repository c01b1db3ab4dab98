"""File systems that tests mount, and take away again.

Only the superuser may mount, and not in every container: where it is not possible, the
test is skipped with what ``mount`` said.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Mounter:
    """Mounts; everything is unmounted again by :func:`mounting`."""

    def __init__(self) -> None:
        self.places: list[Path] = []

    def tmpfs(self, place: Path, size: str = "16m") -> Path:
        """Mounts an empty file system in memory and returns the place, which is made if need be."""
        place.mkdir(parents=True, exist_ok=True)
        self._mount(place, "-t", "tmpfs", "-o", f"size={size},mode=755", "treesnap-test")
        return place

    def image(self, place: Path, kind: str, size_mib: int) -> Path:
        """Mounts a new file system of a kind that is kept in a file beside the place."""
        place.mkdir(parents=True, exist_ok=True)
        image = place.with_name(f"{place.name}.image")
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        reserve = ["-m", "0"] if kind == "ext4" else []  # what only the superuser may fill
        _run(f"mkfs.{kind}", "-q", *reserve, str(image))
        self._mount(place, "-o", "loop", str(image))
        return place

    def image_again(self, place: Path) -> None:
        """Mounts what :meth:`image` made and was unmounted, perhaps by another device."""
        self._mount(place, "-o", "loop", str(place.with_name(f"{place.name}.image")))

    def bind(self, source: Path, place: Path) -> None:
        """Mounts a file or directory a second time."""
        self._mount(place, "--bind", str(source))

    def overlay(self, directory: Path, lower: Path | None = None, *options: str) -> Path:
        """Mounts an overlay, the layers of which are in a directory too, and returns its place.

        What lies in ``lower`` there already is what the lower layer holds, unless another directory
        is given for that.
        """
        lower = lower or directory / "lower"
        upper, work, place = (directory / name for name in ("upper", "work", "place"))
        for layer in (lower, upper, work, place):
            layer.mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        self._mount(place, "-t", "overlay", "-o", ",".join([layers, *options]), "treesnap-test")
        return place

    def dead(self, place: Path) -> Path:
        """Mounts a FUSE file system of which the daemon is gone: each look says ENOTCONN."""
        place.mkdir(parents=True, exist_ok=True)
        device = os.open("/dev/fuse", os.O_RDWR)
        try:
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
            library = ctypes.CDLL(None, use_errno=True)
            if library.mount(b"treesnap-test", os.fsencode(place), b"fuse", 0, options) != 0:
                pytest.skip(f"FUSE is not possible here: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(device)
        self.places.append(place)
        return place

    def take_on(self, place: Path) -> None:
        """Unmounts in the end what another process has mounted."""
        self.places.append(place)

    def read_only(self, place: Path, *, yes: bool = True) -> None:
        """Makes a mounted file system read-only, or writable again."""
        _run("mount", "-o", f"remount,{'ro' if yes else 'rw'}", str(place))

    def resize(self, place: Path, size: str) -> None:
        """Gives a file system in memory another size."""
        _run("mount", "-o", f"remount,size={size}", str(place))

    def unmount(self, place: Path) -> None:
        """Takes a file system away before the others."""
        _unmount(place)
        self.places.remove(place)

    def _mount(self, place: Path, *words: str) -> None:
        _run("mount", *words, str(place))
        self.places.append(place)


def _run(*words: str) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError as error:
        pytest.skip(f"{words[0]} is not installed: {error}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(words)} is not possible here: {error.stderr.decode()}")


@contextmanager
def mounting() -> Iterator[Mounter]:
    """Lends a :class:`Mounter`; skips the test where mounting is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser may mount")
    mounter = Mounter()
    try:
        yield mounter
    finally:
        for place in reversed(mounter.places):
            _unmount(place)


def _unmount(place: Path) -> None:
    """Unmounts a file system of which only garbage may still have files open.

    Since Python 3.13 an error that went through context managers is in a reference cycle, and
    with it the index of a store that was open.
    """
    gc.collect()
    subprocess.run(["umount", str(place)], check=True)
