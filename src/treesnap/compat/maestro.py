"""Maestro's checkpoint manager over this library, in any directory.

A commit is a snapshot, ``HEAD`` the root's position (``treesnap.ops.position``), a
checkpoint a snapshot whose name is the checkpoint's UUID. The keywords ``store``,
``test_command``, ``keep_log`` and ``handle`` are additions.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict
from typing import Any
from uuid import UUID

from treesnap.arguments import checked_methods
from treesnap.compat.errors import translated
from treesnap.compat.maestro_records import (
    Checkpoint,
    CheckpointPhase,
    CheckpointSummary,
    StateSnapshot,
    ValidationResult,
    checkpoint_fields,
    checkpoints_of,
    status_text,
    summary_of,
    tags_of,
    time_text,
)
from treesnap.errors import InvalidArgument, NotFound, OperationFailed, TreesnapError, printable
from treesnap.facts import CheckpointType, retired, rolled_back
from treesnap.fs.os_errors import error_text
from treesnap.model import SkipReason
from treesnap.ops import handle as library
from treesnap.ops.create import CreateOptions, CreateRequest, create
from treesnap.ops.history import retag
from treesnap.ops.places import (
    check_store,
    current_directory,
    default_store_path,
    find_root,
    refuse_dangerous,
)
from treesnap.ops.position import compare_with_head, mark_position, rollback
from treesnap.ops.processes import check_line
from treesnap.ops.sidecar_files import SidecarPlace, write_sidecar
from treesnap.results import PositionResult
from treesnap.treepath import PathLike

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointPhase",
    "CheckpointSummary",
    "CheckpointType",
    "StateSnapshot",
    "ValidationResult",
]


SESSIONS = ".flow/maestro/sessions"
"""Where Maestro keeps the files of sessions, below the root."""

LOGS = SidecarPlace(f"{SESSIONS}/*/checkpoints.json")
"""Where the logs are. They describe the checkpoints, so no checkpoint contains them."""

MARKERS = (".git", ".flow/maestro")
"""Either of these marks the top directory of a project."""


@checked_methods
class CheckpointManager:
    """Checkpoints of sessions in one directory.

    Methods raise ValueError, FileNotFoundError and subprocess.SubprocessError; see
    ``treesnap.compat.errors``.
    """

    @translated()
    def __init__(
        self,
        repo_root: PathLike | None = None,
        session_id: str | UUID | None = None,
        *,
        store: PathLike | None = None,
        test_command: str | None = None,
        keep_log: bool = False,
        handle: library.Handle | None = None,
    ) -> None:
        """Opens ``repo_root``. Without it, opens the nearest directory, from the current one
        upwards, that was captured before or contains ``.git`` or ``.flow/maestro``; else the
        current directory.

        ``test_command`` is a shell line that succeeds if the tests pass.
        ``keep_log`` writes ``checkpoints.json`` after every change.
        """
        if handle is None:
            store_path = os.fsdecode(store) if store is not None else default_store_path()
            root = repo_root if repo_root is not None else find_project(store_path)
            handle = library.open(root, store_path)
        self.handle = handle
        self.repo_root = handle.root
        self.session_id = None if session_id is None else _checked(session_id, "session")
        if test_command is not None and not test_command.strip():
            raise InvalidArgument("The test command is empty, so it would always succeed")
        self.test_command = test_command
        self.keep_log = keep_log

    def validate_checkpoint_state(self) -> ValidationResult:
        """Returns whether a checkpoint can be made, and what is not captured yet.

        Reads what a checkpoint would read, and stores nothing. Only :meth:`create_checkpoint`
        notices later changes, a lock of another process, or a full disk.
        """
        passing, warnings = self._run_tests()
        try:
            refuse_dangerous(self.handle.root, self.handle.store_path)
            check_store(self.handle.store_path)
            found = compare_with_head(self.handle.context, LOGS)
        except (TreesnapError, OSError) as error:
            message = error_text(error)
            return ValidationResult(
                is_valid=False,
                errors=[message],
                warnings=warnings,
                git_status=message,
                has_uncommitted_changes=True,
                tests_passing=passing,
            )
        unreadable = [item.path for item in found.skipped if item.reason == SkipReason.UNREADABLE]
        has_changes = found.snapshot is None or bool(found.changes)
        if has_changes:
            warnings.append("There are uncommitted changes")
        return ValidationResult(
            is_valid=not unreadable,
            errors=[f"{printable(path)!r} cannot be read" for path in unreadable],
            warnings=warnings,
            git_status=status_text(found),
            has_uncommitted_changes=has_changes,
            tests_passing=passing,
        )

    @translated()
    def create_checkpoint(
        self,
        session_id: str | UUID,
        description: str,
        phase: CheckpointPhase | str,
        checkpoint_type: CheckpointType | str = CheckpointType.MANUAL,
        state_snapshot: StateSnapshot | None = None,
        commit_first: bool = True,  # noqa: FBT001, FBT002 - the signature is Maestro's
    ) -> Checkpoint:
        """Captures the directory, or without ``commit_first`` marks what was captured last.

        A directory without a snapshot is always captured. Raises ValueError if something is
        unreadable or must be captured first.
        """
        checkpoint_id = str(uuid.uuid4())
        message = f"Checkpoint: {description}" if commit_first else None
        request = CreateRequest(
            name=checkpoint_id,
            label=description,
            session=_checked(session_id, "session"),
            tags=tags_of(checkpoint_id, phase, checkpoint_type, message, state_snapshot),
            complete_only=True,
            options=CreateOptions(exclude=LOGS.excluded),
        )
        if commit_first:
            snapshot = create(self.handle.context, request).snapshot
        else:
            snapshot = mark_position(self.handle.context, request, LOGS)
        self._keep_log(session_id)
        return checkpoints_of([snapshot])[checkpoint_id]

    @translated()
    def list_checkpoints(self, session_id: str | UUID) -> list[Checkpoint]:
        """Returns the checkpoints of a session, newest first.

        Raises FileNotFoundError for an unknown session: one that is neither the manager's own,
        nor has snapshots or a directory below ``.flow/maestro/sessions``.
        """
        session = _checked(session_id, "session")
        found = self._checkpoints(session)
        if not found and not self._is_known(session):
            raise NotFound(f"There is no session {session}")
        return found

    @translated()
    def get_checkpoint(self, session_id: str | UUID, checkpoint_id: str | UUID) -> Checkpoint:
        """Returns one checkpoint, or raises FileNotFoundError."""
        session, wanted = _checked(session_id, "session"), _checked(checkpoint_id, "checkpoint")
        found = checkpoints_of(self.handle.list(session=session)).get(wanted)
        if found is None:
            raise NotFound(f"Session {session} has no checkpoint {wanted}")
        return found

    def rollback_to_checkpoint(
        self,
        session_id: str | UUID,
        checkpoint_id: str | UUID,
        hard_reset: bool = False,  # noqa: FBT001, FBT002 - the signature is Maestro's
    ) -> bool:
        """Returns to a checkpoint, with the files if ``hard_reset``; returns True or raises."""
        self.rollback(session_id, checkpoint_id, hard_reset=hard_reset)
        return True

    @translated()
    def rollback(
        self, session_id: str | UUID, checkpoint_id: str | UUID, *, hard_reset: bool
    ) -> PositionResult:
        """Does what :meth:`rollback_to_checkpoint` does, and returns the result."""
        target = self.get_checkpoint(session_id, checkpoint_id).commit_sha
        session = _checked(session_id, "session")
        result = rollback(
            self.handle.context,
            target,
            of_session=session,
            keep_files=not hard_reset,
            retag=rolled_back,
        )
        self._keep_log(session_id)
        return result

    def get_checkpoint_summary(self, session_id: str | UUID) -> CheckpointSummary:
        """Returns the numbers of a session's checkpoints."""
        return summary_of(self.list_checkpoints(session_id))

    @translated()
    def delete_checkpoint(
        self,
        session_id: str | UUID,
        checkpoint_id: str | UUID,
        delete_tag: bool = True,  # noqa: FBT001, FBT002 - the signature is Maestro's
    ) -> bool:
        """Removes a checkpoint; without ``delete_tag`` its snapshot stays but is not listed."""
        target = self.get_checkpoint(session_id, checkpoint_id).commit_sha
        if delete_tag:
            self.handle.delete(target)
        else:
            retag(self.handle.context, target, retired)
        self._keep_log(session_id)
        return True

    def checkpoint_log(self, session_id: str | UUID) -> dict[str, Any]:
        """Returns the content of ``checkpoints.json``; its schema is in ``schemas``."""
        return self._log(_checked(session_id, "session"), self.list_checkpoints(session_id))

    def _log(self, session: str, checkpoints: list[Checkpoint]) -> dict[str, Any]:
        return {
            "session_id": session,
            "generated_at": time_text(self.handle.context.clock_ns()),
            "checkpoints": [checkpoint_fields(checkpoint) for checkpoint in checkpoints],
            "summary": asdict(summary_of(checkpoints)),
        }

    @translated()
    def write_log(self, session_id: str | UUID) -> str:
        """Writes ``checkpoints.json`` below the root and returns its path.

        A log of another program in its place is kept beside it.
        """
        session = _checked(session_id, "session")
        path = LOGS.path(session)

        def content() -> bytes:
            log = self._log(session, self._checkpoints(session))
            return json.dumps(log, indent=2).encode() + b"\n"

        write_sidecar(
            self.handle.context,
            path,
            content,
            is_sidecar=_is_own_log,
        )
        return os.path.join(self.repo_root, os.fsdecode(path))

    def _checkpoints(self, session: str) -> list[Checkpoint]:
        return list(checkpoints_of(self.handle.list(session=session)).values())

    def _is_known(self, session: str) -> bool:
        has_directory = os.path.isdir(os.path.join(self.repo_root, SESSIONS, session))
        return (
            session == self.session_id or has_directory or bool(self.handle.list(session=session))
        )

    def _keep_log(self, session_id: str | UUID) -> None:
        if not self.keep_log:
            return
        try:
            self.write_log(session_id)
        except TreesnapError as error:
            raise OperationFailed(
                f"The operation succeeded, but writing the log failed: {error.message}",
                code=error.code,
                path=error.path,
            ) from error

    def _run_tests(self) -> tuple[bool | None, list[str]]:
        if self.test_command is None:
            return None, []
        exit_code, last_line = check_line(self.handle.context, self.test_command)
        if exit_code == 0:
            return True, []
        said = f": {last_line}" if last_line else ""
        return False, [f"The tests fail with exit code {exit_code}{said}"]


def find_project(store_path: str) -> str:
    """Returns the directory that the current one belongs to; see :class:`CheckpointManager`."""
    return find_root(current_directory(), store_path, MARKERS)


def _checked(identity: str | UUID, what: str) -> str:
    """Returns a UUID in its usual form, or raises InvalidArgument."""
    if isinstance(identity, UUID):
        return str(identity)
    try:
        parsed = str(UUID(identity))
    except ValueError:
        parsed = None
    if parsed is None or parsed != identity.lower():
        raise InvalidArgument(f"The {what} id {printable(identity)!r} is not a UUID")
    return parsed


def _is_own_log(content: bytes) -> bool:
    """Returns whether a log was written here: git's ids are shorter than a snapshot's."""
    try:
        return all(len(item["commit_sha"]) == 64 for item in json.loads(content)["checkpoints"])
    except (ValueError, TypeError, LookupError):
        return False
