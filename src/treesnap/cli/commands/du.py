"""``snap du``: the space that paths of a snapshot take, or sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.advice import advising_on_paths
from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_json import Fields
from treesnap.cli.output.terminal import Cell, Terminal, table
from treesnap.cli.parameters import WholeNumber
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import size_text

if TYPE_CHECKING:
    from treesnap.core.model.results import GroupSpace, PathSpace

_DEPTH_MAX = 100


@command(
    "du",
    prints_only=True,
    examples=["snap du", "snap du latest~5 data --depth 2", "snap du --sessions --json"],
)
@click.argument("ref", required=False)
@click.argument("path", required=False)
@click.option(
    "-d",
    "--depth",
    type=WholeNumber(min=0, max=_DEPTH_MAX),
    default=1,
    metavar="N",
    help="How deep below PATH [1].",
)
@click.option("--sessions", is_flag=True, help="The sessions of this root instead.")
@session_option
@pass_invocation
def du(
    invocation: Invocation, *, ref: str | None, path: str | None, depth: int, sessions: bool
) -> None:
    """Show the space that a snapshot takes, by path.

    Of the newest snapshot, or of REF; PATH limits it. Columns: the size of the files,
    what they take in the store, how much of that is in this snapshot only and would
    be free without it, and the path. A content that several paths have counts once.
    """
    if sessions and ref is not None:
        raise click.UsageError("--sessions is about all snapshots; leave REF and PATH out")
    fields: Fields
    with invocation.open() as handle:
        if sessions:
            groups = handle.du_sessions()
            fields = {"sessions": groups}
        else:
            target = handle.root if path is None else invocation.absolute(path, handle.root)
            words = [ref] if ref is not None and path is None else []
            with advising_on_paths(invocation, handle, words, "du", "latest"):
                snapshot = handle.resolve(
                    ref or "latest", session=invocation.session, paths=[target]
                )
            paths = handle.du(snapshot.id, target, depth=depth)
            fields = {"id": snapshot.id, "paths": paths}
        terminal = invocation.output.terminal(handle.context.clock_ns())
    lines = _session_lines(groups, terminal) if sessions else _path_lines(paths, terminal)
    invocation.output.result("du", lambda: fields, lines)


def _path_lines(paths: Sequence[PathSpace], terminal: Terminal) -> Iterator[str]:
    rows = [
        (
            Cell(size_text(item.size_bytes)),
            Cell(size_text(item.stored_bytes)),
            Cell(size_text(item.unique_bytes)),
            Cell(printable(item.path_text) + ("/" if item.path and item.is_directory else "")),
        )
        for item in paths
    ]
    return table(rows, terminal, (0, 1, 2), ("size", "stored", "only here", "path"))


def _session_lines(groups: Sequence[GroupSpace], terminal: Terminal) -> Iterator[str]:
    rows = [
        (
            Cell(f"{item.snapshots:,}"),
            Cell(size_text(item.logical_bytes)),
            Cell(size_text(item.unique_bytes)),
            Cell(printable(item.name) or "(no session)"),
        )
        for item in groups
    ]
    return table(rows, terminal, (0, 1, 2), ("snapshots", "full copies", "only here", "session"))
