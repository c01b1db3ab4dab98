"""Deep Agents: a backend whose files and commands the agent and all its sub-agents use."""

from __future__ import annotations

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
    """Works in a root, and captures it before each command and each change of a file.

    A session is a thread, or outside of one the ``session``. ``options`` are those of a
    ``LocalShellBackend``. The asynchronous methods call these in a thread.
    """

    def __init__(
        self, handle: Handle, *, session: str | None = None, is_strict: bool = False, **options: Any
    ) -> None:
        super().__init__(root_dir=handle.root, **options)
        self.recorder = Recorder(HOST, handle, session, is_strict=is_strict)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command."""
        self._before("execute", command=command)
        return super().execute(command, timeout=timeout)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Creates a file."""
        self._before("write", path=file_path)
        return super().write(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the framework's signature
    ) -> EditResult:
        """Replaces text in a file."""
        self._before("edit", path=file_path)
        return super().edit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file or a directory."""
        self._before("delete", path=file_path)
        return super().delete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files."""
        self._before("upload", path=files[0][0] if files else "")
        return super().upload_files(files)

    def _before(self, tool: str, **arguments: str) -> None:
        try:
            thread = get_config().get("configurable", {}).get("thread_id")
        except RuntimeError:  # not in a graph
            thread = None
        self.recorder.record(EventPhase.PRE, thread, tool=tool, arguments=arguments)
