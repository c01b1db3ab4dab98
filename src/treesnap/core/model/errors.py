"""Everything that treesnap raises, grouped by what a caller does next.

    TreesnapError
    ├── InvalidArgument (ValueError)   correct the call
    ├── NotFound (LookupError)         name something that exists
    │   ├── StoreMissing               create a first snapshot, or name another store
    │   └── NotOnRemote                name a snapshot that the history on the remote has
    ├── Refused                        change the situation, or pass ``force``
    │   ├── Conflict                   another process changed the tree meanwhile
    │   ├── MergeConflict              say which side wins, or edit the paths
    │   ├── RanTogether                say that all of what ran at the same time is meant
    │   ├── RemoteNotNamed             say that the remote is one of your own
    │   ├── RemoteLocked               give a secret that opens the remote's keys
    │   │   └── KeysRotated            have the secret added again, by a holder of a newer one
    │   └── UnsupportedFormat          use the version that made this store
    │       └── NewerVersion           use a newer version: one file is of it
    ├── Busy                           wait, or stop the process that holds it
    │   ├── HeldByMount                unmount the history: a mount does not end by itself
    │   └── MountStopped               let the process that serves the mount go on, or end it
    ├── Corrupt                        verify the store, repair it
    │   └── GenerationMissing          read the remote's key slots again
    ├── OperationFailed (OSError kin)  read the message; nothing was changed
    │   └── RemoteFailed               check the remote, its address and the credentials for it
    └── StorageFull                    make room

Each class carries a stable ``code`` that programs may compare, and the facts
(path, reference, errno) as attributes. Warnings, which a monitor receives, have
codes as well. Advice to people and exit codes live in the command line, not here.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable codes of all errors. Codes are added, never renamed or reused."""

    INVALID_ARGUMENT = "invalid-argument"
    INVALID_CONFIG = "invalid-config"
    INVALID_PLAN = "invalid-plan"
    INVALID_SETTINGS = "invalid-settings"
    INVALID_ARCHIVE = "invalid-archive"
    AMBIGUOUS_REF = "ambiguous-ref"
    SNAPSHOT_NOT_FOUND = "snapshot-not-found"
    OTHER_ROOT = "other-root"
    PATH_NOT_FOUND = "path-not-found"
    UNKNOWN_PATH = "unknown-path"
    PLAN_NOT_FOUND = "plan-not-found"
    CHECKPOINT_NOT_FOUND = "checkpoint-not-found"
    SESSION_NOT_FOUND = "session-not-found"
    PROMPT_NOT_FOUND = "prompt-not-found"
    ROOT_NOT_FOUND = "root-not-found"
    CURRENT_DIRECTORY_GONE = "current-directory-gone"
    UNKNOWN_ROOT = "unknown-root"
    STORE_NOT_FOUND = "store-not-found"
    STORE_UNAVAILABLE = "store-unavailable"
    STATE_UNAVAILABLE = "state-unavailable"
    STORE_NOT_OWN = "store-not-own"
    ROOT_NOT_NAMED = "root-not-named"
    STORE_MOVED = "store-moved"
    STORE_NOT_TRUSTED = "store-not-trusted"
    SCHEDULE_NOT_FOUND = "schedule-not-found"
    NO_TIMERS = "no-timers"
    NOTHING_TO_UNDO = "nothing-to-undo"
    COMMAND_NOT_FOUND = "command-not-found"
    DANGEROUS_ROOT = "dangerous-root"
    FOREIGN_OWNER = "foreign-owner"
    NAME_TAKEN = "name-taken"
    ROOT_TAKEN = "root-taken"
    NAMES_COLLIDE = "names-collide"
    HISTORY_KEPT = "history-kept"
    PINNED = "pinned"
    UNSAVED_CHANGES = "unsaved-changes"
    VALIDATION_FAILED = "validation-failed"
    UNREADABLE = "unreadable"
    NOT_PERMITTED = "not-permitted"
    NOT_A_DIRECTORY = "not-a-directory"
    ROOT_COVERED = "root-covered"
    NOT_WATCHABLE = "not-watchable"
    NOT_MOUNTABLE = "not-mountable"
    NOT_MOUNTED = "not-mounted"
    NOT_OURS = "not-ours"
    TARGET_NOT_EMPTY = "target-not-empty"
    FILE_EXISTS = "file-exists"
    NOT_FORKABLE = "not-forkable"
    CONFLICT = "conflict"
    MERGE_CONFLICT = "merge-conflict"
    RAN_TOGETHER = "ran-together"
    NOT_A_FORK = "not-a-fork"
    FORK_REPLACED = "fork-replaced"
    RESTORE_INTERRUPTED = "restore-interrupted"
    RESTORE_NOT_OWN = "restore-not-own"
    PLAN_INTERRUPTED = "plan-interrupted"
    PLAN_NOT_COMPLETED = "plan-not-completed"
    PLAN_APPLIED = "plan-applied"
    FEATURE_MISSING = "feature-missing"
    RESTORE_NOT_ALLOWED = "restore-not-allowed"
    UNSUPPORTED_FORMAT = "unsupported-format"
    BUSY = "busy"
    STORE_DAMAGED = "store-damaged"
    NO_SPACE = "no-space"
    OVER_QUOTA = "over-quota"
    TOO_MANY_PATHS = "too-many-paths"
    OPERATION_FAILED = "operation-failed"
    REMOTE_UNREACHABLE = "remote-unreachable"
    REMOTE_CREDENTIALS = "remote-credentials"
    REMOTE_HOST_UNKNOWN = "remote-host-unknown"
    REMOTE_PROGRAM_MISSING = "remote-program-missing"
    REMOTE_DENIED = "remote-denied"
    REMOTE_WRONG_REGION = "remote-wrong-region"
    REMOTE_CLOCK = "remote-clock"
    REMOTE_MISSING = "remote-missing"
    REMOTE_THROTTLED = "remote-throttled"
    REMOTE_FULL = "remote-full"
    REMOTE_LOCKED = "remote-locked"
    REMOTE_REPLACED = "remote-replaced"
    REMOTE_SET_BACK = "remote-set-back"
    REMOTE_NAME_TAKEN = "remote-name-taken"
    REMOTE_NOT_FOUND = "remote-not-found"
    REMOTE_UNRELIABLE = "remote-unreliable"
    REMOTE_ROLE = "remote-role"
    NOT_ENCRYPTED = "not-encrypted"
    ENCRYPTION_EXPECTED = "encryption-expected"
    LAST_KEY = "last-key"
    SECRET_IN_USE = "secret-in-use"  # noqa: S105 - the code of an error
    NOTHING_IN_COMMON = "nothing-in-common"
    KEY_NOT_FOUND = "key-not-found"
    MEMBER_NOT_FOUND = "member-not-found"
    HISTORY_NOT_FOUND = "history-not-found"
    REMOTE_DAMAGED = "remote-damaged"
    REMOTE_FAILED = "remote-failed"


