"""``run``: a checkpoint, a command, and the way back when the command fails."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treesnap.errors import InvalidArgument, NotFound, printable
from treesnap.model import SnapshotKind
from treesnap.ops.checkpoint import HeldCheckpoint, held_checkpoint
from treesnap.ops.create import CreateRequest
from treesnap.ops.interruption import Interruptions, raised_once
from treesnap.ops.processes import Command
from treesnap.results import RestoreResult, RunResult

if TYPE_CHECKING:
    from treesnap.ops.context import Context

_LAST_LINE_BYTES = 4096


def run(
    context: Context,
    command: Sequence[str],
    *,
    retries: int,
    label: str | None,
    overlap: str = "wait",
) -> RunResult:
    """Runs a command in the root; see :meth:`treesnap.Handle.run`."""
    if not command:
        raise InvalidArgument("There is no command to run")
    if retries < 0:
        raise InvalidArgument(f"A command cannot be retried {retries} times")
    words = printable(" ".join(command)[:200])
    request = CreateRequest(
        label=label if label is not None else f"before {words}", kind=SnapshotKind.RUN
    )
    with (
        held_checkpoint(context, request, f"run {words}", overlap) as held,
        raised_once() as interruptions,
    ):
        return _run(context, command, retries, held, interruptions)


def _run(
    context: Context,
    command: Sequence[str],
    retries: int,
    held: HeldCheckpoint,
    interruptions: Interruptions,
) -> RunResult:
    restored: RestoreResult | None = None
    for attempt in range(1, retries + 2):
        mark = f"run/{held.made.id[:16]}/{attempt}"
        running = Command(context, command, mark, held.mark_path)
        try:
            exit_code = running.run(interruptions.deferred)
        except (InvalidArgument, NotFound):  # nothing was started
            raise
        except BaseException:
            number = interruptions.numbers[0] if interruptions.numbers else signal.SIGTERM
            asked = signal.SIGTERM if number == signal.SIGINT else number  # it got that itself
            running.ask_to_end(asked, lambda: interruptions.is_urgent)
            held.go_back(running.end)
            raise
        if exit_code == 0:
            return RunResult(
                exit_code=0,
                attempts=attempt,
                snapshot_id=held.made.id,
                rolled_back=False,
                restore=restored,
            )
        restored = held.go_back(running.end)
    return RunResult(
        exit_code=exit_code,
        attempts=retries + 1,
        snapshot_id=held.made.id,
        rolled_back=True,
        restore=restored,
    )


def check(context: Context, line: str) -> tuple[int, str]:
    """Runs a line of the shell in the root; returns its exit code and its last line of output.

    Nothing is captured or rolled back, and the line gets no standard input. What it leaves
    running in the background is not waited for. Blank lines do not count.
    """
    output = os.memfd_create("output")  # a pipe would be open as long as the background is
    try:
        result = subprocess.run(  # noqa: S602 - the caller's own line
            line,
            shell=True,
            cwd=context.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        start = max(0, os.fstat(output).st_size - _LAST_LINE_BYTES)
        lines = os.pread(output, _LAST_LINE_BYTES, start).strip().splitlines()
    finally:
        os.close(output)
    return result.returncode, printable(lines[-1] if lines else b"")
