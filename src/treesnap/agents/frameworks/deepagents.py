"""Deep Agents: a backend whose files and commands the agent and all its sub-agents use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from treesnap.agents.frameworks.recorder import Recorder
from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.ops.history.steps import EventPhase

with brought_by("deepagents"):
    from deepagents.backends import LocalShellBackend
    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        ExecuteResponse,
        FileUploadResponse,
        WriteResult,
    )
    from langgraph.config import get_config

    from treesnap.agents.frameworks.langgraph import HOST


class SnapshotBackend(LocalShellBackend):
    """Works in a root, and captures it around each command and each change of a file.

    A session is a thread, or outside of one the ``session``. ``options`` are those of a
    ``LocalShellBackend``. The asynchronous methods call these in a thread.
    """

    def __init__(
        self, handle: Handle, *, session: str | None = None, is_strict: bool = False, **options: Any
    ) -> None:
        super().__init__(root_dir=handle.root, **options)
        self.recorder: Recorder = Recorder(HOST, handle, session, is_strict=is_strict)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command."""
        with self._around("execute", command=command):
            return super().execute(command, timeout=timeout)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Creates a file."""
        with self._around("write", path=file_path):
            return super().write(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the framework's signature
    ) -> EditResult:
        """Replaces text in a file."""
        with self._around("edit", path=file_path):
            return super().edit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file or a directory."""
        with self._around("delete", path=file_path):
            return super().delete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files."""
        with self._around("upload", path=files[0][0] if files else ""):
            return super().upload_files(files)

    @contextmanager
    def _around(self, tool: str, **arguments: str) -> Iterator[None]:
        """Captures before and after what is done here, however that ends."""
        try:
            thread = get_config().get("configurable", {}).get("thread_id")
        except RuntimeError:  # not in a graph
            thread = None
        call = f"{threading.get_ident()}"  # a thread does one thing at a time
        self.recorder.record(EventPhase.PRE, thread, call=call, tool=tool, arguments=arguments)
        try:
            yield
        finally:
            self.recorder.record(EventPhase.POST, thread, call=call, tool=tool)
