"""``snap remote``, ``snap push`` and ``snap clone``: history on object storage or another disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import SnapGroup, command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.secret import new_secret_of, secret_of
from treesnap.cli.text_output import short_id, time_text
from treesnap.errors import InvalidArgument, printable
from treesnap.quantities import count_text, size_text

if TYPE_CHECKING:
    from treesnap.remote import HistoryInfo, RemoteInfo, Remotes


@click.group("remote", cls=SnapGroup)
def remote() -> None:
    """Keep history on object storage or on another disk.

    A remote is a bucket (s3://, gs://, az://) or a directory. 'snap push' stores
    snapshots there, 'snap clone' makes a directory of them on any machine.
    """


@remote.command(
    "add",
    examples=[
        "snap remote add disk /mnt/disk/snapshots",
        "snap remote add backup s3://bucket/me",
        "snap remote add backup s3://bucket/me --passphrase-command 'pass treesnap'",
    ],
)
@click.argument("name")
@click.argument("url")
@click.option(
    "--encrypt/--no-encrypt",
    "encrypts",
    default=None,
    help="Whether a new remote is encrypted; a bucket is unless told otherwise.",
)
@click.option("--passphrase-file", metavar="FILE", help="Read the passphrase from a file's line.")
@click.option("--passphrase-command", metavar="COMMAND", help="Run a command that prints it.")
@pass_invocation
def add(
    invocation: Invocation,
    *,
    name: str,
    url: str,
    encrypts: bool | None,
    passphrase_file: str | None,
    passphrase_command: str | None,
) -> None:
    """Add a remote, and set it up where there is none.

    The server is tried out first. A new remote in a bucket is encrypted: the passphrase
    comes from --passphrase-command, --passphrase-file, $TREESNAP_REMOTE_KEY,
    $TREESNAP_REMOTE_PASSPHRASE, or the terminal, in this order. Without it nobody can read
    the remote again, and nobody can give it back.
    """
    from treesnap.remote import Remotes

    if passphrase_file is not None:
        passphrase_file = os.path.abspath(passphrase_file)
    with invocation.open(progress=False, makes_store=True, needs_root=False) as handle:
        info = Remotes(handle, new_secret_of).add(
            name,
            url,
            encrypted=encrypts,
            secret_command=passphrase_command,
            secret_file=passphrase_file,
        )
    words = "encrypted" if info.is_encrypted else "not encrypted"
    line = f"Added the remote {info.name}: {printable(info.url)}, {words}"
    invocation.output.result("remote.add", info._asdict, [line])
    if not info.may_collect:
        invocation.output.note(
            "Garbage is not collected there: its server cannot be relied on for that"
        )


@remote.command("list", prints_only=True, examples=["snap remote list"])
@pass_invocation
def list_remotes(invocation: Invocation) -> None:
    """List the remotes that the store knows."""
    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).list()
    if not found:
        invocation.output.note("No remotes")
    invocation.output.result("remote.list", lambda: {"remotes": found}, _remote_lines(found))


@remote.command("show", prints_only=True, examples=["snap remote show backup"])
@click.argument("name", required=False)
@pass_invocation
def show(invocation: Invocation, *, name: str | None) -> None:
    """List the histories on a remote.

    Columns: id, time of the newest snapshot, number of snapshots, name. NAME may be left
    out where there is only one remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        found = _remotes(handle).histories(name)
    if not found:
        invocation.output.note("No histories")
    invocation.output.result("remote.show", lambda: {"histories": found}, _history_lines(found))


@remote.command("remove", examples=["snap remote remove backup"])
@click.argument("name")
@pass_invocation
def remove(invocation: Invocation, *, name: str) -> None:
    """Forget a remote; what is stored there stays."""
    with invocation.open(progress=False, needs_root=False) as handle:
        _remotes(handle).remove(name)
    line = f"Forgot the remote {name}; what is stored there stays"
    invocation.output.result("remote.remove", lambda: {"name": name}, [line])


@remote.command("gc", examples=["snap remote gc backup"])
@click.argument("name", required=False)
@pass_invocation
def collect(invocation: Invocation, *, name: str | None) -> None:
    """Free the space of everything on a remote that no snapshot needs.

    Other machines may push and clone meanwhile.
    """
    with invocation.open(needs_root=False) as handle:
        collected = _remotes(handle).collect(name)
    line = f"Removed {count_text(collected.packs, 'pack')}, {size_text(collected.freed_bytes)}"
    invocation.output.result("remote.gc", collected._asdict, [line])


@command(
    "push",
    examples=["snap push", "snap push backup latest", "snap push --all --dry-run"],
)
@click.argument("name", metavar="[REMOTE]", required=False)
@click.argument("refs", metavar="[REF]...", nargs=-1)
@click.option("--all", "every_kind", is_flag=True, help="Also snapshots that no person asked for.")
@click.option("--dry-run", is_flag=True, help="Only say which snapshots the remote lacks.")
@pass_invocation
def push(
    invocation: Invocation,
    *,
    name: str | None,
    refs: Sequence[str],
    every_kind: bool,
    dry_run: bool,
) -> None:
    """Store snapshots of the root on a remote.

    Without REF all that the remote lacks and a person asked for. REMOTE may be left out where
    there is only one. A push that was interrupted goes on where it was.
    """
    with invocation.open() as handle:
        ids = [invocation.resolve(handle, ref) for ref in refs]
        result = _remotes(handle).push(name, ids, every_kind=every_kind, dry_run=dry_run)
    count = count_text(len(result.snapshots), "snapshot")
    if dry_run:
        lines = [f"Would store {count} on {result.remote}"]
    elif result.snapshots:
        size = size_text(result.stored.size_bytes)
        lines = [f"Stored {count} on {result.remote}: {size} new"]
    else:
        lines = [f"{result.remote} lacks nothing"]
    invocation.output.result(
        "push",
        lambda: {
            "remote": result.remote,
            "history_id": result.history_id,
            "snapshots": result.snapshots,
            "objects": result.stored.objects,
            "size_bytes": result.stored.size_bytes,
            "dry_run": dry_run,
        },
        lines,
    )


@command(
    "clone",
    examples=[
        "snap clone backup DIR",
        "snap clone s3://bucket/me#garden DIR",
        "snap clone /mnt/disk/snapshots#garden@3f2a9c DIR",
    ],
)
@click.argument("place", metavar="REMOTE[#HISTORY[@REF]]")
@click.argument("target", metavar="DIR")
@pass_invocation
def clone(invocation: Invocation, *, place: str, target: str) -> None:
    """Make a directory of a history on a remote.

    REMOTE is a remote's name or address. DIR must be empty, or not exist; it gets the newest
    snapshot, or REF, and the whole history. HISTORY is a name or the beginning of an id, and may
    be left out where there is only one. A clone that was interrupted goes on where it was.
    """
    from treesnap import remote as library
    from treesnap.remote.remotes import clone_context

    where, _, fragment = place.partition("#")
    history, _, ref = fragment.partition("@")
    if not where or not target:
        raise InvalidArgument("REMOTE and DIR cannot be empty")
    base = invocation.directory or os.getcwd()
    with invocation.open(makes_store=True, needs_root=False) as handle:
        result = library.clone(
            clone_context(os.path.join(base, target), handle),
            where,
            history or None,
            ref or None,
            secret_of=secret_of,
        )
    line = (
        f"Cloned {short_id(result.snapshot_id)} into {printable(result.root)}: "
        f"{count_text(result.fetched.snapshots, 'snapshot')}"
    )
    invocation.output.result(
        "clone",
        lambda: {
            "root": result.root,
            "history_id": result.history_id,
            "snapshot_id": result.snapshot_id,
            "snapshots": result.fetched.snapshots,
            "objects": result.fetched.objects,
            "size_bytes": result.fetched.size_bytes,
        },
        [line],
    )


def _remotes(handle: object) -> Remotes:
    from treesnap.remote import Remotes

    return Remotes(handle, secret_of)  # type: ignore[arg-type]  # the handle of an invocation


def _remote_lines(found: Iterable[RemoteInfo]) -> Iterator[str]:
    for info in found:
        words = "" if info.is_encrypted else "  (not encrypted)"
        yield f"{info.name}  {printable(info.url)}{words}"


def _history_lines(found: Iterable[HistoryInfo]) -> Iterator[str]:
    for info in found:
        newest = "-" if info.newest_at_ns is None else time_text(info.newest_at_ns)
        yield f"{info.id[:12]}  {newest:19}  {info.snapshots:>6,}  {printable(info.name)}"
