"""Output: the only module that prints.

Results go to standard output, everything else to standard error. With ``--json``
exactly one object goes to standard output, be it a result or an error, and
nothing to standard error; remarks are a field of that object. The text of it is
ASCII with escapes, so that it is valid UTF-8 whatever the names are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from treesnap.errors import shown

if TYPE_CHECKING:
    from treesnap.cli.failure import Failure

FORMAT_VERSION = 1
"""Version of every JSON object; grows when a field goes or changes its meaning."""


class Place(NamedTuple):
    """What a command worked on."""

    root: str
    store: str


class Output:
    """Where a command's results, remarks and errors go."""

    def __init__(self, program: str) -> None:
        self.program = program
        """The name that the command was called by."""
        self.as_json = False
        self.quiet = False
        self.place: Place | None = None
        """What the command works on, once that is known; every result as JSON names it."""
        self._remarks: list[str] = []

    def result(
        self,
        command: str,
        *,
        fields: Callable[[], Mapping[str, Any]],
        lines: Callable[[], Iterable[str]],
    ) -> None:
        """Prints the result of a command; only the form that is wanted is made."""
        if self.as_json:
            self._print_object(command, fields())
        else:
            for line in lines():
                sys.stdout.write(line + "\n")

    def raw(
        self,
        command: str,
        *,
        fields: Callable[[], Mapping[str, Any]],
        pieces: Callable[[], Iterable[bytes]],
    ) -> None:
        """Prints a result whose text is bytes, among them those of users' files."""
        if self.as_json:
            self._print_object(command, fields())
        else:
            sys.stdout.flush()
            for piece in pieces():
                sys.stdout.buffer.write(piece)

    def piece(self, data: bytes) -> None:
        """Passes on what another program writes, at once; not with ``--json``."""
        if not self.as_json:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def flush(self) -> None:
        """Hands over what was printed, because the command goes on."""
        sys.stdout.flush()

    def detach(self) -> None:
        """Prints nothing more: whoever started this process does not listen any longer."""
        self.quiet = True
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)

    def remark(self, message: str) -> None:
        """Prints a line that people may want to know, and scripts may ignore."""
        if self.as_json:
            self._remarks.append(shown(message))
        elif not self.quiet:
            sys.stdout.flush()  # so that both streams come in order where they are one
            sys.stderr.write(shown(message) + "\n")

    def error(self, failure: Failure) -> None:
        """Prints an error; ``--quiet`` does not silence it."""
        if self.as_json:
            from treesnap.cli.json_forms import failure_fields

            self._print_object("error", failure_fields(failure))
        else:
            from treesnap.cli.failure import text_lines

            for line in text_lines(failure, self.program):
                sys.stderr.write(line + "\n")

    def _print_object(self, command: str, fields: Mapping[str, Any]) -> None:
        import json

        document: dict[str, Any] = {"schema": f"treesnap.{command}/{FORMAT_VERSION}"}
        if self.place is not None and command != "error":
            from treesnap.cli.json_forms import path_fields

            document["place"] = {
                **path_fields(self.place.root, "root"),
                **path_fields(self.place.store, "store"),
            }
        document |= fields
        if self._remarks:
            document["remarks"] = self._remarks
        sys.stdout.write(json.dumps(document) + "\n")


def print_traceback(error: BaseException) -> None:
    """Prints where an exception comes from, for those who look for a bug."""
    from traceback import print_exception

    print_exception(error, file=sys.stderr)


def print_plainly(text: str) -> None:
    """Prints a line on standard error with nothing but what is loaded already."""
    print(text, file=sys.stderr)


def prepare_streams() -> None:
    """Makes standard streams that exist and that can print any name.

    A closed stream is replaced by the null device, which also keeps its number
    from being given to a file of the store.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
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


def flush_stdout() -> None:
    """Hands everything that was printed over, or raises the OSError that prevents it."""
    sys.stdout.flush()


def end_process(exit_code: int) -> NoReturn:
    """Ends this process at once: taking the interpreter apart takes longer than many commands."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def abandon_stdout() -> None:
    """Sends what is still buffered for a broken standard output nowhere."""
    with suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Lets a command that inherits the standard streams print on standard error only."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
