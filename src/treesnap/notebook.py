"""``%load_ext treesnap.notebook``: magics that make a cell undo what it did to files.

``%%snap`` captures the root before its cell, and rolls the cell's changes back when it raises.
``%snap`` calls a method of the handle, and shows the result as a table. The root is that of the
command line: the nearest directory from the current one upwards that was captured before, else
the current one.

Not here: how a result is shown (``presentation``).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.handle import open as open_handle
from treesnap.core.ops.context import current_directory, default_store_path, find_root

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
_WORDS_MIN = {"restore": 1}


class CellFailed(UsageError):
    """A cell raised; its traceback was shown before, so this is shown as one line."""


@magics_class
class SnapMagics(Magics):
    """``%snap`` and ``%%snap``."""

    @line_cell_magic
    def snap(self, line: str, cell: str | None = None) -> object:
        """Captures the root before a cell, and undoes what it did to files if it raises.

        %%snap [--keep] [LABEL]: runs the cell. With --keep its changes stay when it raises;
        '%snap restore latest' goes back.

        %snap [list | status | create [LABEL] | diff [A [B]] | show [REF] | restore REF [PATH]... |
        undo | redo]: calls that, and shows the result.
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
        if name not in _CALLS:
            raise UsageError(f"%snap takes one of: {', '.join(_CALLS)}")
        most = _WORDS_MAX.get(name, 0)
        if len(rest) < _WORDS_MIN.get(name, 0) or (most is not None and len(rest) > most):
            raise UsageError(f"%snap {name} does not take {len(rest)} words; see %snap?")
        return _CALLS[name](_handle(), rest)

    def _cell(self, words: _Words, cell: str) -> None:
        keeps = "--keep" in words
        label = " ".join(word for word in words if word != "--keep")
        if label.startswith("-"):
            raise UsageError("%%snap takes --keep and a label")
        handle, label = _handle(), label or _first_line(cell)
        if keeps:
            handle.create(label=label)
            self._run(cell, "its changes to files stay, and '%snap restore latest' undoes them")
            return
        with handle.rollback_on_error(label):
            self._run(cell, "its changes to files were undone, and '%snap undo' brings them back")

    def _run(self, cell: str, what_then: str) -> None:
        assert self.shell is not None, "magics are registered by a shell"
        result = self.shell.run_cell(cell)  # type: ignore[no-untyped-call]  # IPython states none
        if not result.success:
            raise CellFailed(f"The cell failed; {what_then}")


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
