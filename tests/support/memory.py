"""What a process takes of memory, whatever becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_LIMIT_BYTES = 1 << 30
_MEASURE = f"""
import json, os, resource, subprocess, sys
limit_bytes = {_LIMIT_BYTES}
if os.path.exists("/proc/self/statm"):
    with open("/proc/self/statm") as pages:
        limit_bytes += int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
with open(sys.argv[1], "wb") as errors:
    child = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=errors)
    _, status, usage = os.wait4(child.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]))
"""
"""Starts the command from a small process: a child begins with the peak of its parent.

What Python reserves as it starts comes on top: 1 GiB where it is free-threaded.
"""


class Ended(NamedTuple):
    """How a process ended."""

    exit_code: int
    peak_bytes: int
    error: str


def run_measured(args: Sequence[str | Path], errors: Path) -> Ended:
    """Runs a command in 1 GiB of address space more than Python takes as it starts.

    Its standard error goes to a file.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", _MEASURE, errors, *args],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    exit_code, peak_kib = json.loads(done.stdout)
    return Ended(exit_code, peak_kib << 10, errors.read_text(errors="surrogateescape"))
