"""``run``: a checkpoint, a command, and the way back when the command fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treesnap.errors import ErrorCode, InvalidArgument, NotFound, shown
from treesnap.ops.create import checkpoint
from treesnap.results import RestoreResult, RunResult

if TYPE_CHECKING:
    from treesnap.model import SnapshotId
    from treesnap.ops.handle import Handle

_LAST_LINE_BYTES = 4096


def run(handle: Handle, command: Sequence[str], *, retries: int, label: str | None) -> RunResult:
    """Runs a command in the root; see :meth:`treesnap.Handle.run`."""
    if not command:
        raise InvalidArgument("There is no command to run")
    if retries < 0:
        raise InvalidArgument(f"A command cannot be retried {retries} times")
    label = label if label is not None else "before " + shown(" ".join(command)[:200])
    with checkpoint(handle, label) as made:
        return _run(handle, command, retries, made.id)


def _run(
    handle: Handle, command: Sequence[str], retries: int, checkpoint_id: SnapshotId
) -> RunResult:
    restored: RestoreResult | None = None
    for attempt in range(1, retries + 2):
        exit_code = _attempt(handle, command, checkpoint_id)
        if exit_code == 0:
            return RunResult(
                exit_code=0,
                attempts=attempt,
                snapshot_id=checkpoint_id,
                rolled_back=False,
                restore=restored,
            )
        restored = handle.restore(checkpoint_id, force=True)
    return RunResult(
        exit_code=exit_code,
        attempts=retries + 1,
        snapshot_id=checkpoint_id,
        rolled_back=True,
        restore=restored,
    )


def check(handle: Handle, line: str) -> tuple[int, str]:
    """Runs a line of the shell in the root; returns its exit code and its last line of output.

    Nothing is captured or rolled back, and the line gets no standard input. What it leaves
    running in the background is not waited for. Blank lines do not count.
    """
    output = os.memfd_create("output")  # a pipe would be open as long as the background is
    try:
        result = subprocess.run(  # noqa: S602 - the caller's own line
            line,
            shell=True,
            cwd=handle.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        start = max(0, os.fstat(output).st_size - _LAST_LINE_BYTES)
        lines = os.pread(output, _LAST_LINE_BYTES, start).strip().splitlines()
    finally:
        os.close(output)
    return result.returncode, shown(lines[-1] if lines else b"")


def _attempt(handle: Handle, command: Sequence[str], checkpoint_id: str) -> int:
    try:
        return subprocess.run(command, cwd=handle.root, check=False).returncode  # noqa: S603 - running it is the job
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise NotFound(
            f"The command {command[0]!r} cannot be started: {error.strerror}",
            code=ErrorCode.COMMAND_NOT_FOUND,
            path=command[0],
        ) from error
    except OSError as error:
        raise InvalidArgument(f"The command {command[0]!r} cannot be started: {error}") from error
    except BaseException:
        handle.restore(checkpoint_id, force=True)
        raise
