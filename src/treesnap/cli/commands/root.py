"""``snap root``: the roots of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import short_id
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, time_text
from treesnap.core.model.results import RootDirectory, RootInfo

_WORDS = {
    RootDirectory.PRESENT: "",
    RootDirectory.ABSENT: "  (no directory there)",
    RootDirectory.REPLACED: "  (another directory there)",
}


@click.group("root", cls=SnapGroup)
def root() -> None:
    """List, move and forget the roots of a store.

    A directory that was renamed is recognised automatically. OLD and ROOT are paths, which
    need not exist any more, or beginnings of the ids that 'list' shows.
    """


@root.command("list", prints_only=True, examples=["snap root list", "snap root list --json"])
@pass_invocation
def list_roots(invocation: Invocation) -> None:
    """List all roots of the store.

    Columns: id, time of the newest snapshot, number of snapshots, path.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        roots = handle.root_list()
    if not roots:
        invocation.output.note("No roots")
    invocation.output.result("root.list", lambda: {"roots": roots}, _lines(roots))


@root.command(
    "move", examples=["snap root move /srv/old", "snap root move /srv/old /mnt/new --json"]
)
@click.argument("old")
@click.argument("new", required=False)
@click.option("--force", is_flag=True, help="Allow dangerous roots.")
@pass_invocation
def move(invocation: Invocation, *, old: str, new: str | None, force: bool) -> None:
    """Move a root's history to the root's new path.

    NEW is by default the directory of -C, else the current one. Moves no files. Needed
    after a move to another file system; other moves are recognised automatically.
    """
    from treesnap.core.ops.context import current_directory

    given = new if new is not None else invocation.directory or current_directory()
    with invocation.open(progress=False, needs_root=False) as handle:
        info = handle.root_move(old, given, force=force)
    line = f"The history of {short_id(info.id)} is at {printable(info.path)} now"
    invocation.output.result("root.move", info.to_dict, [line])


@root.command(
    "forget", examples=["snap root forget /srv/old", "snap root forget 3f2a9c01 --force --json"]
)
@click.argument("root_ref", metavar="ROOT")
@click.option("--force", is_flag=True, help="Also snapshots that are pinned, named or manual.")
@pass_invocation
def forget(invocation: Invocation, *, root_ref: str, force: bool) -> None:
    """Delete the whole history of a root; 'snap gc' then frees its space.

    Deletes snapshots, settings and plans, and does not touch the directory. Refused without
    --force where snapshots are pinned, named, made by hand or labelled steps of a
    session.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        info = handle.root_forget(root_ref, force=force)
    line = (
        f"Forgot {printable(info.fetched or info.path)}: {count_text(info.snapshots, 'snapshot')}"
    )
    invocation.output.result("root.forget", info.to_dict, [line])
    invocation.output.note(f"To free their space: {invocation.command_text('gc')}")


def _lines(roots: Iterable[RootInfo]) -> Iterator[str]:
    for info in roots:
        newest = "-" if info.newest_at_ns is None else time_text(info.newest_at_ns)
        where = printable(info.path) + _WORDS[info.directory]
        if info.fetched is not None:
            where = f"{printable(info.fetched)}  (fetched)"
        if info.origin is not None:
            where += f"  (fork of {printable(info.origin.path or 'a root that was forgotten')})"
        where += "  (a restore was interrupted)" if info.interrupted else ""
        yield f"{short_id(info.id)}  {newest:19}  {info.snapshots:>6,}  {where}"
