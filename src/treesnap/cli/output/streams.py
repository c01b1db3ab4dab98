"""Output: the only module that prints.

Results go to standard output, everything else to standard error. With ``--json``
one object goes to standard output, a result or an error, and nothing to standard
error; warnings are a field of that object. Its text is ASCII with escapes, so that
it is valid UTF-8 whatever the names are.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from treesnap.cli.failure import Failure, hint_of, text_lines
from treesnap.core.model.errors import WarningCode, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Any, NoReturn
from treesnap.core.own_program import MAGIC, NAMES

if TYPE_CHECKING:
    from treesnap.cli.output.terminal import Terminal

FORMAT_VERSION = 1
"""Version of every JSON object; grows when a field goes or changes its meaning."""


_COLUMNS_DEFAULT = 80
_UNCONVERTED_SHOWN_MAX = 10


def program_name() -> str:
    """Returns the name that the command of this process was called by."""
    name = os.path.basename(sys.argv[0])
    return name if name in NAMES or name == MAGIC else "treesnap"


class Place(NamedTuple):
    """What a command worked on."""

    root: bytes
    store: bytes


class Output:
    """Where a command's results, warnings and errors go."""

    def __init__(self, program: str) -> None:
        self.program = program
        """The name that the command was called by."""
        self.as_json = False
        self.quiet: bool = False
        self.colour = "auto"
        """When standard output is coloured: ``auto``, ``always`` or ``never``."""
        self.is_paged: bool = False
        """Whether results go through a pager where they are shown on a terminal."""
        self.place: Place | None = None
        """What the command works on, once that is known; every result as JSON names it."""
        self.prints_only: bool = True
        """Whether printing is all that the command does, so that it fails when that fails."""
        self.unwritten: OSError | None = None
        """Why results did not reach standard output, of a command that did something besides."""
        self.hide_progress: Callable[[], None] | None = None
        """Takes progress off the terminal, which would be drawn over what is printed."""
        self._warnings: list[dict[str, str | None]] = []
        self._said: set[tuple[WarningCode, str]] = set()

    def prepare(self, values: Mapping[str, Any], *, prints_only: bool, is_paged: bool) -> None:
        """Makes this the output of a command, with the values of its parameters.

        A dry run does nothing but print, whatever the command does.
        """
        self.prints_only = prints_only or bool(values.get("dry_run"))
        self.is_paged = is_paged

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keeps an error of printing from ending a command that does more than print."""
        if self.hide_progress is not None:
            self.hide_progress()
        try:
            yield
        except OSError as error:
            if self.prints_only:
                raise
            self.unwritten = self.unwritten or error
            abandon_stdout()

    def result(
        self,
        command: str,
        fields: Callable[[], Mapping[str, Any]],
        text: Iterable[str] | Iterable[bytes],
    ) -> None:
        """Prints the result of a command: the fields as JSON, or the text.

        Text is lines, or bytes as they stand, among them those of users' files.
        """
        if self.as_json:
            self._print_object(command, fields())
            return
        if self.hide_progress is not None:
            self.hide_progress()
        pager = pager_command() if self.is_paged and is_terminal("stdout") else None
        if pager is not None and _page(pager, text):
            return
        for piece in text:
            with self._writing():
                if isinstance(piece, str):
                    sys.stdout.write(piece + "\n")
                else:
                    sys.stdout.flush()
                    _write_all(piece)

    def terminal(self, now_ns: int) -> Terminal:
        """Returns what results are printed for."""
        from treesnap.cli.output.terminal import Terminal

        columns = _columns() if is_terminal("stdout") else None
        return Terminal(columns, self.is_coloured, now_ns)

    @property
    def is_coloured(self) -> bool:
        """Whether standard output is coloured.

        ``--color`` decides; ``auto`` asks whether a person looks at it: a terminal, and no
        ``NO_COLOR`` (https://no-color.org).
        """
        if self.colour != "auto":
            return self.colour == "always"
        has_colours = os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        return has_colours and is_terminal("stdout")

    def pass_through(self, data: bytes) -> None:
        """Passes on what another program writes, at once; not with ``--json``.

        Raises BrokenPipeError when the reader went away, which stops a program that prints.
        """
        if self.as_json:
            return
        reader_left: BrokenPipeError | None = None
        with self._writing():
            try:
                sys.stdout.flush()
                _write_all(data)
                sys.stdout.buffer.flush()
            except BrokenPipeError as error:
                reader_left = error
                raise
        if reader_left is not None:
            raise reader_left

    def flush(self) -> None:
        """Flushes standard output; raises OSError when printing is all that the command does."""
        with self._writing():
            sys.stdout.flush()

    def detach(self) -> None:
        """Prints nothing more: the process that started this one has stopped listening."""
        self.quiet = True
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)

    def warn(self, code: WarningCode, message: str) -> None:
        """Prints a warning and its hint, once; with JSON it is one of the warnings."""
        if (code, message) in self._said:
            return
        self._said.add((code, message))
        hint = hint_of(code, self.program)
        if self.as_json:
            self._warnings.append({"code": code, "message": printable(message), "hint": hint})
        else:
            self.note(message, *([f"hint: {hint}"] if hint is not None else []))

    def warn_of_unconverted(self, messages: Sequence[str]) -> None:
        """Warns of the first files that a command did not print as text, once they were shown."""
        for message in messages[:_UNCONVERTED_SHOWN_MAX]:
            self.warn(WarningCode.NOT_CONVERTED, message)

    def note(self, *messages: str) -> None:
        """Prints lines for a person; the fields of the JSON object say the same."""
        if not self.as_json and not self.quiet:
            self.flush()  # so that both streams come in order where they are one
            for message in messages:
                print_plainly(printable(message))

    def error(self, failure: Failure) -> None:
        """Prints an error; ``--quiet`` does not silence it.

        Raises OSError when no file can be opened, so that modules for it cannot be imported.
        """
        text = ""
        if self.as_json:
            from treesnap.cli.failure import failure_fields

            text = self._object_text("error", failure_fields(failure))
        else:
            for line in text_lines(failure, self.program):
                print_plainly(line)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            abandon_stdout()
            if self.as_json and error.errno not in (errno.EPIPE, errno.EBADF):
                for line in text_lines(failure, self.program):
                    print_plainly(line)

    def _print_object(self, command: str, fields: Mapping[str, Any]) -> None:
        text = self._object_text(command, fields)
        with self._writing():
            sys.stdout.write(text)

    def _object_text(self, command: str, fields: Mapping[str, Any]) -> str:
        import json

        from treesnap.core.model.presentation import json_fields

        document: dict[str, Any] = {"schema": f"treesnap.{command}/{FORMAT_VERSION}"}
        if self.place is not None and command != "error":
            document["place"] = json_fields(self.place._asdict())
        document |= json_fields(fields)
        if self._warnings:
            document["warnings"] = [*document.get("warnings", ()), *self._warnings]
        return json.dumps(document) + "\n"

    def report_unwritten(self) -> None:
        """Says on standard error that results were lost.

        Says nothing to a caller that asked for quiet and closed standard output itself.
        """
        error = self.unwritten
        if error is not None and not (self.quiet and error.errno == errno.EBADF):
            reason = error.strerror or str(error)
            print_plainly(f"{self.program}: Done, but the result could not be printed: {reason}")


def pager_command() -> list[str] | None:
    """Returns the pager, as git chooses it: ``SNAP_PAGER``, ``PAGER``, ``less``; None for none."""
    import shlex

    for name in ("SNAP_PAGER", "PAGER"):
        chosen = os.environ.get(name)
        if chosen is not None:
            words = shlex.split(chosen)
            return words if words and words != ["cat"] else None
    return ["less"]


def _columns() -> int:
    """Returns how wide the terminal is: as ``COLUMNS`` says, or as it says itself."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS_DEFAULT
    return _COLUMNS_DEFAULT


def _page(command: Sequence[str], text: Iterable[str] | Iterable[bytes]) -> bool:
    """Shows text in a pager, as far as the person reads; returns whether there is that pager.

    With ``F`` and ``X``, ``less`` prints what fits on the screen and ends.
    """
    import signal
    import subprocess

    sys.stdout.flush()
    environment = {"LESS": "FRX", "LV": "-c", **os.environ}
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the pager
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:  # noqa: S603 - the person's own choice, as for git
            assert pager.stdin is not None
            with suppress(BrokenPipeError):
                for piece in text:
                    line = piece if isinstance(piece, bytes) else f"{piece}\n"
                    pager.stdin.write(line if isinstance(line, bytes) else _encoded(line))
                pager.stdin.flush()
            with suppress(BrokenPipeError):
                pager.stdin.close()
    except FileNotFoundError:
        return False
    finally:
        signal.signal(signal.SIGINT, former)
    return True


def _encoded(text: str) -> bytes:
    return text.encode(sys.stdout.encoding, "backslashreplace")


def _write_all(data: bytes) -> None:
    """Writes bytes to standard output; with PYTHONUNBUFFERED a call may take only some of them."""
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) or 0 :]


