"""JSON as text that is changed in place, so that all else keeps its bytes; pure.

Reads JSON, and what hosts allow in their settings beside it: comments, and a comma after the last
element. What is added looks like what is there: the same indentation and line ends, on one line
where the rest is. Positions count characters.

Each change reads the text again, and what is inserted is compared with what should be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from treesnap.core.model.named_tuple import NamedTuple

DEPTH_MAX = 200
"""Hosts nest settings less than ten deep; Python cannot call itself much deeper than this."""
_STRING = r'"(?:[^"\\]|\\.)*+"'
_COMMENT = re.compile(r"//[^\r\n]*+|/\*.*?\*/", re.DOTALL)
_STRING_OR_COMMENT = re.compile(rf"{_STRING}|\A\ufeff|{_COMMENT.pattern}", re.DOTALL)
_STRING_OR_COMMA = re.compile(rf"{_STRING}|[\[{{,:]\s*+,|,(?=\s*+[\]}}])", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|[{{}}\[\]]|[^\s{{}}\[\]:,]++", re.DOTALL)
_REST_OF_LINE = re.compile(r"(?:[ \t]*+(?://[^\r\n]*+|/\*[^\r\n]*?\*/))*+")
"""Comments that belong to what stands before them on their line."""
_BLANK = " \t\r\n"
_NO_BLANK = re.compile(r"[^\r\n]")
_TOO_DEEP = f"values are nested more than {DEPTH_MAX} deep"

Path = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""
Span = tuple[int, int]


class JsonError(ValueError):
    """A text is not JSON, or JSON that hosts read in different ways."""

    def __init__(self, problem: str, text: str, position: int) -> None:
        line = text.count("\n", 0, position) + 1
        column = position - text.rfind("\n", 0, position)
        super().__init__(f"line {line}, column {column}: {problem}")


class Node(NamedTuple):
    """A value in a text."""

    start: int
    end: int
    content: Any
    """Nodes by key, a list of nodes, or a value without parts."""
    begins: int
    """Where its key begins; without a key, where it does."""

    @property
    def parts(self) -> list[Node]:
        """The values in it, in the order of the text."""
        nodes = self.content.values() if isinstance(self.content, dict) else self.content
        return list(nodes) if isinstance(self.content, dict | list) else []

    @property
    def value(self) -> Any:
        """The value, as ``json`` would read it."""
        if isinstance(self.content, dict):
            return {key: node.value for key, node in self.content.items()}
        if isinstance(self.content, list):
            return [node.value for node in self.content]
        return self.content


def _root_of(text: str) -> Node:
    """Returns the value of a text of JSON without comments; raises JsonError.

    ``json`` decides what is JSON; here is only found out where everything is.
    """
    strict = _STRING_OR_COMMA.sub(lambda found: found[0] if len(found[0]) > 1 else " ", text)
    try:
        json.loads(strict, parse_int=float)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, text, error.pos) from None
    except RecursionError:
        raise JsonError(_TOO_DEEP, text, 0) from None
    tokens = _TOKEN.finditer(text)

    def node(match: re.Match[str], begins: int, depth: int) -> Node:
        start, opening = match.start(), match.group()
        content: Any = {} if opening == "{" else []
        if depth > DEPTH_MAX:
            raise JsonError(_TOO_DEEP, text, start)
        if opening not in "{[":
            return Node(start, match.end(), scalar(match), begins)
        while (match := next(tokens)).group() not in "}]":
            begins_inside = match.start()
            if opening == "[":
                content.append(node(match, begins_inside, depth + 1))
            elif (key := scalar(match)) in content:
                raise JsonError(f"the key {key!r} is there twice", text, begins_inside)
            else:
                content[key] = node(next(tokens), begins_inside, depth + 1)
        return Node(start, match.end(), content, begins)

    def scalar(match: re.Match[str]) -> Any:
        try:
            return json.loads(match.group(), parse_constant=int)  # which cannot read one
        except ValueError:  # nor a number of thousands of digits
            raise JsonError("a value cannot be read", text, match.start()) from None

    first = next(tokens)
    return node(first, first.start(), 0)


class JsonText:
    """A text of JSON, and where something was inserted into it."""

    def __init__(self, text: str) -> None:
        """Reads a text; raises JsonError. An empty one becomes an empty object."""
        self.text: str = text
        self.inserted: list[Span] = []
        """What :meth:`insert` put where, from left to right, in positions of the text as it is."""
        if not text.strip(_BLANK + "\ufeff"):
            self._put(len(text), "{}\n")
        self._read()
        root = self._root
        self._is_compact = bool(root.parts) and "\n" not in self.text[root.start : root.end]
        self._line_end = "\r\n" if "\r\n" in text else "\n"
        self._unit = self._indent_of_parts(root) or "  "

    @property
    def value(self) -> Any:
        """What the text says, as ``json`` would read it."""
        return self._root.value

    def insert(self, path: Path, value: Any, key: str | None = None) -> None:
        """Adds a value at the end of the list at a path, or of the object, which takes a key.

        Only inserts; what was there keeps its bytes.
        """
        node = self._at(path)
        container = at(expected := self.value, path)
        if key is None:
            container.append(value)
        else:
            container[key] = value
        separators = (",", ":") if self._is_compact else (", ", ": ")
        label = "" if key is None else json.dumps(key, ensure_ascii=False) + separators[1]
        parts = node.parts
        outer = self._indent(node.start)
        inner = self._indent_of_parts(node) if parts else outer + self._unit
        if inner is None or self._is_compact:
            shown = label + json.dumps(value, ensure_ascii=False, separators=separators)
        else:
            lines = label + json.dumps(value, ensure_ascii=False, indent=self._unit)
            shown = lines.replace("\n", self._line_end + inner)
        position = node.start + 1
        if parts:
            comma = self._comma_after(parts[-1])
            if comma is None:
                comma = parts[-1].end
                self._put(comma, ",")
            position = comma + 1
            match = _REST_OF_LINE.match(self.text, position)
            assert match is not None
            comments, position = match.group(), match.end()
        else:
            comments = self.text[position : node.end - 1].rstrip(_BLANK)
            position += len(comments)
        if "//" in comments or (inner is not None and not self._is_compact):
            shown = self._line_end + (inner or outer + self._unit) + shown
            if not parts and "\n" not in self.text[position : node.end - 1]:
                shown += self._line_end + outer
        elif parts and not self._is_compact:
            shown = " " + shown
        self._put(position, shown)
        self._read()
        if self.value != expected:
            raise AssertionError(f"{path} does not hold what it should")

    def remove(self, path: Path) -> None:
        """Takes a value out, with its key and its comma; comments stay."""
        parent = self._at(path[:-1])
        node = parent.content[path[-1]]
        parts = parent.parts
        index = parts.index(node)
        above = self.text[parts[index - 1].end if index else parent.start + 1 : node.begins]
        begins = node.begins
        if not _ends_with_line_comment(above):
            begins -= len(above) - len(above.rstrip(_BLANK))
        cuts = [(begins, node.end)]
        comma = self._comma_after(node)
        if comma is None and index:
            comma = self._comma_after(parts[index - 1])
        if comma is not None:
            cuts.append((comma, comma + 1))
        if len(parts) == 1 and not _COMMENT.search(above + self.text[node.end : parent.end - 1]):
            cuts = [(parent.start + 1, parent.end - 1)]
        self.text = without_spans(self.text, sorted(cuts))
        self._read()

    def _read(self) -> None:
        """Finds out what is where; comments become as many blanks."""
        self._plain = _STRING_OR_COMMENT.sub(
            lambda found: found[0] if found[0][0] == '"' else _NO_BLANK.sub(" ", found[0]),
            self.text,
        )
        self._root = _root_of(self._plain)

    def _at(self, path: Path) -> Node:
        node = self._root
        for step in path:
            node = node.content[step]
        return node

    def _put(self, position: int, text: str) -> None:
        size = len(text)
        spans = []
        is_inside = False
        for start, end in self.inserted:
            is_inside |= start < position < end
            spans.append((start + size * (position <= start), end + size * (position < end)))
        self.inserted = sorted(spans if is_inside else [*spans, (position, position + size)])
        self.text = self.text[:position] + text + self.text[position:]

    def _comma_after(self, node: Node) -> int | None:
        rest = self._plain[node.end :]
        position = len(self._plain) - len(rest.lstrip(_BLANK))
        return position if self._plain.startswith(",", position) else None

    def _indent_of_parts(self, node: Node) -> str | None:
        """Returns how the parts of a node are indented, or None where they follow on its line."""
        if not node.parts:
            return None
        begins = node.parts[0].begins
        is_below = "\n" in self.text[node.start + 1 : begins]
        return self._indent(begins) if is_below else None

    def _indent(self, position: int) -> str:
        line = self.text[self.text.rfind("\n", 0, position) + 1 : position].lstrip("\ufeff")
        return line[: len(line) - len(line.lstrip(" \t"))]


def at(value: Any, path: Sequence[str | int]) -> Any:
    """Returns what is at a path, or None."""
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value


def without_spans(text: str, spans: Iterable[Span] | Sequence[Sequence[int]]) -> str:
    """Returns a text without the characters of some spans, which do not overlap."""
    kept, position = [], 0
    for start, end in spans:
        kept.append(text[position:start])
        position = end
    return "".join([*kept, text[position:]])


def _ends_with_line_comment(text: str) -> bool:
    """Returns whether a line break at the end of a text ends a comment."""
    comments = list(_COMMENT.finditer(text))
    return (
        bool(comments)
        and comments[-1].group().startswith("//")
        and not text[comments[-1].end() :].strip(_BLANK)
    )
