"""``snap blame``: which snapshot brought each line of a file."""

from __future__ import annotations

from collections.abc import Iterator

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import option
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import session_option
from treesnap.cli.output.as_text import short_id, title_of
from treesnap.cli.output.terminal import Style, Terminal, cut, width_of
from treesnap.cli.parameters import SIZE
from treesnap.core.model.entries import CONTENT_SIZE_MAX
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import format_size
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import BlameLine, BlameResult

_TITLE_WIDTH = 24
_TAB_WIDTH = 4


@command(
    "blame",
    prints_only=True,
    is_paged=True,
    examples=["snap blame notes.txt", "snap blame src/app.py --ref v1 --json"],
)
@click.argument("path")
@click.option("--ref", default="latest", metavar="REF", help="The file as in REF [latest].")
@option(
    "--max-size",
    "max_size_bytes",
    type=SIZE,
    default=format_size(CONTENT_SIZE_MAX),
    metavar="SIZE",
    help=f"Refuse larger files [{format_size(CONTENT_SIZE_MAX)}].",
)
@session_option
@pass_invocation
def blame(invocation: Invocation, *, path: str, ref: str, max_size_bytes: int) -> None:
    """Show which snapshot brought each line of a file.

    Columns: id, time, label or session and step, number, text. A line belongs to the
    oldest snapshot of the run in which it stands, or to the step before it in which it
    came, as in 'snap log'. One that came back belongs to the newer.
    """
    with invocation.open(progress=False) as handle:
        target = invocation.absolute(path, handle.root)
        ref = invocation.resolve(handle, ref, [target])
        result = handle.blame(target, ref=ref, max_size_bytes=max_size_bytes)
        terminal = invocation.output.terminal(handle.context.clock_ns())
    if not result.is_complete:
        invocation.output.note("An older version is larger than --max-size: not looked at")
    invocation.output.result("blame", result.to_dict, _lines(result, terminal))


def _lines(result: BlameResult, terminal: Terminal) -> Iterator[bytes]:
    """Yields the lines, each behind what is known of its snapshot."""
    heads = {line.snapshot.id: _head(line, terminal) for line in result.lines}
    when_width = max((width_of(when) for _, when, _ in heads.values()), default=0)
    title_width = max((width_of(title) for _, _, title in heads.values()), default=0)
    number_width = len(str(len(result.lines)))
    shown_before = None
    for line in result.lines:
        identity, when, title = heads[line.snapshot.id]
        fields = [identity, _padded(when, when_width)]
        if not terminal.is_narrow:
            fields.append(_padded(title, title_width))
        head = "  ".join(fields)
        number = f"{line.number:>{number_width}}"
        is_same = line.snapshot.id == shown_before
        shown_before = line.snapshot.id
        painted = terminal.styled(head, Style.DIM if is_same else Style.CHANGED)
        before = f"{painted}  {terminal.styled(number, Style.PLACE)}  "
        text = line.text
        if terminal.columns is not None or terminal.has_colours:
            shown = printable(text.removesuffix(b"\n").replace(b"\t", b" " * _TAB_WIDTH))
            if terminal.columns is not None:
                used = width_of(head) + len(number) + 4
                shown = cut(shown, max(terminal.columns - used, 1))
            text = _encoded(shown)
        yield _encoded(before) + text.removesuffix(b"\n") + b"\n"


def _head(line: BlameLine, terminal: Terminal) -> tuple[str, str, str]:
    from treesnap.core.ops.history.steps import is_before_step

    snapshot = line.step or line.snapshot
    when = terminal.when(snapshot.record.created_at_ns)
    title = printable(title_of(snapshot)) or snapshot.kind.value
    if line.step is None and is_before_step(snapshot):
        title = f"before {title}"
    return short_id(snapshot.id), when, cut(title, _TITLE_WIDTH)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
