"""``snap timeline --html``: a history as one page that needs neither network nor scripts.

All that comes from a root (names, labels, contents) is escaped, and printable: a character that
turns text round or ends a line is written as an escape. It stands in text alone, never in a style
or an attribute. Sessions, prompts and differences are ``details``, which browsers open by
themselves, also where a search finds something in them. The filters are buttons and style rules.

A browser draws only the part of a long page that it shows: see ``content-visibility``. Each part
has the classes of what is in it, and buttons stand before it, so no rule needs ``:has``, for which
browsers look again whenever more of the page arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING

from treesnap.core.model.errors import Corrupt, NotFound, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, size_text, time_text
from treesnap.timeline.activity import Origin, day_picture, history_picture, moments_of, origin_of
from treesnap.timeline.history import (
    LETTERS,
    SHORT_ID,
    Group,
    History,
    HistoryRow,
    added_text,
)

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Change
    from treesnap.timeline.activity import ActivityPoint

PATHS_MAX = 500
"""Paths of a snapshot that are listed; the others are counted."""
LINES_MAX = 2000
"""Lines of a difference that are shown."""
OPEN_MAX = 200
"""Snapshots of a history whose prompts are open; of a longer one the prompts are an outline."""
ROWS_MAX = 100
"""Lines that a browser draws, or leaves, at once. In one piece 10,000 take three times as long."""
FILES_MAX = 12
"""Files that the page can be reduced to: those that changed most often."""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --panel: #f6f8fa; --text: #1f2328;
  --line: #d0d7de; --dim: #59636e; --added: #dafbe1; --removed: #ffebe9; --plus: #116329;
  --minus: #a40e26; --hunk: #0969da; --prompt: #8250df; --step: #54aeff; --other: #bf8700;
  --new: #8c959f; }
@media screen and (prefers-color-scheme: dark) { :root { --back: #0d1117; --panel: #161b22;
  --text: #e6edf3; --line: #30363d; --dim: #9198a1; --added: #12321c; --removed: #3b1a1e;
  --plus: #56d364; --minus: #ff8182; --hunk: #58a6ff; --prompt: #bc8cff; --step: #388bfd;
  --other: #d29922; --new: #6e7681; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem;
  padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--text); }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0; padding: .5rem 0 .2rem; display: flex; flex-wrap: wrap;
  gap: 0 1rem; align-items: baseline; }
h3 { font-size: .95rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
header p { margin: .2rem 0; }
.day { margin-top: 1.2rem; }
.day > header { position: sticky; top: 0; z-index: 1; background: var(--back);
  border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
.session { margin: .7rem 0; padding: .6rem .8rem; border: 1px solid var(--line);
  border-radius: 8px; content-visibility: auto; contain-intrinsic-size: auto 20rem; }
.rows { content-visibility: auto; contain-intrinsic-size: auto 160rem; }
.session.agent { border-left: 4px solid var(--prompt); }
details details, details > p, div.change { margin-left: .35rem; padding-left: .7rem;
  border-left: 2px solid var(--line); }
summary { cursor: pointer; overflow-wrap: anywhere; padding: .1rem .2rem; border-radius: 4px; }
summary:hover { background: var(--panel); }
summary:focus-visible { outline: 2px solid var(--hunk); }
.turn > summary { font-weight: 600; }
p.row, .note { margin: .1rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
time, .dim, .note, .axis, .day > header span { color: var(--dim); }
.day > header span, small { font-weight: 400; }
time { font-variant-numeric: tabular-nums; }
code, pre { font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: .2rem 0 .6rem; padding: .3rem 0; background: var(--panel);
  border: 1px solid var(--line); border-radius: 6px; tab-size: 4; }
pre > * { display: block; width: max-content; min-width: 100%; }
ins, del { text-decoration: none; }
pre ins { background: var(--added); } pre del { background: var(--removed); }
pre b { font-weight: 400; color: var(--hunk); }
summary ins { color: var(--plus); } summary del { color: var(--minus); }
svg { display: block; width: 100%; }
svg.history { height: 7rem; margin-top: 1rem; } svg.strip { height: .6rem; background: var(--panel);
  border-radius: 3px; }
.history path { stroke: none; fill: var(--c); } .history rect { fill: transparent; }
.history rect:hover { fill: var(--dim); fill-opacity: .2; }
.strip path { stroke: var(--c); stroke-width: 3; fill: none; }
path.prompt, i.prompt { --c: var(--prompt); } path.step, i.step { --c: var(--step); }
path.other, i.other { --c: var(--other); } path.new, i.new { --c: var(--new); }
.axis { display: flex; justify-content: space-between; font-size: .8rem; margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1rem; font-size: .85rem; color: var(--dim); }
.legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  background: var(--c); margin-right: .35rem; }
.choice { margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .3rem; }
.choice span { color: var(--dim); margin-right: .5rem; }
body > input { position: absolute; opacity: 0; }
label { border: 1px solid var(--line); border-radius: 1rem; padding: 0 .7rem; cursor: pointer;
  overflow-wrap: anywhere; }
#only-prompts:checked ~ main :is(.row.step, .row.other),
#only-prompts:checked ~ main :is(.day, .session, .rows):not(.has-turn),
#only-others:checked ~ main :is(.row.prompt, .row.step),
#only-others:checked ~ main :is(.day, .session, .rows, .turn):not(.has-other),
#only-pinned:checked ~ main .row:not(.pinned),
#only-pinned:checked ~ main :is(.day, .session, .rows, .turn):not(.has-pinned) { display: none; }
@media (max-width: 40rem) { body { padding: 1rem .6rem 3rem; } .session { padding: .4rem; }
  details details, details > p, div.change { margin-left: 0; padding-left: .4rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .choice, .screen
  { display: none; } .day > header { position: static; break-after: avoid; }
  .session, .rows { content-visibility: visible; break-inside: auto; }
  summary { break-after: avoid; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; } pre > * { width: auto; }
  * { print-color-adjust: exact; } }
"""

