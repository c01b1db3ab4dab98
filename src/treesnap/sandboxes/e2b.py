"""E2B: a checkpoint before each command of a sandbox, and its history on this machine."""

from __future__ import annotations

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

with brought_by("e2b"):
    import e2b


def recorded(
    sandbox: e2b.Sandbox | e2b.AsyncSandbox,
    root: str,
    handle: Handle | None = None,
    directory: str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Recording:
    """Returns what records a directory of a sandbox in the body of ``with``, or ``async with``.

    ``root`` is the directory in the sandbox. Its history comes to ``directory``, on this machine,
    and from there to the store of the handle.
    """
    return Recording(E2bSandbox(sandbox), root, handle, directory, options)


class E2bSandbox(Sandbox):
    """A sandbox of E2B; ``run_code`` is what e2b-code-interpreter adds."""

    provider = "e2b"

    def __init__(self, client: Any) -> None:
        self._client = client
        self._run = without_checkpoint(client.commands.run)
        self.is_asynchronous: bool = isinstance(client, e2b.AsyncSandbox)

    def methods(self) -> Sequence[Method]:
        """Returns the methods that run commands and code."""
        run = Method(self._client.commands, "run", "cmd")
        if not hasattr(self._client, "run_code"):
            return [run]
        return [run, Method(self._client, "run_code", "code")]

    def run(self, command: str, timeout_s: float) -> Finished:
        """Runs a command by a shell, without a checkpoint."""
        try:
            done = self.result(self._run(command, timeout=timeout_s))
        except e2b.CommandExitException as error:
            done = error
        return Finished(done.exit_code, f"{done.stdout}\n{done.stderr}")

    def read(self, path: str) -> Iterable[bytes]:
        """Yields the bytes of a file as they come."""
        return self.chunks(self.result(self._client.files.read(path, format="stream")))
