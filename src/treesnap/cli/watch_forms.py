"""What a watcher does, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treesnap.cli.json_forms import path_fields
from treesnap.cli.text_forms import count_text
from treesnap.errors import printable
from treesnap.results import WatchStatus


def fields(root: str, status: WatchStatus | None, *, is_stopped: bool) -> dict[str, Any]:
    """Returns everything that is known; ``running`` says whether there is a watcher now."""
    return {
        "running": status is not None and not is_stopped,
        "stopped": status is not None and is_stopped,
        **path_fields(root, "root"),
        "process_id": status.process_id if status else None,
        "started_at_ns": status.started_at_ns if status else None,
        "directories": status.directories if status else None,
        "every_s": status.every_ms / 1000 if status and status.every_ms is not None else None,
        "on_change": status.on_change if status else None,
        "snapshots": status.snapshots if status else None,
        "last_snapshot": status.last_snapshot if status else None,
        "last_error": status.last_error if status else None,
        "why_lost": status.why_lost if status else None,
    }


def lines(root: str, status: WatchStatus | None, *, is_stopped: bool) -> Iterator[str]:
    """Yields the root's state, and what is to be known of its watcher."""
    if status is None:
        yield f"Not watched: {printable(root)}"
        return
    if is_stopped:
        yield f"Stopped watching {printable(root)}"
    else:
        directories = count_text(status.directories, "directory", "directories")
        yield f"Watching {printable(root)}: {directories}, process {status.process_id}"
        if status.every_ms is not None:
            yield f"  a snapshot every {status.every_ms / 1000:g} s, if something changed"
        if status.on_change:
            yield "  a snapshot soon after something changed"
    if status.snapshots and status.last_snapshot is not None:
        made = count_text(status.snapshots, "snapshot")
        yield f"  {made} made, the last one is {status.last_snapshot[:12]}"
    if status.last_error is not None:
        yield f"  the last snapshot failed: {printable(status.last_error)}"
    if status.why_lost is not None:
        yield f"  began anew, because {printable(status.why_lost)}"
