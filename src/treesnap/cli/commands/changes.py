"""``snap status`` and ``snap diff``: what changed between two states."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from treesnap.cli.declarations import argument, command, option
from treesnap.cli.failure import ExitCode, usage_error
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import session_option, text_option
from treesnap.cli.output.as_text import (
    change_lines,
    privilege_lines,
    scope_text,
    short_id,
    skipped_lines,
    titled,
)
from treesnap.cli.output.streams import is_terminal
from treesnap.cli.parameters import SIZE
from treesnap.core.model.entries import CONTENT_SIZE_MAX, SkipReason
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import format_size
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Skipped
    from treesnap.core.model.results import StatusResult

REFS_MAX = 2


@command(
    "status",
    prints_only=True,
    examples=["snap status", "snap status golden --exit-code", "snap -C project status --json"],
)
@argument("ref", required=False)
@option(
    "--exit-code",
    "has_exit_code",
    is_flag=True,
    help="Exit 1 if anything differs, 4 if something could not be read, 5 without a snapshot.",
)
@session_option
def status(invocation: Invocation, *, ref: str | None, has_exit_code: bool) -> int:
    """Show what changed since the newest snapshot, or since REF.

    Letters: A added, D deleted, M modified, T another type, P properties alone
    (mode, owner, time, extended attributes). Exits 0 with and without changes,
    unless --exit-code is given; with -q, that prints nothing.
    """
    output = invocation.output
    is_silent = has_exit_code and output.quiet and not output.as_json
    with invocation.open() as handle:
        result = handle.status(invocation.resolve(handle, ref) if ref is not None else None)
        differs = ref is None and result.snapshot is not None and bool(result.changes)
        position = handle.ways_back().position if differs else None
    if result.snapshot is None:
        output.note(f"No snapshot of the whole of {handle.root} in {handle.store_path}")
    else:
        scope = result.snapshot.record.scope
        if not result.changes:
            output.note(f"Nothing changed since {short_id(result.snapshot.id)}")
        if scope is not None:
            output.note(f"This snapshot holds {scope_text(scope)}, and nothing else was compared")
        if position is not None and position.id != result.snapshot.id:
            again = invocation.command_text("status", short_id(position.id))
            output.note(f"Changed since latest, {titled(result.snapshot)}")
            output.note(f"The root stands at {titled(position)}; to compare with that: {again}")
        way = invocation.command_text("restore", short_id(result.snapshot.id), "--privileged")
        output.note(*privilege_lines(result.privileges, done="Not compared", way=way))
    output.note(*_unreadable_lines(result.skipped))
    output.result(
        "status",
        result.to_dict,
        [] if is_silent else change_lines(result.changes, coloured=output.is_coloured),
    )
    return _exit_code(result) if has_exit_code else ExitCode.DONE


def _exit_code(result: StatusResult) -> ExitCode:
    """Returns what ``--exit-code`` says: a comparison that left something out is not a success."""
    if result.snapshot is None:
        return ExitCode.NOT_FOUND
    if result.changes:
        return ExitCode.FAILED
    if any(item.reason == SkipReason.UNREADABLE for item in result.skipped):
        return ExitCode.INCOMPLETE
    return ExitCode.DONE


def _unreadable_lines(skipped: Iterable[Skipped]) -> Iterator[str]:
    items = [item for item in skipped if item.reason == SkipReason.UNREADABLE]
    what = "it is" if len(items) == 1 else "they are"
    return skipped_lines(items, f"could not be read, so {what} not compared")


@command(
    "diff",
    separates_paths=True,
    prints_only=True,
    is_paged=True,
    examples=[
        "snap diff",
        "snap diff latest~1 latest --stat",
        "snap diff latest src/ notes.txt",
        "snap diff --name-status -- src/",
        "snap diff ../attempt-1 --stat",
    ],
)
@argument("words", nargs=-1, metavar="[A [B]|DIR] [--] [PATH]...")
@option("--stat", is_flag=True, help="How many lines changed, a line for each path.")
@option("--name-status", is_flag=True, help="A letter and a path, as 'status' has them.")
@option(
    "--max-size",
    type=SIZE,
    default=format_size(CONTENT_SIZE_MAX),
    metavar="SIZE",
    help=f"Summarise larger files [{format_size(CONTENT_SIZE_MAX)}].",
)
@text_option
@session_option
def diff(
    invocation: Invocation,
    *,
    words: Sequence[str],
    paths: Sequence[str] | None = None,
    stat: bool,
    name_status: bool,
    max_size: int,
    no_textconv: bool,
) -> None:
    """Show changes between two snapshots, or a snapshot and the live tree.

    From A (default: the newest snapshot) to B (default: the live tree), as patches. DIR is
    another root, such as a fork of this one: from this live tree to that one.
    Binary files, and those larger than --max-size, are summarised. Files that
    'snap config diff.PATTERN' names a command for are compared as the text that it
    prints. Exits 0 with and without changes.
    """
    if stat and name_status:
        raise usage_error("--stat and --name-status exclude each other")
    from treesnap.cli.output.patches import DiffOutput

    with invocation.open() as handle:
        sides = _sides(handle, invocation, words, paths)
        if sides.directory is not None:
            changes = handle.diff_root(sides.directory, sides.paths)
        else:
            changes = handle.diff(sides.old_id, sides.new_id, sides.paths)
        texts = DiffOutput(
            handle,
            sides.old_id,
            sides.new_id,
            root=sides.directory,
            size_max=max_size,
            as_text=not no_textconv,
        )
        output = invocation.output
        coloured = output.is_coloured

        def fields() -> Fields:
            rows = list(texts.stat_fields(changes)) if stat else changes
            return {
                "old_id": sides.old_id,
                "new_id": sides.new_id,
                "directory": sides.directory,
                "changes": rows,
            }

        text: Iterator[str] | Iterator[bytes]
        if stat:
            text = texts.stat_lines(changes, coloured=coloured)
        elif name_status:
            text = change_lines(changes, coloured=coloured)
        elif coloured or is_terminal("stdout"):
            text = texts.shown_patches(changes, coloured=coloured)
        else:
            text = texts.patches(changes)
        output.result("diff", fields, text)
        output.warn_of_unconverted(texts.not_converted)


class Sides(NamedTuple):
    """What is compared."""

    old_id: str | None
    new_id: str | None
    """None for the live tree, of which there may be two."""
    paths: list[str] | None
    """Absolute; None for everything."""
    directory: str | None = None
    """The other root whose live tree is the new side, or None for this one's."""


