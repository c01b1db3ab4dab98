"""MAKER's operation blocks: parses a text to a checked request; changes nothing on disk.

Models write blocks with prose and code fences around them, in any case, with any bullets and
with quoted words. How strict the parser is depends on what a mistake could lose. RESTORE needs
an id and a directory; the rest of it is information. CREATE captures an extra path rather than
miss one, and must be complete, because half of a list of files would be half of a checkpoint.
CLEANUP deletes, so it refuses unknown parameters.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum

from treesnap.compat.listed_files import BULLET, DRIVE, QUOTED, listed_files
from treesnap.core.model.errors import InvalidArgument

BLOCK_SIZE_MAX = 4 << 20
"""The longest block in bytes."""

_BLANKS = " \t\r"
_QUOTED_LENGTH_MAX = 100
_RULE = re.compile(r"={3,}")
_FENCE = re.compile(r"`{3,}[^`]*|~{3,}[^`~]*")
_MARKUP = re.compile(r"^(?:>[ \t]*)*(?:#{1,6}[ \t]+)?")
_HEADING = re.compile(r"CHECKPOINT[ _]OPERATION[ \t]*:[ \t]*(\S+)", re.IGNORECASE)
_SECTION = re.compile(r"\[([A-Z][A-Z_ -]*)\][ \t]*:?[ \t]*(.*)", re.IGNORECASE)
_BOLD_TITLE = re.compile(
    r"(?P<mark>\*{1,3}|_{1,3}|`)(?P<open>\[?)[*_`]*(?P<title>[A-Z][A-Z_ -]*?)[*_`]*(?P<close>\]?)"
    r"(?P<colon>:?)(?P=mark)[ \t]*:?[ \t]*(?P<rest>.*)",
    re.IGNORECASE,
)
_BOLD_INSIDE = re.compile(
    r"\[[*_`]{1,3}([A-Z][A-Z_ -]*?)[*_`]{1,3}\][ \t]*:?[ \t]*(.*)", re.IGNORECASE
)
_OTHER_SECTION = re.compile(r"\[[A-Z_ ]{3,}\]:?")
_CHECKPOINT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,99}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_NO_VALUE = frozenset({"", "-", "none", "n/a", "null"})


class Operation(StrEnum):
    """The operation of a block."""

    CREATE = "CREATE"
    RESTORE = "RESTORE"
    CLEANUP = "CLEANUP"


class CleanupMode(StrEnum):
    """Which checkpoints of a task are removed."""

    RETAIN_LAST = "RETAIN_LAST"
    CLEANUP_ALL = "CLEANUP_ALL"
    CLEANUP_BEFORE_STEP = "CLEANUP_BEFORE_STEP"


_SECTIONS = {
    Operation.CREATE: ("CHECKPOINT_ID", "STEP_INFO", "FILES_TO_CHECKPOINT", "WORKING_DIRECTORY"),
    Operation.RESTORE: ("CHECKPOINT_ID", "WORKING_DIRECTORY"),
    Operation.CLEANUP: ("CLEANUP_MODE", "PARAMETERS", "WORKING_DIRECTORY"),
}
"""The sections that an operation requires."""
_NAMES = frozenset(name for names in _SECTIONS.values() for name in names)

_PARAMETER_OF_MODE = {
    CleanupMode.RETAIN_LAST: "retain_count",
    CleanupMode.CLEANUP_BEFORE_STEP: "before_step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """A request to capture files."""

    working_directory: str
    checkpoint_id: str
    task_id: str
    step_number: int
    step_name: str
    """Empty if the block has none."""
    files: tuple[str, ...]
    """Relative to the working directory, normalised, each once, in the order given."""
    unclear: tuple[str, ...] = ()
    """Lines of the list of which nothing exists, and which do not read as a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A request to restore the files of a checkpoint."""

    working_directory: str
    checkpoint_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """A request to remove checkpoints of a task."""

    working_directory: str
    mode: CleanupMode
    task_id: str
    limit: int
    """How many to retain, or the first step to retain; 0 for CLEANUP_ALL."""


Request = Create | Restore | Cleanup


def parse(block: bytes, root: str | None = None) -> Request:
    """Returns the request in a block, or raises InvalidArgument.

    ``root`` is the working directory of a block that names none.
    """
    operation, sections = _read(block, has_root=root is not None)
    is_restore = operation is Operation.RESTORE
    directory, foreign = _directory(sections, root, takes_first=is_restore)
    if operation is Operation.CLEANUP:
        return _cleanup(sections, directory)
    checkpoint_id = _checkpoint_id(sections["CHECKPOINT_ID"], takes_first=is_restore)
    if is_restore:
        return Restore(working_directory=directory, checkpoint_id=checkpoint_id)
    return _create(sections, directory, checkpoint_id, foreign)


def subject(block: bytes) -> tuple[Operation | None, str | None]:
    """Returns the operation of any text and its id or mode; None for what is missing."""
    operation, word, expects = None, None, False
    for line in _lines(block[:BLOCK_SIZE_MAX].decode("utf-8", "replace")):
        heading, section = _HEADING.fullmatch(_bare(line)), _section(line)
        if heading is not None and operation is None:
            operation = _operation(heading[1])
        elif section is not None:
            title, inline = section
            expects = word is None and title in {"CHECKPOINT_ID", "CLEANUP_MODE"}
            if expects and inline:
                word, expects = _value(inline), False
        elif expects and not (_RULE.fullmatch(line) or _FENCE.fullmatch(line)):
            word, expects = _value(line), False
    return operation, word


def _create(
    sections: dict[str, list[str]], directory: str, checkpoint_id: str, foreign: str | None
) -> Create:
    step = _fields(sections, "STEP_INFO")
    listed = listed_files(sections["FILES_TO_CHECKPOINT"], directory, foreign)
    if not listed.has_path:
        said = f": {_quoted(listed.unclear[0])} is not a path" if listed.unclear else ""
        raise InvalidArgument(f"[FILES_TO_CHECKPOINT] names no file{said}")
    return Create(
        working_directory=directory,
        checkpoint_id=checkpoint_id,
        task_id=_needed(step, "STEP_INFO", "task_id"),
        step_number=_number(step, "STEP_INFO", "step_number"),
        step_name=step.get("step_name", ""),
        files=listed.files,
        unclear=listed.unclear,
    )


def _cleanup(sections: dict[str, list[str]], directory: str) -> Cleanup:
    lines = sections["CLEANUP_MODE"]
    word = _value(lines[0]).upper()
    if len(lines) != 1 or word not in set(CleanupMode):
        raise InvalidArgument(
            f"The cleanup mode {_quoted(' '.join(lines))} is not one of {', '.join(CleanupMode)}"
        )
    mode = CleanupMode(word)
    parameter = _PARAMETER_OF_MODE.get(mode)
    parameters = _fields(sections, "PARAMETERS")
    for key, value in parameters.items():
        if key not in {"task_id", parameter} and value.lower() not in _NO_VALUE:
            is_known = key in _PARAMETER_OF_MODE.values()
            why = "is for another mode" if is_known else "is unknown"
            raise InvalidArgument(f"[PARAMETERS] has {_quoted(key)}, which {why}")
    return Cleanup(
        working_directory=directory,
        mode=mode,
        task_id=_needed(parameters, "PARAMETERS", "task_id"),
        limit=0 if parameter is None else _number(parameters, "PARAMETERS", parameter),
    )


def _quoted(text: str) -> str:
    """Returns a word of the block for a message: on one line, and not too long."""
    return repr(text if len(text) <= _QUOTED_LENGTH_MAX else text[:_QUOTED_LENGTH_MAX] + "...")


def _read(block: bytes, *, has_root: bool) -> tuple[Operation, dict[str, list[str]]]:
    """Returns the operation of a block, and the lines of each section that it requires."""
    if len(block) > BLOCK_SIZE_MAX:
        raise InvalidArgument(f"The block is longer than {BLOCK_SIZE_MAX >> 20} MiB")
    lines = _lines(block.decode("utf-8", "surrogateescape"))
    if not lines:
        raise InvalidArgument("Standard input is empty: it holds no block")
    headings = [
        (number, match)
        for number, line in enumerate(lines)
        if (match := _HEADING.fullmatch(_bare(line)))
    ]
    if not headings:
        raise InvalidArgument(
            f"The block has no heading 'CHECKPOINT OPERATION: ' with one of {', '.join(Operation)}"
        )
    first, heading = headings[0]
    operation = _operation(heading[1])
    if operation is None:
        raise InvalidArgument(
            f"The heading {_quoted(heading[0])} names none of {', '.join(Operation)}"
        )
    if operation is not Operation.RESTORE:
        try:
            block.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"The block is not UTF-8 at byte {error.start}") from error
    needed = [
        name for name in _SECTIONS[operation] if not (has_root and name == "WORKING_DIRECTORY")
    ]
    for end in [*(number for number, _ in headings[1:]), len(lines)]:
        sections = _sections(operation, lines[first + 1 : end])
        is_whole = all(sections.get(name) for name in needed)
        if is_whole or operation is not Operation.RESTORE:
            break
    if end < len(lines):
        raise InvalidArgument("The input has several blocks; send one at a time")
    for name in needed:
        if not sections.get(name):
            raise InvalidArgument(f"The section [{name}] is missing or empty")
    return operation, sections


def _lines(text: str) -> list[str]:
    """Returns the lines that are not empty, without quotation and heading marks."""
    text = text.removeprefix("\ufeff")
    text = text if "\n" in text else text.replace("\r", "\n")
    lines = (_MARKUP.sub("", line.strip(_BLANKS)) for line in text.split("\n"))
    return [line for line in lines if line]


def _bare(line: str) -> str:
    """Returns a line without marks for bold and code around it."""
    return line.strip(_BLANKS + "*`") if line[0] in "*`" else line


def _operation(word: str) -> Operation | None:
    word = word.strip("*`").upper()
    return Operation(word) if word in set(Operation) else None


def _section(line: str) -> tuple[str, str] | None:
    """Returns the name of the section that a line begins and the rest of the line; else None.

    A name that MAKER does not define counts only in capitals: ``[slug]/page.tsx`` may be a path.
    """
    bold = _BOLD_TITLE.fullmatch(line)
    if bold is not None and _title(bold["title"]) in _NAMES:
        return _title(bold["title"]), bold["rest"]
    match = _SECTION.fullmatch(_bare(line)) or _BOLD_INSIDE.fullmatch(line)
    if match is None:
        return None
    title = _title(match[1])
    if title in _NAMES:
        return title, match[2]
    return (title, "") if _OTHER_SECTION.fullmatch(_bare(line)) else None


def _title(word: str) -> str:
    return re.sub("[ -]", "_", word.strip()).upper()


def _sections(operation: Operation, lines: list[str]) -> dict[str, list[str]]:
    """Returns the lines of each section that the operation requires, up to the end of the block.

    Raises InvalidArgument for a CREATE or CLEANUP that may be cut off or repeats a section. In a
    RESTORE, whose reason may quote other blocks, the first id and the last directory count.
    """
    headings = [
        (number, *section)
        for number, line in enumerate(lines)
        if (section := _section(line)) is not None
    ]
    of_operation = [
        (number, inline) for number, title, inline in headings if title in _SECTIONS[operation]
    ]
    last, inline = of_operation[-1] if of_operation else (-1, "")
    end = _end(lines, last + 1, has_content=bool(inline))
    if operation is not Operation.RESTORE and end == len(lines):
        raise InvalidArgument("The block is incomplete: it must end in a line of '='")
    places = [number for number, _, _ in headings if number < end] + [end]
    sections: dict[str, list[str]] = {}
    for (number, title, inline), following in zip(headings, places[1:], strict=False):
        if title not in _SECTIONS[operation]:
            continue
        content = [inline] if inline else []
        content += [
            line
            for line in lines[number + 1 : following]
            if not (_RULE.fullmatch(line) or _FENCE.fullmatch(line))
        ]
        if title in sections and operation is not Operation.RESTORE:
            raise InvalidArgument(f"The section [{title}] appears twice")
        if title == "WORKING_DIRECTORY" or title not in sections:
            sections[title] = content
    return sections


def _end(lines: list[str], start: int, *, has_content: bool) -> int:
    """Returns the end of a block whose last section continues at ``start``."""
    for number in range(start, len(lines)):
        if _RULE.fullmatch(lines[number]):
            return number
        if not _FENCE.fullmatch(lines[number]):
            has_content = True
        elif has_content:
            return number
    return len(lines)


def _value(text: str) -> str:
    """Returns the value in a line, without a bullet, its name, and quotation marks."""
    bullet = BULLET.fullmatch(text)
    text = (bullet[1] if bullet is not None else text).strip(_BLANKS)
    name, colon, value = text.partition(":")
    if colon and _title(name.strip("*`")) in {"CHECKPOINT_ID", "ID", "WORKING_DIRECTORY", "PATH"}:
        text = value.strip(_BLANKS + "*")
    quoted = QUOTED.fullmatch(text)
    return quoted["word"] if quoted is not None and not quoted["rest"] else text


def is_checkpoint_id(text: str) -> bool:
    """Returns whether a block can name a checkpoint so; such an id may be part of a file's name."""
    return _CHECKPOINT_ID.fullmatch(text) is not None