class WarningCode(StrEnum):
    """Stable codes of all warnings, none of which is the code of an error as well.

    Codes are added, never renamed or reused.
    """

    STORE_MADE = "store-made"
    DATABASE_WRITTEN = "database-written"
    DATABASE_LOG_LEFT = "database-log-left"
    ROOT_MOVED = "root-moved"
    ROOT_MAY_HAVE_MOVED = "root-may-have-moved"
    ROOT_MOVED_ASIDE = "root-moved-aside"
    RULE_SKIPPED = "rule-skipped"
    RULES_UNREADABLE = "rules-unreadable"
    SETTINGS_IGNORED = "settings-ignored"
    STAGE_FOUND = "stage-found"
    RESTORE_RECOVERED = "restore-recovered"
    RESTORE_UNFINISHED = "restore-unfinished"
    RESTORE_NOT_NOTED = "restore-not-noted"
    METADATA_NOT_RESTORED = "metadata-not-restored"
    LEFT_ALONE = "left-alone"
    EDITS_PRESERVED = "edits-preserved"
    STATE_NOT_KEPT = "state-not-kept"
    NOT_CLEANED_UP = "not-cleaned-up"
    EXPORT_NOT_RECORDED = "export-not-recorded"
    EXPORT_CLEANED_UP = "export-cleaned-up"
    CHECKPOINT_NOT_HELD = "checkpoint-not-held"
    BLOCK_ABANDONED = "block-abandoned"
    PROCESSES_LEFT = "processes-left"
    STEP_UNDONE = "step-undone"
    STEP_KILLED = "step-killed"
    ROLL_BACK_FAILED = "roll-back-failed"
    SNAPSHOT_DAMAGED = "snapshot-damaged"
    SNAPSHOT_NEWER = "snapshot-newer"
    DAMAGED_SNAPSHOT_DELETED = "damaged-snapshot-deleted"
    NOT_REPAIRED = "not-repaired"
    MAINTENANCE_FAILED = "maintenance-failed"
    GARBAGE_KEPT = "garbage-kept"
    ROOM_MADE = "room-made"
    REMOTE_FILE_DAMAGED = "remote-file-damaged"
    REMOTE_SNAPSHOT_DAMAGED = "remote-snapshot-damaged"
    NOT_CONVERTED = "not-converted"
    NOT_COMPARED = "not-compared"
    FORKS_MADE = "forks-made"
    REPOSITORY_SHARED = "repository-shared"
    STORE_NOT_OBEYED = "store-not-obeyed"
    REMOTE_READABLE = "remote-readable"
    INVITATIONS_ENDED = "invitations-ended"
    REMOTE_WAITED_FOR = "remote-waited-for"
    ROOT_LARGE = "root-large"


