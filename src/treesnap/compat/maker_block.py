"""MAKER's operation blocks: text in, a checked request out; pure.

A block that is not whole is refused, because half of a list of files would be half of a
checkpoint. Lines may end in CR LF, be indented, or be empty.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum

from treesnap.errors import InvalidArgument

BLOCK_SIZE_MAX = 4 << 20
"""The longest block in bytes."""

_BLANKS = " \t\r"
_QUOTED_LENGTH_MAX = 100
_RULE = re.compile(r"={3,}")
_HEADING = re.compile(r"CHECKPOINT OPERATION: (\S+)")
_SECTION = re.compile(r"\[([A-Z_]+)\]")
_CHECKPOINT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,99}")
_NUMBER = re.compile(r"\d{1,18}")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")


class Operation(StrEnum):
    """What a block asks for."""

    CREATE = "CREATE"
    RESTORE = "RESTORE"
    CLEANUP = "CLEANUP"


class CleanupMode(StrEnum):
    """Which checkpoints of a task go."""

    RETAIN_LAST = "RETAIN_LAST"
    CLEANUP_ALL = "CLEANUP_ALL"
    CLEANUP_BEFORE_STEP = "CLEANUP_BEFORE_STEP"


_SECTIONS = {
    Operation.CREATE: {"CHECKPOINT_ID", "STEP_INFO", "FILES_TO_CHECKPOINT", "WORKING_DIRECTORY"},
    Operation.RESTORE: {"CHECKPOINT_ID", "RESTORE_REASON", "WORKING_DIRECTORY"},
    Operation.CLEANUP: {"CLEANUP_MODE", "PARAMETERS", "WORKING_DIRECTORY"},
}
_FAILURE_TYPES = {"RETRY_EXHAUSTED", "BLOCKED", "REVIEW_LOOP_EXCEEDED"}
_PARAMETER_OF_MODE = {
    CleanupMode.RETAIN_LAST: "retain_count",
    CleanupMode.CLEANUP_BEFORE_STEP: "before_step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """A request to keep some files as they are."""

    working_directory: str
    checkpoint_id: str
    task_id: str
    step_number: int
    step_name: str
    files: tuple[str, ...]
    """Relative to the working directory, normalised, each once, in the order given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A request to put the files of a checkpoint back."""

    working_directory: str
    checkpoint_id: str
    failed_step: int
    failure_type: str
    error_summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """A request to remove checkpoints of a task."""

    working_directory: str
    mode: CleanupMode
    task_id: str
    limit: int
    """How many to retain, or the step before which they go; 0 for CLEANUP_ALL."""


Request = Create | Restore | Cleanup


def parse(block: bytes) -> Request:
    """Returns what a block asks for, or raises InvalidArgument."""
    operation, sections = _sections(_lines(block))
    directory = _one_line(sections, "WORKING_DIRECTORY")
    if _DRIVE.match(directory):
        raise InvalidArgument(
            f"The working directory {_quoted(directory)} is a Windows path; here it has to be one "
            "that begins with '/'"
        )
    if not directory.startswith("/"):
        raise InvalidArgument(f"The working directory {_quoted(directory)} is not absolute")
    if operation is Operation.CLEANUP:
        return _cleanup(sections, directory)
    checkpoint_id = _one_line(sections, "CHECKPOINT_ID")
    if not _CHECKPOINT_ID.fullmatch(checkpoint_id):
        raise InvalidArgument(
            f"The checkpoint id {_quoted(checkpoint_id)} is not one of 1 to 100 ASCII letters, "
            "digits and . _ : @ + -, that begins with a letter or digit"
        )
    if operation is Operation.CREATE:
        return _create(sections, directory, checkpoint_id)
    reason = _pairs(sections, "RESTORE_REASON", {"failed_step", "failure_type", "error_summary"})
    if reason["failure_type"] not in _FAILURE_TYPES:
        raise InvalidArgument(
            f"The failure type {_quoted(reason['failure_type'])} is none of "
            f"{', '.join(sorted(_FAILURE_TYPES))}"
        )
    return Restore(
        working_directory=directory,
        checkpoint_id=checkpoint_id,
        failed_step=_number(reason, "failed_step"),
        failure_type=reason["failure_type"],
        error_summary=reason["error_summary"],
    )


def _create(sections: dict[str, list[str]], directory: str, checkpoint_id: str) -> Create:
    step = _pairs(sections, "STEP_INFO", {"step_number", "step_name", "task_id"})
    files = dict.fromkeys(_file(line) for line in sections["FILES_TO_CHECKPOINT"])
    if not files:
        raise InvalidArgument("[FILES_TO_CHECKPOINT] names no file")
    return Create(
        working_directory=directory,
        checkpoint_id=checkpoint_id,
        task_id=step["task_id"],
        step_number=_number(step, "step_number"),
        step_name=step["step_name"],
        files=tuple(files),
    )


def _cleanup(sections: dict[str, list[str]], directory: str) -> Cleanup:
    word = _one_line(sections, "CLEANUP_MODE")
    if word not in set(CleanupMode):
        raise InvalidArgument(
            f"The cleanup mode {_quoted(word)} is none of {', '.join(CleanupMode)}"
        )
    mode = CleanupMode(word)
    wanted = _PARAMETER_OF_MODE.get(mode)
    needed = {"task_id"} if wanted is None else {"task_id", wanted}
    others = set(_PARAMETER_OF_MODE.values()) - {wanted}
    parameters = _pairs(sections, "PARAMETERS", needed, may_be_empty=others)
    return Cleanup(
        working_directory=directory,
        mode=mode,
        task_id=parameters["task_id"],
        limit=0 if wanted is None else _number(parameters, wanted),
    )


def _quoted(text: str) -> str:
    """Returns a word of the block for a message: on one line, and not too long."""
    return repr(text if len(text) <= _QUOTED_LENGTH_MAX else text[:_QUOTED_LENGTH_MAX] + "...")


def _lines(block: bytes) -> list[str]:
    """Returns the lines that say something, between the first rule and the last."""
    if len(block) > BLOCK_SIZE_MAX:
        raise InvalidArgument(f"The block is longer than {BLOCK_SIZE_MAX >> 20} MiB")
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"The block is not UTF-8 at byte {error.start}") from error
    lines = [stripped for line in text.split("\n") if (stripped := line.strip(_BLANKS))]
    if not lines:
        raise InvalidArgument("There is no block: standard input is empty")
    if len(lines) < 4 or not all(_RULE.fullmatch(lines[place]) for place in (0, 2, -1)):
        raise InvalidArgument("The block is not whole: it needs its heading between lines of '='")
    return lines


def _sections(lines: list[str]) -> tuple[Operation, dict[str, list[str]]]:
    heading = _HEADING.fullmatch(lines[1])
    if heading is None or heading[1] not in set(Operation):
        raise InvalidArgument(
            f"The heading {_quoted(lines[1])} is not 'CHECKPOINT OPERATION: ' and one of "
            f"{', '.join(Operation)}"
        )
    operation = Operation(heading[1])
    sections: dict[str, list[str]] = {}
    name = None
    for line in lines[3:-1]:
        title = _SECTION.fullmatch(line)
        if title is not None:
            name = title[1]
            if name in sections:
                raise InvalidArgument(f"The section [{name}] is there twice")
            if name not in _SECTIONS[operation]:
                raise InvalidArgument(f"A block for {operation} has no section [{name}]")
            sections[name] = []
        elif name is None or _RULE.fullmatch(line):
            raise InvalidArgument(f"The line {_quoted(line)} belongs to no section")
        else:
            sections[name].append(line)
    missing = sorted(_SECTIONS[operation] - sections.keys())
    if missing:
        raise InvalidArgument(f"The section [{missing[0]}] is missing")
    return operation, sections


def _one_line(sections: dict[str, list[str]], name: str) -> str:
    lines = sections[name]
    if len(lines) != 1:
        raise InvalidArgument(f"[{name}] has {len(lines)} lines, and needs one")
    return lines[0]


def _pairs(
    sections: dict[str, list[str]],
    name: str,
    needed: set[str],
    may_be_empty: set[str] = frozenset(),  # type: ignore[assignment]  # never written to
) -> dict[str, str]:
    """Returns the ``key: value`` lines of a section; all keys have to be there, each once."""
    found: dict[str, str] = {}
    for line in sections[name]:
        key, colon, value = line.removeprefix("- ").partition(":")
        key, value = key.strip(), value.strip()
        if not colon or key not in needed | may_be_empty:
            raise InvalidArgument(f"[{name}] cannot have the line {_quoted(line)}")
        if key in found:
            raise InvalidArgument(f"[{name}] has {key} twice")
        if key in may_be_empty and value:
            raise InvalidArgument(f"[{name}] has {key}, which is for another mode")
        found[key] = value
    for key in sorted(needed):
        if not found.get(key):
            raise InvalidArgument(f"[{name}] lacks {key}")
    return found


def _number(pairs: dict[str, str], key: str) -> int:
    if not _NUMBER.fullmatch(pairs[key]) or not pairs[key].isascii():
        raise InvalidArgument(
            f"{key} is a number of at most 18 digits, and not {_quoted(pairs[key])}"
        )
    return int(pairs[key])


def _file(line: str) -> str:
    """Returns the path in a line of the list of files; nothing on disk is looked at."""
    if not line.startswith("- "):
        raise InvalidArgument(
            f"[FILES_TO_CHECKPOINT] needs lines of the form '- path', not {_quoted(line)}"
        )
    given = line[2:].strip(_BLANKS)
    if given.startswith("/") or _DRIVE.match(given):
        raise InvalidArgument(f"The path {_quoted(given)} is absolute; it has to be relative")
    if "\\" in given:  # else a Windows path would silently be that of another, absent file
        raise InvalidArgument(
            f"The path {_quoted(given)} has a backslash; names are divided by '/'"
        )
    path = os.path.normpath(given)
    if "\0" in path or path == ".." or path.startswith("../"):
        raise InvalidArgument(f"The path {_quoted(given)} leads outside the working directory")
    if path == ".":
        raise InvalidArgument(
            f"The path {_quoted(given)} is the working directory, and no file in it"
        )
    return path