def _checkpoint_id(lines: list[str], *, takes_first: bool) -> str:
    words = [_value(line) for line in lines]
    ids = list(dict.fromkeys(filter(is_checkpoint_id, words)))
    if len(ids) > 1 and not takes_first:
        raise InvalidArgument(f"[CHECKPOINT_ID] has {len(ids)} ids, but must have one")
    if not ids:
        raise InvalidArgument(
            f"The checkpoint id {_quoted(words[0])} is not one of 1 to 100 ASCII letters, "
            "digits and . _ : @ + -, that begins with a letter or digit"
        )
    return ids[0]


def _directory(
    sections: dict[str, list[str]], root: str | None, *, takes_first: bool
) -> tuple[str, str | None]:
    """Returns the working directory, and the Windows path that the block calls it by, or None.

    A sender on Windows, whose files are mounted here, knows no other name: with ``root`` that is
    the directory.
    """
    lines = sections.get("WORKING_DIRECTORY")
    if not lines:
        return os.path.abspath(root or ""), None
    words = [_value(line) for line in lines]
    paths = list(dict.fromkeys(word for word in words if word[:1] == "/" or DRIVE.match(word)))
    if len(paths) > 1 and not takes_first:
        raise InvalidArgument(f"[WORKING_DIRECTORY] has {len(paths)} paths, but must have one")
    directory = (paths or words)[0]
    if DRIVE.match(directory):
        if root is not None:
            return os.path.abspath(root), directory
        raise InvalidArgument(
            f"The working directory {_quoted(directory)} is a Windows path; it must begin with '/'"
        )
    if not directory.startswith("/"):
        raise InvalidArgument(f"The working directory {_quoted(directory)} is not absolute")
    return directory, None


def _fields(sections: dict[str, list[str]], name: str) -> dict[str, str]:
    """Returns the ``key: value`` lines of a section; other lines are information."""
    values: dict[str, str] = {}
    for line in sections[name]:
        bullet = BULLET.fullmatch(line)
        key, colon, value = (bullet[1] if bullet is not None else line).partition(":")
        key = _title(key.strip(_BLANKS + "*`")).lower()
        value = value.strip(_BLANKS).removeprefix("**").strip(_BLANKS)
        quoted = QUOTED.fullmatch(value)
        if quoted is not None and not quoted["rest"]:
            value = quoted["word"]
        if not colon:
            continue
        if values.get(key, value) != value:
            raise InvalidArgument(f"[{name}] has {_quoted(key)} twice")
        values[key] = value
    return values


def _needed(fields: dict[str, str], name: str, key: str) -> str:
    if not fields.get(key):
        raise InvalidArgument(f"[{name}] lacks {key}")
    return fields[key]


def _number(fields: dict[str, str], name: str, key: str) -> int:
    text = _needed(fields, name, key)
    if not _NUMBER.fullmatch(text) or not text.isascii():
        raise InvalidArgument(f"{key} must be a number of at most 18 digits, not {_quoted(text)}")
    return int(text)
