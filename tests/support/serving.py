"""Fork servers of tests, and clients that cost no new interpreter."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import treesnap.cli.main
from calling import become
from treesnap.cli import fork_server, start
from treesnap.cli.fork_client import end_server
from treesnap.core.fs import peers

FELL_BACK = 77
"""The exit code of a client that would do its command itself."""
CLIENT = (
    "import os, sys, types; from treesnap.core.fs import peers; peers.PATIENCE_S = 60; "
    "sys.modules['treesnap.cli.main'] = types.SimpleNamespace("
    f"main=lambda **_: os._exit({FELL_BACK})); "
    "from treesnap.cli.start import main; main()"
)
LIAR = CLIENT.replace("; from treesnap.cli", "; peers.rights_of = lambda *_: 0; from treesnap.cli")
"""A client that does not look at the rights of the other process."""
TIMEOUT_S = 60


class Server:
    """A fork server in a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process_fd = os.pidfd_open(pid)

    def wait(self) -> None:
        """Waits for its end, which may come by a signal."""
        if self._process_fd >= 0:
            assert select.select([self._process_fd], [], [], TIMEOUT_S)[0], "the server goes on"
            os.waitpid(self.pid, 0)
            os.close(self._process_fd)
            self._process_fd = -1

    def kill(self) -> None:
        """Kills it, unless it has ended."""
        if self._process_fd >= 0:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def is_running(self) -> bool:
        """Returns whether it has not ended."""
        return self._process_fd >= 0 and not select.select([self._process_fd], [], [], 0)[0]


@contextmanager
def serving(
    store: Path, variables: Mapping[str, str], *, idle_s: float = 600.0, children_max: int = 16
) -> Iterator[Server]:
    """Runs a server for a store; yields once it listens, unless it ends at once."""
    directory = store / "fork-server"
    directory.mkdir(parents=True, exist_ok=True)

    def serve() -> NoReturn:
        os.setsid()
        os.closerange(3, 1 << 10)
        sys.orig_argv[:] = [sys.executable, *sys.argv]
        sys.path[:] = [path for path in sys.path if "tests" not in Path(path).parts]
        peers.PATIENCE_S = TIMEOUT_S
        fork_server.CHILDREN_MAX = children_max
        fork_server.serve(str(store), idle_s)
        os._exit(0)

    with (directory / "lock").open("a+") as lock, Path(os.devnull).open("w") as null:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process_id = os.fork()
        if process_id == 0:
            fds = [lock.fileno(), null.fileno(), null.fileno()]
            become([], fds, Path("/"), dict(variables), program=serve)
    server = Server(process_id)
    try:
        while not (directory / "socket").exists() and server.is_running():
            os.sched_yield()
        yield server
    finally:
        if server.is_running():
            end_server(str(store))
        try:
            server.wait()
        finally:
            server.kill()


def become_client() -> None:
    """Makes a child of a test the client that a new interpreter would be."""
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    peers.PATIENCE_S = TIMEOUT_S  # machines may be busy
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
