"""Room that is kept, so that a full disk can be emptied and a step on it be rolled back.

A collection must write its state before it may delete anything, and a roll-back its record and
its journal before it may change the root. The reserve is two files without meaning; removing them
frees an inode for the first state of a store, another for the file that replaces it, and some
blocks. No step begins without it. The next process that collects or publishes makes
them again when there is room. They are not synced: what a power cut takes is made again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import Temporary, open_lock, sync_directory, unlink_if_present
from treesnap.core.fs.os_errors import is_full
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.type_names import TypeVar
from treesnap.core.store.layout import Layout

RESERVE_SIZE = 32 << 10
"""Bytes of each file."""

_Result = TypeVar("_Result")


class Reserve:
    """The reserve of one store."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout

    def fill(self) -> bool:
        """Makes the missing files of the reserve, and returns whether all are there.

        On a full disk some are not. Makes the collector's lock first, which takes an inode too.
        Costs two looks when both files are there.
        """
        fs, layout = self._fs, self._layout
        with suppress(OSError, Corrupt):
            for path in layout.collector_reserves:
                if not self._is_there(path):
                    fs.close(open_lock(fs, layout.collector_lock))
                    file = Temporary(fs, layout.temporary)
                    try:
                        fs.allocate(file.fd, RESERVE_SIZE)
                    except BaseException:
                        file.discard()
                        raise
                    file.publish(path, synced=False)
            return True
        return False

    def _is_there(self, path: str) -> bool:
        try:
            status = self._fs.lstat(path)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == RESERVE_SIZE

    def retry_without_reserve(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action; when the disk is full, removes the reserve and runs it again.

        Raises OSError, also for a full disk when there is no reserve.
        """
        try:
            return action()
        except OSError as error:
            if not is_full(error) or not self._remove():
                raise
        return action()

    def _remove(self) -> bool:
        paths = self._layout.collector_reserves
        removed = [unlink_if_present(self._fs, path) for path in paths]
        if not any(removed):
            return False
        with suppress(OSError):  # some file systems free the blocks no sooner
            sync_directory(self._fs, os.path.dirname(paths[0]))
        return True
