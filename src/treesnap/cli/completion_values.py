"""What can stand for each argument and option of the commands, by its name.

``values_of`` gives a parameter the completion that its name stands for. Parameters that are not
in the tables are free texts, for which a shell offers nothing, or say themselves what it offers,
as those of features do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from copy import copy

import click
from click.shell_completion import CompletionItem

from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.snapshots import Snapshot
    from treesnap.core.ops.context import Context

SHOWN_MAX = 60
"""Ids that are offered; the first letters of another one find it."""

_Items = Iterable[CompletionItem]
_Values = Callable[[click.Context, Invocation, str], _Items]


class CompletedText(click.types.StringParamType):
    """A text for which some words are offered."""

    def __init__(self, values: _Values) -> None:
        self._values = values

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - the signature is click's
        incomplete: str,
    ) -> list[CompletionItem]:
        """Returns the words that fit; none where the store or the root cannot be read."""
        invocation = ctx.find_object(Invocation)
        assert invocation is not None
        try:
            return list(self._values(ctx, invocation, incomplete))
        except (TreesnapError, OSError):
            return []


def values_of(parameter: click.Parameter) -> click.Parameter:
    """Returns a parameter that offers words, or the same one where its type or name has none."""
    table = ARGUMENTS if isinstance(parameter, click.Argument) else OPTIONS
    values = table.get(str(parameter.name))
    if parameter.type is click.UNPROCESSED:  # another program's command line
        values = _FILES
    elif values is None or parameter.type is not click.STRING:
        return parameter
    completing = copy(parameter)
    completing.type = CompletedText(values)
    return completing


def context_of(invocation: Invocation) -> Context:
    """Returns the root and the store that the options before name; makes and changes nothing."""
    from treesnap.core import handle as library

    for name in ("directory", "store"):
        path = getattr(invocation, name)
        if path is not None:
            setattr(invocation, name, os.path.expandvars(os.path.expanduser(path)))
    root, store = invocation.places()
    return library.open(root, store).context


def _snapshots(invocation: Invocation, beginning: str = "") -> list[Snapshot]:
    from treesnap.core.ops.history.completion import recent_snapshots

    recent = recent_snapshots(context_of(invocation), beginning)
    session = invocation.session
    return [item for item in recent if session is None or item.record.session == session]


def _refs(ctx: click.Context, invocation: Invocation, incomplete: str) -> Iterator[CompletionItem]:
    """Yields ``latest``, names, steps of a session, and ids, the newest first."""
    is_id = bool(incomplete) and not incomplete.strip("0123456789abcdef")
    snapshots = _snapshots(invocation, incomplete if is_id else "")
    if ctx.info_name == "unpin":
        snapshots = [item for item in snapshots if item.pinned]
    else:
        yield from _words(_latest(snapshots, incomplete), incomplete)
    yield from _words(
        ((item.record.name, _meaning(item)) for item in snapshots if item.record.name), incomplete
    )
    if incomplete.startswith("step:") or invocation.session is not None:
        steps = {item.record.step: item for item in reversed(snapshots)}
        yield from _words(
            (
                (f"step:{step}", _meaning(item))
                for step, item in reversed(steps.items())
                if step is not None
            ),
            incomplete,
        )
    digits = max(len(incomplete) + 4, 12) if is_id else 12
    ids = [(item.id[:digits], _meaning(item)) for item in snapshots]
    fitting = [(word, meaning) for word, meaning in ids if word.startswith(incomplete)]
    yield from _words(fitting[:SHOWN_MAX], incomplete)


def _latest(snapshots: Iterable[Snapshot], incomplete: str) -> Iterator[tuple[str, str]]:
    from treesnap.core.model.snapshots import SnapshotKind

    whole = [
        item
        for item in snapshots
        if item.record.scope is None and item.kind is not SnapshotKind.SAFETY
    ]
    for back, item in enumerate(whole[: 10 if incomplete.startswith("latest") else 1]):
        yield f"latest~{back}" if back else "latest", _meaning(item)


def _meaning(snapshot: Snapshot) -> str:
    from treesnap.cli.output.as_text import title_of
    from treesnap.core.model.quantities import time_text

    when = time_text(snapshot.record.created_at_ns, "%Y-%m-%d %H:%M")
    return f"{'pinned, ' if snapshot.pinned else ''}{when} {title_of(snapshot)}".strip()


def _paths(ctx: click.Context, invocation: Invocation, incomplete: str) -> Iterator[CompletionItem]:
    """Yields what the directory has now, and what it had in the snapshot that comes before."""
    context = context_of(invocation)
    directory, _, beginning = incomplete.rpartition("/")
    shown = f"{directory}/" if "/" in incomplete else ""
    target = invocation.absolute(os.path.expanduser(shown) or ".", context.root)
    is_directory: dict[str, bool] = {}
    try:
        with os.scandir(target) as live:
            is_directory = {entry.name: entry.is_dir(follow_symlinks=False) for entry in live}
    except OSError:
        pass
    ref = ctx.params.get("ref") or next(iter(ctx.params.get("words") or ()), None)
    if isinstance(ref, str):
        is_directory = dict(_recorded(context, ref, target)) | is_directory
    for name in sorted(is_directory):
        is_hidden = name.startswith(".") and not beginning.startswith(".")
        if name.startswith(beginning) and not is_hidden:
            yield CompletionItem(f"{shown}{name}{'/' if is_directory[name] else ''}", type="path")


def _recorded(context: Context, ref: str, directory: str) -> Iterator[tuple[str, bool]]:
    from treesnap.core.ops.history.completion import names_in

    below = os.path.relpath(directory, context.root)
    path = b"" if below == "." else os.fsencode(below)
    try:
        for name, is_directory in names_in(context, ref, path):
            yield os.fsdecode(name), is_directory
    except (TreesnapError, OSError):
        return


def _refs_and_paths(
    ctx: click.Context, invocation: Invocation, incomplete: str
) -> Iterator[CompletionItem]:
    if "/" not in incomplete:
        yield from CompletedText(_refs).shell_complete(ctx, ctx.command.params[0], incomplete)
    yield from _paths(ctx, invocation, incomplete)


def _sessions(_: click.Context, invocation: Invocation, incomplete: str) -> _Items:
    from treesnap.core.ops.history.completion import sessions

    newest_by_session = sessions(context_of(invocation))
    return _words(
        ((name, _meaning(newest)) for name, newest in newest_by_session.items()), incomplete
    )


def _settings(_: click.Context, __: Invocation, incomplete: str) -> _Items:
    from treesnap.core.ops.maintenance.config import KEYS

    return _words(((key, "") for key in KEYS), incomplete)


def _setting_values(ctx: click.Context, _: Invocation, incomplete: str) -> _Items:
    from treesnap.core.ops.maintenance.config import KEYS

    key = KEYS.get(str(ctx.params.get("key")))
    is_flag = key is not None and isinstance(key.default, bool)
    return _words(((word, "") for word in ("true", "false") if is_flag), incomplete)


def _by_shell(kind: str) -> _Values:
    """Returns the completion that a shell has of its own, of files or of directories."""
    return lambda _, __, incomplete: [CompletionItem(incomplete, type=kind)]


def _words(words: Iterable[tuple[str, str]], incomplete: str) -> Iterator[CompletionItem]:
    """Yields the words that begin as what was typed."""
    for word, meaning in words:
        if word.startswith(incomplete):
            yield CompletionItem(word, help=meaning)


_FILES, _DIRECTORIES = _by_shell("file"), _by_shell("dir")

ARGUMENTS: dict[str, _Values] = {
    "checkpoint_ref": _refs,
    "directories": _DIRECTORIES,
    "key": _settings,
    "mount_point": _DIRECTORIES,
    "new": _DIRECTORIES,
    "old": _DIRECTORIES,
    "path": _paths,
    "paths": _paths,
    "ref": _refs,
    "refs": _refs,
    "root_ref": _DIRECTORIES,
    "source": _FILES,
    "target": _DIRECTORIES,
    "value": _setting_values,
    "words": _refs_and_paths,
}
"""What arguments offer."""

OPTIONS: dict[str, _Values] = {
    "directory": _DIRECTORIES,
    "output": _FILES,
    "passphrase_file": _FILES,
    "ref": _refs,
    "session": _sessions,
    "session_id": _sessions,
    "since": _refs,
    "store": _DIRECTORIES,
    "to": _DIRECTORIES,
}
"""What options offer."""
