"""What the command line makes of an exception: an exit code, a message, advice.

Invariants: every error code has a line in the table of advice; nothing here
prints, and nothing here imports the operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from treesnap.cli.exits import EXIT_CODES, ExitCode
from treesnap.errors import ErrorCode, TreesnapError, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as it is shown."""

    code: str
    """The stable word for it: an ErrorCode, or one of the command line's own."""
    message: str
    hint: str | None
    """What to do next, or None when the message says it all."""
    path: bytes | str | None
    """The path that it is about, or None."""
    exit_code: int


HINTS: dict[ErrorCode, str | None] = {
    ErrorCode.INVALID_ARGUMENT: None,
    ErrorCode.INVALID_CONFIG: "correct the file, or remove it to have the defaults",
    ErrorCode.INVALID_PLAN: "correct the plan; nothing was run",
    ErrorCode.AMBIGUOUS_REF: "give more characters of the id",
    ErrorCode.SNAPSHOT_NOT_FOUND: "'snap list' shows what there is",
    ErrorCode.PATH_NOT_FOUND: "'snap ls -R REF' and 'snap find PATTERN' show what there is",
    ErrorCode.UNKNOWN_PATH: (
        "did you mean -m LABEL? --allow-absent captures that there is nothing at a PATH"
    ),
    ErrorCode.PLAN_NOT_FOUND: "'snap plan list --all' shows what there is",
    ErrorCode.CHECKPOINT_NOT_FOUND: "'snap plan rollback PLAN' lists what there is",
    ErrorCode.ROOT_NOT_FOUND: "name the directory with -C DIR",
    ErrorCode.CURRENT_DIRECTORY_GONE: (
        "'cd \"$PWD\"' enters the directory that is in its place now; -C DIR names another one"
    ),
    ErrorCode.UNKNOWN_ROOT: "'snap root list' shows what there is",
    ErrorCode.STORE_NOT_FOUND: "'snap create' makes the store; --store DIR names another one",
    ErrorCode.STORE_UNAVAILABLE: "name another place with --store DIR or $SNAP_STORE",
    ErrorCode.NOTHING_TO_UNDO: "'snap restore REF' goes to any snapshot of 'snap list'",
    ErrorCode.COMMAND_NOT_FOUND: None,
    ErrorCode.DANGEROUS_ROOT: "name another directory with -C DIR, or insist with --force",
    ErrorCode.NAME_TAKEN: "choose another name, or delete the snapshot that has it",
    ErrorCode.ROOT_TAKEN: "'snap root forget' gives one of the two histories up",
    ErrorCode.NAMES_COLLIDE: "restore with --to on a file system that tells upper from lower case",
    ErrorCode.HISTORY_KEPT: "--force gives them up as well",
    ErrorCode.PINNED: "'snap unpin REF' takes the protection away",
    ErrorCode.UNSAVED_CHANGES: "capture them: leave --no-commit-first out",
    ErrorCode.UNREADABLE: "make it readable, or name it in .snapignore",
    ErrorCode.NOT_PERMITTED: (
        "run it as the owner of the path, or 'sudo chown' it; 'snap restore REF --to DIR' "
        "writes elsewhere"
    ),
    ErrorCode.NOT_A_DIRECTORY: "name a directory",
    ErrorCode.NOT_WATCHABLE: "every command works without a watcher, and looks at everything",
    ErrorCode.TARGET_NOT_EMPTY: "name a directory that is empty or does not exist",
    ErrorCode.CONFLICT: "stop what writes there, then run the command again",
    ErrorCode.RESTORE_INTERRUPTED: (
        "'snap doctor' shows what it waits for; 'snap doctor --forget' gives it up"
    ),
    ErrorCode.PLAN_INTERRUPTED: (
        "'snap plan resume PLAN' goes on with it, 'snap plan rollback PLAN' goes back"
    ),
    ErrorCode.PLAN_NOT_COMPLETED: "'snap plan resume PLAN' goes on with it",
    ErrorCode.PLAN_APPLIED: "'snap restore REF' still goes to any snapshot of 'snap list'",
    ErrorCode.UNSUPPORTED_FORMAT: "install a newer treesnap",
    ErrorCode.BUSY: "another command works here; --wait SECONDS waits longer for it",
    ErrorCode.STORE_DAMAGED: (
        "'snap verify --read-data' names all damage, 'snap verify --repair' repairs what it can"
    ),
    ErrorCode.NO_SPACE: "make room: 'snap delete REF...' and 'snap gc', or remove other files",
    ErrorCode.OVER_QUOTA: (
        "'snap prune' and 'snap gc' make room; --max-size, else 'snap config max-size', "
        "sets the limit"
    ),
    ErrorCode.OPERATION_FAILED: None,
}
"""What to do next, for each error; None where the message says it all."""


def from_error(error: BaseException, program: str = "snap") -> Failure:
    """Returns how an exception is shown; exceptions that nobody expects are our bugs.

    ``program`` is the name that commands in the advice begin with.
    """
    if isinstance(error, TreesnapError):
        return _failure(
            error.code.value,
            error.message,
            EXIT_CODES[error.code],
            hint=_advice(error.code, program),
            path=error.path,
        )
    if isinstance(error, click.ClickException):
        return _from_click(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _failure("interrupted", "Interrupted", ExitCode.INTERRUPTED)
    if isinstance(error, OSError):
        return _failure(
            ErrorCode.OPERATION_FAILED.value,
            error.strerror or str(error) or type(error).__name__,
            ExitCode.FAILED,
            path=error.filename if isinstance(error.filename, bytes | str) else None,
        )
    if isinstance(error, MemoryError):
        return _failure(
            ErrorCode.OPERATION_FAILED.value,
            "There is not enough memory",
            ExitCode.FAILED,
            hint="end other programs, or raise the limit that 'ulimit -a' shows",
        )
    return _failure(
        "internal-error",
        f"Internal error: {type(error).__name__}: {error}",
        ExitCode.FAILED,
        hint="this is a bug; run the command with SNAP_DEBUG=1 to see where it comes from",
    )


def _advice(code: ErrorCode, program: str) -> str | None:
    hint = HINTS[code]
    return hint if hint is None else hint.replace("'snap ", f"'{program} ")


def usage(message: str, command_path: str | None = None) -> Failure:
    """Returns a failure for a command line that cannot be understood."""
    hint = f"see '{command_path} --help'" if command_path else None
    return _failure("usage", message, ExitCode.USAGE, hint=hint)


def _from_click(error: click.ClickException) -> Failure:
    context = error.ctx if isinstance(error, click.UsageError) else None
    message = error.format_message().rstrip(".").replace("\n\t", " ")
    return usage(message, context.command_path if context is not None else None)


def _failure(
    code: str,
    message: str,
    exit_code: ExitCode,
    *,
    hint: str | None = None,
    path: bytes | str | None = None,
) -> Failure:
    return Failure(code=code, message=message, hint=hint, path=path, exit_code=exit_code)


def text_lines(failure: Failure, program: str) -> list[str]:
    """Returns the lines that a person reads; names in them cannot act on a terminal."""
    message = printable(failure.message)
    path = printable(failure.path) if failure.path else ""
    if failure.code == ErrorCode.OPERATION_FAILED.value and path not in message:
        message = f"{message}: {path}"
    lines = [f"{program}: {message}"]
    if failure.hint is not None:
        lines.append(f"hint: {printable(failure.hint)}")
    return lines
