"""``snap`` alone: where one is, what there is to go back to, what changed since."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from treesnap.cli.hints import ways_back_lines
from treesnap.cli.output.as_text import first_lines_of_changes, list_table, short_id, titled
from treesnap.cli.output.terminal import Style, Terminal
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.core.handle import Handle
    from treesnap.core.model.results import RestorePoints, StatusResult
    from treesnap.core.model.snapshots import Snapshot

_SNAPSHOTS_SHOWN_MAX = 5
_PATHS_SHOWN_MAX = 5
_LATEST = "latest"


def show_overview(invocation: Invocation) -> None:
    """Prints the root, its newest snapshots, what changed, and the command to go back.

    In a directory without history: the first commands to type. Costs a look at the tree, as
    ``status`` does.
    """
    output = invocation.output
    output.prints_only = True
    with invocation.open(makes_store=True) as handle:
        listed = handle.list()
        snapshots = listed[:_SNAPSHOTS_SHOWN_MAX]
        ways = handle.ways_back()
        position = ways.position
        status = handle.status(None if position is None else position.id) if snapshots else None
    terminal = output.terminal(handle.context.clock_ns())

    def lines() -> Iterator[str]:
        if status is None:
            yield from _first_lines(invocation, handle)
            return
        yield from _known_lines(handle, status.snapshot or snapshots[0], snapshots, terminal)
        yield from _change_lines(invocation, status, listed, ways, terminal)

    output.result(
        "overview",
        lambda: {
            "snapshots": snapshots,
            "since": None if status is None or status.snapshot is None else status.snapshot.id,
            "changes": [] if status is None else status.changes,
        },
        lines(),
    )


def _first_lines(invocation: Invocation, handle: Handle) -> Iterator[str]:
    yield f"No snapshots of {printable(home_text(handle.root))} in {_store_text(handle)} yet."
    yield ""
    rows = {
        ("create", "-m", "before I begin"): "capture it",
        ("status",): "see what changed since",
        ("restore", "latest"): "put everything back",
    }
    commands = [invocation.command_text(*words) for words in rows]
    width = max(map(len, commands))
    for command, what in zip(commands, rows.values(), strict=True):
        yield f"  {command:<{width}}   {what}"
    yield ""
    yield f"All commands: {invocation.program} --help"


def _known_lines(
    handle: Handle, position: Snapshot, snapshots: Sequence[Snapshot], terminal: Terminal
) -> Iterator[str]:
    totals = position.record.totals
    holds = f"{count_text(totals.files, 'file')}, {size_text(totals.size_bytes)}"
    yield terminal.styled(printable(home_text(handle.root)), Style.HEADING) + f"  {holds}"
    yield f"store: {_store_text(handle)}"
    yield ""
    yield from list_table(snapshots, terminal, with_roots=False)
    yield ""


def _change_lines(
    invocation: Invocation,
    status: StatusResult,
    listed: Sequence[Snapshot],
    ways: RestorePoints,
    terminal: Terminal,
) -> Iterator[str]:
    if status.snapshot is None:
        yield "No snapshot of all of it yet"
        return
    latest = _latest(listed)
    is_latest = latest is None or latest.id == status.snapshot.id
    recent = _recent(ways, latest)
    since = (
        f"{short_id(status.snapshot.id)} ({terminal.when(status.snapshot.record.created_at_ns)})"
    )
    ref = _LATEST if is_latest else short_id(status.snapshot.id)
    if not is_latest:
        is_restored = recent.undo is not None or recent.redo is not None
        yield f"{'Restored to' if is_restored else 'Stands at'} {titled(status.snapshot)}"
    yield from ways_back_lines(invocation, recent)
    if not status.changes:
        yield f"Nothing changed since {since}"
        if status.privileges.left_out or status.privileges.owners_left_out:
            status_text = invocation.command_text("status", short_id(status.snapshot.id))
            yield f"Some of its privileges or owners are not here: {status_text}"
        return
    yield f"{count_text(len(status.changes), 'path')} changed since {since}:"
    for line in first_lines_of_changes(
        status.changes, _PATHS_SHOWN_MAX, coloured=terminal.has_colours
    ):
        yield f"  {line}"
    yield f"To look: {invocation.command_text('diff', *([ref] if ref != _LATEST else []))}"
    yield f"To go back: {invocation.command_text('restore', ref)}"


def _latest(listed: Sequence[Snapshot]) -> Snapshot | None:
    """Returns what ``latest`` names, if anything."""
    whole = (item for item in listed if item.record.scope is None)
    return next((item for item in whole if item.kind is not SnapshotKind.SAFETY), None)


def _recent(ways: RestorePoints, latest: Snapshot | None) -> RestorePoints:
    """Leaves out what undo and redo would go to from before the root was saved last."""
    saved = 0 if latest is None else latest.sequence
    undo, redo = (
        item if item is not None and item.sequence > saved else None
        for item in (ways.undo, ways.redo)
    )
    return ways._replace(undo=undo, redo=redo)


def _store_text(handle: Handle) -> str:
    return printable(home_text(handle.store_path))


def home_text(path: str) -> str:
    """Returns a path with ``~`` for the home directory."""
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path == home or path.startswith(home + "/") else path
