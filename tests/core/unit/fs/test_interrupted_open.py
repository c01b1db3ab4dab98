"""A signal that arrives while a file is being opened leaves no descriptor behind."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from descriptors import open_descriptors
from treesnap.core.fs.local import LocalFileSystem

INTERRUPTIONS = 300
INTERVAL_S = 0.0002


class Interrupted(BaseException):
    """What the handler of the signal raises, as that of Ctrl-C does."""


def _raise(_number: int, _frame: object) -> None:
    raise Interrupted


def open_and_close(fs: LocalFileSystem, path: str) -> None:
    while True:
        fd = fs.open(path, os.O_RDONLY)
        try:
            fs.read(fd, 1)
        finally:
            fs.close(fd)


def test_hundreds_of_interruptions_leave_no_descriptor(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("content")
    fs = LocalFileSystem()
    before = open_descriptors()
    old_handler = signal.signal(signal.SIGALRM, _raise)
    try:
        for _ in range(INTERRUPTIONS):
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, INTERVAL_S)
                open_and_close(fs, str(path))
    finally:
        signal.signal(signal.SIGALRM, old_handler)

    assert open_descriptors() == before
