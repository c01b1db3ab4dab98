"""Files as the text that a command of the user prints of them, to compare databases and tables.

The command comes from the user's own settings, never from a tree, a store or a remote. What it is
given is a copy in a private directory, which is its current directory too: no name of the tree
reaches it, no shell reads its words, and a program that imports from where it runs finds nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from treesnap.core.ending_signals import signal_name
from treesnap.core.fs.durable import opened_file, write_all
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model import treepath
from treesnap.core.model.entries import EntryKind
from treesnap.core.model.errors import printable
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.quantities import size_text
from treesnap.core.model.results import ChangedContent
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.user_settings import TextCommand, text_commands
from treesnap.core.worktree.scan.patterns import Matcher

if TYPE_CHECKING:
    import subprocess

TIME_MAX_S = 20.0
"""How long a command may take for one file."""
PLACEHOLDER = "{}"
_SUFFIX = LateRegex(rb"\.[A-Za-z0-9_]{1,16}\Z")
_READ_SIZE = 1 << 16
_LAST_LINE_BYTES = 4096


class _ConversionFailed(Exception):
    """A command printed no text; ``is_final`` if it would not for another file either."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_final = is_final


def converted(contents: Iterable[ChangedContent], size_max: int) -> Iterator[ChangedContent]:
    """Returns contents with files as text where a command is set; a failure leaves them as is.

    Raises InvalidArgument for settings that cannot be understood, before anything is read.
    """
    commands = [
        (Matcher([item.pattern.encode("utf-8", "surrogateescape")]), item)
        for item in reversed(text_commands())
    ]
    return _each_converted(contents, commands, size_max) if commands else iter(contents)


def _each_converted(
    contents: Iterable[ChangedContent], commands: list[tuple[Matcher, TextCommand]], size_max: int
) -> Iterator[ChangedContent]:
    given_up: dict[str, str] = {}
    for content in contents:
        command = _command_for(content, commands)
        if command is None:
            yield content
            continue
        why = given_up.get(command.pattern)
        if why is None:
            try:
                yield _converted(content, command, size_max)
                continue
            except _ConversionFailed as error:
                why = error.why
                if error.is_final:
                    given_up[command.pattern] = why
        yield content._replace(not_converted=f"the command of diff.{command.pattern} {why}")


def _command_for(
    content: ChangedContent, commands: list[tuple[Matcher, TextCommand]]
) -> TextCommand | None:
    entries = (content.change.old, content.change.new)
    if content.old is content.new is None:
        return None
    if any(entry is not None and entry.kind != EntryKind.FILE for entry in entries):
        return None
    path = content.change.path
    name = treepath.split(path)[1]
    for matcher, command in commands:
        if matcher.verdict(name, path, is_directory=False):
            return command
    return None


def _converted(content: ChangedContent, command: TextCommand, size_max: int) -> ChangedContent:
    suffix = _SUFFIX.compiled.search(content.change.path)
    name = f"file{suffix.group().decode() if suffix else ''}"
    old, new = (
        None if data is None else _text_of(data, name, command, size_max)
        for data in (content.old, content.new)
    )
    return content._replace(old=old, new=new, converted_by=command.pattern)


def _text_of(data: bytes, name: str, command: TextCommand, size_max: int) -> bytes:
    from tempfile import TemporaryDirectory

    fs = LocalFileSystem()
    try:
        with TemporaryDirectory(prefix="treesnap-", ignore_cleanup_errors=True) as directory:
            path = os.path.join(directory, name)
            with opened_file(fs, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                write_all(fs, fd, data)
            return _output_of(_words_for(command, path), directory, size_max)
    except OSError as error:
        why = f"cannot be started: {error.strerror or error}"
        raise _ConversionFailed(why, is_final=True) from error


def _words_for(command: TextCommand, path: str) -> list[str]:
    """Returns the words with the file in the place of ``{}``, or at the end; ``~`` is expanded."""
    words = [os.path.expanduser(word) for word in command.words]
    if PLACEHOLDER not in words:
        words.append(PLACEHOLDER)
    return [path if word == PLACEHOLDER else word for word in words]


def _output_of(words: list[str], directory: str, size_max: int) -> bytes:
    """Returns what a command prints; raises _ConversionFailed, and OSError if it cannot start."""
    import signal
    import subprocess

    deadline = time.monotonic() + TIME_MAX_S
    with subprocess.Popen(  # noqa: S603 - the user's own choice, without a shell
        words,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, errors = _read_both(process, deadline, size_max)
            code = process.wait(max(0, deadline - time.monotonic()))
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _too_slow() from error
            raise
    if code != 0:
        lines = errors.strip().splitlines()
        said = f": {printable(lines[-1])}" if lines else ""
        ended = f"exited with {code}" if code > 0 else f"was killed by {signal_name(-code)}"
        raise _ConversionFailed(ended + said)
    return output


def _read_both(
    process: subprocess.Popen[bytes], deadline: float, size_max: int
) -> tuple[bytes, bytes]:
    """Returns standard output, and the end of standard error."""
    from selectors import EVENT_READ, DefaultSelector

    assert process.stdout is not None
    assert process.stderr is not None
    pieces: list[bytes] = []
    size, errors = 0, b""
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        selector.register(process.stderr, EVENT_READ)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            ready = selector.select(left_s) if left_s > 0 else []
            if not ready:
                raise _too_slow()
            for key, _ in ready:
                piece = os.read(key.fd, _READ_SIZE)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    errors = (errors + piece)[-_LAST_LINE_BYTES:]
                else:
                    size += len(piece)
                    if size > size_max:
                        raise _ConversionFailed(f"prints more than {size_text(size_max)}")
                    pieces.append(piece)
    return b"".join(pieces), errors


def _too_slow() -> _ConversionFailed:
    return _ConversionFailed(f"takes longer than {TIME_MAX_S:.0f} s", is_final=True)
