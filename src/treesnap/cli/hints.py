"""What to type instead: hints for errors of the library, which knows no commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from treesnap.cli.failure import advised, usage_error
from treesnap.cli.output.as_text import aligned, path_text, short_id, title_of, titled
from treesnap.core.model.errors import ErrorCode, NotFound, TreesnapError, printable
from treesnap.core.model.quantities import first_few, time_text
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    import click

    from treesnap.cli.invocation import Invocation
    from treesnap.core.handle import Handle
    from treesnap.core.model.results import RestorePoints
    from treesnap.core.model.snapshots import Snapshot

RECENT_SHOWN_MAX = 5
"""Snapshots that are listed to choose from."""
CHANGES_SHOWN_MAX = 3
"""Changed paths that a line names; the others are counted."""


@contextmanager
def advising_on_absent(path: str, advice: str) -> Iterator[None]:
    """Gives the error that there is no such path, outside of snapshots, advice of its own."""
    try:
        yield
    except NotFound as error:
        if error.path == os.path.abspath(path):
            advised(error, advice)
        raise


@contextmanager
def advising_on_paths(
    invocation: Invocation, handle: Handle, words: Sequence[str], *command: str
) -> Iterator[None]:
    """Makes the right command the advice, where ``words``, of which one is a REF, are paths.

    The words come behind ``command``. Only the error for an unknown snapshot gets the advice.
    """
    try:
        yield
    except NotFound as error:
        if error.code is ErrorCode.SNAPSHOT_NOT_FOUND and words:
            advise_on_path(invocation, handle, words, command, error)
        raise


def ways_back_lines(invocation: Invocation, ways: RestorePoints) -> Iterator[str]:
    """Yields what undo and redo would do."""
    for word, snapshot in (("undo", ways.undo), ("redo", ways.redo)):
        if snapshot is not None:
            what = printable(snapshot.label or short_id(snapshot.id))
            yield f"{invocation.command_text(word)} goes back to {what}"


def missing_ref(invocation: Invocation) -> click.UsageError:
    """Lists the newest snapshots; returns the error, which says what to type.

    Safety snapshots are left out: 'undo' goes back to them.
    """
    error = usage_error("Missing argument 'REF'")
    with invocation.open(progress=False) as handle:
        chosen = [item for item in handle.list() if item.kind is not SnapshotKind.SAFETY]
        if not chosen:
            invocation.output.note(f"No snapshots of {handle.root} in {handle.store_path}")
            create = invocation.command_text("create")
            return advised(error, f"'{create}' takes the first snapshot")
        recent = chosen[:RECENT_SHOWN_MAX]
        how_many = "" if len(recent) == len(chosen) else f" {len(recent)} of {len(chosen):,}"
        invocation.output.note(f"The newest{how_many} snapshots of {handle.root}:", *_table(recent))
        restore = invocation.command_text("restore", _shortest_ref(handle, recent[0]))
    return advised(error, f"'{restore}' restores {titled(recent[0])}")


def advise_on_path(
    invocation: Invocation,
    handle: Handle,
    words: Sequence[str],
    command: Sequence[str],
    error: NotFound,
) -> None:
    """Makes a command the advice of an error, where a PATH stands in the place of its REF."""
    if all(os.path.lexists(invocation.absolute(word, handle.root)) for word in words):
        from treesnap.cli.aliases import did_you_mean

        advised(error, did_you_mean([invocation.command_text(*command, *words)]))


def advise_on_undo(invocation: Invocation, handle: Handle, error: NotFound) -> None:
    """Says what changed since the newest snapshot, which may be what 'undo' was meant for.

    The command that goes back becomes the advice of the error.
    """
    try:
        status = handle.status()
    except TreesnapError:  # 'undo' has failed for a reason of its own
        return
    snapshot = status.snapshot
    if snapshot is None:
        return
    when = time_text(snapshot.record.created_at_ns)
    since = f"since {titled(snapshot)}, {when}"
    if not status.changes:
        advised(error, f"nothing changed {since}")
        return
    paths = [change.path for change in status.changes]
    invocation.output.note(f"Changed {since}: {first_few(paths, path_text, CHANGES_SHOWN_MAX)}")
    restore = invocation.command_text("restore", _shortest_ref(handle, snapshot))
    advised(error, f"'{restore}' goes back to {short_id(snapshot.id)}")


def _table(snapshots: Sequence[Snapshot]) -> list[str]:
    rows = [
        (short_id(item.id), time_text(item.record.created_at_ns), title_of(item))
        for item in snapshots
    ]
    return [f"  {line}" for line in aligned(rows, to_the_right=())]


def _shortest_ref(handle: Handle, snapshot: Snapshot) -> str:
    """Returns ``latest`` if that is the snapshot, else the beginning of its id."""
    with suppress(NotFound):
        if handle.resolve("latest").id == snapshot.id:
            return "latest"
    return short_id(snapshot.id)
