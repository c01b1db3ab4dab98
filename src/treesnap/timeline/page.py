"""``snap timeline --html``: a history as one page that needs neither network nor scripts.

All that comes from a root (names, labels, contents) is escaped, and printable: a character that
turns text round or ends a line is written as an escape. Groups and differences are ``details``,
which browsers open by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from treesnap.core.model.errors import NotFound, printable
from treesnap.core.model.quantities import count_text, size_text
from treesnap.timeline.history import (
    LETTERS,
    SHORT_ID,
    Group,
    History,
    HistoryRow,
    added_text,
    time_text,
)

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Change

PATHS_MAX = 500
"""Paths of a snapshot that are listed; the others are counted."""
LINES_MAX = 2000
"""Lines of a difference that are shown."""

STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --dim: #656d76; --added: #dafbe1;
  --removed: #ffebe9; --hunk: #0969da; --mark: #8250df; }
@media (prefers-color-scheme: dark) { :root { --line: #30363d; --dim: #8b949e; --added: #12321c;
  --removed: #3b1a1e; --hunk: #58a6ff; --mark: #bc8cff; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; color: var(--mark); margin: 1.5rem 0 .3rem; overflow-wrap: anywhere; }
details { border-left: 2px solid var(--line); margin: .15rem 0; padding-left: .7rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary:focus-visible { outline: 2px solid var(--hunk); }
code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; margin: .3rem 0; }
pre span { display: block; white-space: pre; min-height: 1.4em; }
.a { background: var(--added); } .d { background: var(--removed); } .h { color: var(--hunk); }
.dim, .note { color: var(--dim); } .prompt > summary { font-weight: 600; }
"""

Patches = Callable[["Handle", str, str | None, Sequence["Change"]], Iterator[bytes]]
"""Returns changes as unified diffs."""


class HistoryPage:
    """A page of all snapshots of a root; differences as long as they fit a size."""

    def __init__(self, handle: Handle, patches: Patches, *, max_size_bytes: int) -> None:
        self._handle = handle
        self._patches = patches
        self._left_bytes = max_size_bytes
        self._history = History(handle)
        self.snapshots: int = 0
        self.differences: int = 0
        """Paths whose difference is in the page."""
        self.differences_without: int = 0
        """Paths that are listed without their difference, because that did not fit."""
        self.snapshots_without: int = 0
        """Snapshots whose changes are not in the page, because it would be too large."""

    def pieces(self) -> Iterator[str]:
        """Yields the page from top to bottom; the counts are right after that.

        Snapshots whose content is damaged have a note in place of their changes.
        """
        self._history.take(self._handle.snapshot_names())
        root = _text(self._handle.root)
        yield (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>History of {root}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            f"<h1>History of <code>{root}</code></h1>\n"
            f'<p class="note">{count_text(len(self._history), "snapshot")}, newest first. '
            "Open a line to see what it changed.</p>\n<main>\n"
        )
        session: str | None = None
        for group in self._history.groups():
            if group.session != session and group.session is not None:
                host = f"{_text(group.host)}, " if group.host is not None else ""
                yield f"<h2>{host}session {_text(group.session)}</h2>\n"
            session = group.session
            yield from self._group(group)
        yield "</main>\n"
        if left_out := self.left_out:
            yield f'<p class="note">The page is full. Left out: {left_out}.</p>\n'
        yield "</body>\n</html>\n"

    @property
    def left_out(self) -> str:
        """What did not fit, in words; empty if everything did."""
        parts = []
        if self.differences_without:
            parts.append(count_text(self.differences_without, "difference"))
        if self.snapshots_without:
            parts.append(f"the changes of {count_text(self.snapshots_without, 'snapshot')}")
        return " and ".join(parts)

    def _group(self, group: Group) -> Iterator[str]:
        if group.prompt is not None:
            label = _text(group.prompt.title)
            yield f'<details class="prompt" open>\n<summary>{label}</summary>\n'
        for row in group.rows:
            yield from self._row(row)
        if group.prompt is not None:
            yield "</details>\n"

    def _row(self, row: HistoryRow) -> Iterator[str]:
        self.snapshots += 1
        if row.snapshot is None:
            yield f'<p class="note"><code>{row.name.id[:SHORT_ID]}</code> cannot be read</p>\n'
            return
        time_ns = row.snapshot.record.created_at_ns
        title = "before the prompt" if row.is_prompt else _text(row.title)
        head = (
            f'<time class="dim">{time_text(time_ns)}</time> <code>{row.name.id[:SHORT_ID]}</code> '
            f'{title} <span class="dim">{row.snapshot.kind.value} {added_text(row.snapshot)}</span>'
        )
        if self._left_bytes <= 0:
            self.snapshots_without += 1
            yield f"<p>{head}</p>\n"
            return
        yield f'<details id="{row.name.id}">\n<summary>{head}</summary>\n'
        yield from self._changes(row)
        yield "</details>\n"

    def _changes(self, row: HistoryRow) -> Iterator[str]:
        place = self._history.place_of(row.name.id)
        if place is None:
            return
        sides = self._history.sides(place)
        count = 0
        for change in sides.changes(self._handle):
            count += 1
            if count > PATHS_MAX or self._left_bytes <= 0:
                continue
            piece = self._change(change, sides.old_id or "", sides.new_id)
            self._left_bytes -= len(piece)
            yield piece
        shown = min(count, PATHS_MAX)
        if not count:
            yield '<p class="note">Nothing changed</p>\n'
        elif count > shown:
            yield f'<p class="note">and {count_text(count - shown, "path")} more</p>\n'

    def _change(self, change: Change, old_id: str, new_id: str | None) -> str:
        name = f"<code>{LETTERS[change.change]} {_text(change.path) or '.'}</code>"
        try:
            patch = self._patches(self._handle, old_id, new_id, [change])
            lines = list(islice(patch, LINES_MAX + 1))
        except NotFound:  # deleted meanwhile
            lines = []
        spans = "".join(map(_line, lines[:LINES_MAX]))
        if len(lines) > LINES_MAX:
            spans += f'<span class="h">only the first {LINES_MAX} lines are shown</span>'
        if len(spans) > self._left_bytes:
            self.differences_without += 1
            return f'<p>{name} <span class="dim">{_sizes(change)}</span></p>\n'
        self.differences += 1
        return f"<details><summary>{name}</summary><pre>{spans}</pre></details>\n"


def _line(line: bytes) -> str:
    text = "    ".join(printable(part) for part in line.rstrip(b"\n").split(b"\t"))
    kind = {"+": "a", "-": "d", "@": "h"}.get(text[:1]) if text[:4] not in {"+++ ", "--- "} else "h"
    kind_text = f' class="{kind}"' if kind is not None else ""
    return f"<span{kind_text}>{escape(text)}</span>"


def _sizes(change: Change) -> str:
    sides = [size_text(entry.size) if entry else "absent" for entry in (change.old, change.new)]
    return " → ".join(sides)


def _text(text: bytes | str) -> str:
    return escape(printable(text))
