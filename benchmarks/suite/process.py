"""Running a command line as a whole process: how long it took, and its most memory.

Run as a program, this module starts the commands that it is sent, one in a line.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LIMIT_S = 900.0
"""A command that takes longer is killed, and counts as failed."""


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the message holds no path."""


@dataclass(frozen=True)
class Outcome:
    """What one command took."""

    seconds: float
    cpu_seconds: float
    """Of all processes together, also what the kernel did for them."""

    memory_bytes: int
    """The most that any single process of the command line had resident."""


def environment_of(home: Path) -> dict[str, str]:
    """Returns the environment of all programs: no user's settings, caches below ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    hidden = {"PYTHONDONTWRITEBYTECODE", "SNAP_STORE", "XDG_DATA_HOME", "XDG_CACHE_HOME"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith(("GIT_", "RESTIC_", "BORG_", "COVERAGE_"))
    }
    return kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "RESTIC_PASSWORD": "benchmark",
        "RESTIC_CACHE_DIR": str(home / "restic-cache"),
        "BORG_BASE_DIR": str(home),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }


def timed(command: str, directory: Path, environment: Mapping[str, str]) -> Outcome:
    """Runs a shell command line after its file system was synced.

    Raises CommandFailed. What the command prints goes nowhere, its errors where ours go.
    """
    launcher = _launcher()
    assert launcher.stdin
    assert launcher.stdout
    subprocess.run(["sync", "-f", directory], check=True)
    order = {"command": command, "directory": str(directory), "environment": dict(environment)}
    launcher.stdin.write(json.dumps(order) + "\n")
    launcher.stdin.flush()
    answer = json.loads(launcher.stdout.readline())
    if answer["exit_code"]:
        raise CommandFailed(f"exit code {answer['exit_code']} after {answer['seconds']:.1f} s")
    return Outcome(answer["seconds"], answer["cpu_seconds"], answer["memory_bytes"])


@cache
def _launcher() -> subprocess.Popen[str]:
    """Returns a small process that starts all commands.

    On Linux the most memory of a process is at least that of the process which started it.
    """
    command = [sys.executable, "-I", "-S", __file__]
    launcher = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    atexit.register(_end, launcher)
    return launcher


def _end(launcher: subprocess.Popen[str]) -> None:
    launcher.communicate()


def _launch(order: dict[str, Any]) -> dict[str, float]:
    """Runs one command line and says what it took."""
    begin_s = time.perf_counter()
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", order["command"]],
        cwd=order["directory"],
        env=order["environment"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    guard = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    guard.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin_s
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        guard.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "memory_bytes": usage.ru_maxrss * 1024,
        "exit_code": process.returncode,
    }


def wait_for_background(store: Path) -> None:
    """Waits until the process has ended that a command left to tidy up its store, if any.

    What it does is not part of the command, and must not slow the next one down.
    """
    with suppress(FileNotFoundError), (store / "collector" / "background").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def works(command: list[str], environment: Mapping[str, str]) -> bool:
    """Returns whether a command can be run and succeeds."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_launch(json.loads(line))), flush=True)
