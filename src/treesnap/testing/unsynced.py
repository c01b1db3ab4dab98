"""A file system that never waits for the disk, for tests that cut no power."""

from __future__ import annotations

from treesnap.fs.local import LocalFileSystem


class UnsyncedFileSystem(LocalFileSystem):
    """The local file system, where syncs do nothing and succeed.

    Not wrapped, because most tests use it and calls are many.
    """

    def sync(self, fd: int, /) -> None:  # type: ignore[override]  # os.fsync takes any object
        """Does nothing."""

    def sync_data(self, fd: int, /) -> None:
        """Does nothing."""

    def sync_file_system(self, fd: int) -> None:
        """Does nothing."""
