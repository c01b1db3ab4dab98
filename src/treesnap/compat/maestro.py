"""Maestro's checkpoint manager over this library, in any directory.

A commit is a snapshot, ``HEAD`` the root's position (``treesnap.compat.position``), a
checkpoint a snapshot whose name is the checkpoint's UUID. The keywords ``store``,
``test_command``, ``keep_log`` and ``handle`` are additions.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from treesnap.compat.errors import translated
from treesnap.compat.machinery import Machinery
from treesnap.compat.position import compare_with_head, mark_position, rollback
from treesnap.compat.sidecar_files import SidecarPlace, write_sidecar
from treesnap.core import handle as library
from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.arguments import checked_methods
from treesnap.core.model.entries import ChangeKind, SkipReason
from treesnap.core.model.errors import (
    InvalidArgument,
    NotFound,
    OperationFailed,
    TreesnapError,
    printable,
    quoted,
)
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import (
    RESERVED_TAGS,
    CheckpointType,
    counter_tags,
    counters_in,
    fact_tags,
    facts_of,
    is_retired,
    own_tags,
    retired,
    rollback_count,
)
from treesnap.core.model.results import PositionResult, StatusResult
from treesnap.core.model.snapshots import Snapshot, utc_text
from treesnap.core.model.treepath import PathLike
from treesnap.core.ops.context import (
    check_store,
    current_directory,
    default_store_path,
    find_root,
    refuse_dangerous,
)
from treesnap.core.ops.create import create
from treesnap.core.ops.history.listing import retag
from treesnap.core.ops.processes import check_line
from treesnap.core.own_program import module_words

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


_TAG = "checkpoint-"
_STATUS_WORDS = {
    ChangeKind.ADDED: "new:",
    ChangeKind.REMOVED: "deleted:",
    ChangeKind.MODIFIED: "modified:",
    ChangeKind.TYPE: "typechange:",
    ChangeKind.METADATA: "properties:",
}


class CheckpointPhase(StrEnum):
    """The phase of a session."""

    PLAN = "plan"
    GENERATE_TASKS = "generate_tasks"
    IMPLEMENT = "implement"
    VALIDATE = "validate"
    CLEANUP = "cleanup"


@dataclass
class StateSnapshot:
    """Progress of a session at a checkpoint."""

    tasks_completed: int = 0
    decisions_made: int = 0
    files_modified: int = 0
    files_created: int = 0
    tests_passing: int = 0
    tests_failing: int = 0


@dataclass
class Checkpoint:
    """A state that a session can return to."""

    checkpoint_id: str
    commit_sha: str
    """Id of the snapshot: 64 hex digits."""
    timestamp: str
    """ISO 8601, in UTC."""
    description: str
    phase: CheckpointPhase
    checkpoint_type: CheckpointType
    commit_message: str | None = None
    """None if nothing was captured because the state was already saved."""
    state_snapshot: StateSnapshot | None = None
    tags: list[str] = field(default_factory=list)
    rollback_used: bool = False
    rollback_count: int = 0


@dataclass
class ValidationResult:
    """Whether a checkpoint can be made now, with errors and warnings."""

    is_valid: bool
    errors: list[str]
    warnings: list[str]
    git_status: str
    """A line for the position, then one for each path that differs."""
    has_uncommitted_changes: bool
    tests_passing: bool | None
    """None without a test command."""


@dataclass
class CheckpointSummary:
    """Counts of the checkpoints of a session."""

    total_checkpoints: int
    checkpoints_by_type: dict[str, int]
    checkpoints_used_for_rollback: int
    latest_checkpoint: str | None
    """``commit_sha`` of the newest one, or None."""


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
            if repo_root is None:
                repo_root = find_root(current_directory(), store_path, MARKERS)
            handle = library.open(repo_root, store_path)
        self.handle = handle
        self.repo_root: str = handle.root
        self.session_id: str | None = (
            None if session_id is None else _checked(session_id, "session")
        )
        if test_command is not None and not test_command.strip():
            raise InvalidArgument("The test command is empty, so it would always succeed")
        self.test_command = test_command
        self.keep_log = keep_log
        self._machinery = Machinery(handle, LOGS)

    def validate_checkpoint_state(self) -> ValidationResult:
        """Returns whether a checkpoint can be made, and what is not captured yet.

        Reads what a checkpoint would read, and stores nothing. Only :meth:`create_checkpoint`
        notices later changes, a lock of another process, or a full disk.
        """
        passing, warnings = self._run_tests()
        has_changes = True
        try:
            refuse_dangerous(self.handle.root, self.handle.store_path)
            check_store(self.handle.store_path)
            status_result = compare_with_head(self.handle.context, self._machinery.without)
        except (TreesnapError, OSError) as error:
            errors = [status := error_text(error)]
        else:
            errors = [
                f"{quoted(item.path)} cannot be read"
                for item in status_result.skipped
                if item.reason == SkipReason.UNREADABLE
            ]
            status = _status_text(status_result)
            has_changes = status_result.snapshot is None or bool(status_result.changes)
            if has_changes:
                warnings.append("There are uncommitted changes")
        return ValidationResult(
            is_valid=not errors,
            errors=errors,
            warnings=warnings,
            git_status=status,
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
        request = CaptureRequest(
            name=checkpoint_id,
            label=description,
            session=_checked(session_id, "session"),
            tags=_tags_of(checkpoint_id, phase, checkpoint_type, message, state_snapshot),
            complete_only=True,
            exclude=self._machinery.excluded,
        )
        if commit_first:
            snapshot = create(self.handle.context, request).snapshot
        else:
            snapshot = mark_position(self.handle.context, request, self._machinery.without)
        self._keep_log(session_id)
        return _checkpoints_of([snapshot])[checkpoint_id]

    @translated()
    def list_checkpoints(self, session_id: str | UUID) -> list[Checkpoint]:
        """Returns the checkpoints of a session, newest first.

        Raises FileNotFoundError for an unknown session: one that is neither the manager's own,
        nor has snapshots or a directory below ``.flow/maestro/sessions``.
        """
        session = _checked(session_id, "session")
        listed = self._checkpoints(session)
        if not listed and not self._is_known(session):
            raise NotFound(f"There is no session {session}")
        return listed

    @translated()
    def get_checkpoint(self, session_id: str | UUID, checkpoint_id: str | UUID) -> Checkpoint:
        """Returns one checkpoint, or raises FileNotFoundError."""
        session, identity = _checked(session_id, "session"), _checked(checkpoint_id, "checkpoint")
        checkpoint = _checkpoints_of(self.handle.list(session=session)).get(identity)
        if checkpoint is None:
            raise NotFound(f"Session {session} has no checkpoint {identity}")
        return checkpoint

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
            reason="snap session rollback",
        )
        self._keep_log(session_id)
        return result

    def get_checkpoint_summary(self, session_id: str | UUID) -> CheckpointSummary:
        """Returns the numbers of a session's checkpoints."""
        return _summary_of(self.list_checkpoints(session_id))

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
            "generated_at": utc_text(self.handle.context.clock_ns()),
            "checkpoints": [checkpoint_fields(checkpoint) for checkpoint in checkpoints],
            "summary": asdict(_summary_of(checkpoints)),
        }

    @translated()
    def write_log(self, session_id: str | UUID) -> str:
        """Writes ``checkpoints.json`` below the root and returns its path.

        A log of another program in its place is kept beside it.
        """
        session = _checked(session_id, "session")

        def content() -> bytes:
            log = self._log(session, self._checkpoints(session))
            return json.dumps(log, indent=2).encode() + b"\n"

        write_sidecar(self.handle.context, LOGS, session, content, is_sidecar=_is_own_log)
        return os.path.join(self.repo_root, os.fsdecode(LOGS.path(session)))

    def _checkpoints(self, session: str) -> list[Checkpoint]:
        return list(_checkpoints_of(self.handle.list(session=session)).values())

    def _is_known(self, session: str) -> bool:
        return (
            session == self.session_id
            or os.path.isdir(os.path.join(self.repo_root, SESSIONS, session))
            or bool(self.handle.list(session=session))
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


def _checked(identity: str | UUID, what: str) -> str:
    """Returns a UUID in its usual form, or raises InvalidArgument."""
    if isinstance(identity, UUID):
        return str(identity)
    try:
        parsed = str(UUID(identity))
    except ValueError:
        parsed = None
    if parsed is None or parsed != identity.lower():
        raise InvalidArgument(f"The {what} id {quoted(identity)} is not a UUID")
    return parsed


def _is_own_log(content: bytes) -> bool:
    """Returns whether a log was written here: git's ids are shorter than a snapshot's."""
    try:
        return all(len(item["commit_sha"]) == 64 for item in json.loads(content)["checkpoints"])
    except (ValueError, TypeError, LookupError):
        return False


def _tags_of(
    checkpoint_id: str,
    phase: str,
    checkpoint_type: str,
    message: str | None,
    state: StateSnapshot | None,
) -> dict[str, str]:
    """Returns the tags of a checkpoint's snapshot; raises InvalidArgument."""
    for what, word, words in (
        ("phase", phase, list(CheckpointPhase)),
        ("checkpoint type", checkpoint_type, list(CheckpointType)),
    ):
        if word not in words:
            raise InvalidArgument(f"The {what} {word!r} is not one of {', '.join(words)}")
    counters = asdict(state) if state is not None else {}
    for name, count in counters.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise InvalidArgument(f"{name} must be a whole number, not {count!r}")
    facts = fact_tags(
        phase=CheckpointPhase(phase).value,
        type=CheckpointType(checkpoint_type).value,
        reason=message,
        source_tool="maestro",
    )
    return {_TAG + checkpoint_id: "", **facts, **counter_tags(counters, RESERVED_TAGS)}


def _checkpoints_of(snapshots: Sequence[Snapshot]) -> dict[str, Checkpoint]:
    """Returns the checkpoints among a session's snapshots by id, in the order given."""
    return {
        snapshot.name: _checkpoint(snapshot, snapshot.name, facts)
        for snapshot, facts in ((item, facts_of(item)) for item in snapshots)
        if snapshot.name is not None
        and _TAG + snapshot.name in snapshot.record.tags
        and facts.get("phase") in list(CheckpointPhase)
        and facts.get("type") in list(CheckpointType)
        and not is_retired(snapshot)
    }


def _checkpoint(snapshot: Snapshot, checkpoint_id: str, facts: Mapping[str, str]) -> Checkpoint:
    record, counters = snapshot.record, counters_in(facts)
    are_state = counters.keys() == asdict(StateSnapshot()).keys()
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        commit_sha=snapshot.id,
        timestamp=utc_text(record.created_at_ns),
        description=snapshot.label or "",
        phase=CheckpointPhase(facts["phase"]),
        checkpoint_type=CheckpointType(facts["type"]),
        commit_message=facts.get("reason"),
        state_snapshot=StateSnapshot(**counters) if are_state else None,
        tags=sorted(own_tags(snapshot)),
        rollback_used=rollback_count(snapshot) > 0,
        rollback_count=rollback_count(snapshot),
    )


