"""MAKER's metadata file of a checkpoint, in the working directory; written on request only.

The store knows everything that is in it. The file is for programs that look for it. One that
names another snapshot, or none, belongs to another program and is left alone.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from treesnap.compat.maker_result import Created
from treesnap.errors import ErrorCode, Refused
from treesnap.ops.sidecar_files import read_sidecar, remove_sidecar, write_sidecar

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_DIRECTORY = ".maker-checkpoints/metadata"


def location_of(checkpoint_id: str) -> str:
    """Returns where a checkpoint's metadata file is, relative to the working directory."""
    return f"{_DIRECTORY}/{checkpoint_id}.json"


def refuse_foreign(handle: Handle, checkpoint_id: str, snapshot_id: str | None) -> None:
    """Raises Refused when the file exists and does not speak of a snapshot, if there is one."""
    location = location_of(checkpoint_id)
    with suppress(FileNotFoundError, NotADirectoryError):
        handle.context.fs.lstat(os.path.join(handle.root, location))
        found = read_sidecar(handle.context, location.encode())
        if snapshot_id is None or not _speaks_of(found, snapshot_id):
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
    write_sidecar(
        handle.context,
        path,
        lambda: data,
        is_sidecar=lambda found: _speaks_of(found, created.snapshot_id),
    )


def remove(handle: Handle, checkpoint_id: str, snapshot_id: str) -> None:
    """Removes the file if it speaks of a snapshot. Follows no link; raises OSError."""
    location = location_of(checkpoint_id).encode()
    if _speaks_of(read_sidecar(handle.context, location), snapshot_id):
        remove_sidecar(handle.context, location)


def _speaks_of(content: bytes | None, snapshot_id: str) -> bool:
    try:
        return content is not None and json.loads(content)["snapshot_id"] == snapshot_id
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
