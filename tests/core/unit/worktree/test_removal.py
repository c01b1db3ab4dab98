"""What is removed is what is there, whatever a listing says of its type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from treesnap.core.worktree.apply.removal import remove_below
from treesnap.testing.doubles import Call, WrappedFileSystem


class _Misnamed:
    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry
        self.name = entry.name

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return not self._entry.is_dir(follow_symlinks=follow_symlinks)


class MisnamingFileSystem(WrappedFileSystem):
    """Lists files as directories and directories as files, as vfat does after an exchange."""

    def around(self, call: Call) -> Any:
        result = call.proceed()
        return _misnamed(result) if call.method == "scan" else result


@contextmanager
def _misnamed(listing: Any) -> Iterator[Iterator[_Misnamed]]:
    with listing as entries:
        yield map(_Misnamed, entries)


@pytest.mark.parametrize("fs", [WrappedFileSystem(), MisnamingFileSystem()], ids=["told", "not"])
def test_everything_is_removed_whatever_its_type_is_said_to_be(tmp_path, fs):
    for name in ("a", "b", "c/d", "c/e/f", "g/h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("c")
    fd = fs.open(str(tmp_path), os.O_RDONLY | os.O_DIRECTORY)

    remove_below(fs, fd)

    fs.close(fd)
    assert os.listdir(tmp_path) == []
