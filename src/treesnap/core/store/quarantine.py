"""Where a repair moves damaged files, so that nothing is lost for good.

A later repair reads the packs that lie there, where snapshots miss something. A person may look
at all of it, and remove it.
"""

from __future__ import annotations

import os

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import ensure_directories, read_readable, replace_file, sync_directory
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.store.layout import Layout

_COPY_SIZE_MAX = 256 << 20


class Quarantine:
    """The directory ``quarantine`` of a store, made when it is needed."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout

    def take(self, path: str) -> str:
        """Moves a file there, durably; returns its path in the store. Costs two syncs."""
        target = self._target(path)
        self._fs.rename(path, target)
        sync_directory(self._fs, self._layout.quarantine)
        sync_directory(self._fs, os.path.dirname(path))
        return os.path.relpath(target, self._layout.path)

    def keep_copy(self, path: str) -> str | None:
        """Copies a file there, durably, if it exists; for files that must never be absent.

        Where the disk does not give back a part of it, the copy has zeros; there is none of a
        file that cannot be opened for that reason.
        """
        try:
            data = read_readable(self._fs, path, _COPY_SIZE_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None
        target = self._target(path)
        replace_file(self._fs, target, data, temporary=self._layout.temporary)
        return os.path.relpath(target, self._layout.path)

    def _target(self, path: str) -> str:
        """Returns a free name: the file's path in the store, without the ``/``."""
        ensure_directories(self._fs, self._layout.quarantine)
        name = os.path.relpath(path, self._layout.path).replace(os.sep, ".")
        taken = set(self._fs.list_names(self._layout.quarantine))
        number = 1
        target = name
        while target in taken:
            number += 1
            target = f"{name}.{number}"
        return os.path.join(self._layout.quarantine, target)
