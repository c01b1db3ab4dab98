"""Why a request of MAKER failed, and what its pipeline can do about it; pure."""

from __future__ import annotations

import errno

from treesnap.compat.maker_block import Operation, subject
from treesnap.compat.maker_result import Failed
from treesnap.errors import ErrorCode, TreesnapError
from treesnap.fs.os_errors import error_text

_REASONS = {
    ErrorCode.SNAPSHOT_NOT_FOUND: "checkpoint_not_found",
    ErrorCode.STORE_NOT_FOUND: "checkpoint_not_found",
    ErrorCode.CONFLICT: "file_conflict",
    ErrorCode.NOT_A_DIRECTORY: "file_conflict",
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
        "Check checkpoint id and working directory; 'snap list' there shows what there is.",
        "Go back by other means, and create a checkpoint before the next step.",
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
        "'snap verify --read-data' names the damage, 'snap verify --repair' repairs what it can.",
        "Restore another checkpoint; those that 'snap verify' does not name are whole.",
    ),
    "name_taken": (
        "Send the block with another checkpoint id; the checkpoint that has it was not touched.",
        "Remove the one that has it, if nobody needs it: snap delete CHECKPOINT_ID",
    ),
}
_OTHER_OPTIONS = (
    "Nothing was changed: correct what the details name, then send the block again.",
    "'snap maker --help' and 'snap doctor' say more.",
)


def failed(block: bytes, error: TreesnapError | OSError) -> Failed:
    """Returns how a request failed; what it was about as far as that can be read."""
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
