"""A file system that never waits for the disk, for tests that cut no power."""

from __future__ import annotations

from typing import Any

from treesnap.testing.wrapped import Call, Kind, WrappedFileSystem


class UnsyncedFileSystem(WrappedFileSystem):
    """Lets every call through except syncs, which do nothing and succeed."""

    def around(self, call: Call) -> Any:
        """Makes the call unless it is a sync."""
        return call.proceed() if call.kind != Kind.SYNC else None
