"""Files of a remote that were read before, kept in the store as they are on the server.

Commits, deletions and parts of the index have random names and never change. A state has a name
that can be guessed, so it counts only while the server's listing says that it is the same one.
What is kept was read once and is needed still; nothing is relied on that is not checked as if it
came from the server. Encrypted files stay encrypted. Whatever fails here, the file is read again.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import read_file, refuse_link, replace_file, unlink_if_present
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.ids import checksum
from treesnap.core.store.layout import Layout
from treesnap.remote.blobs.base import BLOB_SIZE_MAX

_CHECKSUM_SIZE = 16
_SIZE_MAX = BLOB_SIZE_MAX + (1 << 10)
_FAILURES = (OSError, TreesnapError)


class FileCache:
    """Files of one remote, each with a tag that says which version of it they are.

    Raises Corrupt where a link is in the place of its directory.
    """

    def __init__(self, fs: FileSystem, layout: Layout, remote_id: bytes) -> None:
        self._fs = fs
        self._directory = layout.remote_cache(remote_id.hex())
        refuse_link(fs, self._directory)
        self._temporary = layout.temporary

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name.replace("/", "_"))

    def get(self, name: str, tag: str | None = "") -> bytes | None:
        """Returns a file that was kept with this tag, or any with None; None if there is none."""
        try:
            data = read_file(self._fs, self._path(name), _SIZE_MAX)
        except _FAILURES:
            return None
        start = 2 * _CHECKSUM_SIZE
        is_right = (
            len(data) >= start
            and checksum(data[_CHECKSUM_SIZE:], _CHECKSUM_SIZE) == data[:_CHECKSUM_SIZE]
            and (tag is None or data[_CHECKSUM_SIZE:start] == _head(tag))
        )
        return data[start:] if is_right else None

    def put(self, name: str, data: bytes, tag: str = "") -> None:
        """Keeps a file; not synced, for one that is lost is read again."""
        content = _head(tag) + data
        with suppress(*_FAILURES):
            with suppress(FileExistsError):
                self._fs.make_directory(self._directory)
            replace_file(
                self._fs,
                self._path(name),
                checksum(content, _CHECKSUM_SIZE) + content,
                temporary=self._temporary,
                durable=False,
            )

    def names(self, folder: str) -> list[str]:
        """Returns the names of the files of a folder that are kept."""
        return [name for name in self._names() if name.startswith(f"{folder}/")]

    def _names(self) -> list[str]:
        with suppress(*_FAILURES):
            return [name.replace("_", "/", 1) for name in self._fs.list_names(self._directory)]
        return []

    def keep_only(self, folders: Collection[str], names: Collection[str]) -> None:
        """Removes the files of some folders whose names are not among these."""
        kept = {os.path.basename(self._path(name)) for name in names}
        with suppress(*_FAILURES):
            for file_name in self._fs.list_names(self._directory):
                if file_name.partition("_")[0] in folders and file_name not in kept:
                    unlink_if_present(self._fs, os.path.join(self._directory, file_name))

    def forget(self) -> None:
        """Removes what a server that was set back does not show any more; key slots stay."""
        folders = {name.partition("/")[0] for name in self._names()}
        self.keep_only(folders - {"keys"}, ())

    def clear(self) -> None:
        """Removes everything."""
        with suppress(*_FAILURES):
            for file_name in self._fs.list_names(self._directory):
                unlink_if_present(self._fs, os.path.join(self._directory, file_name))
            self._fs.remove_directory(self._directory)


def _head(tag: str) -> bytes:
    return checksum(tag.encode(), _CHECKSUM_SIZE)
