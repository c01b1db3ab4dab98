"""``snap log``: the history of a root or of a path, as a person thinks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.hints import ways_back_lines
from treesnap.cli.invocation import Invocation
from treesnap.cli.listing import none_found
from treesnap.cli.options import (
    kind_option,
    limit_option,
    only_session_option,
    since_option,
    text_option,
)
from treesnap.cli.output.as_text import CHANGE_LETTERS, short_id, title_of
from treesnap.cli.output.terminal import Cell, Style, Terminal, cut, width_of
from treesnap.core.model.errors import printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.reserved_tags import facts_of, is_numbered_step
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Change
    from treesnap.core.model.results import LogEntry, PlanStep
    from treesnap.core.model.snapshots import Snapshot

_TURN = "turn"
_DAY_S = 86_400
_MEASURED = 24
"""How many of the newest snapshots decide how wide columns are: what a screen shows."""


class _Widths(NamedTuple):
    """The columns of time, counts and size; what is wider takes room from the label.

    That of the sizes has the space before it.
    """

    when: int = 16
    counts: int = 14
    size: int = 10


@command(
    "log",
    prints_only=True,
    is_paged=True,
    examples=[
        "snap log",
        "snap log -n 5 --since yesterday",
        "snap log notes.txt -p",
        "snap log --grep 'tests pass' --json",
    ],
)
@click.argument("path", required=False)
@click.option("-p", "--patch", is_flag=True, help="With PATH: what changed, as patches.")
@limit_option
@since_option
@kind_option
@only_session_option
@click.option(
    "--grep", metavar="REGEX", help="Only those whose name, label or tags match, in any case."
)
@text_option
@pass_invocation
def log(
    invocation: Invocation,
    *,
    path: str | None,
    patch: bool,
    limit: int | None,
    since: str | None,
    kind: str | None,
    session: str | None,
    grep: str | None,
    no_textconv: bool,
) -> None:
    """Show the history of the root or of PATH, newest first.

    Each line says how many paths a snapshot added (+), changed (~) and removed (-)
    since the one before, and by how many bytes what it holds grew. With PATH, only
    the snapshots in which it changed. '@' marks where the tree stands now.
    """
    if patch and path is None:
        raise click.UsageError("--patch needs a PATH")
    with invocation.open(progress=False) as handle:
        path = invocation.absolute(path, handle.root) if path is not None else None
        entries = handle.log(
            path,
            limit=limit,
            since=since,
            kind=SnapshotKind(kind) if kind is not None else None,
            session=session,
            grep=grep,
        )
        terminal = invocation.output.terminal(handle.context.clock_ns())
        widths = _Widths()
        newest = list(islice(entries, 1))
        if path is None and not newest:
            words = none_found((since, kind, session, grep))
            invocation.output.note(f"{words} of {handle.root} in {handle.store_path}")
        entries = chain(newest, entries)
        if terminal.columns is not None:
            first = list(islice(entries, _MEASURED))
            widths = _measured(first, terminal)
            entries = chain(first, entries)
        text: Iterator[str] | Iterator[bytes]
        not_converted: list[str] = []
        if path is None:
            has_all = kind is None and session is None and grep is None
            text = _grouped(entries, terminal, widths, has_gaps=has_all)
        elif patch:
            text = _patches(
                handle, entries, path, terminal, widths, not_converted, as_text=not no_textconv
            )
        else:
            text = (
                line
                for entry in entries
                for line in (_line(entry, terminal, widths), *_gap_lines(entry, terminal))
            )
        if path is None:
            invocation.output.note(*ways_back_lines(invocation, handle.ways_back()))
        invocation.output.result(
            "log", lambda: {"entries": [entry.to_dict() for entry in entries]}, text
        )
        invocation.output.warn_of_unconverted(not_converted)


def _measured(entries: Iterable[LogEntry], terminal: Terminal) -> _Widths:
    """Returns columns as wide as these snapshots need, so that labels get what is left."""
    widths = _Widths(0, 0, 0)
    for entry in entries:
        widths = _Widths(
            max(widths.when, width_of(terminal.when(entry.snapshot.record.created_at_ns))),
            max(widths.counts, len(_counts(entry))),
            max(widths.size, 2 + len(_size_change(entry))),
        )
    return widths


def _grouped(
    entries: Iterable[LogEntry], terminal: Terminal, widths: _Widths, *, has_gaps: bool
) -> Iterator[str]:
    """Yields a line for each snapshot; those of a session or a plan below what began them.

    A step of a session is captured before the tool works, and one of a plan before its command
    does. So such a line shows what changed up to the next one.
    """

    def gap(entry: LogEntry) -> Iterator[str]:
        return _gap_lines(entry, terminal) if has_gaps else iter(())

    newer: LogEntry | None = None
    session: str | None = None
    steps: list[str] = []
    plan = _PlanLines(terminal, widths)
    for entry in entries:
        if entry.plan_step is not None:
            yield from steps
            steps, session = [], None
            yield from plan.add(entry, entry.plan_step, newer, gap(entry))
            newer = entry
            continue
        yield from plan.end()
        heading = _session_heading(entry.snapshot)
        if heading != session:
            yield from steps
            steps = []
            session = heading
            if heading is not None:
                yield _heading(heading, terminal)
        facts = facts_of(entry.snapshot)
        if session is None:
            yield _line(entry, terminal, widths)
            yield from gap(entry)
        elif "host" not in facts or facts.get("phase") == _TURN:
            yield _line(entry, terminal, widths, did=newer, indent=2)
            yield from steps
            yield from gap(entry)
            steps = []
        else:
            steps += [_line(entry, terminal, widths, did=newer, indent=4), *gap(entry)]
        newer = entry
    yield from plan.end()
    yield from steps


def _session_heading(snapshot: Snapshot) -> str | None:
    """Returns what stands above the steps of a session; None for what is not a step of one."""
    host, session = facts_of(snapshot).get("host"), snapshot.session
    if session is None or not (host is not None or is_numbered_step(snapshot)):
        return None
    return f"{printable(host or 'session')} {printable(session)}"


class _PlanLines:
    """The lines of plans: a head for each plan, and in it one for each step.

    Only the snapshot before a step names it, and that comes last; so the lines of a step wait.
    """

    def __init__(self, terminal: Terminal, widths: _Widths) -> None:
        self._terminal = terminal
        self._widths = widths
        self._step: PlanStep | None = None
        self._lines: list[str] = []

    def add(
        self, entry: LogEntry, step: PlanStep, newer: LogEntry | None, gap: Iterator[str]
    ) -> Iterator[str]:
        """Takes a snapshot of a plan; yields the lines of the step above it if it is another."""
        before = self._step
        if before is None or before.plan_id != step.plan_id:
            yield from self.end()
            words = ("plan", printable(step.plan or ""), printable(step.plan_id))
            yield _heading(" ".join(filter(None, words)), self._terminal)
        elif before.number != step.number:
            yield from self._ended_step()
        name = step.name
        if name is None and before is not None and before.number == step.number:
            name = before.name
        self._step = step._replace(name=name)
        indent = 2 if step.number is None else 4
        self._lines += [
            _line(entry, self._terminal, self._widths, did=newer, indent=indent),
            *gap,
        ]

    def end(self) -> Iterator[str]:
        """Yields what is left; the next snapshot of a plan has a head again."""
        yield from self._ended_step()
        self._step = None

    def _ended_step(self) -> Iterator[str]:
        if self._lines and self._step is not None and self._step.number is not None:
            name = f": {printable(self._step.name)}" if self._step.name is not None else ""
            yield _heading(f"  step {self._step.number}{name}", self._terminal)
        yield from self._lines
        self._lines = []


def _heading(text: str, terminal: Terminal) -> str:
    """Returns what stands above lines, cut to fit."""
    if terminal.columns is not None:
        text = cut(text, terminal.columns)
    return terminal.styled(text, Style.HEADING)


def _line(
    entry: LogEntry,
    terminal: Terminal,
    widths: _Widths,
    did: LogEntry | None = None,
    indent: int = 0,
) -> str:
    """Returns a snapshot as a line; a step, indented, with what it ``did`` up to the next one."""
    snapshot = entry.snapshot
    time_ns = snapshot.record.created_at_ns
    when = terminal.when(time_ns)
    shown = did if indent else entry
    cells = [
        Cell("@" if entry.is_position else " ", Style.HERE),
        Cell(when.ljust(widths.when)),
        Cell(short_id(snapshot.id), Style.DIM),
    ]
    parts = [terminal.styled(cell.text, cell.style) for cell in cells]
    width = sum(width_of(cell.text) for cell in cells) + 2
    line = " " * indent + " ".join(parts)
    if not terminal.is_narrow:
        counts, size = _counts(shown), _size_change(shown)
        line += "  " + _painted_counts(shown, terminal) + " " * (widths.counts - len(counts))
        line += size.rjust(widths.size)
        width += 2 + max(len(counts), widths.counts) + max(len(size), widths.size)
    title = _title(snapshot, entry, is_step=bool(indent))
    if terminal.columns is not None:
        title = cut(title, max(terminal.columns - indent - width - 2, 1))
    style = Style.DIM if snapshot.kind is SnapshotKind.SAFETY else None
    return f"{line}  {terminal.styled(title, style)}".rstrip()


def _gap_lines(entry: LogEntry, terminal: Terminal) -> Iterator[str]:
    """Yields a line that says what is missing before a snapshot, if anything is."""
    gap = entry.gap
    if gap is None:
        return
    parts = []
    if gap.pause_s is not None:
        parts.append(f"{count_text(gap.pause_s // _DAY_S, 'day')} without a snapshot")
    if gap.missing:
        parts.append(f"{count_text(gap.missing, 'snapshot')} no longer there")
    if gap.unreadable:
        parts.append(f"{count_text(gap.unreadable, 'snapshot')} damaged")
    if gap.not_captured:
        parts.append(f"{count_text(gap.not_captured, 'step')} of agents not captured")
    text = f"  ({', '.join(parts)})"
    if terminal.columns is not None:
        text = cut(text, terminal.columns)
    yield terminal.styled(text, Style.DIM)


def _title(snapshot: Snapshot, entry: LogEntry, *, is_step: bool) -> str:
    marks = [word for word, holds in (("pinned", snapshot.pinned),) if holds]
    if not snapshot.complete:
        marks.append("incomplete")
    letter = f"{CHANGE_LETTERS[entry.change.change]}  " if entry.change is not None else ""
    label = snapshot.label
    if not is_step:
        title = title_of(snapshot)
    elif facts_of(snapshot):
        title = printable(label) if label is not None else title_of(snapshot)
    else:
        rest = title_of(snapshot, with_step=False)
        title = f"step {snapshot.record.step}" + (f": {rest}" if rest else "")
    if not title:
        title = snapshot.kind.value
    return letter + title + (f"  ({', '.join(marks)})" if marks else "")


def _counts(entry: LogEntry | None) -> str:
    """Returns how many paths changed: ``+3 ~5 -1``."""
    return " ".join(text for text, _ in _count_parts(entry))


def _painted_counts(entry: LogEntry | None, terminal: Terminal) -> str:
    return " ".join(terminal.styled(text, style) for text, style in _count_parts(entry))


def _count_parts(entry: LogEntry | None) -> list[tuple[str, Style | None]]:
    if entry is None:
        return [("", None)]
    parts = [
        (f"+{entry.added:,}", Style.ADDED, entry.added),
        (f"~{entry.modified:,}", Style.CHANGED, entry.modified),
        (f"-{entry.removed:,}", Style.REMOVED, entry.removed),
    ]
    return [(text, style) for text, style, count in parts if count] or [("=", Style.DIM)]


def _size_change(entry: LogEntry | None) -> str:
    if entry is None or not entry.size_change_bytes:
        return ""
    sign = "+" if entry.size_change_bytes > 0 else "-"
    return sign + size_text(abs(entry.size_change_bytes))


def _patches(
    handle: Handle,
    entries: Iterable[LogEntry],
    path: str,
    terminal: Terminal,
    widths: _Widths,
    not_converted: list[str],
    *,
    as_text: bool,
) -> Iterator[bytes]:
    """Yields each version of a path with what changed since the one before.

    Adds to a list what could not be converted to text, and why.
    """
    from treesnap.cli.output.patches import DiffOutput

    for entry in entries:
        yield _line(entry, terminal, widths).encode("utf-8", "backslashreplace") + b"\n"
        texts = DiffOutput(
            handle,
            entry.older_id or entry.snapshot.id,
            entry.snapshot.id,
            as_text=as_text,
        )
        changes: tuple[Change, ...]
        if entry.older_id is None:
            changes = () if entry.change is None else (entry.change,)
        else:
            changes = handle.diff(entry.older_id, entry.snapshot.id, [path])
        if terminal.columns is None and not terminal.has_colours:
            yield from texts.patches(changes)
        else:
            yield from texts.shown_patches(changes, coloured=terminal.has_colours)
        for line in _gap_lines(entry, terminal):
            yield line.encode() + b"\n"
        not_converted += texts.not_converted
