"""Differences for people: patches of texts, one line for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from treesnap.cli.output.as_text import path_text
from treesnap.cli.output.coloured_patch import coloured_hunks, without_controls
from treesnap.cli.output.terminal import Style, styled
from treesnap.core.diff.texts import LineCounts, count_lines, hunks, is_binary
from treesnap.core.model.entries import CONTENT_SIZE_MAX, Change, ChangeKind, Entry, EntryKind
from treesnap.core.model.errors import printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import count_text, size_text, time_text
from treesnap.core.model.results import TextPart
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.results import ChangedContent

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

    parts: tuple[TextPart, ...]
    """What differs, with what is around it."""
    note: str | None = None
    """Replaces the patch; None when there is one."""
    converted_by: str | None = None
    """What printed both sides: the setting of a command, or SQLite."""

    def hunks(self) -> Iterator[bytes]:
        """Yields the lines of a patch, without a header."""
        for part in self.parts:
            yield from hunks(part.old, part.new, (part.old_line_count, part.new_line_count))

    @property
    def differ(self) -> bool:
        """Whether there are lines to show."""
        return any(part.old != part.new for part in self.parts)


class DiffOutput:
    """Reads what it needs of both sides, many files together; ``new_id`` None is the live tree."""

    def __init__(
        self,
        handle: Handle,
        old_id: str | None,
        new_id: str | None,
        *,
        root: str | None = None,
        size_max: int = CONTENT_SIZE_MAX,
        as_text: bool = False,
    ) -> None:
        """Prepares output; with ``as_text`` of what commands and SQLite print of files."""
        self._handle = handle
        self._old_id = old_id
        self._new_id = new_id
        self._root = root
        self._size_max = size_max
        self._as_text = as_text
        self.not_converted: list[str] = []
        """What is shown as it is although a setting names a command for it, and why."""

    def _texts(self, changes: Sequence[Change]) -> Iterator[tuple[Change, Texts]]:
        """Yields changes with both sides as text, where they are about text of a sensible size."""
        for content in self._handle.contents(
            self._old_id,
            self._new_id,
            changes,
            root=self._root,
            max_size_bytes=self._size_max,
            as_text=self._as_text,
        ):
            if content.not_converted is not None:
                name = quoted(content.change.path)
                self.not_converted.append(f"{name} is not shown as text: {content.not_converted}")
            yield content.change, _texts_of(content)

    def patches(self, changes: Sequence[Change]) -> Iterator[bytes]:
        """Yields each change in the unified format, with a header for each path."""
        for change, texts in self._texts(changes):
            header = b"".join(_encoded(line) + b"\n" for line in _patch_header(change, texts))
            yield header + b"".join(texts.hunks())

    def shown_patches(self, changes: Sequence[Change], *, coloured: bool) -> Iterator[bytes]:
        """Yields the same for people: control characters of the texts are escaped."""
        for change, texts in self._texts(changes):
            pieces = texts.hunks()
            for line in _patch_header(change, texts):
                yield _encoded(styled(line, Style.HEADING) if coloured else line) + b"\n"
            lines = coloured_hunks(pieces) if coloured else map(without_controls, pieces)
            yield _encoded("".join(lines))

    def stat_lines(self, changes: Sequence[Change], *, coloured: bool) -> Iterator[str]:
        """Yields a line for each path, how much of it changed, and the sums."""
        rows = [
            (path_text(change.path), _line_counts(texts), _summary(change, texts))
            for change, texts in self._texts(changes)
        ]
        width = max((len(name) for name, _, _ in rows), default=0)
        most = max((sum(counts) for _, counts, _ in rows if counts), default=0)
        for name, counts, what in rows:
            graph = counts and f"{sum(counts):>4} {_graph(counts, most, coloured=coloured)}"
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
    """Returns both sides as text; the target of a link is a path, and is shown as one."""
    old, new = (
        printable(data).encode() if entry is not None and entry.kind == EntryKind.SYMLINK else data
        for data, entry in (
            (content.old or b"", content.change.old),
            (content.new or b"", content.change.new),
        )
    )
    if content.parts:
        return Texts(content.parts)
    if content.is_large and not content.is_binary:
        sizes = [entry.size for entry in (content.change.old, content.change.new) if entry]
        hint = f"(--max-size {_size_option(max(sizes))} shows it)"
        return Texts((), f"Large file: {_sizes(content.change)} {hint}")
    if content.is_lost:
        return Texts((), "Changed again while it was compared")
    if content.is_binary or is_binary(old) or is_binary(new):
        return Texts((), f"Binary file: {_sizes(content.change)}", content.converted_by)
    return Texts((TextPart(0, 0, old, new),), None, content.converted_by)


def _line_counts(texts: Texts) -> LineCounts | None:
    """Returns how many lines differ, or None when the change is not about text."""
    if texts.note is not None or not texts.differ:
        return None
    counts = [count_lines(part.old, part.new) for part in texts.parts]
    return LineCounts(
        insertions=sum(each.insertions for each in counts),
        deletions=sum(each.deletions for each in counts),
    )


def _summary(change: Change, texts: Texts) -> str:
    """Returns what ``--stat`` says of a change without lines."""
    return texts.note or ", ".join([*header_lines(change), *_conversion_lines(texts)])


def _patch_header(change: Change, texts: Texts) -> Iterator[str]:
    """Yields what stands before the hunks of a change, or in the place of them."""
    name = path_text(change.path)
    yield f"diff a/{name} b/{name}"
    yield from header_lines(change)
    yield from _conversion_lines(texts)
    if texts.note is not None:
        yield texts.note
    elif texts.differ:
        tab = "\t" if " " in name else ""
        yield f"--- a/{name}{tab}" if change.old else "--- /dev/null"
        yield f"+++ b/{name}{tab}" if change.new else "+++ /dev/null"


def _conversion_lines(texts: Texts) -> Iterator[str]:
    if texts.converted_by is not None:
        same = "same " if not texts.differ else ""
        yield f"{same}text by {printable(texts.converted_by)}"


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


def _size_option(size_bytes: int) -> str:
    """Returns the next larger size that a person would type."""
    size, unit = size_bytes, ""
    for larger in "KMGT":
        if size < 1024:
            break
        size, unit = -(-size // 1024), larger
    return f"{size}{unit}"


def _sizes(change: Change) -> str:
    sizes = [
        size_text(entry.size) if entry is not None else "absent"
        for entry in (change.old, change.new)
    ]
    return " -> ".join(sizes)


def _graph(counts: LineCounts, most: int, *, coloured: bool) -> str:
    scale = min(1.0, GRAPH_WIDTH / most)
    plus, minus = (
        sign * max(1, round(count * scale)) if count else ""
        for sign, count in zip("+-", counts, strict=True)
    )
    return styled(plus, Style.ADDED) + styled(minus, Style.REMOVED) if coloured else plus + minus


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def patches(
    handle: Handle, old_id: str, new_id: str | None, changes: Sequence[Change]
) -> Iterator[bytes]:
    """Yields changes as unified diffs, each whole."""
    return DiffOutput(handle, old_id, new_id).patches(changes)
