"""Bytes that were read from a remote and are needed again: in a file without a name, so not in
memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Self

from treesnap.core.fs.os_errors import translating_os_errors


class Spool:
    """A file that nothing else opens and that is gone when this is. Use as a context manager.

    Raises StorageFull and OperationFailed.
    """

    def __init__(self, directory: str) -> None:
        """Makes it on the file system of a directory."""
        with self._translating():
            self._file = TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed at the end
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @staticmethod
    @contextmanager
    def _translating() -> Iterator[None]:
        with translating_os_errors("keep what was read from the remote"):
            yield

    def append(self, data: bytes | memoryview) -> int:
        """Writes bytes at the end; returns where they begin."""
        start, left = self._end, memoryview(data)
        with self._translating():
            while left:
                written = os.pwrite(self._file.fileno(), left, self._end)
                self._end += written
                left = left[written:]
        return start

    def read(self, start: int, size: int) -> bytes:
        """Returns bytes that were written."""
        with self._translating():
            return os.pread(self._file.fileno(), size, start)
