"""MAKER's result blocks: the outcome of a request, as text and as fields; pure.

A failure has a reason that MAKER knows, and options for its pipeline to recover.

A text always stays below 500 tokens: long lists end in a line with the number of omitted
items, and long words lose their middle. The fields hold everything.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from treesnap.compat.maker_block import Operation, subject
from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.errors import ErrorCode, TreesnapError, printable
from treesnap.core.model.named_tuple import NamedTuple

STRATEGY = "file-copy"
"""Of MAKER's two strategies the accurate one: no git is used."""

_RULE = "=" * 42
_LINE = "-" * 42
_ROOM = 1490
"""The most that a text may cost, in thirds of a token: less than 500 tokens."""
_WORD_ROOM = 180
_DETAIL_ROOM = 300


class FileState(NamedTuple):
    """A file of a checkpoint: ``captured`` or ``did_not_exist``."""

    path: str
    state: str


class FileAction(NamedTuple):
    """What a restore did to a file: ``restored``, ``deleted`` or ``unchanged``."""

    path: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A checkpoint was taken; it survives a power cut."""

    status: str = "CREATE_SUCCESS"
    checkpoint_id: str
    strategy: str = STRATEGY
    created_at: str
    files: tuple[FileState, ...]
    unclear: tuple[str, ...] = ()
    """Lines of the list that name nothing that exists and do not read as a path."""
    metadata_location: str
    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """All files of a checkpoint are as they were."""

    status: str = "RESTORE_SUCCESS"
    checkpoint_id: str
    strategy: str = STRATEGY
    restored_at: str
    files_restored: int
    """Number of actions that changed something."""
    actions: tuple[FileAction, ...]
    step_number: int
    snapshot_id: str
    safety_id: str | None
    """The snapshot of the state before the restore, or None if nothing differed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Checkpoints were removed; lists are oldest first."""

    status: str = "CLEANUP_COMPLETE"
    mode: str
    task_id: str
    removed: tuple[str, ...]
    retained: tuple[str, ...]
    freed_bytes: int
    """Bytes that garbage collection freed."""
    postponed: str | None
    """Why more may be freed later, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request failed and changed nothing."""

    status: str
    checkpoint_id: str | None = None
    mode: str | None = None
    reason: str
    details: str
    recovery_options: tuple[str, ...]
    error: Exception


Result = Created | Restored | Cleaned | Failed

_REASONS = {
    ErrorCode.SNAPSHOT_NOT_FOUND: "checkpoint_not_found",
    ErrorCode.STORE_NOT_FOUND: "checkpoint_not_found",
    ErrorCode.CONFLICT: "file_conflict",
    ErrorCode.NOT_A_DIRECTORY: "file_conflict",
    ErrorCode.ROOT_COVERED: "file_conflict",
    ErrorCode.TARGET_NOT_EMPTY: "file_conflict",
    ErrorCode.RESTORE_INTERRUPTED: "file_conflict",
    ErrorCode.BUSY: "file_conflict",
    ErrorCode.UNREADABLE: "permission_error",
    ErrorCode.STORE_DAMAGED: "corruption",
}
_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ELSEWHERE = "Get the files into another directory: snap restore CHECKPOINT_ID --to DIRECTORY"
_OPTIONS = {
    "checkpoint_not_found": (
        "Check the checkpoint id and the working directory; 'snap list' lists all checkpoints.",
        "Restore the files by other means, and create a checkpoint before the next step.",
    ),
    "file_conflict": (
        "Stop or move what the details name, then send the block again.",
        _ELSEWHERE,
    ),
    "permission_error": (
        "Grant access to what the details name (chmod, chown, chattr), then send the block again.",
        _ELSEWHERE,
    ),
    "corruption": (
        "'snap verify --read-data' names the damage, with '--repair' too it repairs what it can.",
        "Restore another checkpoint; those that 'snap verify' does not name are whole.",
    ),
    "name_taken": (
        "Send the block with another checkpoint id; the existing checkpoint was not touched.",
        "Remove the existing checkpoint if it is not needed: snap delete CHECKPOINT_ID",
    ),
}
_OTHER_OPTIONS = (
    "Nothing was changed: correct what the details name, then send the block again.",
    "See 'snap maker --help' and 'snap doctor'.",
)


def failed(block: bytes, error: TreesnapError | OSError) -> Failed:
    """Returns a failed result, with the id or mode of the request if it can be read."""
    operation, word = subject(block)
    verb = operation.value if operation is not None else "OPERATION"
    number = getattr(error, "errno", None)
    if isinstance(error, TreesnapError) and number not in _PERMISSION:
        reason = _REASONS.get(error.code, error.code.value.replace("-", "_"))
    else:
        reason = "permission_error" if number in _PERMISSION else "operation_failed"
    is_cleanup = verb == Operation.CLEANUP
    return Failed(
        status=f"{verb}_FAILED",
        checkpoint_id=None if is_cleanup else word,
        mode=word if is_cleanup else None,
        reason=reason,
        details=error_text(error),
        recovery_options=_OPTIONS.get(reason, _OTHER_OPTIONS),
        error=error,
    )


_STATE_WORDS = {"captured": "captured", "did_not_exist": "did_not_exist (will be created)"}
_ACTION_WORDS = {
    "restored": "restored from checkpoint",
    "deleted": "deleted (did not exist at checkpoint)",
    "unchanged": "unchanged since checkpoint",
}


def result_fields(result: Result) -> dict[str, Any]:
    """Returns the fields of a result for JSON, unshortened."""
    values = {item.name: getattr(result, item.name) for item in fields(result)}
    values.pop("error", None)
    return {
        name: [item._asdict() for item in value] if name in {"files", "actions"} else value
        for name, value in values.items()
    }


def result_text(result: Result) -> str:
    """Returns a result block, without a final line break."""
    match result:
        case Created():
            return _created(result)
        case Restored():
            return _restored(result)
        case Cleaned():
            return _cleaned(result)
        case Failed():
            return _failed(result)


def _created(result: Created) -> str:
    rows = [(state.path, f": {_STATE_WORDS[state.state]}") for state in result.files]
    head = [f"[STATUS] {result.status}", f"[CHECKPOINT_ID] {result.checkpoint_id}"]
    details = [
        f"Strategy: {result.strategy}",
        f"Created: {result.created_at}",
        f"Files Captured: {len(rows)}",
        "Files:",
    ]
    location = [_cut(result.metadata_location, _WORD_ROOM)]
    command = [f"To restore this checkpoint, use CHECKPOINT_ID: {result.checkpoint_id}"]

    def whole(files: list[str]) -> str:
        return _block(
            head,
            ("CHECKPOINT DETAILS", details + files),
            ("METADATA LOCATION", location),
            ("RESTORE COMMAND", command),
        )

    if not result.unclear:
        return whole(_listed(rows, _ROOM - _cost(whole([]))))
    title = "Unclear, nothing of it exists:"
    unclear = _listed([(line, "") for line in result.unclear], (_ROOM - _cost(whole([title]))) // 2)
    files = _listed(rows, _ROOM - _cost(whole([title, *unclear])) - 1)
    return whole([*files, title, *unclear])


def _restored(result: Restored) -> str:
    rows = [(action.path, f": {_ACTION_WORDS[action.action]}") for action in result.actions]
    head = [f"[STATUS] {result.status}", f"[CHECKPOINT_ID] {result.checkpoint_id}"]
    details = [
        f"Strategy: {result.strategy}",
        f"Restored At: {result.restored_at}",
        f"Files Restored: {result.files_restored}",
        "Actions Taken:",
    ]
    after = [
        f"The file system has been rolled back to the state before step {result.step_number}.",
        "The pipeline may now retry with a different approach or request user guidance.",
    ]

    def whole(actions: list[str]) -> str:
        return _block(head, ("RESTORE DETAILS", details + actions), ("STATE AFTER RESTORE", after))

    return whole(_listed(rows, _ROOM - _cost(whole([]))))


def _cleaned(result: Cleaned) -> str:
    removed = [(identity, "") for identity in result.removed]
    retained = [(identity, "") for identity in result.retained]
    head = [f"[STATUS] {result.status}", f"[MODE] {result.mode}"]
    counts = [f"Checkpoints Removed: {len(removed)}", f"Checkpoints Retained: {len(retained)}"]
    freed = [f"{result.freed_bytes} bytes"]
    if result.postponed is not None:
        freed.append(f"Perhaps more later: {_cut(result.postponed, _WORD_ROOM)}")

    def whole(gone: list[str], left: list[str]) -> str:
        lists = [*counts, "Removed:", *gone, "Retained:", *left]
        return _block(head, ("CLEANUP SUMMARY", lists), ("STORAGE FREED", freed))

    room = _ROOM - _cost(whole([], []))
    left = _listed(retained, room // 2)
    return whole(_listed(removed, room - sum(map(_cost_of_line, left))), left)


def _failed(result: Failed) -> str:
    title, word = (
        ("MODE", result.mode)
        if result.status.startswith("CLEANUP")
        else ("CHECKPOINT_ID", result.checkpoint_id)
    )
    subject = f"[{title}] {_cut(word or '-', _WORD_ROOM)}"
    details = [f"Reason: {result.reason}", "Details:", _cut(result.details, _DETAIL_ROOM)]
    options = [f"{number}. {text}" for number, text in enumerate(result.recovery_options, start=1)]
    return _block(
        [f"[STATUS] {result.status}", subject],
        ("FAILURE DETAILS", details),
        ("RECOVERY OPTIONS", options),
    )


def _block(head: list[str], *parts: tuple[str, list[str]]) -> str:
    lines = [_RULE, "CHECKPOINT RESULT", _RULE, *head]
    for title, content in parts:
        lines += [_LINE, title, _LINE, *content]
    return "\n".join([*lines, _RULE])


def _listed(rows: Sequence[tuple[str, str]], room: int) -> list[str]:
    """Returns a line for each row that fits, and one with the number of the others."""
    reserved = _cost_of_line(_others(len(rows)))
    lines: list[str] = []
    used, fitting = 0, 0
    for word, warning in rows:
        lines.append(f"- {_cut(word, _WORD_ROOM)}{warning}")
        used += _cost_of_line(lines[-1])
        if used > room:
            return [*lines[:fitting], _others(len(rows) - fitting)]
        if used + reserved <= room:
            fitting = len(lines)
    return lines


def _others(count: int) -> str:
    return f"- ... and {count} more"


def _cut(word: str, room: int) -> str:
    """Returns a word on one line, without its middle if it costs too much."""
    word = printable(word)
    if _cost(word) <= room:
        return word
    size = min(len(word) - 1, room)
    while _cost(word[: size // 2] + "..." + word[-(size // 2) :]) > room:
        size -= 2
    return word[: size // 2] + "..." + word[-(size // 2) :]


def _cost_of_line(line: str) -> int:
    return _cost(line) + 1


def _cost(text: str) -> int:
    """Returns the most that a text can cost, in thirds of a token.

    A token is assumed to hold three ASCII characters, or one byte of any other character.
    """
    return sum(1 if character.isascii() else 3 * len(character.encode()) for character in text)
