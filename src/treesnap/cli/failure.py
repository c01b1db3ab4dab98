"""What the command line makes of exceptions and warnings: exit codes, messages, advice.

Nothing here prints, and nothing here imports the operations.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from treesnap.core.model.errors import ErrorCode, TreesnapError, WarningCode, path_fields, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import click

    _Error = TypeVar("_Error", bound=BaseException)


class ExitCode(IntEnum):
    """The exit codes of all commands; ``run`` has those of its command besides."""

    DONE = 0
    FAILED = 1
    """Nothing was changed; also the answer of ``status --exit-code`` where something differs."""
    USAGE = 2
    REFUSED = 3
    """A conflict, or something that could do harm."""
    INCOMPLETE = 4
    """The snapshot exists, and lacks what could not be read; or it was not compared."""
    NOT_FOUND = 5
    BUSY = 6
    DAMAGED = 7
    NO_SPACE = 8
    COMMAND_NOT_FOUND = 127
    """As in shells, for a command that ``run`` cannot start."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """As in shells, when the reader of the output went away."""


_CODES: dict[ExitCode, tuple[ErrorCode, ...]] = {
    ExitCode.FAILED: (
        ErrorCode.STORE_UNAVAILABLE,
        ErrorCode.STATE_UNAVAILABLE,
        ErrorCode.NOT_PERMITTED,
        ErrorCode.NO_TIMERS,
        ErrorCode.RAN_TOGETHER,
        ErrorCode.OPERATION_FAILED,
        ErrorCode.TOO_MANY_PATHS,
        ErrorCode.REMOTE_UNREACHABLE,
        ErrorCode.REMOTE_CREDENTIALS,
        ErrorCode.REMOTE_HOST_UNKNOWN,
        ErrorCode.REMOTE_PROGRAM_MISSING,
        ErrorCode.REMOTE_DENIED,
        ErrorCode.REMOTE_WRONG_REGION,
        ErrorCode.REMOTE_CLOCK,
        ErrorCode.REMOTE_MISSING,
        ErrorCode.REMOTE_THROTTLED,
        ErrorCode.REMOTE_FAILED,
    ),
    ExitCode.USAGE: (
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_PLAN,
        ErrorCode.INVALID_SETTINGS,
        ErrorCode.INVALID_ARCHIVE,
        ErrorCode.AMBIGUOUS_REF,
    ),
    ExitCode.NOT_FOUND: (
        ErrorCode.SNAPSHOT_NOT_FOUND,
        ErrorCode.OTHER_ROOT,
        ErrorCode.REMOTE_NOT_FOUND,
        ErrorCode.KEY_NOT_FOUND,
        ErrorCode.MEMBER_NOT_FOUND,
        ErrorCode.HISTORY_NOT_FOUND,
        ErrorCode.PATH_NOT_FOUND,
        ErrorCode.UNKNOWN_PATH,
        ErrorCode.PLAN_NOT_FOUND,
        ErrorCode.CHECKPOINT_NOT_FOUND,
        ErrorCode.SESSION_NOT_FOUND,
        ErrorCode.PROMPT_NOT_FOUND,
        ErrorCode.ROOT_NOT_FOUND,
        ErrorCode.CURRENT_DIRECTORY_GONE,
        ErrorCode.UNKNOWN_ROOT,
        ErrorCode.STORE_NOT_FOUND,
        ErrorCode.SCHEDULE_NOT_FOUND,
        ErrorCode.NOT_MOUNTED,
        ErrorCode.NOTHING_TO_UNDO,
    ),
    ExitCode.BUSY: (ErrorCode.BUSY,),
    ExitCode.DAMAGED: (
        ErrorCode.STORE_DAMAGED,
        ErrorCode.REMOTE_DAMAGED,
    ),
    ExitCode.NO_SPACE: (
        ErrorCode.NO_SPACE,
        ErrorCode.OVER_QUOTA,
        ErrorCode.REMOTE_FULL,
    ),
    ExitCode.COMMAND_NOT_FOUND: (ErrorCode.COMMAND_NOT_FOUND,),
}
"""The errors of each exit code; all others are refusals."""

EXIT_CODES = dict.fromkeys(ErrorCode, ExitCode.REFUSED) | {
    code: exit_code for exit_code, codes in _CODES.items() for code in codes
}


class Failure(NamedTuple):
    """An error as it is shown."""

    code: str
    """The stable word for it: an ErrorCode, or one of the command line's own."""
    message: str
    exit_code: ExitCode
    hint: str | None = None
    """What to do next, or None when the message says it all."""
    path: bytes | str | None = None
    """The path that it is about, or None."""
    details: Mapping[str, Any] = MappingProxyType({})
    """What else its class knows, as JSON."""


