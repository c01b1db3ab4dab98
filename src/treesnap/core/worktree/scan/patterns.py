"""Patterns in gitignore syntax: what each one matches, decided as git decides it.

A pattern is bytes, like the names that it is matched against. It is parsed into
tokens: one byte out of a set, a star within a component, or a ``**`` across components.
Most patterns are a literal name, or a star and a literal ending; these are looked up in
tables. The others become regular expressions that do not backtrack: the text between two
stars is matched at its first occurrence and stays there (an atomic group). No match is
lost, because a star takes whatever follows. So the time to match a path is bounded by its
length times the length of the patterns.

Names and paths are relative to the directory of the patterns. A directory that is left out
is not entered, so patterns are never asked about what is below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import re

_SLASH: Final = ord("/")
_STAR: Final = ord("*")
_BACKSLASH: Final = ord("\\")
_SPECIAL: Final = LateRegex(rb"[*?[\\]")
_ANY: Final = frozenset(range(1, 256)) - {_SLASH}
_ALL: Final = frozenset(range(256))
_NONE: Final[frozenset[int]] = frozenset()
_SINGLE: Final = [frozenset((byte,)) for byte in range(256)]
_SLASHES: Final = _SINGLE[_SLASH]
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_GROUP_COUNT_MAX: Final = 64
"""The most patterns in one regular expression."""
_GROUP_SIZE_MAX: Final = 4096
"""A pattern that matches only longer paths has a regular expression of its own."""


def _span(first: int, last: int) -> frozenset[int]:
    return frozenset(range(first, last + 1))


_LOWER, _UPPER, _DIGIT = _span(97, 122), _span(65, 90), _span(48, 57)
_GRAPH = _span(33, 126)
_CLASSES: Final = {
    b"alnum": _LOWER | _UPPER | _DIGIT,
    b"alpha": _LOWER | _UPPER,
    b"blank": frozenset(b" \t"),
    b"cntrl": _span(1, 31) | {127},
    b"digit": _DIGIT,
    b"graph": _GRAPH,
    b"lower": _LOWER,
    b"print": _GRAPH | {32},
    b"punct": _GRAPH - _LOWER - _UPPER - _DIGIT,
    b"space": frozenset(b" \t\n\r"),  # git's own: neither form feed nor vertical tab
    b"upper": _UPPER,
    b"xdigit": _DIGIT | frozenset(b"abcdefABCDEF"),
}


class Wildcard(Enum):
    """What matches any number of bytes."""

    STAR = 1
    """Any bytes of one component."""
    COMPONENTS = 2
    """Any number of components, each with its slash."""
    SOME_COMPONENTS = 3
    """At least one component, each with its slash."""
    REST = 4
    """Anything, to the end of the path."""


Token = frozenset[int] | Wildcard
"""One byte out of a set, or a wildcard."""
_CROSSING: Final = {_SLASHES, *Wildcard} - {Wildcard.STAR}
"""What matches a slash."""
_REPEATS: Final = {Wildcard.COMPONENTS: b"*?", Wildcard.SOME_COMPONENTS: b"+?"}


class Pattern(NamedTuple):
    """One pattern that can match something."""

    tokens: tuple[Token, ...]
    literal: bytes | None
    """The only name or path that it matches, or None when it matches several."""
    includes: bool
    """Whether it includes what an earlier pattern excludes."""
    is_for_directories: bool
    """Whether it matches directories only."""
    is_for_names: bool
    """Whether it is matched against the last component alone, in any directory."""

    @property
    def size(self) -> int:
        """The length of the shortest path that it matches."""
        return sum(not isinstance(token, Wildcard) for token in self.tokens)


def _literal(tokens: Sequence[Token]) -> bytes | None:
    """Returns the only text that tokens match, or None when they match several."""
    sets = [token for token in tokens if isinstance(token, frozenset) and len(token) == 1]
    return bytes(byte for (byte,) in sets) if len(sets) == len(tokens) else None


def parse_pattern(text: bytes) -> Pattern | None:
    """Returns the pattern in a line, or None when it can match nothing."""
    if b"\0" in text:  # no name contains it
        return None
    includes = text.startswith(b"!")
    text = text[1:] if includes else text
    is_for_directories = text.endswith(b"/")
    text = text[:-1] if is_for_directories else text
    is_for_names = b"/" not in text
    if text.startswith(b"/"):
        text = text[1:]
    special = _SPECIAL.compiled.search(text)
    if special is None:
        if not text or text.endswith(b"/"):
            return None
        return Pattern((), text, includes, is_for_directories, is_for_names)
    tokens = _tokens(text, special.start(), crosses=not is_for_names)
    if not tokens or _NONE in tokens or tokens[-1] == _SLASHES or tokens == [Wildcard.COMPONENTS]:
        return None
    if tokens[0] is Wildcard.COMPONENTS and _CROSSING.isdisjoint(tokens[1:]):
        is_for_names = True
        del tokens[0]
    literal = _literal(tokens)
    return Pattern(tuple(tokens), literal, includes, is_for_directories, is_for_names)


def _tokens(text: bytes, start: int, *, crosses: bool) -> list[Token] | None:
    """Returns the tokens of a pattern, or None when it is incomplete.

    ``**`` crosses slashes where it is a whole component. Git compares the bytes before the
    first special character separately, so it treats the rest, from ``start``, as the
    beginning of a component.
    """
    tokens: list[Token] = []
    position, end = 0, len(text)
    while position < end:
        byte = text[position]
        first, position = position, position + 1
        if byte == _STAR:
            while position < end and text[position] == _STAR:
                position += 1
            is_deep = crosses and position - first > 1
            is_deep = is_deep and (first == start or text[first - 1] == _SLASH)
            after = text[position : position + 2]
            if is_deep and not after:
                tokens.append(Wildcard.REST)
            elif is_deep and after[0] == _SLASH:
                tokens.append(Wildcard.COMPONENTS)
                position += 1
            elif is_deep and after == b"\\/":
                tokens.append(Wildcard.SOME_COMPONENTS)
                position += 2
            else:
                tokens.append(Wildcard.STAR)
        elif byte == ord("?"):
            tokens.append(_ANY)
        elif byte == ord("["):
            bracket = _bracket(text, position)
            if bracket is None:
                return None
            token, position = bracket
            tokens.append(token)
        else:
            if byte == _BACKSLASH:
                if position == end:
                    return None
                byte = text[position]
                position += 1
            tokens.append(_SINGLE[byte])
    return tokens


def _bracket(text: bytes, position: int) -> tuple[frozenset[int], int] | None:
    """Returns the bytes that ``[...]`` matches, and where it ends; None when it is incomplete.

    ``position`` is after the opening bracket. A closing bracket that comes first is literal.
    """
    end = len(text)
    is_negated = text[position : position + 1] in (b"!", b"^")
    position += is_negated
    matched: set[int] = set()
    before: int | None = None
    is_first = True
    while position < end and (is_first or text[position] != ord("]")):
        is_first = False
        byte: int | None = text[position]
        if byte == _BACKSLASH:
            position += 1
            if position == end:
                return None
            byte = text[position]
            matched.add(byte)
        elif (
            byte == ord("-")
            and before is not None
            and text[position + 1 : position + 2] not in (b"", b"]")
        ):
            position += 1
            last = text[position]
            if last == _BACKSLASH:
                position += 1
                if position == end:
                    return None
                last = text[position]
            matched |= _span(before, last)
            byte = None
        elif text.startswith(b"[:", position):
            closing = text.find(b"]", position + 2)
            if closing < 0:
                return None
            if closing > position + 2 and text[closing - 1] == ord(":"):
                name = text[position + 2 : closing - 1]
                if name not in _CLASSES:
                    return None
                matched |= _CLASSES[name]
                position = closing
                byte = None
            else:
                matched.add(ord("["))
        else:
            assert byte is not None
            matched.add(byte)
        before = byte
        position += 1
    if position >= end:
        return None
    return (_ANY - matched if is_negated else _ANY & matched), position + 1


def parse_lines(data: bytes) -> tuple[tuple[bytes, ...], tuple[tuple[int, bytes], ...]]:
    """Returns the patterns in a file, and each line that can match nothing with its number.

    Blank lines and comments are neither. The first line is number 1.
    """
    patterns: list[bytes] = []
    useless: list[tuple[int, bytes]] = []
    for number, whole in enumerate(data.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), 1):
        line = whole.removesuffix(b"\r")
        if not line or line.startswith(b"#"):
            continue
        line = _trimmed(line.partition(b"\0")[0])
        if not line:
            continue
        if parse_pattern(line) is None:
            useless.append((number, line))
        else:
            patterns.append(line)
    return tuple(patterns), tuple(useless)


def _trimmed(line: bytes) -> bytes:
    """Returns a line without trailing spaces, except one that a backslash escapes."""
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return line[: len(kept) + 1] if backslashes % 2 else kept


class Matcher:
    """The patterns of one directory; the last one that matches decides."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        """Parses the patterns; those that can match nothing are ignored."""
        parsed = [rule for text in patterns if (rule := parse_pattern(text)) is not None]
        self._includes = [pattern.includes for pattern in parsed]
        self._for_directories = _Table(list(enumerate(parsed)))
        others = [item for item in enumerate(parsed) if not item[1].is_for_directories]
        self._for_others = _Table(others) if len(others) < len(parsed) else self._for_directories

    def verdict(self, name: bytes, path: bytes, *, is_directory: bool) -> bool | None:
        """Returns whether a path is excluded (True) or included again (False); None if neither.

        ``path`` is relative to the directory of the patterns, and ends in ``name``.
        """
        last = (self._for_directories if is_directory else self._for_others).last(name, path)
        return None if last < 0 else not self._includes[last]


class _Table:
    """Numbered patterns, grouped by how they are matched."""

    def __init__(self, patterns: Sequence[tuple[int, Pattern]]) -> None:
        self._any = -1
        """The last pattern that matches everything."""
        self._names: dict[bytes, int] = {}
        self._paths: dict[bytes, int] = {}
        endings: dict[int, dict[bytes, int]] = {}
        globs: list[tuple[int, Pattern]] = []
        for number, pattern in patterns:
            if pattern.literal is not None:
                table = self._names if pattern.is_for_names else self._paths
                table[pattern.literal] = number
                continue
            starts_with_star = pattern.is_for_names and pattern.tokens[0] is Wildcard.STAR
            literal = _literal(pattern.tokens[1:]) if starts_with_star else None
            if literal is None:
                globs.append((number, pattern))
            elif literal:
                endings.setdefault(len(literal), {})[literal] = number
            else:
                self._any = number
        self._endings = list(endings.items())
        self._name_groups = list(_groups(item for item in globs if item[1].is_for_names))
        self._path_groups = list(_groups(item for item in globs if not item[1].is_for_names))

    def last(self, name: bytes, path: bytes) -> int:
        """Returns the number of the last pattern that matches, or -1."""
        last = self._names.get(name, -1)
        last = max(last, self._any)
        for size, endings in self._endings:
            number = endings.get(name[-size:], -1)
            last = max(last, number)
        if self._paths:
            last = max(last, self._paths.get(path, -1))
        for group in self._name_groups:
            last = group.last(name, last)
        for group in self._path_groups:
            last = group.last(path, last)
        return last


class _Group:
    """Numbered patterns in one regular expression, compiled when it is first needed."""

    def __init__(self, patterns: list[tuple[int, Pattern]]) -> None:
        self._patterns = patterns[::-1]
        self._last = patterns[-1][0]
        self._size_min = min(pattern.size for _, pattern in patterns)
        self._expression: re.Pattern[bytes] | None = None

    def last(self, text: bytes, last: int) -> int:
        """Returns the number of the last pattern that matches, or ``last`` if that is higher."""
        if self._last < last or len(text) < self._size_min:
            return last
        if self._expression is None:
            branches = (b"(" + expression(pattern.tokens) + b")" for _, pattern in self._patterns)
            import re

            self._expression = re.compile(b"|".join(branches))
        match = self._expression.match(text)
        if match is None:
            return last
        assert match.lastindex is not None
        return max(last, self._patterns[match.lastindex - 1][0])


def _groups(patterns: Iterable[tuple[int, Pattern]]) -> Iterator[_Group]:
    """Yields all patterns in groups; a long one, which can match few paths, is alone in its."""
    group: list[tuple[int, Pattern]] = []
    for item in patterns:
        if item[1].size > _GROUP_SIZE_MAX:
            yield _Group([item])
            continue
        group.append(item)
        if len(group) == _GROUP_COUNT_MAX:
            yield _Group(group)
            group = []
    if group:
        yield _Group(group)


def expression(tokens: Sequence[Token]) -> bytes:
    """Returns a regular expression for a whole name or path.

    The text between two stars has one length, and between two ``**`` one number of components.
    Each is matched at its first occurrence, in an atomic group. So repetitions are not nested,
    and a match that fails does not try an earlier occurrence again.
    """
    parts: list[list[Token]] = [[]]
    repeats: list[bytes] = []
    end = b"\\Z"
    for token in tokens:
        if token is Wildcard.REST:
            end = b""
        elif isinstance(token, Wildcard) and token in _REPEATS:
            repeats.append(_REPEATS[token])
            parts.append([])
        else:
            parts[-1].append(token)
    made = [_components(part) for part in parts]
    made[-1] += end
    for number, repeat in enumerate(repeats, 1):
        made[number] = b"(?>(?:[^/]*/)" + repeat + made[number] + b")"
    return b"".join(made)


def _components(tokens: Sequence[Token]) -> bytes:
    """Returns an expression for tokens that match a fixed number of slashes."""
    components: list[list[Token]] = [[]]
    for token in tokens:
        if token == _SLASHES:
            components.append([])
        else:
            components[-1].append(token)
    return b"/".join(map(_component, components))


def _component(tokens: Sequence[Token]) -> bytes:
    """Returns an expression for tokens within one component.

    What follows the last star ends the component, so it is matched from the end.
    """
    pieces = [b""]
    for token in tokens:
        if isinstance(token, Wildcard):
            pieces.append(b"")
        else:
            pieces[-1] += _one_of(token)
    made = [pieces[0]]
    made += [b"(?>[^/]*?" + piece + b")" for piece in pieces[1:-1]]
    made += [b"(?>[^/]*" + piece + b"(?![^/]))" for piece in pieces[1:][-1:]]
    return b"".join(made)


@lru_cache(1024)
def _one_of(token: frozenset[int]) -> bytes:
    """Returns an expression for one byte out of a set; short, because compiling takes its length.

    ``[!a]`` is all bytes but a few: named one by one, it would be two hundred times as long.
    """
    if token == _ANY:
        return b"[^/]"
    if len(token) == 1:
        return b"\\x%02x" % next(iter(token))
    is_most = len(token) > len(_ANY) // 2
    parts = _ranges(_ALL - token if is_most else token)
    return (b"[^" if is_most else b"[") + b"".join(parts) + b"]"


def _ranges(values: frozenset[int]) -> Iterator[bytes]:
    for first in sorted(value for value in values if value - 1 not in values):
        last = first
        while last + 1 in values:
            last += 1
        yield b"\\x%02x" % first if first == last else b"\\x%02x-\\x%02x" % (first, last)