Patches = Callable[["Handle", str, str | None, Sequence["Change"]], Iterator[bytes]]
"""Returns changes as unified diffs, each whole."""


class Lines(NamedTuple):
    """A difference as the page shows it."""

    html: str
    added: int
    removed: int


class Changed(NamedTuple):
    """What a snapshot changed, as the page shows it."""

    html: str
    about: str
    """How much it is, in the line of the snapshot."""
    classes: str
    """Stands for the paths, for the filters."""


class Part(NamedTuple):
    """A day, a session, a prompt or a snapshot as the page shows it."""

    element: str
    classes: str
    attributes: str
    head: str
    """What stands in it before its parts, as HTML."""
    parts: Sequence[Part] = ()
    about: str = ""
    """How much a snapshot changed; empty where that is not in the page."""

    def kinds(self) -> set[str]:
        """Returns the classes of the snapshots in it, and whether a prompt is."""
        if not self.parts:
            return set(self.classes.split())
        own = {"turn"} if self.classes == "turn" else set[str]()
        return own.union(*(part.kinds() for part in self.parts))

    def pieces(self, asked: set[str]) -> Iterator[str]:
        """Yields it as HTML, with the classes of what is in it that can be asked for."""
        within = sorted(f"has-{kind}" for kind in self.kinds() & asked) if self.parts else ()
        classes = " ".join([self.classes, *within])
        yield f'<{self.element} class="{classes}"{self.attributes}>{self.head}'
        for part in self.parts:
            yield from part.pieces(asked)
        yield f"</{self.element}>\n"


