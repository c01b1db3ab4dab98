"""Differences for people: patches of texts, one line for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from treesnap.cli.json_output import Fields
from treesnap.cli.patch import LineCounts, count_lines, hunks, is_binary
from treesnap.cli.terminal import time_text
from treesnap.cli.text_output import path_text
from treesnap.errors import printable
from treesnap.model import Change, ChangeKind, Entry, EntryKind
from treesnap.named_tuple import NamedTuple
from treesnap.quantities import count_text, size_text

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.results import ChangedContent

TEXT_SIZE_MAX = 1024 * 1024
"""Larger files are summarised, and not read."""
GRAPH_WIDTH = 40
"""The most signs that ``--stat`` draws in one line."""

KIND_WORDS = {kind.value: kind.name.lower().replace("_", " ") for kind in EntryKind}


_PROPERTIES: dict[str, Callable[[Entry], str]] = {
    "type": lambda entry: KIND_WORDS[entry.kind],
    "mode": lambda entry: f"{entry.mode:04o}",
    "owner": lambda entry: f"{entry.uid}:{entry.gid}",
}


class Texts(NamedTuple):
    """Both sides of a change as text, or why there is none to show."""

    old: bytes
    new: bytes
    note: str | None
    """Replaces the patch; None when there is one."""


class DiffOutput:
    """Reads what it needs of both sides, many files together; ``new_id`` None is the live tree."""

    def __init__(
        self,
        handle: Handle,
        old_id: str,
        new_id: str | None,
        *,
        size_max: int = TEXT_SIZE_MAX,
    ) -> None:
        self._handle = handle
        self._old_id = old_id
        self._new_id = new_id
        self._size_max = size_max

    def _texts(self, changes: Sequence[Change]) -> Iterator[tuple[Change, Texts]]:
        """Yields changes with both sides as text, where they are about text of a sensible size."""
        for content in self._handle.contents(
            self._old_id, self._new_id, changes, max_size_bytes=self._size_max
        ):
            yield content.change, _texts_of(content)

    def patches(self, changes: Sequence[Change], *, for_terminal: bool) -> Iterator[bytes]:
        """Yields each change in the unified format, with a header for each path.

        ``for_terminal`` escapes control characters of the texts, which a patch
        that is to be applied has to keep.
        """
        for change, texts in self._texts(changes):
            lines = _patch(change, texts)
            yield b"".join(map(_harmless, lines) if for_terminal else lines)

    def stat_lines(self, changes: Sequence[Change]) -> Iterator[str]:
        """Yields a line for each path, how much of it changed, and the sums."""
        rows = [
            (path_text(change.path), _line_counts(texts), _summary(change, texts))
            for change, texts in self._texts(changes)
        ]
        width = max((len(name) for name, _, _ in rows), default=0)
        most = max((sum(counts) for _, counts, _ in rows if counts), default=0)
        for name, counts, what in rows:
            graph = f"{sum(counts):>4} {_graph(counts, most)}".rstrip() if counts else ""
            yield f"{name:<{width}} | {graph or what}"
        added = sum(counts.insertions for _, counts, _ in rows if counts)
        removed = sum(counts.deletions for _, counts, _ in rows if counts)
        yield (
            f"{count_text(len(rows), 'path')} changed, {count_text(added, 'line')} added, "
            f"{count_text(removed, 'line')} removed"
        )

    def stat_fields(self, changes: Sequence[Change]) -> Iterator[Fields]:
        """Yields changes as JSON, with line counts that are null where there is no text."""
        for change, texts in self._texts(changes):
            counts = _line_counts(texts)
            yield {
                **change.to_dict(),
                "insertions": counts.insertions if counts else None,
                "deletions": counts.deletions if counts else None,
            }


def _texts_of(content: ChangedContent) -> Texts:
    old, new = content.old or b"", content.new or b""
    if content.is_large:
        return Texts(b"", b"", f"Large file: {_sizes(content.change)}")
    if content.is_lost:
        return Texts(b"", b"", "Changed again while it was compared")
    if is_binary(old) or is_binary(new):
        return Texts(b"", b"", f"Binary file: {_sizes(content.change)}")
    return Texts(old, new, None)


def _line_counts(texts: Texts) -> LineCounts | None:
    """Returns how many lines differ, or None when the change is not about text."""
    if texts.note is not None or texts.old == texts.new:
        return None
    return count_lines(texts.old, texts.new)


def _summary(change: Change, texts: Texts) -> str:
    """Returns what ``--stat`` says of a change without text."""
    return texts.note or ", ".join(header_lines(change))


def _patch(change: Change, texts: Texts) -> Iterator[bytes]:
    name = path_text(change.path)
    yield _line(f"diff a/{name} b/{name}")
    yield from map(_line, header_lines(change))
    if texts.note is not None:
        yield _line(texts.note)
    elif texts.old != texts.new:
        tab = "\t" if " " in name else ""
        yield _line("--- " + (f"a/{name}{tab}" if change.old else "/dev/null"))
        yield _line("+++ " + (f"b/{name}{tab}" if change.new else "/dev/null"))
        yield from hunks(texts.old, texts.new)


def header_lines(change: Change) -> Iterator[str]:
    """Yields what changed of a path beside its content."""
    old, new = change.old, change.new
    if old is None or new is None:
        entry, word = (new, "new") if new is not None else (old, "deleted")
        if entry is not None:
            yield f"{word} {KIND_WORDS[entry.kind]} mode {entry.mode:04o}"
        return
    for name, text in _PROPERTIES.items():
        if text(old) != text(new):
            yield f"old {name} {text(old)}"
            yield f"new {name} {text(new)}"
    if old.xattrs != new.xattrs:
        yield "extended attributes changed"
    if change.change is ChangeKind.METADATA and old.mtime_ns != new.mtime_ns:
        yield f"old time {time_text(old.mtime_ns)}"
        yield f"new time {time_text(new.mtime_ns)}"


def _sizes(change: Change) -> str:
    sizes = [
        size_text(entry.size) if entry is not None else "absent"
        for entry in (change.old, change.new)
    ]
    return " -> ".join(sizes)


def _graph(counts: LineCounts, most: int) -> str:
    scale = min(1.0, GRAPH_WIDTH / most)
    plus, minus = (
        max(1, round(count * scale)) if count else 0
        for count in (counts.insertions, counts.deletions)
    )
    return "+" * plus + "-" * minus


def _line(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _harmless(line: bytes) -> bytes:
    """Returns a line of a text without anything that acts on a terminal, tabs excepted."""
    body, newline, _ = line.partition(b"\n")
    return b"\t".join(printable(part).encode() for part in body.split(b"\t")) + newline
