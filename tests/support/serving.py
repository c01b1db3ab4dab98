"""Fork servers of tests, and clients that cost no new interpreter."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import treesnap.cli.main
from treesnap.cli import start
from treesnap.cli.client import end_server

FELL_BACK = 77
"""The exit code of a client that would do its command itself."""
CLIENT = (
    "import os, treesnap.cli.main; "
    f"treesnap.cli.main.main = lambda **_: os._exit({FELL_BACK}); "
    "from treesnap.cli.start import main; main()"
)
SERVER = (
    "import sys, treesnap.cli.fork_server as server; "
    "server.CHILDREN_MAX = int(sys.argv[3]); server.serve(sys.argv[1], float(sys.argv[2]))"
)
TIMEOUT_S = 60


@contextmanager
def serving(
    store: Path, variables: Mapping[str, str], *, idle_s: float = 600.0, children_max: int = 16
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server for a store; yields once it listens, unless it ends at once."""
    directory = store / "fork-server"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = [str(store), str(idle_s), str(children_max)]
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVER, *words],
            stdin=lock,
            env=dict(variables),
            start_new_session=True,
        )
    try:
        while not (directory / "socket").exists() and server.poll() is None:
            os.sched_yield()
        yield server
    finally:
        end_server(str(store))
        try:
            server.wait(TIMEOUT_S)
        finally:
            server.kill()


def become_client() -> None:
    """Makes a child of a test the client that a new interpreter would be."""
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    treesnap.cli.main.main = lambda **_: os._exit(FELL_BACK)
    start.main()


def client(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a client as a process of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-c", CLIENT, *words], **options)


def children_of(process_id: int) -> list[int]:
    """Returns the children of a process."""
    path = Path(f"/proc/{process_id}/task/{process_id}/children")
    return [int(word) for word in path.read_text().split()]


def status_of(process_id: int) -> dict[str, str]:
    """Returns the lines of a process's status."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