class ButtonRow(NamedTuple):
    """Buttons of which one is chosen."""

    rules: str
    buttons: str
    """Stand before everything, so that style rules can follow from them."""
    labels: str


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
        self._sessions = set[str]()
        self._prompts = 0
        self._pinned = 0
        self._moments: list[ActivityPoint] = []
        self._numbers: dict[bytes, int] = {}
        """Paths that are in the page, each with the number that its class has."""
        self._steps_of = Counter[bytes]()

    def pieces(self) -> Iterator[str]:
        """Yields the page from top to bottom; the counts are right from the first piece on.

        Snapshots whose content is damaged have a note in place of their changes.
        """
        self._history.take(self._handle.snapshot_names())
        body = list(self._days())
        root = _text(self._handle.root)
        chosen = self._most_changed()
        yield (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>History of {root}</title>\n"
            f"<style>{STYLE}"
        )
        choices = list(self._choices(chosen)) if self._moments else []
        yield from (choice.rules for choice in choices)
        yield from map(_rule_of_file, chosen)
        yield "</style>\n</head>\n<body>\n"
        yield from (choice.buttons for choice in choices)
        yield f"<header>\n<h1>History of <code>{root}</code></h1>\n"
        yield from self._head()
        yield from (choice.labels for choice in choices)
        yield "</header>\n<main>\n"
        asked = {"turn", "other", "pinned", *chosen}
        yield from chain.from_iterable(part.pieces(asked) for part in body)
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

    # ------------------------------------------------------------------ the head

    def _head(self) -> Iterator[str]:
        counts = [count_text(self.snapshots, "snapshot")]
        if self._sessions:
            counts.append(count_text(len(self._sessions), "session"))
        if self._prompts:
            counts.append(count_text(self._prompts, "prompt"))
        yield f'<p class="dim">{", ".join(counts)}, newest first.</p>\n'
        if not self._moments:
            return
        yield history_picture(self._moments)
        yield (
            '<p class="legend"><span><i class="prompt"></i>before a prompt</span>'
            '<span><i class="step"></i>steps of agents</span>'
            '<span><i class="other"></i>by hand and others</span>'
            '<span><i class="new"></i>new content</span></p>\n'
            '<p class="dim screen">Open a line to see what it changed. The search of your browser '
            "(Ctrl+F) finds what is closed, too. "
            "<code>snap restore ID</code> goes back to a state.</p>\n"
        )

    def _choices(self, chosen: dict[str, str]) -> Iterator[ButtonRow]:
        shows = {"all": "everything"}
        if self._prompts:
            shows |= {"prompts": "prompts", "others": "by hand and others"}
        if self._pinned:
            shows["pinned"] = "pinned"
        if len(shows) > 1:
            yield _choice("Show", "only", shows)
        if len(self._numbers) > 1:
            yield _choice("Changes of", "file", {"all": "all files", **chosen})

    def _most_changed(self) -> dict[str, str]:
        """Returns the files that can be asked for: the class of each, and its path."""
        most = self._steps_of.most_common(FILES_MAX)
        return {f"f{self._numbers[path]}": _text(path) for path, _ in most}

    # ------------------------------------------------------------------ days, sessions, prompts

    def _days(self) -> Iterator[Part]:
        for day, groups in groupby(_by_day(self._history.groups()), _day):
            of_day = list(groups)
            moments = moments_of(chain.from_iterable(group.rows for group in of_day))
            self._moments += moments
            count = count_text(sum(len(group.rows) for group in of_day), "snapshot")
            head = f"<h2>{day} <span>{count}</span></h2>{day_picture(moments)}"
            sessions = groupby(of_day, lambda group: group.session)
            parts = [self._session(session, list(within)) for session, within in sessions]
            yield Part("section", "day", "", f"\n<header>{head}</header>\n", parts)

    def _session(self, session: str | None, groups: Sequence[Group]) -> Part:
        parts = list(chain.from_iterable(map(self._group, groups)))
        if len(parts) > ROWS_MAX:
            blocks = (parts[at : at + ROWS_MAX] for at in range(0, len(parts), ROWS_MAX))
            parts = [Part("div", "rows", "", "\n", block) for block in blocks]
        if session is None:
            return Part("section", "session", "", "\n", parts)
        self._sessions.add(session)
        host = next((group.host for group in groups if group.host is not None), None)
        said = f"{_text(host)}, " if host is not None else ""
        head = f"\n<h3>{said}session {_text(session)}</h3>\n"
        return Part("section", "session agent", "", head, parts)

    def _group(self, group: Group) -> list[Part]:
        rows = [self._row(row) for row in group.rows]
        if group.prompt is None:
            return rows
        self._prompts += 1
        steps = count_text(len(rows) - 1, "step") if len(rows) > 1 else ""
        head = (
            f"\n<summary>{_time(group.prompt)} {_text(group.prompt.title)} "
            f'<small class="dim">{steps} {rows[-1].about}</small></summary>\n'
        )
        is_open = " open" if len(self._history) <= OPEN_MAX else ""
        return [Part("details", "turn", is_open, head, rows)]

    def _row(self, row: HistoryRow) -> Part:
        self.snapshots += 1
        snapshot = row.snapshot
        code = f"<code>{row.name.id[:SHORT_ID]}</code>"
        if snapshot is None:
            return Part("p", "note", "", f"{code} cannot be read")
        origin = origin_of(row)
        classes = f"row {origin.value}"
        title = "before the prompt" if row.is_prompt else _text(row.title)
        words = [snapshot.kind.value] if origin is Origin.OTHER else []
        if snapshot.pinned:
            self._pinned += 1
            classes += " pinned"
            words.append("pinned")
        if not snapshot.complete:
            words.append("incomplete")
        dim = " ".join([*words, added_text(snapshot)])
        head = f'{_time(row)} {code} {title} <span class="dim">{dim}</span>'
        if self._left_bytes <= 0:
            self.snapshots_without += 1
            return Part("p", classes, "", head)
        changed = self._changed(row)
        return Part(
            "details",
            classes + changed.classes,
            f' id="{row.name.id}"',
            f"\n<summary>{head} {changed.about}</summary>\n{changed.html}",
            about=changed.about,
        )

    # ------------------------------------------------------------------ changes

    def _changed(self, row: HistoryRow) -> Changed:
        place = self._history.place_of(row.name.id)
        if place is None:
            return Changed("", "", "")
        sides = self._history.sides(place)
        each_change = sides.changes(self._handle)
        pieces, classes, shown, added, removed = list[str](), "", 0, 0, 0
        try:
            changes = list(islice(each_change, PATHS_MAX))
            more = sum(1 for _ in each_change)
            patches = self._patches(self._handle, sides.old_id or "", sides.new_id, changes)
            for change, patch in zip(changes, patches, strict=False):
                lines = _lines(patch)
                name = self._class_of(change.path)
                classes += f" {name}"
                piece = self._change(change, lines, name, is_only=len(changes) == 1)
                self._left_bytes -= len(piece)
                pieces.append(piece)
                shown, added, removed = shown + 1, added + lines.added, removed + lines.removed
                if self._left_bytes <= 0:
                    break
        except (NotFound, Corrupt) as error:
            reason = "was deleted" if isinstance(error, NotFound) else "is damaged"
            pieces.append(f'<p class="note">Content of it {reason}</p>\n')
            return Changed("".join(pieces), "", classes)
        count = len(changes) + more
        if not count:
            pieces.append('<p class="note">Nothing changed</p>\n')
        elif count > shown:
            pieces.append(f'<p class="note">and {count_text(count - shown, "path")} more</p>\n')
        about = f'<span class="dim">{count_text(count, "path")}</span>' if count else ""
        about += f" <ins>+{added:,}</ins>" if added else ""
        about += f" <del>-{removed:,}</del>" if removed else ""
        return Changed("".join(pieces), about, classes)

    def _class_of(self, path: bytes) -> str:
        self._steps_of[path] += 1
        return f"f{self._numbers.setdefault(path, len(self._numbers))}"

    def _change(self, change: Change, lines: Lines, name: str, *, is_only: bool) -> str:
        """Returns a path with its difference, which is not closed by itself if it is the only one.

        Most snapshots change one file, and what is closed takes a browser longest.
        """
        head = f"<code>{LETTERS[change.change]} {_text(change.path) or '.'}</code>"
        if len(lines.html) > self._left_bytes:
            self.differences_without += 1
            return (
                f'<p class="change {name}">{head} <span class="dim">{_sizes(change)}</span></p>\n'
            )
        self.differences += 1
        if is_only:
            return f'<div class="change {name}">{head}<pre>{lines.html}</pre></div>\n'
        return (
            f'<details class="change {name}"><summary>{head}</summary>'
            f"<pre>{lines.html}</pre></details>\n"
        )


