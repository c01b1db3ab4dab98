"""Daytona: a checkpoint before each command of a sandbox, and its history on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.sandboxes.recording import (
    Finished,
    Method,
    Options,
    Recording,
    Sandbox,
    without_checkpoint,
)

with brought_by("daytona"):
    import daytona


def recorded(
    sandbox: daytona.Sandbox | daytona.AsyncSandbox,
    root: str,
    handle: Handle | None = None,
    directory: str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Recording:
    """Returns what records a directory of a sandbox in the body of ``with``, or ``async with``.

    ``root`` is the directory in the sandbox. Its history comes to ``directory``, on this machine,
    and from there to the store of the handle.
    """
    return Recording(DaytonaSandbox(sandbox), root, handle, directory, options)


class DaytonaSandbox(Sandbox):
    """A sandbox of Daytona. What is typed at its terminals (``create_pty_session``) is not told."""

    provider = "daytona"

    def __init__(self, client: Any) -> None:
        self._client = client
        self._exec = without_checkpoint(client.process.exec)
        self.is_asynchronous: bool = isinstance(client, daytona.AsyncSandbox)

    def methods(self) -> Sequence[Method]:
        """Returns the methods that run commands and code."""
        process = self._client.process
        return [
            Method(process, "exec", "command"),
            Method(process, "code_run", "code"),
            Method(process, "execute_session_command", "req"),
            Method(self._client.code_interpreter, "run_code", "code"),
        ]

    def run(self, command: str, timeout_s: float) -> Finished:
        """Runs a command by a shell, without a checkpoint."""
        done = self.result(self._exec(command, timeout=math.ceil(timeout_s)))
        return Finished(done.exit_code, done.result)

    def read(self, path: str) -> Iterable[bytes]:
        """Yields the bytes of a file as they come."""
        return self.chunks(self.result(self._client.fs.download_file_stream(path)))
