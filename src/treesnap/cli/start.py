"""Where the command starts, before its modules are imported.

Importing them takes longer than some commands, so Ctrl-C is handled here too, and an everyday
command looks here for a fork server, which has imported them. That look costs one system call
where there is none. This module imports nothing that a bare interpreter has not loaded.
"""

from __future__ import annotations

import os
import sys

import treesnap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

INTERRUPTED = 130
FAILED, USAGE = 1, 2
"""As in ``cli.failure``, which is not imported yet."""
SERVED = frozenset({"create", "list", "status", "diff", "restore", "undo", "redo", "hook"})
"""The commands that a fork server runs."""
SERVER_DIRECTORY = "fork-server"
"""As in ``store.layout``, which is not imported yet."""

_WITH_VALUE = frozenset({"-C", "--store", "--wait"})
_APART = frozenset({"SNAP_STEP", "LD_PRELOAD", "LD_AUDIT"})
"""Variables of processes that take no part in a server.

Whatever a step runs ends with it; its variable is as in ``ops.processes``. A library that is loaded
first may change what the calls of this process do, and not those of a server.
"""
_OF_THIS_PROCESS = ("/proc/", "/dev/fd", "/dev/std")
"""Paths that lead elsewhere in another process."""
_FLAGS = frozenset({"--json", "-q", "--quiet"})


def main() -> NoReturn:
    """Runs the command line of this process and ends it, with 130 when it is interrupted."""
    problem = treesnap.unsupported()
    if problem is not None:
        print(problem, file=sys.stderr)
        sys.exit(FAILED if "hook" in sys.argv else USAGE)  # a host would take that for a refusal
    try:
        store = store_for_server(sys.argv) if "hook" in sys.argv else None
        if store is not None and not os.environ.get("SNAP_DISABLE"):
            from treesnap.cli.hook_client import run_in_watcher

            run_in_watcher(sys.argv, store)  # returns where no watcher carries it out
        directory = server_directory(sys.argv)
        if directory is not None:
            from treesnap.cli.fork_client import run_in_server

            run_in_server(directory)  # returns where no server runs the command
        from treesnap.cli.main import main as run

        run(may_start_server=not _APART & os.environ.keys())
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def server_directory(words: Sequence[str]) -> str | None:
    """Returns the directory where a fork server may listen, or None where there is no socket.

    ``words`` are the program and its arguments. None as well where this process has to do the work
    in any case: it is another command, it belongs to a step of another one, a library is loaded
    before those that it needs, a standard stream is closed, or a path leads to open files.
    """
    store = store_for_server(words)
    if store is None or None in (sys.stdin, sys.stdout, sys.stderr):
        return None
    try:
        os.lstat(f"{store}/{SERVER_DIRECTORY}/socket")
    except (OSError, ValueError):
        return None
    return f"{store}/{SERVER_DIRECTORY}"


def store_for_server(words: Sequence[str]) -> str | None:
    """Returns the path of the store whose server may run a command, or None for none.

    The server understands the command line itself, so a path that is taken for the store by
    mistake changes only which server is asked.
    """
    command = _command_at(words)
    if command is None or _APART & os.environ.keys():
        return None
    store = os.environ.get("SNAP_STORE") or _default_store()
    for position, word in enumerate(words):
        if word == "--store" and position + 1 < len(words):
            store = words[position + 1]
        elif word.startswith("--store="):
            store = word.removeprefix("--store=")
    if any(path in word for word in (*words, store or "") for path in _OF_THIS_PROCESS):
        return None
    return store or None


def _command_at(words: Sequence[str]) -> int | None:
    """Returns where the name of a command stands that a server may run, or None."""
    program = os.path.basename(words[0])
    if any(f"_{name.upper()}_COMPLETE" in os.environ for name in (program, "treesnap")):
        return None
    position = 1
    while position < len(words):
        word = words[position]
        if word in _WITH_VALUE:
            position += 2
        elif word in _FLAGS or word.startswith("--store="):
            position += 1
        else:
            return position if word in SERVED else None
    return None


def _default_store() -> str | None:
    """Returns the store of the user's data, or None where ``platformdirs`` has to say it."""
    data = os.environ.get("XDG_DATA_HOME", "")
    if not data.strip():
        home = os.environ.get("HOME", "")
        data = f"{home}/.local/share" if os.path.isabs(home) else ""
    return f"{data}/treesnap" if os.path.isabs(data) else None