def _by_day(groups: Iterable[Group]) -> Iterator[Group]:
    """Divides what belongs to no prompt where a day ends; a prompt stays with its steps."""
    for group in groups:
        if group.prompt is not None:
            yield group
            continue
        for _, rows in groupby(group.rows, _day_of):
            yield group._replace(rows=tuple(rows))


def _day(group: Group) -> str:
    return _day_of(group.rows[0])


def _day_of(row: HistoryRow) -> str:
    snapshot = row.snapshot
    form = "%A, %Y-%m-%d"
    return time_text(snapshot.record.created_at_ns, form) if snapshot is not None else "Unknown day"


def _time(row: HistoryRow) -> str:
    snapshot = row.snapshot
    text = time_text(snapshot.record.created_at_ns, "%H:%M:%S") if snapshot is not None else ""
    return f"<time>{text}</time>"


def _choice(title: str, name: str, answers: Mapping[str, str]) -> ButtonRow:
    """Returns buttons of which one is chosen, the first one to begin with."""
    rules, buttons, labels = list[str](), list[str](), list[str]()
    for value, text in answers.items():
        identity = f"{name}-{value}"
        label = f'~ header label[for="{identity}"]'
        rules.append(
            f"#{identity}:checked {label} {{ background: var(--hunk); border-color: var(--hunk); "
            "color: var(--back); }\n"
            f"#{identity}:focus-visible {label} {{ outline: 2px solid var(--hunk); }}\n"
        )
        checked = "" if buttons else " checked"
        buttons.append(f'<input type="radio" name="{name}" id="{identity}"{checked}>\n')
        labels.append(f'<label for="{identity}">{text}</label>')
    line = f'<p class="choice"><span>{title}</span>{"".join(labels)}</p>\n'
    return ButtonRow("".join(rules), "".join(buttons), line)


