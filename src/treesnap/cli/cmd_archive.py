"""``snap archive``: snapshots as tar archives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
from treesnap.cli.streams import is_terminal
from treesnap.cli.text_output import short_id
from treesnap.errors import printable
from treesnap.quantities import count_text, size_text

if TYPE_CHECKING:
    from treesnap.results import ArchiveResult

_STREAM = "-"


@command(
    "archive",
    examples=[
        "snap archive latest -o project.tar.zst",
        "snap archive v1 src -o src.tar.gz",
        "snap archive latest -o - > copy.tar",
    ],
)
@click.argument("ref")
@click.argument("path", required=False)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Ends in .tar, .tar.zst or .tar.gz; '-' is standard output.",
)
@click.option(
    "--compress",
    type=click.Choice(["none", "zstd", "gzip"]),
    help="How standard output is compressed [none].",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@session_option
@pass_invocation
def archive(
    invocation: Invocation,
    *,
    ref: str,
    path: str | None,
    output: str,
    compress: str | None,
    force: bool,
) -> None:
    """Write a snapshot, or one path of it, to a tar archive.

    GNU tar and bsdtar unpack it to the same files: modes, owners, nanosecond times,
    links, extended attributes, holes. Equal snapshots make equal archives. FILE
    appears when it is whole, or not at all.
    """
    is_stream = output == _STREAM
    if compress is not None and not is_stream:
        raise click.UsageError("--compress is for '-o -'; the name of FILE says how it is packed")
    if is_stream and invocation.output.as_json:
        raise click.UsageError("--json needs -o FILE")
    if is_stream and is_terminal("stdout"):
        raise click.UsageError(
            "An archive is not printed on a terminal; name a FILE, or use a pipe"
        )
    with invocation.open() as handle:
        target = handle.root if path is None else invocation.absolute(path, handle.root)
        snapshot = handle.resolve(ref, session=invocation.session, paths=[target])
        if is_stream:
            invocation.output.prints_only = True
            pieces = handle.archive_pieces(snapshot.id, target, compression=compress or "none")
            invocation.output.result("archive", dict, pieces)
            return
        made = handle.archive(snapshot.id, output, target, force=force)
    if made.skipped:
        names = count_text(made.skipped, "name")
        invocation.output.note(f"{names} that the snapshot does not hold: not in the archive")
    invocation.output.result("archive", made.to_dict, [_line(made)])


def _line(made: ArchiveResult) -> str:
    return (
        f"{printable(os.path.basename(made.target))}: {short_id(made.id)}, "
        f"{count_text(made.members, 'path')}, {size_text(made.content_bytes)} of files, "
        f"{size_text(made.size_bytes)} written"
    )