def printable(path: bytes | str) -> str:
    """Returns a path as text that is safe to print on one line.

    Bytes that are not UTF-8 and control characters are written as escapes.
    """
    text = path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else path
    return "".join(
        character
        if character.isprintable()
        else character.encode("utf-8", "surrogateescape").decode("latin-1").translate(_ESCAPES)
        for character in text
    )


def quoted(path: bytes | str) -> str:
    """Returns a path as printable text in quotation marks, for messages.

    A long one without its middle: a message may name several, each of thousands of bytes. The
    error's own ``path`` is whole.
    """
    text = printable(path)
    if len(text) > _QUOTED_LENGTH_MAX:
        text = f"{text[:_QUOTED_END]}...{text[-_QUOTED_END:]}"
    return repr(text)


_QUOTED_LENGTH_MAX = 256
_QUOTED_END = 120


def path_fields(path: bytes | str, key: str = "path") -> dict[str, str]:
    """Returns a path as one field, or as two when it is not UTF-8."""
    raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    try:
        return {key: raw.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {key: printable(raw), f"{key}_bytes": b64encode(raw).decode("ascii")}


_ESCAPES = {number: f"\\x{number:02x}" for number in [*range(0x20), *range(0x7F, 0x100)]} | {
    0x0A: "\\n",
    0x09: "\\t",
    0x0D: "\\r",
}


class TreesnapError(Exception):
    """Base of all errors that treesnap raises on purpose."""

    code: ErrorCode = ErrorCode.OPERATION_FAILED
    checkpoint_id: str | None = None
    """Where a roll-back that failed leads, so that it can be tried again; else None."""

    def __init__(
        self, message: str, *, code: ErrorCode | None = None, path: bytes | str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        if code is not None:
            self.code = code

    @property
    def hint(self) -> str | None:
        """What to do next, in a sentence for people, or None where the message says it all.

        Commands in it are those of ``snap``.
        """
        from treesnap.core.model.hints import CLASS_HINTS, HINTS

        notes = getattr(self, "__notes__", ())
        return " ".join(notes) or CLASS_HINTS.get(type(self).__name__, HINTS[self.code])

    def details(self) -> dict[str, object]:
        """Returns what else an error of its class knows, as JSON."""
        return {}

    def to_dict(self) -> dict[str, object]:
        """Returns the error as ``--json`` prints it, but for the exit code; JSON takes it."""
        path = {"path": None} if self.path is None else path_fields(self.path)
        return {
            "code": self.code.value,
            "message": printable(self.message),
            "hint": self.hint,
            **path,
            **self.details(),
        }


class InvalidArgument(TreesnapError, ValueError):
    """The call itself is wrong: a bad reference, pattern, path or option."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFound(TreesnapError, LookupError):
    """A snapshot, path, root or store that was named does not exist."""

    code = ErrorCode.SNAPSHOT_NOT_FOUND


class StoreMissing(NotFound):
    """There is no store yet: the first snapshot makes it."""

    code = ErrorCode.STORE_NOT_FOUND


class OnlyOfPaths(NotFound):
    """The snapshots that could have been meant are of other paths."""


class NotOnRemote(NotFound):
    """A history on a remote does not have the snapshot that was named.

    ``history`` is that history as ``REMOTE/HISTORY``, or None for a remote without a name.
    """

    history: str | None = None

    @property
    def hint(self) -> str | None:
        """What to do next: where to look for its snapshots."""
        from treesnap.core.model.hints import NOT_AT_ADDRESS, NOT_ON_REMOTE

        notes = " ".join(getattr(self, "__notes__", ()))
        there = NOT_ON_REMOTE.format(self.history) if self.history else NOT_AT_ADDRESS
        return notes or there


class Refused(TreesnapError):
    """The operation is possible but was not done, because it could do harm."""

    code = ErrorCode.DANGEROUS_ROOT


class Conflict(Refused):
    """A path changed while a restore was under way; what was done was undone."""

    code = ErrorCode.CONFLICT


class MergeConflict(Refused):
    """Both sides of a merge changed the same in different ways; nothing was changed."""

    code = ErrorCode.MERGE_CONFLICT

    def __init__(
        self, message: str, paths: tuple[bytes, ...] = (), *, path: bytes | None = None
    ) -> None:
        super().__init__(message, path=paths[0] if paths else path)
        self.paths = paths
        """What is in conflict."""

    def details(self) -> dict[str, object]:
        """Returns all paths in conflict."""
        return {"paths": [path_fields(path) for path in self.paths]} if self.paths else {}


class RanTogether(Refused):
    """One step was named, and what it changed cannot be told from what others did meanwhile.

    Nothing was changed.
    """

    code = ErrorCode.RAN_TOGETHER

    def __init__(
        self,
        message: str,
        session: str = "",
        steps: tuple[int, ...] = (),
        others: tuple[str, ...] = (),
        *,
        path: bytes | str | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.session = session
        self.steps = steps
        """What ran at the same time, by the numbers in the session."""
        self.others = others
        """Other sessions that worked meanwhile."""

    def details(self) -> dict[str, object]:
        """Returns what ran at the same time."""
        steps, others = list(self.steps), list(self.others)
        return {"together": {"session": self.session, "steps": steps, "others": others}}


class RemoteNotNamed(Refused):
    """Only a store that is not proven to be the user's own names a remote."""

    code = ErrorCode.STORE_NOT_OWN


class RemoteLocked(Refused):
    """The passphrase or key that was given opens no key slot of the remote."""

    code = ErrorCode.REMOTE_LOCKED


class KeysRotated(RemoteLocked):
    """The secret that was given opens a key slot without the newest keys of the remote."""


class UnsupportedFormat(Refused):
    """The store has a format that this treesnap cannot handle."""

    code = ErrorCode.UNSUPPORTED_FORMAT


class Busy(TreesnapError):
    """Another process holds what this operation needs, and the wait ran out."""

    code = ErrorCode.BUSY


class HeldByMount(Busy):
    """A snapshot that the operation needs alone is read through a mount of the history."""


class MountStopped(Busy):
    """The process that serves a mount of the history does not answer, as when it is suspended."""


class Corrupt(TreesnapError):
    """Stored bytes are missing or are not what their identity says."""

    code = ErrorCode.STORE_DAMAGED


class NewerVersion(UnsupportedFormat, Corrupt):
    """A file of a store is whole, and has a newer version than this treesnap reads.

    It is as unreadable as a damaged one, and whatever reads around damage reads around it. But it
    is not to be repaired, and what it needs is not known.
    """


class GenerationMissing(Corrupt):
    """A file of a remote says that it was encrypted with a key generation that is not known here.

    Either another machine has rotated the keys since the key slot was opened, and a newer slot
    has them, or the file is damaged. ``generation`` is what the file says.
    """

    code = ErrorCode.REMOTE_DAMAGED
    generation: int = 0


class StorageFull(TreesnapError):
    """The file system or the quota has no room for the operation.

    ``needed_bytes`` is what the operation needs at least: what it had written, and what did not
    fit; 0 where that is unknown. ``limit_bytes`` is the maximum size of the store, or None when
    the file system was full.
    """

    code = ErrorCode.NO_SPACE
    needed_bytes: int = 0
    limit_bytes: int | None = None


class OperationFailed(TreesnapError):
    """A system call failed; whatever had been done was undone.

    ``errno`` is the operating system's error number, or None.
    """

    code = ErrorCode.OPERATION_FAILED

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        path: bytes | str | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message, code=code, path=path)
        self.errno = errno


class RemoteFailed(OperationFailed):
    """A bucket or a directory elsewhere did not do what it was asked to.

    ``endpoint`` says where it is. ``is_unclear`` is true where the request may have been carried
    out all the same, now or later; ``may_pass`` where the same request may succeed later, although
    no person does anything about it.
    """

    code = ErrorCode.REMOTE_FAILED

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        path: bytes | str | None = None,
        errno: int | None = None,
        endpoint: str | None = None,
        is_unclear: bool = False,
        may_pass: bool = False,
    ) -> None:
        super().__init__(message, code=code, path=path, errno=errno)
        self.endpoint = endpoint
        self.is_unclear = is_unclear
        self.may_pass = may_pass