def failure_fields(failure: Failure) -> dict[str, Any]:
    """Returns an error as JSON."""
    path = {"path": None} if failure.path is None else path_fields(failure.path)
    return {
        "code": failure.code,
        "message": printable(failure.message),
        "hint": failure.hint,
        "exit_code": failure.exit_code,
        **path,
        **failure.details,
    }


def usage_error(message: str) -> click.UsageError:
    """Returns the error that the words of a command do not fit together."""
    import click

    return click.UsageError(message)


def advised(error: _Error, hint: str) -> _Error:
    """Returns an error with advice of its own, in the place of the hint of its kind."""
    error.add_note(hint)
    return error


def hint_of(code: ErrorCode | WarningCode, program: str) -> str | None:
    """Returns what to do next, or None; commands in it begin with the name of the program."""
    from treesnap.core.model.hints import HINTS, WARNING_HINTS, for_program

    hint = HINTS[code] if isinstance(code, ErrorCode) else WARNING_HINTS.get(code)
    return for_program(hint, program) if hint is not None else None


def from_error(error: BaseException, program: str = "snap") -> Failure:
    """Returns how an exception is shown; exceptions that are not expected are our bugs.

    ``program`` is the name that commands in the advice begin with.
    """
    advice = " ".join(getattr(error, "__notes__", ())) or None
    if isinstance(error, TreesnapError):
        from treesnap.core.model.hints import for_program

        hint = for_program(error.hint, program) if error.hint is not None else None
        exit_code = EXIT_CODES[error.code]
        return Failure(
            error.code.value, error.message, exit_code, hint, error.path, error.details()
        )
    if "click" in sys.modules:  # else it has raised nothing
        import click

        if isinstance(error, click.ClickException):
            return _of_click(error, program, advice)
        if isinstance(error, click.Abort):
            error = KeyboardInterrupt()
    # Before Python 3.12 an interrupt while a class is made is the cause of a RuntimeError.
    interrupt = error if isinstance(error, KeyboardInterrupt) else error.__cause__
    if isinstance(interrupt, KeyboardInterrupt):
        message = "; ".join(filter(None, (str(interrupt) or "Interrupted", advice)))
        return Failure("interrupted", message, ExitCode.INTERRUPTED)
    failed = ErrorCode.OPERATION_FAILED.value
    if isinstance(error, OSError):
        message = error.strerror or str(error) or type(error).__name__
        path = error.filename if isinstance(error.filename, bytes | str) else None
        return Failure(failed, message, ExitCode.FAILED, path=path)
    if isinstance(error, MemoryError):
        hint = "end other programs, or raise the limit that 'ulimit -a' shows"
        return Failure(failed, "There is not enough memory", ExitCode.FAILED, hint)
    return Failure(
        "internal-error",
        f"Internal error: {type(error).__name__}: {error}",
        ExitCode.FAILED,
        "this is a bug; run the command with SNAP_DEBUG=1 to see where it comes from",
    )


def _of_click(error: click.ClickException, program: str, advice: str | None) -> Failure:
    import click

    if isinstance(error, click.NoSuchOption):  # whose own form differs between versions
        from treesnap.cli.aliases import hint_for_option

        command = ""
        if error.ctx is not None:
            whole, outermost = error.ctx.command_path, error.ctx.find_root().command_path
            command = whole.removeprefix(outermost).strip()
        near = error.possibilities or ()
        advice = advice or hint_for_option(command, error.option_name, program, near)
        is_number = command == "config" and error.option_name[1:].isdigit()
        message = f"No such option {error.option_name!r}"
        error = click.UsageError(
            "A number must be a whole one from 0" if is_number else message, error.ctx
        )
    message = error.format_message().rstrip(".").replace("\n\t", " ")
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see '{context.command_path} --help'" if context is not None else None
    return Failure("usage", message, ExitCode.USAGE, advice or hint)


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
