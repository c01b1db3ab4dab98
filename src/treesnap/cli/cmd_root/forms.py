"""Roots as lines for people and as fields for programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from treesnap.cli.json_forms import path_fields
from treesnap.errors import printable
from treesnap.results import RootDirectory, RootInfo

_WORDS = {
    RootDirectory.PRESENT: "",
    RootDirectory.ABSENT: "  (no directory there)",
    RootDirectory.REPLACED: "  (another directory there)",
}


def fields(info: RootInfo) -> dict[str, Any]:
    """Returns everything that is known of a root."""
    return {
        "id": info.id,
        **path_fields(info.path),
        "snapshots": info.snapshots,
        "newest_at_ns": info.newest_at_ns,
        "directory": info.directory.value,
        "interrupted": info.interrupted,
        "earlier_paths": [path_fields(path) for path in info.earlier_paths],
    }


def lines(found: Iterable[RootInfo]) -> Iterator[str]:
    """Yields a line for each root: id, newest snapshot, number of snapshots, path."""
    for info in found:
        newest = "-"
        if info.newest_at_ns is not None:
            newest = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.newest_at_ns // 10**9))
        where = printable(info.path) + _WORDS[info.directory]
        where += "  (a restore was interrupted)" if info.interrupted else ""
        yield f"{info.id[:12]}  {newest:19}  {info.snapshots:>6,}  {where}"
