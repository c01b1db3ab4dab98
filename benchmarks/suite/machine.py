"""What a reader must know of the machine, and nothing by which it could be recognised."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite import peers
from benchmarks.suite.peers import Tool


def facts(place: Path, tools: Sequence[Tool], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns cores, memory, file system and versions."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / (1 << 30)),
        "load_at_start": round(os.getloadavg()[0], 1),
        "file_system": file_system_of(place),
        "system": system_name(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {tool.name: peers.version_of(tool, environment) for tool in tools},
        "commit": commit(),
    }


def file_system_of(place: Path) -> str:
    """Returns the kind of file system on which a directory lies."""
    real = os.path.realpath(place)
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mounted, name = line.split(" ")[:3]
        if os.path.commonpath([mounted, real]) == mounted and len(mounted) >= len(best):
            best, kind = mounted, name
    return kind


def system_name() -> str:
    """Returns the name and the version of the operating system."""
    try:
        found = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{found['NAME']} {found.get('VERSION_ID', '')}".strip()


def commit() -> str:
    """Returns the abbreviated commit that is measured, or 'unknown' outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    directory = Path(__file__).parent
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
