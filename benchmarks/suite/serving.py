"""What a fork server saves: small commands of a store that has one."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.suite import peers, process
from benchmarks.suite.results import CPU, Case, Results

SERVER = "treesnap, fork server"
START_TIMEOUT_S = 10.0


def is_there(environment: Mapping[str, str]) -> bool:
    """Returns whether this treesnap has a fork server."""
    return process.works([*peers.snap_command().split(), "config", "fork-server"], environment)


def measure(
    case: Case,
    words: Sequence[str],
    root: Path,
    store: Path,
    environment: Mapping[str, str],
    results: Results,
    *,
    rounds: int,
) -> None:
    """Measures a command of a store that exists; the processor time is the server's, too.

    The system counts that of a server in hundredths of a second, so each command gets the mean
    of all. Raises CommandFailed.
    """
    line = f"{peers.snap_command()} -q -C {root} --store {store} {' '.join(words)}"
    with _server(line, root, store, environment) as server:
        before_s = _spent_s(server)
        outcomes = [process.timed(line, root, environment) for _ in range(rounds)]
        served_s = (_spent_s(server) - before_s) / rounds
    for outcome in outcomes:
        results.add(case, outcome.seconds)
        results.add(case._replace(quantity=CPU), outcome.cpu_seconds + served_s)


@contextmanager
def _server(line: str, root: Path, store: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Yields the process id of a store's server, which a command has used once."""
    setting = f"{peers.snap_command()} -C {root} --store {store} config fork-server"
    process.timed(f"{setting} true", root, environment)
    try:
        process.timed(line, root, environment)  # starts it
        end_s = time.monotonic() + START_TIMEOUT_S
        listening = store / "fork-server" / "socket"
        while not listening.exists():
            if time.monotonic() > end_s:
                raise process.CommandFailed("no fork server started")
            time.sleep(0.01)
        process.timed(line, root, environment)
        yield _listener_of(listening)
    finally:
        process.timed(f"{setting} false", root, environment)


def _listener_of(path: Path) -> int:
    """Returns the process that listens at a socket; see unix(7)."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(path))
        found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process_id, _, _ = struct.unpack("3i", found)
    return int(process_id)


def _spent_s(process_id: int) -> float:
    """Returns the processor time of a process and the children that it waited for."""
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
