"""Operation blocks of MAKER: its worked examples as published, and blocks made from parts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from calling import run_command

RULE = "=" * 42
DIRECTORY = "C:/projects/my-app"

CREATE_INPUT = """\
==========================================
CHECKPOINT OPERATION: CREATE
==========================================
[CHECKPOINT_ID]
ckpt-task123-step-4
[STEP_INFO]
step_number: 4
step_name: Add error handling to validator
task_id: task123
[FILES_TO_CHECKPOINT]
- src/utils/validator.ts
- src/utils/errors.ts
[WORKING_DIRECTORY]
C:/projects/my-app
==========================================
"""
CREATE_OUTPUT = """\
==========================================
CHECKPOINT RESULT
==========================================
[STATUS] CREATE_SUCCESS
[CHECKPOINT_ID] ckpt-task123-step-4
------------------------------------------
CHECKPOINT DETAILS
------------------------------------------
Strategy: git
Created: 2025-01-22T10:30:00Z
Files Captured: 2
Files:
- src/utils/validator.ts: captured
- src/utils/errors.ts: did_not_exist (will be created)
------------------------------------------
METADATA LOCATION
------------------------------------------
.maker-checkpoints/metadata/ckpt-task123-step-4.json
------------------------------------------
RESTORE COMMAND
------------------------------------------
To restore this checkpoint, use CHECKPOINT_ID: ckpt-task123-step-4
==========================================
"""
RESTORE_INPUT = """\
==========================================
CHECKPOINT OPERATION: RESTORE
==========================================
[CHECKPOINT_ID]
ckpt-task123-step-4
[RESTORE_REASON]
- failed_step: 4
- failure_type: RETRY_EXHAUSTED
- error_summary: Solver failed 3 times to add error handling correctly
[WORKING_DIRECTORY]
C:/projects/my-app
==========================================
"""
RESTORE_OUTPUT = """\
==========================================
CHECKPOINT RESULT
==========================================
[STATUS] RESTORE_SUCCESS
[CHECKPOINT_ID] ckpt-task123-step-4
------------------------------------------
RESTORE DETAILS
------------------------------------------
Strategy: git
Restored At: 2025-01-22T10:45:00Z
Files Restored: 2
Actions Taken:
- src/utils/validator.ts: restored from checkpoint
- src/utils/errors.ts: deleted (did not exist at checkpoint)
------------------------------------------
STATE AFTER RESTORE
------------------------------------------
The file system has been rolled back to the state before step 4.
The pipeline may now retry with a different approach or request user guidance.
==========================================
"""
CLEANUP_INPUT = """\
==========================================
CHECKPOINT OPERATION: CLEANUP
==========================================
[CLEANUP_MODE]
RETAIN_LAST
[PARAMETERS]
retain_count: 1
task_id: task123
[WORKING_DIRECTORY]
C:/projects/my-app
==========================================
"""
CLEANUP_OUTPUT = """\
==========================================
CHECKPOINT RESULT
==========================================
[STATUS] CLEANUP_COMPLETE
[MODE] RETAIN_LAST
------------------------------------------
CLEANUP SUMMARY
------------------------------------------
Checkpoints Removed: 5
Checkpoints Retained: 1
Removed:
- ckpt-task123-step-1
- ckpt-task123-step-2
- ckpt-task123-step-3
- ckpt-task123-step-4
- ckpt-task123-step-5
Retained:
- ckpt-task123-step-6
------------------------------------------
STORAGE FREED
------------------------------------------
N/A (git strategy used stashes)
==========================================
"""


def create_block(
    root: Path | str, checkpoint_id: str, *files: str, task: str = "task", step: object = 1
) -> str:
    """Returns a block that asks for a checkpoint."""
    listed = "\n".join(f"- {path}" for path in files)
    return (
        f"{RULE}\nCHECKPOINT OPERATION: CREATE\n{RULE}\n[CHECKPOINT_ID]\n{checkpoint_id}\n"
        f"[STEP_INFO]\nstep_number: {step}\nstep_name: a step\ntask_id: {task}\n"
        f"[FILES_TO_CHECKPOINT]\n{listed}\n[WORKING_DIRECTORY]\n{root}\n{RULE}\n"
    )


def restore_block(root: Path | str, checkpoint_id: str) -> str:
    """Returns a block that asks for a restore."""
    return (
        f"{RULE}\nCHECKPOINT OPERATION: RESTORE\n{RULE}\n[CHECKPOINT_ID]\n{checkpoint_id}\n"
        "[RESTORE_REASON]\n- failed_step: 1\n- failure_type: BLOCKED\n- error_summary: it broke\n"
        f"[WORKING_DIRECTORY]\n{root}\n{RULE}\n"
    )


def cleanup_block(root: Path | str, mode: str, task: str = "task", **parameters: object) -> str:
    """Returns a block that asks for a cleanup."""
    lines = "".join(f"{key}: {value}\n" for key, value in parameters.items())
    return (
        f"{RULE}\nCHECKPOINT OPERATION: CLEANUP\n{RULE}\n[CLEANUP_MODE]\n{mode}\n"
        f"[PARAMETERS]\n{lines}task_id: {task}\n[WORKING_DIRECTORY]\n{root}\n{RULE}\n"
    )


def sections(text: str) -> dict[str, list[str]]:
    """Returns the lines below each title between lines of dashes."""
    parts = re.split(r"^-{42}\n(.+)\n-{42}$", text.rstrip().removesuffix(RULE), flags=re.MULTILINE)
    return {
        title: body.strip("\n").split("\n")
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def reason(text: str) -> str:
    """Returns why a request failed."""
    return sections(text)["FAILURE DETAILS"][0].removeprefix("Reason: ")


def status(text: str) -> str:
    """Returns what the line of the status says; there is one."""
    (found,) = re.findall(r"^\[STATUS\] (\w+)$", text, re.MULTILINE)
    return found


def maker(
    block: str | bytes,
    store: Path,
    *words: str,
    cwd: Path | None = None,
    options: tuple = (),
    by: tuple = (),
) -> tuple[int, str]:
    """Runs ``snap maker`` as a process; returns its exit code and what it printed."""
    arguments = [*map(str, options), "maker", *words]
    given = block if isinstance(block, bytes) else block.encode()
    variables = {**os.environ, "SNAP_STORE": str(store)}
    ended = run_command(arguments, cwd=cwd or Path.cwd(), variables=variables, given=given, by=by)
    assert ended.err in ("", f"Made the store {store}\n"), ended.err
    return ended.code, ended.out