def print_traceback(error: BaseException) -> None:
    """Prints where an exception comes from, to find a bug."""
    from traceback import print_exception

    with suppress(OSError, ValueError):
        print_exception(error, file=sys.stderr)


def print_plainly(text: str) -> None:
    """Prints a line on standard error with nothing but what is loaded already.

    Errors are ignored: there is no other place to report them, and no work ends for them.
    """
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr)


def prepare_streams() -> None:
    """Makes standard streams that exist and that can print any name.

    A closed stream is replaced by the null device, which also keeps its number
    from being given to a file of the store. In place of standard output the device is opened
    for reading, so that writing to it still fails.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_terminal(stream_name: str) -> bool:
    """Returns whether ``stdout`` or ``stderr`` is shown to a person."""
    stream = sys.stdout if stream_name == "stdout" else sys.stderr
    return stream.isatty()


def ignore_interrupts() -> None:
    """Lets Ctrl-C no longer end this process, whose work is done.

    It would exit with 130, which says that the work is not.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def ignore_time_limit() -> None:
    """Lets the time limit of a hook no longer end the command that was typed as a prompt.

    What has begun to change files completes, and its answer says so.
    """
    import signal

    if callable(signal.getsignal(signal.SIGALRM)):
        signal.signal(signal.SIGALRM, lambda *_: None)


def end_process(exit_code: int) -> NoReturn:
    """Ends this process without finalising Python, which takes longer than many commands."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def abandon_stdout() -> None:
    """Discards what is still buffered for a broken standard output."""
    with suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Makes standard output of inherited streams go to standard error."""
    with suppress(OSError):  # reported when the result cannot be printed
        sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