def _rule_of_file(name: str) -> str:
    """Returns what hides all but the changes of a file, where that is asked for."""
    chosen = f"#file-{name}:checked ~ main"
    return (
        f"{chosen} :is(.row, .change):not(.{name}), "
        f"{chosen} :is(.day, .session, .rows, .turn):not(.has-{name}) {{ display: none; }}\n"
    )


_ELEMENTS = {"+": "ins", "-": "del", "@": "b"}


def _lines(patch: bytes) -> Lines:
    """Returns a patch in colours; neighbours of one kind are one element.

    What names the file again is left out.
    """
    texts = patch.split(b"\n")
    if texts[-1] == b"":
        texts.pop()
    first = next((n for n, text in enumerate(texts) if text.startswith(b"@@")), len(texts))
    about = [text for text in texts[:first] if not text.startswith((b"diff ", b"--- ", b"+++ "))]
    body = texts[first : first + LINES_MAX]
    pieces, counts = list[str](), Counter[str]()
    if about:
        pieces.append(f"<b>{escape(chr(10).join(map(_harmless, about)))}</b>")
    for sign, group in groupby(map(_harmless, body), lambda text: text[:1]):
        lines = list(group)
        counts[sign] += len(lines)
        element = _ELEMENTS.get(sign, "span")
        pieces.append(f"<{element}>{escape(chr(10).join(lines), quote=False)}</{element}>")
    if len(texts) - first > LINES_MAX:
        pieces.append(f"<b>only the first {LINES_MAX} lines are shown</b>")
    return Lines("".join(pieces), counts["+"], counts["-"])


def _harmless(line: bytes) -> str:
    return printable(line.replace(b"\t", b"    "))


def _sizes(change: Change) -> str:
    sides = [size_text(entry.size) if entry else "absent" for entry in (change.old, change.new)]
    return " → ".join(sides)


def _text(text: bytes | str) -> str:
    return escape(printable(text))
