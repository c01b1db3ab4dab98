"""MAKER's metadata file of a checkpoint, in the working directory; written on request only.

The store knows everything that is in it. The file is for programs that look for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treesnap.compat.maker_result import Created
from treesnap.errors import ErrorCode, Refused
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import write_all
from treesnap.worktree.directory import OPEN_DIRECTORY

_DIRECTORY = (".maker-checkpoints", "metadata")
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755


def location_of(checkpoint_id: str) -> str:
    """Returns where a checkpoint's metadata file is, relative to the working directory."""
    return os.path.join(*_DIRECTORY, f"{checkpoint_id}.json")


def refuse_present(fs: FileSystem, root: str, checkpoint_id: str) -> None:
    """Raises Refused when the file exists: it is not ours, and would be overwritten."""
    location = location_of(checkpoint_id)
    with suppress(FileNotFoundError):
        fs.lstat(os.path.join(root, location))
        raise Refused(
            f"The metadata file {location!r} exists already",
            code=ErrorCode.TARGET_NOT_EMPTY,
            path=location,
        )


def write(
    fs: FileSystem, root: str, created: Created, *, task_id: str, step_number: int, step_name: str
) -> None:
    """Puts the file there, whole or not at all; durable after return.

    Follows no link: nothing outside the root is written. Raises OSError.
    """
    content = {
        "checkpoint_id": created.checkpoint_id,
        "created_at": created.created_at,
        "task_id": task_id,
        "step_number": step_number,
        "step_name": step_name,
        "strategy": created.strategy,
        "files": [
            {
                "path": item.path,
                "exists_at_checkpoint": item.state == "captured",
                "stash_ref": None,
            }
            for item in created.files
        ],
        "git_stash_index": None,
        "snapshot_id": created.snapshot_id,
    }
    data = (json.dumps(content, indent=2) + "\n").encode()
    temporary, name = f".{created.checkpoint_id}.new", f"{created.checkpoint_id}.json"
    with _directory(fs, root, make=True) as directory:
        fd = fs.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE, dir_fd=directory)
        try:
            write_all(fs, fd, data)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        fs.rename(temporary, name, source_dir_fd=directory, target_dir_fd=directory)
        fs.sync(directory)


def remove(fs: FileSystem, root: str, checkpoint_id: str) -> None:
    """Removes the file if it is there. Follows no link; raises OSError."""
    with suppress(FileNotFoundError), _directory(fs, root, make=False) as directory:
        fs.unlink(f"{checkpoint_id}.json", dir_fd=directory)


@contextmanager
def _directory(fs: FileSystem, root: str, *, make: bool) -> Iterator[int]:
    """Yields a descriptor of the directory of all these files."""
    fd = fs.open(root, OPEN_DIRECTORY)
    try:
        for name in _DIRECTORY:
            if make:
                with suppress(FileExistsError):
                    fs.make_directory(name, _DIRECTORY_MODE, dir_fd=fd)
                    fs.sync(fd)
            below = fs.open(name, OPEN_DIRECTORY, dir_fd=fd)
            fs.close(fd)
            fd = below
        yield fd
    finally:
        fs.close(fd)
