"""What the command line makes of exceptions and warnings: exit codes, messages, advice.

Nothing here prints, and nothing here imports the operations.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum

from treesnap.core.model.errors import (
    ErrorCode,
    HeldByMount,
    KeysRotated,
    MergeConflict,
    MountStopped,
    NotOnRemote,
    RanTogether,
    RemoteNotNamed,
    TreesnapError,
    WarningCode,
    printable,
)
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


class Response(NamedTuple):
    """What the command line does about an error."""

    exit_code: ExitCode
    hint: str | None


_HINTS: dict[ExitCode, dict[ErrorCode, str | None]] = {
    ExitCode.FAILED: {
        ErrorCode.STORE_UNAVAILABLE: "name another place with --store DIR or $SNAP_STORE",
        ErrorCode.NOT_PERMITTED: (
            "run it as the owner of the path, or 'sudo chown' it; 'snap restore REF --to DIR' "
            "writes elsewhere"
        ),
        ErrorCode.NO_TIMERS: "--cron prints a line for a crontab instead",
        ErrorCode.RAN_TOGETHER: "--together reverts all of it, --dry-run shows what that changes",
        ErrorCode.OPERATION_FAILED: None,
        ErrorCode.TOO_MANY_PATHS: (
            "name a PATH to take a part; a snapshot may be made to exhaust memory and time, unless "
            "you know it"
        ),
        ErrorCode.REMOTE_UNREACHABLE: (
            "check the address of the remote and the network, or whether its disk is connected"
        ),
        ErrorCode.REMOTE_CREDENTIALS: (
            "set the credentials that the remote asks for, for a bucket on S3 AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or renew them"
        ),
        ErrorCode.REMOTE_DENIED: "ask the owner of the remote for the permission",
        ErrorCode.REMOTE_WRONG_REGION: "name the region of the bucket: s3://BUCKET?region=REGION",
        ErrorCode.REMOTE_CLOCK: "set the clock of this machine",
        ErrorCode.REMOTE_MISSING: (
            "make the bucket, or connect the disk; the address may also have a typing mistake"
        ),
        ErrorCode.REMOTE_THROTTLED: "run the command again later",
        ErrorCode.REMOTE_FAILED: None,
    },
    ExitCode.USAGE: {
        ErrorCode.INVALID_ARGUMENT: None,
        ErrorCode.INVALID_CONFIG: "correct the file, or remove it to use the defaults",
        ErrorCode.INVALID_PLAN: "correct the plan; nothing was run",
        ErrorCode.INVALID_SETTINGS: "correct the file, which belongs to the host of the agent",
        ErrorCode.INVALID_ARCHIVE: "nothing was imported; check how the archive was made or copied",
        ErrorCode.AMBIGUOUS_REF: "give more characters of the id",
    },
    ExitCode.REFUSED: {
        ErrorCode.DANGEROUS_ROOT: "name another directory with -C DIR, or insist with --force",
        ErrorCode.FOREIGN_OWNER: (
            "another user could say what is restored, and where; if you trust that user, name the "
            "directory: 'snap config safe-directories DIR', or in SNAP_SAFE_DIRECTORIES"
        ),
        ErrorCode.NAME_TAKEN: "choose another name, or delete the snapshot that has it",
        ErrorCode.ROOT_TAKEN: "'snap root forget' removes one of the two histories",
        ErrorCode.NAMES_COLLIDE: (
            "restore with --to on a file system that tells upper from lower case"
        ),
        ErrorCode.HISTORY_KEPT: "--force removes them as well",
        ErrorCode.PINNED: "'snap unpin REF' ends the protection",
        ErrorCode.UNSAVED_CHANGES: "capture them: leave --no-commit-first out",
        ErrorCode.VALIDATION_FAILED: (
            "correct what it complains about, or leave --validate out to capture the tree as it is"
        ),
        ErrorCode.UNREADABLE: "make it readable, or name it in .snapignore",
        ErrorCode.NOT_A_DIRECTORY: "name a directory",
        ErrorCode.ROOT_COVERED: (
            "unmount it; 'findmnt' lists what is mounted. If that is to be the root from now on, "
            "'snap create' says so"
        ),
        ErrorCode.NOT_WATCHABLE: "every command works without a watcher, and looks at everything",
        ErrorCode.NOT_MOUNTABLE: (
            "name an empty directory outside of the root and the store; 'snap umount DIR' ends a "
            "mount of treesnap"
        ),
        ErrorCode.NOT_OURS: "remove it or move it away yourself, then run the command again",
        ErrorCode.TARGET_NOT_EMPTY: "name a directory that is empty or does not exist",
        ErrorCode.FILE_EXISTS: "choose another name, or replace it with --force",
        ErrorCode.NOT_FORKABLE: (
            "name a new directory below one that exists, outside of the root and of the store"
        ),
        ErrorCode.CONFLICT: "stop what writes there, then run the command again",
        ErrorCode.NOT_A_FORK: "'snap root list' says where each fork comes from",
        ErrorCode.FORK_REPLACED: "look at it with 'snap diff DIR', or adopt it with --force",
        ErrorCode.MERGE_CONFLICT: (
            "--mine keeps these paths as they are, --theirs takes the other side, --markers writes "
            "both into texts"
        ),
        ErrorCode.RESTORE_INTERRUPTED: (
            "'snap doctor' shows what it waits for, 'snap doctor --forget' gives it up; in a tree "
            "that was moved, 'snap root move OLD' finishes it"
        ),
        ErrorCode.RESTORE_NOT_OWN: (
            "if you made this store yourself, and moved or copied it here, 'snap store trust' lets "
            "the next command finish the restore; 'snap doctor --forget' leaves the files as they "
            "are"
        ),
        ErrorCode.PLAN_INTERRUPTED: (
            "'snap plan resume PLAN' continues it, 'snap plan rollback PLAN' rolls it back"
        ),
        ErrorCode.PLAN_NOT_COMPLETED: "'snap plan resume PLAN' continues it",
        ErrorCode.PLAN_APPLIED: "'snap restore REF' still restores any snapshot of 'snap list'",
        ErrorCode.FEATURE_MISSING: (
            "install treesnap whole; 'snap restore REF' restores the files of a snapshot alone"
        ),
        ErrorCode.RESTORE_NOT_ALLOWED: (
            "'snap restore REF' restores; 'snap mcp --allow-restore' lets the model do it"
        ),
        ErrorCode.REMOTE_REPLACED: (
            "'snap remote remove NAME' and 'snap remote add NAME URL' accept what is there now"
        ),
        ErrorCode.REMOTE_NAME_TAKEN: "choose another name, or 'snap remote remove NAME' first",
        ErrorCode.REMOTE_UNRELIABLE: (
            "delete nothing there by hand; 'snap remote check' says which machines can collect"
        ),
        ErrorCode.NOT_ENCRYPTED: "a user who can read the place can read what is stored there",
        ErrorCode.NOTHING_IN_COMMON: (
            "'snap restore REMOTE/HISTORY' replaces the files, and 'snap undo' takes that back"
        ),
        ErrorCode.LAST_KEY: (
            "'snap remote key add' adds another one; then give the secret of that one"
        ),
        ErrorCode.STORE_NOT_OWN: (
            "'snap plan show' shows the plan; '--allow-commands' runs what it says; 'snap store "
            "trust' is for a store that you made yourself, and moved or copied here"
        ),
        ErrorCode.ROOT_NOT_NAMED: (
            "name the root with -C, if that is the directory to be written to; 'snap store trust' "
            "is for a store that you made yourself, and moved or copied here"
        ),
        ErrorCode.STORE_MOVED: "use the store at its new place, and remove what is left here",
        ErrorCode.STORE_NOT_TRUSTED: (
            "take it over with 'chown -R' and 'chmod go-w', or copy what you need of it"
        ),
        ErrorCode.REMOTE_LOCKED: (
            "give the passphrase or the key of one of its key slots, for example with "
            "$TREESNAP_REMOTE_PASSPHRASE or $TREESNAP_REMOTE_KEY"
        ),
        ErrorCode.UNSUPPORTED_FORMAT: "use the version of treesnap that made this store",
    },
    ExitCode.NOT_FOUND: {
        ErrorCode.SNAPSHOT_NOT_FOUND: "'snap list' shows the snapshots of this root",
        ErrorCode.OTHER_ROOT: (
            "name that root with -C, even if it is gone; 'snap restore ID --to DIR' needs no root"
        ),
        ErrorCode.REMOTE_NOT_FOUND: (
            "'snap remote list' shows the remotes, 'snap remote add NAME URL' adds one"
        ),
        ErrorCode.KEY_NOT_FOUND: "'snap remote key list' shows the key slots",
        ErrorCode.HISTORY_NOT_FOUND: (
            "'snap remote show NAME' lists the histories, 'snap push NAME' begins one"
        ),
        ErrorCode.PATH_NOT_FOUND: (
            "'snap ls -R REF' and 'snap find PATTERN' show the paths of snapshots"
        ),
        ErrorCode.UNKNOWN_PATH: (
            "did you mean -m LABEL? --allow-absent captures that there is nothing at a PATH"
        ),
        ErrorCode.PLAN_NOT_FOUND: "'snap plan list --all' shows all plans",
        ErrorCode.CHECKPOINT_NOT_FOUND: "'snap plan rollback PLAN' lists the checkpoints",
        ErrorCode.SESSION_NOT_FOUND: (
            "'snap list' shows what was captured; agents are captured by 'snap hook'"
        ),
        ErrorCode.ROOT_NOT_FOUND: "name the directory with -C DIR",
        ErrorCode.CURRENT_DIRECTORY_GONE: (
            "'cd \"$PWD\"' enters the directory that is in its place now; -C DIR names another one"
        ),
        ErrorCode.UNKNOWN_ROOT: "'snap root list' shows all roots",
        ErrorCode.STORE_NOT_FOUND: "'snap create' makes the store; --store DIR names another one",
        ErrorCode.SCHEDULE_NOT_FOUND: "'snap schedule list' shows all schedules",
        ErrorCode.NOT_MOUNTED: "'findmnt -t fuse.treesnap' lists the mounts of treesnap",
        ErrorCode.NOTHING_TO_UNDO: "'snap restore REF' restores any snapshot of 'snap list'",
    },
    ExitCode.BUSY: {
        ErrorCode.BUSY: "another command works here; --wait SECONDS waits longer for it",
    },
    ExitCode.DAMAGED: {
        ErrorCode.STORE_DAMAGED: (
            "'snap verify --read-data' names all damage, 'snap verify --repair' repairs what it can"
        ),
        ErrorCode.REMOTE_DAMAGED: (
            "'snap remote verify NAME --read-data' names all damage there, 'snap remote verify "
            "NAME --repair' stores again what this store has"
        ),
    },
    ExitCode.NO_SPACE: {
        ErrorCode.NO_SPACE: "make room: 'snap delete REF...' and 'snap gc', or remove other files",
        ErrorCode.OVER_QUOTA: (
            "'snap prune' and 'snap gc' make room; --max-size, else 'snap config max-size', sets "
            "the limit"
        ),
        ErrorCode.REMOTE_FULL: "make room on the remote, or raise its quota",
    },
    ExitCode.COMMAND_NOT_FOUND: {
        ErrorCode.COMMAND_NOT_FOUND: None,
    },
}
"""What to do next about each error, or None when its message says it all, by exit code."""

RESPONSES = {
    code: Response(exit_code, hints[code])
    for code in ErrorCode
    for exit_code, hints in _HINTS.items()
    if code in hints
}

_KEYS_ROTATED = (
    "give a newer secret; or on a machine that has one, 'snap remote key remove' the slot of "
    "this one, and 'snap remote key add' this one again"
)
_REMOTE_NOT_NAMED = (
    "if that address is yours, 'snap config safe-remote.URL true' says so for it; 'snap store "
    "trust' is for a store that you made yourself, and moved or copied here"
)
_HELD_BY_MOUNT = (
    "'snap umount DIR' ends a mount of the history; 'findmnt -t fuse.treesnap' lists them"
)
_MOUNT_STOPPED = (
    "'kill -CONT PID' lets its process go on, 'kill -KILL PID' ends it; 'snap umount DIR' then "
    "clears what it left"
)
_NOT_ON_REMOTE = "'snap remote snapshots {}' shows the snapshots of this history"
_NOT_AT_ADDRESS = (
    "'snap remote add NAME URL' gives the remote a name, 'snap remote snapshots NAME' then shows "
    "its snapshots"
)

WARNING_HINTS: dict[WarningCode, str] = {
    WarningCode.ROOT_MAY_HAVE_MOVED: "'snap root move OLD' takes over the history of a moved root",
    WarningCode.SETTINGS_IGNORED: "correct the file, or remove it to use the defaults",
    WarningCode.STAGE_FOUND: "remove it once no restore of that tree is under way",
    WarningCode.RESTORE_UNFINISHED: "'snap doctor' shows what it waits for",
    WarningCode.STEP_KILLED: (
        "'snap restore ID' goes back to that state, 'snap create' or 'snap doctor --forget' keeps "
        "this one"
    ),
    WarningCode.ROLL_BACK_FAILED: (
        "'snap restore ID' tries again to go back to that state, 'snap create' or 'snap doctor "
        "--forget' keeps this one"
    ),
    WarningCode.EDITS_PRESERVED: "'snap restore REF --to DIR' writes the files of that snapshot",
    WarningCode.NOT_CONVERTED: "'--no-textconv' runs no commands; 'snap config' shows them",
    WarningCode.GARBAGE_KEPT: (
        "'snap verify --repair' repairs them or moves them away, 'snap gc' collects around them"
    ),
    WarningCode.REMOTE_READABLE: "'chmod go-rwx' the directory, or add it with '--encrypt'",
    WarningCode.SNAPSHOT_NEWER: "install the newest version of treesnap",
}
"""What to do next about a warning, where its message does not say it all."""


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
    paths: tuple[bytes, ...] = ()
    """Of a merge that was refused: all paths in conflict."""
    together: Mapping[str, Any] | None = None
    """Of a step that was not reverted alone: what ran at the same time."""


def failure_fields(failure: Failure) -> dict[str, Any]:
    """Returns an error as JSON."""
    from treesnap.core.model.presentation import json_value, path_fields

    path = {"path": None} if failure.path is None else path_fields(failure.path)
    return {
        "code": failure.code,
        "message": printable(failure.message),
        "hint": failure.hint,
        "exit_code": failure.exit_code,
        **path,
        **({"paths": json_value(failure.paths)} if failure.paths else {}),
        **({"together": failure.together} if failure.together is not None else {}),
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
    hint = RESPONSES[code].hint if isinstance(code, ErrorCode) else WARNING_HINTS.get(code)
    return _for_program(hint, program) if hint is not None else None


def _hint(error: TreesnapError, program: str) -> str | None:
    """Returns what to do next; errors of some classes know more of it than their code."""
    if isinstance(error, KeysRotated):
        return _for_program(_KEYS_ROTATED, program)
    if isinstance(error, NotOnRemote):
        there = _NOT_ON_REMOTE.format(error.history) if error.history else _NOT_AT_ADDRESS
        return _for_program(there, program)
    if isinstance(error, HeldByMount):
        return _for_program(_HELD_BY_MOUNT, program)
    if isinstance(error, MountStopped):
        return _for_program(_MOUNT_STOPPED, program)
    if isinstance(error, RemoteNotNamed):
        return _for_program(_REMOTE_NOT_NAMED, program)
    return hint_of(error.code, program)


def _for_program(hint: str, program: str) -> str:
    return hint.replace("'snap ", f"'{program} ")


def from_error(error: BaseException, program: str = "snap") -> Failure:
    """Returns how an exception is shown; exceptions that are not expected are our bugs.

    ``program`` is the name that commands in the advice begin with.
    """
    advice = " ".join(getattr(error, "__notes__", ())) or None
    if isinstance(error, TreesnapError):
        hint = advice or _hint(error, program)
        exit_code = RESPONSES[error.code].exit_code
        paths = error.paths if isinstance(error, MergeConflict) else ()
        together = None
        if isinstance(error, RanTogether):
            steps, others = list(error.steps), list(error.others)
            together = {"session": error.session, "steps": steps, "others": others}
        code = error.code.value
        return Failure(code, error.message, exit_code, hint, error.path, paths, together)
    if "click" in sys.modules:  # else it has raised nothing
        import click

        if isinstance(error, click.ClickException):
            return _of_click(error, program, advice)
        if isinstance(error, click.Abort):
            error = KeyboardInterrupt()
    if isinstance(error, KeyboardInterrupt):
        message = "; ".join(filter(None, ("Interrupted", advice)))
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
        error = click.UsageError(f"No such option {error.option_name!r}", error.ctx)
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
