"""Asks the watcher of a root for its status, stops it, and starts one in the background."""

from __future__ import annotations

import json
import os
import subprocess

from treesnap.core.codec.watch import Asked, Question, decode_status, encode_question
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.peers import PATIENCE_S
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    OperationFailed,
    StoreMissing,
    TreesnapError,
)
from treesnap.core.model.results import WatchStatus
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import opened
from treesnap.core.ops.known_changes import ask
from treesnap.core.own_program import module_words, start_in_background
from treesnap.core.store.lock import held

if TYPE_CHECKING:
    from treesnap.core.ops.context import Context

_STATUS_PATIENCE_S = 3.0
"""How long a status may take: it comes from a thread that does nothing else, so only a suspended
watcher takes longer."""
_PATIENCE_MAX_S = 24 * 60 * 60
"""A socket cannot wait longer, and ``--wait inf`` is allowed."""


def status(context: Context) -> WatchStatus | None:
    """Returns the status of the root's watcher, or None when there is none.

    Raises Busy when it does not answer within ``wait_s`` or three seconds, whichever is shorter.
    """
    return _asked(context, Asked.STATUS, min(_patience_s(context), _STATUS_PATIENCE_S))


def stop(context: Context) -> WatchStatus | None:
    """Stops the root's watcher and waits until it has ended; returns its last status, or None.

    Raises Busy when it does not answer, or does not end within ``wait_s`` or a second, whichever
    is longer.
    """
    last = _asked(context, Asked.STOP, _patience_s(context))
    if last is not None:
        directory = _directory(context)
        assert directory is not None
        with held(
            context.fs,
            os.path.join(directory, "lock"),
            operation="watch --stop",
            what="The watch",
            wait_s=_patience_s(context),
        ):
            pass
    return last


def _directory(context: Context) -> str | None:
    try:
        with opened(context, "look for a watcher", recover=False) as session:
            return session.root.file("watch")
    except StoreMissing:
        return None


def _asked(context: Context, asked: Asked, patience_s: float) -> WatchStatus | None:
    directory = _directory(context)
    if directory is None:
        return None
    try:
        question = encode_question(Question(asked))
        return decode_status(ask(directory, question, patience_s))
    except (FileNotFoundError, ConnectionError, Unsupported):  # where none can listen
        return None
    except (TimeoutError, BlockingIOError):  # the latter when many are waiting
        raise Busy(
            "The watcher does not answer; it may be suspended",
            path=directory,
        ) from None
    except (OSError, Corrupt) as error:
        raise OperationFailed(f"The watcher cannot be asked: {error}", path=directory) from error


def _patience_s(context: Context) -> float:
    """Returns how long to wait for a watcher, which may need a moment to answer."""
    return min(max(context.wait_s, PATIENCE_S), _PATIENCE_MAX_S)


def start(context: Context, options: list[str]) -> WatchStatus:
    """Starts a watcher in the background, with options of ``snap watch``; returns its status.

    It is detached from the terminal. Raises the error that kept it from starting.
    """
    wait = ["--wait", str(context.wait_s)]
    try:
        process = launched(context, [*wait, "watch", *options, "--detached"], subprocess.PIPE)
    except OSError as error:
        raise OperationFailed(f"The watcher cannot be started: {error}") from error
    assert process.stdout is not None
    with process.stdout as told:
        line = told.readline()
    _raise_told(line, process)
    watching = status(context)
    if watching is None:
        process.wait()
        raise OperationFailed("The watcher ended as soon as it had started")
    return watching


def launched(
    context: Context, words: list[str], stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """Returns a process that carries out a command for the root in the background.

    It is detached from the terminal. Raises OSError where none can be started.
    """
    where = ["--json", "-C", context.root, "--store", context.store_path]
    return start_in_background([*module_words(), *where, *words], stdout=stdout)


def _raise_told(line: bytes, process: subprocess.Popen[bytes]) -> None:
    """Raises the error that a watcher printed instead of its status, once it has ended."""
    try:
        told = json.loads(line)
        if told["schema"].startswith("treesnap.watch/"):
            return
        error = TreesnapError(told["message"], code=ErrorCode(told["code"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        error = OperationFailed("The watcher could not start")
    process.wait()
    raise error
