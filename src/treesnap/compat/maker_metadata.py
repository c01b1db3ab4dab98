"""MAKER's metadata file of a checkpoint, in the working directory; written on request only.

The store knows everything that is in it. The file is for programs that look for it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from treesnap.compat.maker_result import Created
from treesnap.errors import ErrorCode, Refused
from treesnap.ops.notes import write_note
from treesnap.worktree.directory import NO_DIRECTORY, OPEN_DIRECTORY, DirectoryChain

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_DIRECTORY = ".maker-checkpoints/metadata"


def location_of(checkpoint_id: str) -> str:
    """Returns where a checkpoint's metadata file is, relative to the working directory."""
    return f"{_DIRECTORY}/{checkpoint_id}.json"


def refuse_present(handle: Handle, checkpoint_id: str) -> None:
    """Raises Refused when the file exists: it is not ours."""
    location = location_of(checkpoint_id)
    with suppress(FileNotFoundError, NotADirectoryError):
        handle.fs.lstat(os.path.join(handle.root, location))
        raise Refused(
            f"The metadata file {location!r} exists already",
            code=ErrorCode.TARGET_NOT_EMPTY,
            path=location,
        )


def write(
    handle: Handle, created: Created, *, task_id: str, step_number: int, step_name: str
) -> None:
    """Puts the file there, whole or not at all; durable after return. Follows no link."""
    content = {
        "checkpoint_id": created.checkpoint_id,
        "created_at": created.created_at,
        "task_id": task_id,
        "step_number": step_number,
        "step_name": step_name,
        "strategy": created.strategy,
        "files": [
            {"path": path, "exists_at_checkpoint": state == "captured", "stash_ref": None}
            for path, state in created.files
        ],
        "git_stash_index": None,
        "snapshot_id": created.snapshot_id,
    }
    data = (json.dumps(content, indent=2) + "\n").encode()
    path = location_of(created.checkpoint_id).encode()
    write_note(handle, path, lambda: data, is_note=lambda _: False)


def remove(handle: Handle, checkpoint_id: str) -> None:
    """Removes the file if it is there. Follows no link; raises OSError."""
    fs = handle.fs
    try:
        root_fd = fs.open(handle.root, OPEN_DIRECTORY)
        try:
            with DirectoryChain(fs, root_fd) as chain:
                directory = chain.open(_DIRECTORY.encode())
                fs.unlink(f"{checkpoint_id}.json", dir_fd=directory)
        finally:
            fs.close(root_fd)
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
