"""The words of ``diff [A [B]] [PATH...]``: which are snapshots, which are paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from treesnap.errors import ErrorCode, InvalidArgument, NotFound, printable
from treesnap.ops.references import means_something_else

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.ops.handle import Handle

REFS_MAX = 2


class Sides(NamedTuple):
    """What is compared."""

    old_id: str
    new_id: str | None
    """None for the live tree."""
    paths: list[str] | None
    """Absolute; None for everything."""


def parse_words(
    handle: Handle,
    invocation: Invocation,
    words: Sequence[str],
    paths: Sequence[str] | None,
    session: str | None,
) -> Sides:
    """Returns what to compare.

    ``paths`` are the words behind ``--``, or None when there was none. Then up to
    two words that name snapshots come first, as with git; a word that could be
    both, or is neither, is an error and no guess.
    """
    refs: list[str] = []
    rest = list(words)
    if paths is not None and len(rest) > REFS_MAX:
        raise click.UsageError("At most two snapshots can be compared")
    while rest and len(refs) < REFS_MAX:
        if paths is None and not _is_ref(handle, invocation, rest[0], session, refs):
            break
        refs.append(rest.pop(0))
    wanted = invocation.absolute_all([*rest, *(paths or ())], handle.root)
    ids = [
        handle.resolve(ref, session=session if refs else None, paths=wanted).id
        for ref in refs or ["latest"]
    ]
    return Sides(old_id=ids[0], new_id=ids[1] if len(ids) == REFS_MAX else None, paths=wanted)


def _is_ref(
    handle: Handle, invocation: Invocation, word: str, session: str | None, refs: list[str]
) -> bool:
    path = invocation.absolute(word, handle.root)
    is_path = os.path.lexists(path)
    try:
        if not means_something_else(word):
            handle.resolve(word, session=session)
    except (NotFound, InvalidArgument) as error:
        if error.code is ErrorCode.AMBIGUOUS_REF and not is_path:
            raise
        if is_path or _was_path(handle, refs[0] if refs else "latest", session, path):
            return False
        raise NotFound(f"{printable(word)!r} is neither a snapshot nor a path") from error
    if is_path:
        raise click.UsageError(
            f"{word!r} is both a snapshot and a path; write '--' before the first path"
        )
    return True


def _was_path(handle: Handle, ref: str, session: str | None, path: str) -> bool:
    """Returns whether a path that is gone is known from a snapshot."""
    try:
        found = handle.resolve(ref, session=session if ref != "latest" else None, paths=[path])
        handle.ls(found.id, path)
    except (NotFound, InvalidArgument):
        return False
    return True
