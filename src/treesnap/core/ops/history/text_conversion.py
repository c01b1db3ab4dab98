"""Files as the text that a command prints of them, to compare databases and tables.

The command comes from the user's own settings, never from a tree, a store or a remote; without one
for a database of SQLite, this program prints it. What it is given is a copy in a private directory,
which is its current directory too: no name of the tree reaches it, no shell reads its words, and a
program that imports from where it runs finds nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from stat import S_IFDIR, S_ISGID

from treesnap.core.ending_signals import signal_name
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.durable import opened_file, read_file, write_all
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model import treepath
from treesnap.core.model.entries import DATABASE_LOG_SUFFIXES, EntryKind
from treesnap.core.model.errors import Refused, printable, quoted
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import size_text
from treesnap.core.model.results import ChangedContent
from treesnap.core.model.type_names import TYPE_CHECKING, Self
from treesnap.core.ops.history.sqlite_text import (
    DATABASE,
    FAILURE,
    TEXT,
    TOO_LONG,
    is_database,
    is_log,
    names_a_file,
)
from treesnap.core.ops.user_settings import text_commands
from treesnap.core.own_program import python_words
from treesnap.core.worktree.scan.patterns import Matcher

if TYPE_CHECKING:
    import subprocess

TIME_MAX_S = 20.0
"""How long a command may take for one file."""
PLACEHOLDER = "{}"
_PREFIX = "treesnap-text-"
_PRIVATE = LateRegex(rf"{_PREFIX}[a-z0-9_]{{8}}\Z")
"""The names that mkdtemp gives."""
_SUFFIX = LateRegex(rb"\.[A-Za-z0-9_]{1,16}\Z")
_READ_SIZE = 1 << 16
_LAST_LINE_BYTES = 4096


class _ConversionFailed(Exception):
    """A command printed no text; ``is_final`` if it would not for another file either."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_final = is_final


Beside = Callable[[bytes], tuple[bytes | None, bytes | None]]
"""Reads both sides of a path; None where it is absent, large, or not a file."""


class _Command(NamedTuple):
    """A command that prints files as text."""

    name: str
    """What the header of a patch says."""
    words: list[str]
    problem: str
    """What a message begins with where it fails."""


_SQLITE = _Command("SQLite", python_words("-m", "treesnap.core.ops.history.sqlite_text"), "SQLite")


