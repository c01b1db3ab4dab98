"""``snap grep``: lines of snapshots that match a pattern."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.hints import advising_on_paths
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import session_option
from treesnap.cli.output.terminal import Style, Terminal, cut, width_of
from treesnap.core.model.errors import printable
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import FileMatches, MatchedLine

_TAB_WIDTH = 4


@command(
    "grep",
    separates_paths=True,
    prints_only=True,
    is_paged=True,
    examples=[
        "snap grep password",
        "snap grep -i 'def \\w+_old' latest~1 latest -- src/",
        "snap grep -F 'a+b' --all -l",
    ],
)
@click.argument("pattern")
@click.argument("refs", nargs=-1, metavar="[REF]... [--] [PATH]...")
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case are the same.")
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is text, not a regular expression.")
@click.option("-l", "--names", is_flag=True, help="Only the paths of the files that match.")
@click.option("-c", "--count", is_flag=True, help="Only how many lines of each file match.")
@click.option(
    "-n/-N", "--numbers/--no-numbers", default=True, help="Numbers of the lines; they are shown."
)
@click.option("--all", "in_all", is_flag=True, help="In all snapshots; what is the same once.")
@click.option("--exit-code", "has_exit_code", is_flag=True, help="Exit 1 if nothing matches.")
@session_option
@pass_invocation
def grep(
    invocation: Invocation,
    *,
    pattern: str,
    refs: Sequence[str],
    paths: Sequence[str] | None,
    ignore_case: bool,
    fixed: bool,
    names: bool,
    count: bool,
    numbers: bool,
    in_all: bool,
    has_exit_code: bool,
) -> None:
    """Print the lines of files in snapshots that match a pattern.

    PATTERN is a regular expression of Python. Searches the newest snapshot, or the
    REFs; paths come behind '--'. Each line is REF:PATH:NUMBER:TEXT. Exits 0 with and
    without matches, unless --exit-code is given.
    """
    if names and count:
        raise click.UsageError("--names and --count exclude each other")
    if in_all and refs:
        raise click.UsageError("--all and REFs exclude each other; paths come behind '--'")
    with (
        invocation.open(progress=False) as handle,
        advising_on_paths(invocation, handle, refs, "grep", pattern, "--"),
    ):
        matches = handle.grep(
            pattern,
            refs or None,
            invocation.absolute_all(paths or (), handle.root),
            ignore_case=ignore_case,
            fixed=fixed,
            in_all=in_all,
            first_only=names,
            session=invocation.session,
        )
        terminal = invocation.output.terminal(handle.context.clock_ns())
        counted = _NoticedMatches(matches)
        lines = _Lines(terminal, has_numbers=numbers)
        if names:
            text = (lines.place(item) + b"\n" for item in counted)
        elif count:
            text = (lines.count(item) for item in counted)
        else:
            text = (line for item in counted for line in lines.lines(item))
        invocation.output.result(
            "grep", lambda: {"files": [item.to_dict() for item in counted]}, text
        )
    if has_exit_code and not counted.has_any:
        click.get_current_context().exit(ExitCode.FAILED)


class _NoticedMatches:
    """Passes matches on, and remembers whether there were any."""

    def __init__(self, matches: Iterator[FileMatches]) -> None:
        self._matches = matches
        self.has_any = False

    def __iter__(self) -> Iterator[FileMatches]:
        for item in self._matches:
            self.has_any = True
            yield item


class _Lines:
    """Matches as text: in a pipe the bytes as they stand, on a terminal what it can show."""

    def __init__(self, terminal: Terminal, *, has_numbers: bool) -> None:
        self._terminal = terminal
        self._has_numbers = has_numbers

    def place(self, item: FileMatches) -> bytes:
        """Returns snapshot and path."""
        return _encoded(self._terminal.styled(_place_text(item), Style.PLACE))

    def count(self, item: FileMatches) -> bytes:
        """Returns how many lines match."""
        number = "binary" if item.is_binary else str(len(item.lines))
        return self.place(item) + _encoded(f":{number}\n")

    def lines(self, item: FileMatches) -> Iterator[bytes]:
        """Yields the lines of a file that match."""
        if item.is_binary:
            yield b"Binary file " + self.place(item) + b" matches\n"
            return
        for line in item.lines:
            number = f":{line.number}:" if self._has_numbers else ":"
            yield self.place(item) + _encoded(number) + self._text(item, line, number) + b"\n"

    def _text(self, item: FileMatches, line: MatchedLine, number: str) -> bytes:
        """Returns the text of a line, with colours, and cut to what a terminal has room for."""
        terminal = self._terminal
        if terminal.columns is None and not terminal.has_colours:
            return line.text
        room = None
        if terminal.columns is not None:
            room = max(terminal.columns - width_of(_place_text(item) + number), 1)
        shown = ""
        for part, is_match in _parts(line):
            text = _shown(part)
            if room is not None:
                if not room:
                    break
                text = cut(text, room)
                room -= width_of(text)
            shown += terminal.styled(text, Style.ADDED_WORD if is_match else None)
        return _encoded(shown)


def _place_text(item: FileMatches) -> str:
    return f"{printable(item.ref)}:{printable(item.path)}"


def _parts(line: MatchedLine) -> Iterator[tuple[bytes, bool]]:
    position = 0
    for start, end in line.spans:
        yield line.text[position:start], False
        yield line.text[start:end], True
        position = end
    yield line.text[position:], False


def _shown(part: bytes) -> str:
    return printable(part.replace(b"\t", b" " * _TAB_WIDTH))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
