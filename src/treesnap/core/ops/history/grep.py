"""``grep``: lines of files in snapshots that match a regular expression.

Contents are searched once, however many snapshots and paths hold them, and directories in which
nothing matched are not walked again. Files are read in pieces; of a line of more than 16 MiB the
parts are searched apart. In a long hole these are alike, and only its ends are searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice

from treesnap.core.codec.reader import Get, Walk, read_content
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, FileContent, ObjectId
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, StoreMissing, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import FileMatches, MatchedLine
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.references import reading, resolve_in

_LINE_SIZE_MAX = 16 << 20
_BINARY_SIZE = 8000
"""Bytes at the start of a file in which a NUL makes it binary, as for git."""
_CACHED_LINES_MAX = 1000
"""Matches of one content that are kept for the next snapshot that holds it."""
_SPANS_MAX = 1000
"""Matches of one line that are marked; one of 16 MiB may have as many as it has bytes."""
_SPECIAL = frozenset(b".^$*+?{}[]\\|()\n")


class GrepRequest(NamedTuple):
    """What is searched for, and where."""

    pattern: bytes
    refs: tuple[tuple[str, str], ...] = ()
    """Words for snapshots, each with a REF that names it."""
    paths: tuple[bytes, ...] = ()
    ignore_case: bool = False
    fixed: bool = False
    """Whether the pattern is text and no regular expression."""
    in_all: bool = False
    """Whether all snapshots of the root are searched, and what is the same shown once."""
    first_only: bool = False
    """Whether the first match of a file is enough."""


def grep(context: Context, request: GrepRequest) -> Iterator[FileMatches]:
    """Yields the files that match, by snapshot in the order asked for, then in that of a walk.

    What is wrong with the request is raised at once.
    """
    search = _ContentSearch(request)
    if request.in_all:
        return _in_all(context, request, search)
    with opened(context, "search") as session:
        snapshots = [
            (word, resolve_in(session, ref, paths=request.paths, anywhere=True))
            for word, ref in request.refs
        ]
        _refuse_unknown_paths(session, [snapshot for _, snapshot in snapshots], request.paths)

    def found() -> Iterator[FileMatches]:
        with opened(context, "search", recover=False) as session:
            walk = _Walk(session, search)
            for word, snapshot in snapshots:
                yield from walk.matches(word, snapshot, request.paths)

    return found()


def _in_all(
    context: Context, request: GrepRequest, search: _ContentSearch
) -> Iterator[FileMatches]:
    with suppress(StoreMissing), opened(context, "search") as session:
        walk = _Walk(session, search, shows_once=True)
        for snapshot in session.store.snapshots.readable(session.root.id):
            yield from walk.matches(snapshot.id[:12], snapshot, request.paths)


def _refuse_unknown_paths(
    session: Session, snapshots: list[Snapshot], paths: tuple[bytes, ...]
) -> None:
    trees = session.store.trees()
    for path in paths:
        if all(trees.find(item.record.root, path) is None for item in snapshots):
            raise NotFound(
                f"No snapshot that is searched holds {quoted(path)}",
                code=ErrorCode.PATH_NOT_FOUND,
                path=path,
            )


class _Found(NamedTuple):
    """What one content matches."""

    is_binary: bool
    lines: tuple[MatchedLine, ...]


class _ContentSearch:
    """Searches contents, and remembers what it found."""

    def __init__(self, request: GrepRequest) -> None:
        pattern = request.pattern
        is_text = request.fixed or not _SPECIAL & set(pattern)
        flags = re.IGNORECASE if request.ignore_case else 0
        try:
            self._pattern = re.compile(re.escape(pattern) if is_text else pattern, flags)
        except re.error as error:
            raise InvalidArgument(
                f"{quoted(pattern)} is not a regular expression: {error}"
            ) from None
        # Text without a newline is found in the lines exactly if it is found in all of them at
        # once, which takes a tenth of the time where it is rare.
        self._is_text = is_text and b"\n" not in pattern
        self._first_only = request.first_only
        self._known: dict[FileContent, _Found | None] = {}

    def found_in(self, content: FileContent, get: Get) -> _Found | None:
        """Returns what a content matches, or None."""
        if content in self._known:
            return self._known[content]
        result = self._search(content, get)
        if result is None or len(result.lines) <= _CACHED_LINES_MAX:
            self._known[content] = result
        return result

    def _search(self, content: FileContent, get: Get) -> _Found | None:
        lines: list[MatchedLine] = []
        rest, number = b"", 0
        is_first = True
        is_binary = False
        for piece in read_content(content, get, _hole_size):
            if is_first:
                is_binary = b"\0" in piece[:_BINARY_SIZE]
                is_first = False
            rest += piece
            end = rest.rfind(b"\n") + 1
            if not end and len(rest) < _LINE_SIZE_MAX:
                continue
            block, rest = (rest[:end], rest[end:]) if end else (rest, b"")
            lines += self._matches(block, number)
            number += block.count(b"\n")
            if lines and (is_binary or self._first_only):
                break
        else:
            lines += self._matches(rest, number)
        if not lines:
            return None
        kept = lines[:1] if self._first_only else lines
        return _Found(is_binary, () if is_binary else tuple(kept))

    def _matches(self, block: bytes, before: int) -> Iterator[MatchedLine]:
        """Yields the matching lines of a block; ``before`` lines precede it."""
        if not block or (self._is_text and self._pattern.search(block) is None):
            return
        search = self._pattern.search
        for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), before + 1):
            if search(line) is not None:
                matches = islice(self._pattern.finditer(line), _SPANS_MAX)
                spans = tuple(match.span() for match in matches)
                yield MatchedLine(number, line, tuple(span for span in spans if span[0] < span[1]))


def _hole_size(size: int) -> int:
    """Returns how many zeros of a hole are searched.

    What is left out are whole parts of a line: they hold nothing but zeros, as one that is
    searched does, so they would match in the same way.
    """
    left_out = max(0, size // _LINE_SIZE_MAX - 2)
    return size - left_out * _LINE_SIZE_MAX


class _Frame(NamedTuple):
    """A directory that is being walked."""

    tree_id: ObjectId
    key: bytes
    """Stands for its path."""
    entries: Iterator[Entry]
    seen: list[bool]
    """Whether anything below matched; the only item changes."""


def _frame(walk: Walk, entry: Entry, key: bytes) -> _Frame:
    return _Frame(entry.tree_id, key, walk.entries(entry.tree_id), [False])


def _key(above: bytes, name: bytes) -> bytes:
    """Returns a short key for a path, which itself may be very long."""
    return blake2b(name, key=above, digest_size=16).digest()


class _Walk:
    """Walks snapshots, past directories in which nothing matches."""

    def __init__(
        self, session: Session, search: _ContentSearch, *, shows_once: bool = False
    ) -> None:
        self._session = session
        self._trees = session.store.trees()
        self._search = search
        self._shows_once = shows_once
        self._without: set[ObjectId] = set()
        """Directories in which nothing matches."""
        self._shown: set[tuple[bytes, object]] = set()
        """Keys of paths, and contents, that were shown, or walked."""

    def matches(
        self, word: str, snapshot: Snapshot, paths: tuple[bytes, ...]
    ) -> Iterator[FileMatches]:
        """Yields the files of a snapshot that match."""
        with reading(self._session, snapshot):
            for path in treepath.without_nested(list(paths)) if paths else (b"",):
                top = self._trees.find(snapshot.record.root, path)
                if top is None:
                    continue
                for below, result in self._below(path, top):
                    yield FileMatches(word, snapshot, below, result.is_binary, result.lines)

    def _below(self, path: bytes, top: Entry) -> Iterator[tuple[bytes, _Found]]:
        if not top.is_directory:
            result = self._in_file(top)
            if result is not None:
                yield path, result
            return
        walk = self._trees.walk()
        stack = [_frame(walk, top, _key(b"", path))]
        descent = treepath.Descent(path)
        while stack:
            frame = stack[-1]
            entry = next(frame.entries, None)
            if entry is None:
                stack.pop()
                descent.leave()
                if not frame.seen[0]:
                    self._without.add(frame.tree_id)
                elif stack:
                    stack[-1].seen[0] = True
                continue
            key = _key(frame.key, entry.name)
            if entry.is_directory:
                if entry.tree_id in self._without:
                    continue
                if self._is_shown(key, entry.tree_id):
                    frame.seen[0] = True
                    continue
                stack.append(_frame(walk, entry, key))
                descent.enter(treepath.join(descent.path, entry.name))
                continue
            result = self._in_file(entry)
            if result is not None:
                frame.seen[0] = True
                if not self._is_shown(key, entry.content):
                    yield treepath.join(descent.path, entry.name), result

    def _is_shown(self, key: bytes, content: object) -> bool:
        """Returns whether a path was shown with this content, and notes it."""
        if not self._shows_once:
            return False
        if (key, content) in self._shown:
            return True
        self._shown.add((key, content))
        return False

    def _in_file(self, entry: Entry) -> _Found | None:
        if entry.kind != EntryKind.FILE:
            return None
        return self._search.found_in(entry.file_content, self._session.store.get)
