"""One call of the command line: its global options, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from treesnap.cli.failure import usage_error
from treesnap.cli.output.streams import (
    Output,
    Place,
    ignore_interrupts,
    ignore_time_limit,
    is_terminal,
)
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.handle import Handle

WAIT_DEFAULT_S = 30.0
_PLAIN_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
"""Those that mean nothing to a shell."""


class Invocation:
    """The global options of one call, wherever on the command line they were given."""

    def __init__(self, program: str, *, may_start_server: bool = False) -> None:
        self.program = program
        """The name that the command was called by."""
        self._may_start_server = may_start_server
        self.output: Output = Output(program)
        self.directory: str | None = None
        """The root given with ``-C``, or None to look for it."""
        self.store: str | None = None
        """The store given with ``--store``, or None for the default one."""
        self.wait_s = WAIT_DEFAULT_S
        self.session: str | None = None
        """The session that a REF such as ``step:3`` is about, or None."""
        self.tags: dict[str, str] = {}
        """The tags that options of the command stand for."""

    def keep(self, name: str, value: object, *, is_tag: bool = False) -> None:
        """Keeps a global option, or another that a command's function need not know."""
        if is_tag:
            self.tags[name] = "true" if value is True else str(value)
        else:
            is_output = name in {"as_json", "quiet", "colour"}
            setattr(self.output if is_output else self, name, value)

    @contextmanager
    def open(
        self,
        *,
        progress: bool = True,
        makes_store: bool = False,
        needs_root: bool = True,
        ends_restored: bool = False,
        start: str | None = None,
        markers: tuple[str, ...] = (),
    ) -> Iterator[Handle]:
        """Yields a handle on the root; a progress bar is gone when the block is left.

        Without ``-C``, the root is looked for from ``start`` on upwards, or from the current
        directory. A directory with one of the ``markers`` in it is a root, captured before
        or not. Tells the person which root it is where that is neither given nor where the
        search began. Raises StoreMissing when a store was named that does not exist, unless
        ``makes_store``. Raises NotFound or Refused when ``-C`` is neither a directory nor a root
        with a history, unless the command is about the store alone (``needs_root`` is False).
        With ``ends_restored``, Ctrl-C no longer ends the process once a restore is done, and the
        time limit of a hook does not once it changes files.
        """
        from treesnap.cli.output.progress import ProgressMonitor, WarningMonitor
        from treesnap.core import handle as library
        from treesnap.core.ops.context import (
            current_directory,
            is_store_given,
            require_root,
            require_store,
        )
        from treesnap.core.store.layout import Layout

        warn = self.output.warn
        store_path = self._store_path()
        root = self._root(store_path, start, markers)
        wants_progress = progress and not (self.output.as_json or self.output.quiet)
        shows_bar = wants_progress and is_terminal("stderr")
        ask = _is_to_go_on if is_terminal("stdin") else None
        monitor = ProgressMonitor(warn, ask=ask) if shows_bar else WarningMonitor(warn)
        self.output.hide_progress = monitor.close
        if ends_restored:
            monitor.when_committed = ignore_time_limit
            monitor.when_restored = ignore_interrupts
        try:
            handle = library.open(root, store_path, monitor=monitor, wait_s=self.wait_s)
            is_unsaid = self.directory is None and handle.root != os.path.realpath(
                start or current_directory()
            )
            handle.context = handle.context._replace(
                may_start_processes=True,
                is_root_named=not is_unsaid,
                is_attended=shows_bar and ask is not None,
            )
            self.output.place = Place(os.fsencode(handle.root), os.fsencode(handle.store_path))
            if not makes_store and (self.store is not None or is_store_given()):
                require_store(handle.store_path)
            if needs_root and self.directory is not None:
                require_root(handle.context)
            if is_unsaid:
                self.output.note(f"The root is {handle.root}")
            yield handle
            if self._may_start_server and os.path.lexists(Layout(handle.store_path).config):
                from treesnap.cli.fork_client import start_server_if_wanted

                start_server_if_wanted(handle.context)
        finally:
            self.output.hide_progress = None
            monitor.close()

    def resolve(self, handle: Handle, ref: str, paths: Sequence[str] | None = None) -> str:
        """Returns a REF for the library: as given, or its id in the session."""
        session = self.session
        return ref if session is None else handle.resolve(ref, session=session, paths=paths).id

    def absolute(self, path: str, root: str) -> str:
        """Returns a PATH argument as an absolute path.

        It is relative to the directory of ``-C``, else to the current one. Links on the way to
        it are followed only when it is written as one outside of the root, and leads into it.
        """
        if not path:
            raise usage_error("a PATH is empty; '.' is the directory itself")
        from treesnap.core.ops.context import current_directory

        base = root if self.directory is not None else current_directory()
        written = os.path.normpath(os.path.join(base, path))
        if _is_below(written, root):
            return written
        if os.path.realpath(written) == root:
            return root
        above, name = os.path.split(written)
        real = os.path.join(os.path.realpath(above), name)
        return real if _is_below(real, root) else written

    def absolute_all(self, paths: Sequence[str], root: str) -> list[str] | None:
        """Returns all PATH arguments as absolute paths; None without any: the whole root."""
        return [self.absolute(path, root) for path in paths] or None

    def command_text(self, *words: str) -> str:
        """Returns a command for a person to type, with the ``-C`` and ``--store`` of this one."""
        where = ["-C", self.directory] if self.directory is not None else []
        store = ["--store", self.store] if self.store is not None else []
        return " ".join(map(_shell_word, [self.program, *where, *store, *words]))

    def places(self) -> tuple[str, str]:
        """Returns the root and the store; looks at directories, and opens nothing."""
        store_path = self._store_path()
        return self._root(store_path, None, ()), store_path

    def _store_path(self) -> str:
        from treesnap.core.ops.context import absolute, default_store_path

        if self.store is None:
            return default_store_path()
        return os.path.abspath(absolute(self.store))

    def _root(self, store_path: str, start: str | None, markers: tuple[str, ...]) -> str:
        from treesnap.core.ops.context import absolute, current_directory, find_root

        if self.directory is not None:
            return os.path.abspath(absolute(self.directory))
        return find_root(start or current_directory(), store_path, markers)


def _is_to_go_on(message: str) -> bool:
    import click

    return click.confirm(f"{message}. Go on?", default=True, err=True)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _shell_word(word: str) -> str:
    """Returns a word as a person types it; most words are typed as they are."""
    if word and not word.strip(_PLAIN_LETTERS):
        return word
    from shlex import quote

    return quote(word)