def _summary_of(checkpoints: Sequence[Checkpoint]) -> CheckpointSummary:
    """Returns the counts of checkpoints, which are given newest first."""
    return CheckpointSummary(
        total_checkpoints=len(checkpoints),
        checkpoints_by_type=dict(Counter(item.checkpoint_type.value for item in checkpoints)),
        checkpoints_used_for_rollback=sum(item.rollback_used for item in checkpoints),
        latest_checkpoint=checkpoints[0].commit_sha if checkpoints else None,
    )


def checkpoint_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns a checkpoint's fields for the log, without those that are None."""
    return {name: value for name, value in asdict(checkpoint).items() if value is not None}


def _status_text(status: StatusResult) -> str:
    """Returns the differences from the position, as text."""
    if status.snapshot is None:
        return "Nothing was captured yet"
    head = f"At {status.snapshot.id[:12]} ({printable(status.snapshot.label or 'no description')})"
    lines = [
        f"{_STATUS_WORDS[item.change]:<12}{printable(item.path) or '.'}" for item in status.changes
    ]
    return "\n".join([head, *(lines or ["nothing to capture"])])


if __name__ == "__main__":
    # Not imported: the command line knows this module, not the other way round.
    _program = module_words()
    os.execv(_program[0], [*_program, "session", *sys.argv[1:]])  # noqa: S606 - our own command