class _SqlitePrinter:
    """Prints databases in a process that is started for the first one; a context manager."""

    def __init__(self) -> None:
        self._fs = LocalFileSystem()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the process, and one that it may have forked."""
        import signal

        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # closes the pipes, and waits
            pass

    def text_of(self, data: bytes, logs: Mapping[bytes, bytes | None], size_max: int) -> bytes:
        """Returns a database as text, with what is in its log and its journal.

        Raises _ConversionFailed.
        """
        if any(content is not None and names_a_file(content) for content in logs.values()):
            raise _ConversionFailed("is not asked: the journal beside it names another file")
        try:
            with _private_directory(self._fs) as directory:
                for suffix, content in {b"": data, **logs}.items():
                    if content is not None:
                        self._write(directory, DATABASE + suffix.decode(), content)
                code = self._ask(directory, size_max)
                if code == 0:
                    text = self._read(directory, TEXT, size_max)
                    if len(text) > size_max:
                        raise _too_long(size_max)
                    return text
                said = b""
                with suppress(FileNotFoundError):
                    said = self._read(directory, FAILURE, _LAST_LINE_BYTES)
                raise _too_long(size_max) if said == TOO_LONG else _failed(code, said)
        except OSError as error:
            raise _not_started(error) from error

    def _write(self, directory: str, name: str, content: bytes) -> None:
        path = os.path.join(directory, name)
        with opened_file(self._fs, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            write_all(self._fs, fd, content)

    def _read(self, directory: str, name: str, size_max: int) -> bytes:
        return read_file(self._fs, os.path.join(directory, name), size_max)

    def _ask(self, directory: str, size_max: int) -> int:
        """Has a database printed; returns the exit code of the process that did."""
        from selectors import EVENT_READ, DefaultSelector

        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with DefaultSelector() as selector:
            selector.register(process.stdout, EVENT_READ)
            try:
                process.stdin.write(f"{os.fsencode(directory).hex()} {size_max}\n".encode())
                if not selector.select(TIME_MAX_S):
                    self.__exit__()
                    raise _too_slow()
                return int(process.stdout.readline())
            except (BrokenPipeError, ValueError) as error:
                self.__exit__()  # the next database starts another one
                raise _ConversionFailed("was ended before it had printed all") from error

    def _started(self) -> subprocess.Popen[bytes]:
        import subprocess

        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
                _SQLITE.words,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        return self._process


def converted(
    contents: Iterable[ChangedContent], beside: Beside, size_max: int
) -> Iterator[ChangedContent]:
    """Returns contents with files as text where a command prints them; a failure leaves them as is.

    Raises InvalidArgument for settings that cannot be understood, before anything is read.
    """
    commands = [
        (
            Matcher([item.pattern.encode("utf-8", "surrogateescape")]),
            _Command(
                f"diff.{item.pattern}",
                [os.path.expanduser(word) for word in item.words],
                f"the command of diff.{item.pattern}",
            ),
        )
        for item in reversed(text_commands())
    ]
    return _each_converted(contents, commands, beside, size_max)


def _each_converted(
    contents: Iterable[ChangedContent],
    commands: list[tuple[Matcher, _Command]],
    beside: Beside,
    size_max: int,
) -> Iterator[ChangedContent]:
    with _SqlitePrinter() as printer:
        yield from _each_printed(contents, commands, beside, size_max, printer)


def _each_printed(
    contents: Iterable[ChangedContent],
    commands: list[tuple[Matcher, _Command]],
    beside: Beside,
    size_max: int,
    printer: _SqlitePrinter,
) -> Iterator[ChangedContent]:
    given_up: dict[str, str] = {}
    for content in contents:
        command = _command_for(content, commands)
        is_ours = command is None and _is_of_sqlite(content)
        if is_ours:
            command = _SQLITE
        if command is None:
            yield content
            continue
        why = given_up.get(command.name)
        if why is None:
            try:
                if is_ours:
                    yield _database_converted(content, beside, size_max, printer)
                else:
                    yield _converted(content, command, size_max)
                continue
            except _ConversionFailed as error:
                why = error.why
                if error.is_final:
                    given_up[command.name] = why
        yield content._replace(not_converted=f"{command.problem} {why}")


def _command_for(
    content: ChangedContent, commands: list[tuple[Matcher, _Command]]
) -> _Command | None:
    if not _is_of_files(content):
        return None
    path = content.change.path
    name = treepath.split(path)[1]
    for matcher, command in commands:
        if matcher.verdict(name, path, is_directory=False):
            return command
    return None


def _is_of_files(content: ChangedContent) -> bool:
    """Returns whether there are bytes of files to print."""
    entries = (content.change.old, content.change.new)
    return not (
        content.old is content.new is None
        or any(entry is not None and entry.kind != EntryKind.FILE for entry in entries)
    )


def _is_of_sqlite(content: ChangedContent) -> bool:
    sides = [data for data in (content.old, content.new) if data]
    is_whole = bool(sides) and all(map(is_database, sides))
    return _is_of_files(content) and (is_whole or is_log(content.change.path, *sides))


def _database_converted(
    content: ChangedContent, beside: Beside, size_max: int, printer: _SqlitePrinter
) -> ChangedContent:
    """Returns a database as text with the log beside it; or its log, if that alone has changed."""
    path, old, new = content.change.path, content.old, content.new
    if is_log(path, old, new):
        suffix = path[-4:]
        before, after = beside(path[:-4])
        if before != after or not is_database(before):
            return content  # what it holds is shown of the database, or there is none
        sides = [(before, {suffix: old}), (before, {suffix: new})]
        name = f"{_SQLITE.name}, with {quoted(treepath.split(path)[1][:-4])}"
    else:
        logs = {suffix: beside(path + suffix) for suffix in DATABASE_LOG_SUFFIXES}
        sides = [
            (old, {suffix: log for suffix, (log, _) in logs.items()}),
            (new, {suffix: log for suffix, (_, log) in logs.items()}),
        ]
        name = _SQLITE.name
    left, right = (
        None if data is None else printer.text_of(data, logs, size_max) for data, logs in sides
    )
    return content._replace(old=left, new=right, converted_by=name)


def _converted(content: ChangedContent, command: _Command, size_max: int) -> ChangedContent:
    suffix = _SUFFIX.compiled.search(content.change.path)
    name = f"file{suffix.group().decode() if suffix else ''}"
    old, new = (
        None if data is None else _text_of(data, name, command, size_max)
        for data in (content.old, content.new)
    )
    return content._replace(old=old, new=new, converted_by=command.name)


def _text_of(data: bytes, name: str, command: _Command, size_max: int) -> bytes:
    """Returns what a command prints of a file."""
    fs = LocalFileSystem()
    try:
        with _private_directory(fs) as directory:
            path = os.path.join(directory, name)
            with opened_file(fs, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                write_all(fs, fd, data)
            return _output_of(_words_for(command.words, path), directory, size_max)
    except OSError as error:
        raise _not_started(error) from error


@contextmanager
def _private_directory(fs: LocalFileSystem) -> Iterator[str]:
    """Yields a directory for a copy, locked while it is used; raises OSError, _ConversionFailed.

    Removes those of processes that were killed: they are not locked any more. They have the name
    and the mode that mkdtemp gives, and the user of this process; all else stays. Where another
    user can rename things, nothing is removed or copied: what has such a name may be anything.
    """
    from shutil import rmtree
    from tempfile import gettempdir, mkdtemp

    from treesnap.core.ops.trust import refuse_foreign_place

    try:
        refuse_foreign_place("copy", os.path.join(gettempdir(), _PREFIX))
    except Refused as error:
        raise _ConversionFailed(f"gets no copy: {error.message}", is_final=True) from error
    with os.scandir(gettempdir()) as entries:
        left = [entry for entry in entries if _PRIVATE.compiled.match(entry.name)]
    for entry in left:
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            mode = status.st_mode & ~S_ISGID  # which a directory has from the one above
            is_ours = (status.st_uid, mode) == (os.geteuid(), S_IFDIR | 0o700)
            fd = _lock(fs, entry.path) if is_ours else None
            if fd is not None:
                rmtree(entry.path, ignore_errors=True)
                fs.close(fd)
    path, fd = "", None
    while fd is None:
        path = mkdtemp(prefix=_PREFIX)
        try:
            fd = _lock(fs, path)
        except Unsupported:
            break  # no process can tell that it is not used, and so none removes it
    try:
        yield path
    finally:
        rmtree(path, ignore_errors=True)
        if fd is not None:
            fs.close(fd)


def _lock(fs: LocalFileSystem, path: str) -> int | None:
    """Returns a locked directory, or None where another process uses or has removed it.

    Raises Unsupported, OSError.
    """
    try:
        fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    is_ours = False
    try:
        is_free = fs.lock(fd, exclusive=True)
        with suppress(FileNotFoundError):
            is_ours = is_free and os.path.samestat(os.stat(path), os.fstat(fd))
    finally:
        if not is_ours:
            fs.close(fd)
    return fd if is_ours else None


def _words_for(words: list[str], path: str) -> list[str]:
    """Returns the words with the file in the place of ``{}``, or at the end."""
    if PLACEHOLDER not in words:
        words = [*words, PLACEHOLDER]
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
        raise _failed(code, errors)
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
                        raise _too_long(size_max)
                    pieces.append(piece)
    return b"".join(pieces), errors


def _failed(code: int, errors: bytes) -> _ConversionFailed:
    lines = errors.strip().splitlines()
    said = f": {printable(lines[-1])}" if lines else ""
    ended = f"exited with {code}" if code > 0 else f"was killed by {signal_name(-code)}"
    return _ConversionFailed(ended + said)


def _not_started(error: OSError) -> _ConversionFailed:
    return _ConversionFailed(f"cannot be started: {error.strerror or error}", is_final=True)


def _too_long(size_max: int) -> _ConversionFailed:
    return _ConversionFailed(f"prints more than {size_text(size_max)}")


def _too_slow() -> _ConversionFailed:
    return _ConversionFailed(f"takes longer than {TIME_MAX_S:.0f} s", is_final=True)
