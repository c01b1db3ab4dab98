"""``snap archive`` and ``snap import``: snapshots as tar archives, and back."""

from __future__ import annotations

import os
import sys

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.hints import advising_on_absent, advising_on_paths
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import name_options, session_option
from treesnap.cli.output.as_text import create_notes, short_id
from treesnap.cli.output.streams import is_terminal
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import ArchiveResult

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
        words = [ref] if path is None else []
        with advising_on_paths(invocation, handle, words, "archive", "-o", output, "latest"):
            snapshot = handle.resolve(ref, session=invocation.session, paths=[target])
        if is_stream:
            invocation.output.prints_only = True
            pieces = handle.archive_pieces(snapshot.id, target, compression=compress or "none")
            invocation.output.result("archive", dict, pieces)
            return
        advice = "make the directory first, or name another FILE"
        with advising_on_absent(os.path.dirname(output), advice):
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


@command(
    "import",
    examples=[
        "snap import backup.tar.zst",
        "snap import ../other-copy -m 'from the laptop' --name laptop",
        "snap import - --name upstream --json",
    ],
)
@click.argument("source", metavar="FILE|DIR|-")
@click.option("-m", "--label", metavar="LABEL", help="A description [Imported from SOURCE].")
@name_options
@click.option("--force", is_flag=True, help="Allow a dangerous DIR, such as / or $HOME.")
@pass_invocation
def import_from(
    invocation: Invocation,
    *,
    source: str,
    label: str | None,
    name: str | None,
    tags: dict[str, str],
    force: bool,
) -> None:
    """Make a snapshot of a tar archive or of another directory.

    The root is not touched: 'snap diff latest' compares, 'snap restore latest' brings
    the files there. An archive may be compressed by gzip or zstd; '-' is standard
    input. Prints the snapshot's id. Exits 4 when something in DIR could not be read.
    """
    if source == _STREAM and sys.stdin.isatty():
        raise click.UsageError("An archive is not read from a terminal; name a FILE, or use a pipe")
    with invocation.open(makes_store=True) as handle:
        if source == _STREAM:
            label = "Imported from standard input" if label is None else label
            made = handle.import_from(sys.stdin.buffer, label=label, name=name, tags=tags)
        else:
            advice = "name an archive, a directory, or '-' for standard input"
            with advising_on_absent(source, advice):
                made = handle.import_from(source, label=label, name=name, tags=tags, force=force)
    invocation.output.note(*create_notes(made))
    invocation.output.result("import", made.to_dict, [made.id])
    if not made.complete:
        click.get_current_context().exit(ExitCode.INCOMPLETE)
