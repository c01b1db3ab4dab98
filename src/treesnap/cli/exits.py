"""Exit codes: what a script learns without reading a word."""

from __future__ import annotations

from enum import IntEnum

from treesnap.errors import ErrorCode


class ExitCode(IntEnum):
    """The exit codes of all commands; ``run`` has those of its command besides."""

    DONE = 0
    FAILED = 1
    """Nothing was changed."""
    USAGE = 2
    REFUSED = 3
    """A conflict, or something that could do harm."""
    INCOMPLETE = 4
    """The snapshot exists, and lacks what could not be read."""
    NOT_FOUND = 5
    BUSY = 6
    DAMAGED = 7
    NO_SPACE = 8
    COMMAND_NOT_FOUND = 127
    """As shells say it, for a command that ``run`` cannot start."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """As shells say it, when the reader of the output went away."""


EXIT_CODES: dict[ErrorCode, ExitCode] = {
    ErrorCode.INVALID_ARGUMENT: ExitCode.USAGE,
    ErrorCode.INVALID_CONFIG: ExitCode.USAGE,
    ErrorCode.INVALID_PLAN: ExitCode.USAGE,
    ErrorCode.AMBIGUOUS_REF: ExitCode.USAGE,
    ErrorCode.SNAPSHOT_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.PATH_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_PATH: ExitCode.NOT_FOUND,
    ErrorCode.PLAN_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.CHECKPOINT_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.ROOT_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.CURRENT_DIRECTORY_GONE: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_ROOT: ExitCode.NOT_FOUND,
    ErrorCode.STORE_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.STORE_UNAVAILABLE: ExitCode.FAILED,
    ErrorCode.NOTHING_TO_UNDO: ExitCode.NOT_FOUND,
    ErrorCode.COMMAND_NOT_FOUND: ExitCode.COMMAND_NOT_FOUND,
    ErrorCode.DANGEROUS_ROOT: ExitCode.REFUSED,
    ErrorCode.NAME_TAKEN: ExitCode.REFUSED,
    ErrorCode.ROOT_TAKEN: ExitCode.REFUSED,
    ErrorCode.NAMES_COLLIDE: ExitCode.REFUSED,
    ErrorCode.HISTORY_KEPT: ExitCode.REFUSED,
    ErrorCode.PINNED: ExitCode.REFUSED,
    ErrorCode.UNSAVED_CHANGES: ExitCode.REFUSED,
    ErrorCode.UNREADABLE: ExitCode.REFUSED,
    ErrorCode.NOT_PERMITTED: ExitCode.FAILED,
    ErrorCode.NOT_A_DIRECTORY: ExitCode.REFUSED,
    ErrorCode.NOT_WATCHABLE: ExitCode.REFUSED,
    ErrorCode.TARGET_NOT_EMPTY: ExitCode.REFUSED,
    ErrorCode.CONFLICT: ExitCode.REFUSED,
    ErrorCode.RESTORE_INTERRUPTED: ExitCode.REFUSED,
    ErrorCode.PLAN_INTERRUPTED: ExitCode.REFUSED,
    ErrorCode.PLAN_NOT_COMPLETED: ExitCode.REFUSED,
    ErrorCode.PLAN_APPLIED: ExitCode.REFUSED,
    ErrorCode.UNSUPPORTED_FORMAT: ExitCode.REFUSED,
    ErrorCode.BUSY: ExitCode.BUSY,
    ErrorCode.STORE_DAMAGED: ExitCode.DAMAGED,
    ErrorCode.NO_SPACE: ExitCode.NO_SPACE,
    ErrorCode.OVER_QUOTA: ExitCode.NO_SPACE,
    ErrorCode.OPERATION_FAILED: ExitCode.FAILED,
}
"""The exit code of each error."""
