"""``%load_ext treesnap.notebook``: magics that make a cell undo what it did to files.

``%%snap`` captures the root before its cell, and rolls the cell's changes back when it raises; when
it does not, the next undo goes back to before the cell.
``%snap`` calls a method of the handle, and shows the result as a table; commands that have none,
options and other words, such as the paths of ``diff``, go to the command line. The root is that of
the command line: the nearest directory from the current one upwards that was captured before, else
the current one. An error is one line.

Not here: how a result is shown (``presentation``).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from treesnap.core.features import brought_by
from treesnap.core.fs.durable import read_file
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.handle import open as open_handle
from treesnap.core.model.errors import NotFound, TreesnapError
from treesnap.core.model.hints import for_program
from treesnap.core.ops.context import current_directory, default_store_path, find_root
from treesnap.core.ops.undo import make_undoable
from treesnap.core.own_program import MAGIC, magic_words

with brought_by("notebook"):
    from IPython.core.error import UsageError
    from IPython.core.magic import Magics, line_cell_magic, magics_class

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_Words = Sequence[str]
_CALLS: dict[str, Callable[[Handle, _Words], object]] = {
    "create": lambda handle, words: handle.create(label=" ".join(words) or None),
    "diff": lambda handle, words: handle.diff(*words[:2]),
    "list": lambda handle, _: handle.list(),
    "redo": lambda handle, _: handle.redo(),
    "restore": lambda handle, words: handle.restore(words[0], words[1:] or None),
    "show": lambda handle, words: handle.show(words[0] if words else "latest"),
    "status": lambda handle, _: handle.status(),
    "undo": lambda handle, _: handle.undo(),
}
"""What ``%snap`` takes, and what it does."""
_WORDS_MAX = {"create": None, "diff": 2, "restore": None, "show": 1}
_PAGE_SIZE_MAX = 64 << 20
_WORDS_MIN = {"restore": 1}
_WITH_VALUE = frozenset({"-C", "--store", "--wait"})
_ENDLESS = {
    "watch": "'%snap watch --detach' watches in the background",
    "mount": "type it in a terminal, without the %",
    "mcp": "the host of a model starts it",
}
"""Commands that a cell would wait for until it is interrupted, and what to do instead."""
_ENDING = frozenset({"--detach", "--status", "--stop", "--help", "-h"})
"""Options with which they end."""


class HistoryFrame:
    """The page of ``timeline --html``, in a frame of a notebook; nothing in it can run."""

    def __init__(self, page: str) -> None:
        self._page = page

    def __repr__(self) -> str:
        return "<HistoryFrame: a notebook shows it>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="" srcdoc="{escape(self._page)}" title="History" '
            'style="width: 100%; height: 40em; border: 1px solid"></iframe>'
        )


class CellFailed(UsageError):
    """A cell raised; its traceback was shown before, so this is shown as one line."""

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows: of a class that is not its own, the lines of our code."""
        return [f"{type(self).__name__}: {self}"]