def _sides(
    handle: Handle,
    invocation: Invocation,
    words: Sequence[str],
    paths: Sequence[str] | None,
) -> Sides:
    """Returns what to compare: which words are snapshots, and which are paths.

    ``paths`` are the words behind ``--``, or None when there was none. As with git, up to two
    words that name snapshots come first. Refuses to guess: a word that could be both, or is
    neither, is an error.
    """
    directory = _other_root(handle, invocation, words)
    if directory is not None:
        return Sides(None, None, invocation.absolute_all(paths or (), handle.root), directory)
    refs: list[str] = []
    rest = list(words)
    if paths is not None and len(rest) > REFS_MAX:
        raise usage_error("At most two snapshots can be compared")
    while rest and len(refs) < REFS_MAX:
        if paths is None and not _is_ref(handle, invocation, rest[0], refs):
            break
        refs.append(rest.pop(0))
    absolute_paths = invocation.absolute_all([*rest, *(paths or ())], handle.root)
    ids = [
        handle.resolve(ref, session=invocation.session if refs else None, paths=absolute_paths).id
        for ref in refs or ["latest"]
    ]
    return Sides(ids[0], ids[1] if len(ids) == REFS_MAX else None, absolute_paths)


def _other_root(handle: Handle, invocation: Invocation, words: Sequence[str]) -> str | None:
    """Returns the one word as a path, if it is a directory with a history outside of the root.

    There is no path of the root, and a word that leads out of the root names no snapshot.
    """
    if len(words) != 1:
        return None
    path = os.path.realpath(invocation.absolute(words[0], handle.root))
    if (path + os.sep).startswith(handle.root.rstrip(os.sep) + os.sep):
        return None
    from treesnap.core.ops.context import is_root_of

    return path if is_root_of(handle.store_path, path) else None


def _is_ref(handle: Handle, invocation: Invocation, word: str, refs: list[str]) -> bool:
    from treesnap.core.ops.references import is_reserved_name

    path = invocation.absolute(word, handle.root)
    is_path, session = os.path.lexists(path), invocation.session
    try:
        if not is_reserved_name(word):
            handle.resolve(word, session=session)
    except (NotFound, InvalidArgument) as error:
        if error.code is ErrorCode.AMBIGUOUS_REF and not is_path:
            raise
        if is_path or _was_path(handle, refs[0] if refs else "latest", session, path):
            return False
        failure = NotFound(f"{quoted(word)} is neither a snapshot nor a path")
        for advice in getattr(error, "__notes__", ()):
            failure.add_note(advice)
        raise failure from error
    if is_path:
        raise usage_error(
            f"{word!r} is both a snapshot and a path; write '--' before the first path"
        )
    return True


def _was_path(handle: Handle, ref: str, session: str | None, path: str) -> bool:
    """Returns whether a path that does not exist is in a snapshot."""
    try:
        snapshot = handle.resolve(ref, session=session if ref != "latest" else None, paths=[path])
        handle.ls(snapshot.id, path)
    except (NotFound, InvalidArgument):
        return False
    return True
