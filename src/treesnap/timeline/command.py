"""``snap timeline``: opens the history on the terminal, or writes it as a page."""

from __future__ import annotations

import os
import sys
from io import BytesIO
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import option
from treesnap.cli.failure import from_error
from treesnap.cli.invocation import Invocation
from treesnap.cli.parameters import SIZE
from treesnap.core.model.errors import OperationFailed, printable
from treesnap.core.model.quantities import count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Change
    from treesnap.core.model.events import Monitor
    from treesnap.timeline.page import HistoryPage

MAX_SIZE_DEFAULT = "10M"


@command(
    "timeline",
    examples=[
        "snap timeline",
        "snap timeline --html history.html",
        "snap timeline --html - | gzip > history.html.gz",
    ],
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    help="Write one page for a browser instead; '-' is standard output.",
)
@option(
    "--max-size",
    "max_size_bytes",
    type=SIZE,
    default=MAX_SIZE_DEFAULT,
    metavar="SIZE",
    help=f"How much of the page differences may take [{MAX_SIZE_DEFAULT}].",
)
@pass_invocation
def timeline(invocation: Invocation, *, page: str | None, max_size_bytes: int) -> None:
    """Look through the history: snapshots, what each changed, and how.

    On a terminal, with keys to restore, undo, pin and search. Each restore
    shows first what it would do. It needs the extra 'ui' of treesnap.
    """
    if page == "-":
        if invocation.output.as_json:
            raise click.UsageError("--json needs a FILE: the page goes to standard output")
        _print_page(invocation, max_size_bytes)
        return
    if page is not None:
        _write_page(invocation, page, max_size_bytes)
        return
    if invocation.output.as_json:
        raise click.UsageError("--json needs --html FILE: a terminal shows no JSON")
    try:
        from treesnap.timeline.app import Timeline, TimelineTools
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("treesnap"):
            raise
        from treesnap.core.features import missing_text

        raise OperationFailed(missing_text(error, "ui")) from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the timeline needs a terminal; --html FILE writes a page")
    from treesnap.core import handle as library

    def describe(error: BaseException) -> str:
        failure = from_error(error, invocation.program)
        hint = f" ({failure.hint})" if failure.hint is not None else ""
        return printable(failure.message + hint)

    with invocation.open(progress=False) as handle:

        def opened(monitor: Monitor) -> Handle:
            return library.open(
                handle.root, handle.store_path, monitor=monitor, wait_s=invocation.wait_s
            )

        Timeline(opened, TimelineTools(lines_of_patches, describe)).run()


def _print_page(invocation: Invocation, max_size_bytes: int) -> None:
    from treesnap.cli.output.patches import patches
    from treesnap.timeline.page import HistoryPage

    with invocation.open() as handle:
        made = HistoryPage(handle, patches, max_size_bytes=max_size_bytes)
        for piece in made.pieces():
            invocation.output.pass_through(piece.encode())
        _note_left_out(invocation, made)


def _note_left_out(invocation: Invocation, made: HistoryPage) -> None:
    if made.left_out:
        invocation.output.note(f"Left out: {made.left_out}; --max-size SIZE allows more")


def _write_page(invocation: Invocation, file: str, max_size_bytes: int) -> None:
    from treesnap.cli.hints import advising_on_absent
    from treesnap.cli.output.patches import patches
    from treesnap.core.fs.os_errors import translating_os_errors
    from treesnap.core.ops.context import absolute
    from treesnap.core.ops.output_file import opened_place, write_output
    from treesnap.timeline.page import HistoryPage

    path = os.path.abspath(absolute(file))
    with invocation.open() as handle:
        advice = "make the directory first, or name another FILE"
        with (
            advising_on_absent(os.path.dirname(path), advice),
            translating_os_errors("write the page"),
            opened_place(handle.context.fs, path),
        ):
            pass  # what is wrong with the place is said before the work
        made = HistoryPage(handle, patches, max_size_bytes=max_size_bytes)
        content = "".join(made.pieces()).encode()
        with translating_os_errors("write the page"):
            write_output(handle.context.fs, path, content)
        line = (
            f"Wrote {printable(file)}: {count_text(made.snapshots, 'snapshot')}, "
            f"{count_text(made.differences, 'difference')}, {size_text(len(content))}"
        )
        fields = {
            "file": os.fsencode(path),
            "size_bytes": len(content),
            "snapshots": made.snapshots,
            "differences": made.differences,
            "differences_without": made.differences_without,
            "snapshots_without": made.snapshots_without,
        }
        invocation.output.result("timeline", lambda: fields, [line])
        _note_left_out(invocation, made)


def lines_of_patches(
    handle: Handle, old_id: str, new_id: str | None, changes: Sequence[Change]
) -> Iterator[bytes]:
    """Yields changes as unified diffs, line by line."""
    from treesnap.cli.output.patches import patches

    for patch in patches(handle, old_id, new_id, changes):
        yield from BytesIO(patch)