@magics_class
class SnapMagics(Magics):
    """``%snap`` and ``%%snap``."""

    @line_cell_magic
    def snap(self, line: str, cell: str | None = None) -> object:
        """Captures the root before a cell, and undoes what it did to files if it raises.

        %%snap [--keep] [LABEL]: runs the cell. With --keep its changes stay when it raises.
        '%snap undo' undoes what it left, '%snap redo' brings that back.

        %snap [list | status | create [LABEL] | diff [A [B]] | show [REF] | restore REF [PATH]... |
        undo | redo]: calls that, and shows the result as a table.

        %snap COMMAND [OPTIONS]: any other command, or one of these with options or other words, as
        in a terminal; --json returns what it prints. %snap timeline shows the page.
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%snap cannot read its words: {error}") from error
        if cell is None:
            return self._line(words)
        self._cell(words, cell)
        return None

    def _line(self, words: _Words) -> object:
        name, *rest = words or ["list"]
        most = _WORDS_MAX.get(name, 0)
        has_too_many = most is not None and len(rest) > most
        has_option = any(word.startswith("-") for word in rest)
        if name not in _CALLS or has_option or has_too_many or len(rest) < _WORDS_MIN.get(name, 0):
            return _typed([name, *rest])
        with _in_one_line():
            try:
                return _CALLS[name](_handle(), rest)
            except NotFound:
                if name != "diff":
                    raise
        return _typed([name, *rest])  # its words may be paths

    def _cell(self, words: _Words, cell: str) -> None:
        keeps = "--keep" in words
        label = " ".join(word for word in words if word != "--keep")
        if label.startswith("-"):
            raise UsageError("%%snap takes --keep and a label")
        self._refuse_await(cell)
        label = label or _first_line(cell)
        with _in_one_line():
            handle = _handle()
            if keeps:
                checkpoint = handle.create(label=label).snapshot
        if keeps:
            try:
                self._run(cell, "its changes to files stay, and '%snap undo' undoes them")
            finally:
                with _in_one_line():
                    make_undoable(handle.context, checkpoint)
            return
        with _in_one_line():
            with handle.rollback_on_error(label) as made:
                then = "its changes to files were undone, and '%snap undo' brings them back"
                self._run(cell, then)
            make_undoable(handle.context, made.snapshot)

    def _refuse_await(self, cell: str) -> None:
        """Raises UsageError where a cell waits for the loop of a kernel, which runs this magic."""
        import asyncio  # elsewhere than here this module says first that it does not run

        assert self.shell is not None, "magics are registered by a shell"
        try:
            asyncio.get_running_loop()
            transformed = self.shell.transform_cell(cell)  # type: ignore[no-untyped-call]  # IPython states none
        except (RuntimeError, SyntaxError):  # no loop runs; or the cell says itself what is wrong
            return
        if self.shell.should_run_async(cell, transformed_cell=transformed):
            raise UsageError(
                "A cell with %%snap cannot await outside of a function; without it, "
                "'async with treesnap.open(DIR).aio.rollback_on_error(LABEL):' does the same"
            )

    def _run(self, cell: str, what_then: str) -> None:
        assert self.shell is not None, "magics are registered by a shell"
        result = self.shell.run_cell(cell)  # type: ignore[no-untyped-call]  # IPython states none
        if not result.success:
            raise CellFailed(f"The cell failed; {what_then}")


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Raises an error of treesnap as one that IPython shows without a traceback."""
    try:
        yield
    except TreesnapError as error:
        hint = f" ({for_program(error.hint, MAGIC)})" if error.hint else ""
        raise UsageError(f"{error}{hint}") from error


def _typed(words: _Words) -> object:
    """Runs a command as in a terminal; returns the object that it prints, or the page."""
    name = _command_of(words)
    if name in _ENDLESS and not _ENDING.intersection(words):
        raise UsageError(f"%snap {name} would never end in a cell; {_ENDLESS[name]}")
    if words[0] == "timeline" and "--html" not in words:
        with TemporaryDirectory(prefix="treesnap-") as directory:
            path = os.path.join(directory, "page.html")
            _output([*words, "--html", path])
            page = read_file(LocalFileSystem(), path, _PAGE_SIZE_MAX)
            return HistoryFrame(page.decode())
    said = _output(words)
    if "--json" in words and said.startswith("{"):
        return json.loads(said)
    print(said, end="")  # noqa: T201 - as in a terminal
    return None


def _command_of(words: _Words) -> str | None:
    """Returns the command behind options that all commands have, or None."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(rest, None)
    return None


def _output(words: _Words) -> str:
    """Returns what a command prints; raises UsageError with what it says where it fails."""
    done = subprocess.run(  # noqa: S603 - our own program, without a shell
        [*magic_words(), *words], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    said, told = (text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr))
    if done.returncode and "--json" in words and said.startswith("{"):
        error = json.loads(said)
        told = f"{error.get('message', '')} ({error.get('hint')})"
    if done.returncode and (told or not said):
        raise UsageError(_one_line(told) or f"It exited with {done.returncode}")
    if told:
        print(told, end="")  # noqa: T201 - as in a terminal
    return said


def _one_line(told: str) -> str:
    """Returns what a failed command says as the errors of the library are shown here."""
    *_, error = f"\n{told.strip()}".split(f"\n{MAGIC}: ")  # what is told before it may be a list
    said, _, hint = error.strip().partition("\nhint: ")
    lines = "; ".join(said.split("\n"))
    return f"{lines} ({' '.join(hint.split())})" if hint else lines


def _first_line(cell: str) -> str:
    lines = cell.strip().splitlines()
    return f"before: {lines[0]}" if lines else "before an empty cell"


def _handle() -> Handle:
    store_path, here = default_store_path(), current_directory()
    handle = open_handle(find_root(here, store_path), store_path)
    is_named = handle.root == os.path.realpath(here)
    handle.context = handle.context._replace(is_root_named=is_named)
    return handle


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Registers the magics; IPython calls it for ``%load_ext``."""
    shell.register_magics(SnapMagics)
