"""Which names a capture excludes: ``.snapignore`` files and given patterns.

Patterns have gitignore syntax and are relative to the directory of their file, or to the
root when they were given with the capture. A later pattern overrules an earlier one, and
``!`` includes names again, except below a directory that is itself excluded. Ignore files of
other tools have no effect. ``patterns`` decides what a pattern matches.

A pattern that can match nothing is ignored in a file, as git does, and refused where a caller
gives it. Rules that cannot be read exclude everything that they could exclude: see
:class:`UnreadableRules`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from stat import S_IFDIR, S_IFREG, S_ISDIR

from treesnap.core.model import treepath
from treesnap.core.model.entries import SkipReason
from treesnap.core.model.errors import InvalidArgument, printable, quoted
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import first_few
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.core.worktree.scan.patterns import Matcher, parse_lines, parse_pattern

IGNORE_FILE = b".snapignore"
IGNORE_FILE_SIZE_MAX = 1 << 20
RULES_SIZE_MAX = 16 << 20
"""The most bytes of all rules in force in one walk, which a snapshot's record has to hold."""
NO_RULES = b""
EVERYTHING = ("*",)
_LINES_NAMED_MAX = 3
_AFTER_GIVEN = sys.maxsize
"""The position of the rules of ignore files, which keep the order in which they are met."""


class UnreadableRules(OSError):
    """The ignore file of a directory cannot be read whole.

    It may exclude anything below the directory, and a restore must not touch what is excluded.
    So the directory counts as unreadable.
    """

    def __init__(self, directory: bytes, number: int, why: str) -> None:
        where = printable(treepath.join(directory, IGNORE_FILE))
        place = repr(printable(directory)) if directory else "the root"
        self.message: str = f"{quoted(where)} {why}, so nothing in {place} is captured or restored"
        super().__init__(number, self.message, os.fsdecode(directory))


class _Active(NamedTuple):
    """Rules in force, with their patterns parsed."""

    position: int
    rule: IgnoreRules
    matcher: Matcher


class Exclusions:
    """The rules in force in one directory.

    Given rules may belong to any directory and are in force there and below, see :meth:`at`.
    They come before those of ignore files, which :meth:`entering` adds. Without ``heeds_files``
    ignore files are only content.
    """

    def __init__(self, rules: Iterable[IgnoreRules] = (), *, heeds_files: bool = True) -> None:
        self._given: dict[bytes, list[tuple[int, IgnoreRules]]] = {}
        for position, rule in enumerate(rules):
            self._given.setdefault(rule.directory, []).append((position, rule))
        self.heeds_files = heeds_files
        self._active: list[_Active] = []

    @staticmethod
    def of_request(request: CaptureRequest) -> Exclusions:
        """Returns what a request leaves out: all that a walk decides by names and ``lstat``."""
        return Exclusions(request.rules, heeds_files=request.heeds_ignore_files)

    def __bool__(self) -> bool:
        return bool(self._active)

    @cached_property
    def rules(self) -> tuple[IgnoreRules, ...]:
        """The rules in force, in order."""
        return tuple(active.rule for active in self._active)

    @cached_property
    def fingerprint(self) -> bytes:
        """A value that is equal for equal rules in force; empty when there are none."""
        if not self:
            return NO_RULES
        text = repr([(rule.directory, rule.patterns) for rule in self.rules])
        return checksum(text.encode("utf-8", "surrogateescape"), 16)

    @staticmethod
    def of_all(directory: bytes) -> Exclusions:
        """Returns the rules for a directory that is excluded with everything in it."""
        return Exclusions([IgnoreRules(directory, EVERYTHING)], heeds_files=False)

    def are_given_for(self, directory: bytes) -> bool:
        """Returns whether rules were given for just this directory."""
        return directory in self._given

    def at(self, directory: bytes) -> Exclusions:
        """Returns these rules and those that were given for a directory."""
        given_here = self._given.get(directory)
        if given_here is None:
            return self
        new = [_Active(position, rule, _matcher(rule)) for position, rule in given_here]
        return self._with(sorted([*self._active, *new], key=lambda active: active.position))

    def entering(self, rule: IgnoreRules) -> Exclusions:
        """Returns these rules and those of an ignore file."""
        return self._with([*self._active, _Active(_AFTER_GIVEN, rule, _matcher(rule))])

    def _with(self, active: list[_Active]) -> Exclusions:
        exclusions = Exclusions(heeds_files=self.heeds_files)
        exclusions._given = self._given
        exclusions._active = active
        return exclusions

    def hides(self, path: bytes) -> bool:
        """Returns whether a file of the root that these are given for is excluded.

        So it is if a directory above it is.
        """
        here, directory = self, treepath.ROOT
        names = treepath.components(path)
        for depth, name in enumerate(names, 1):
            here = here.at(directory)
            mode = S_IFDIR if depth < len(names) else S_IFREG
            if here and here.names_in(directory)(name, mode):
                return True
            directory = treepath.join(directory, name)
        return False

    def names_in(self, directory: bytes) -> Callable[[bytes, int], bool]:
        """Returns a function that tells by name and mode whether a directory's name is excluded.

        All rules in force belong to the directory or to one above it, and none of these
        directories is excluded itself.
        """
        asked = []
        for active in reversed(self._active):
            top = active.rule.directory
            below = directory[len(top) + 1 :] if top else directory
            asked.append((active.matcher.verdict, below + b"/" if below else b""))

        def hides(name: bytes, mode: int) -> bool:
            is_directory = S_ISDIR(mode)
            for verdict, prefix in asked:
                is_hidden = verdict(name, prefix + name, is_directory=is_directory)
                if is_hidden is not None:
                    return is_hidden
            return False

        return hides

    def reasons_in(self, directory: bytes) -> Callable[[bytes, int, int], SkipReason | None]:
        """Returns a function that says why a directory's name is left out, or None.

        It is given the name, and the mode and size that ``lstat`` tells, or 0 where it fails. It
        is asked only where there are exclusions, see ``__bool__``.
        """
        hides = self.names_in(directory)

        def reason(name: bytes, mode: int, _size_bytes: int) -> SkipReason | None:
            return SkipReason.EXCLUDED if hides(name, mode) else None

        return reason


def _matcher(rule: IgnoreRules) -> Matcher:
    return Matcher(text.encode("utf-8", "surrogateescape") for text in rule.patterns)


def size_of(rule: IgnoreRules) -> int:
    """Returns an upper bound, close to the real size, of the bytes that rules take in a record."""
    patterns = "".join(rule.patterns).encode("utf-8", "surrogateescape")
    return len(rule.directory) + 16 + len(patterns) + 5 * len(rule.patterns)


def parse_ignore_file(directory: bytes, data: bytes) -> tuple[IgnoreRules, str | None]:
    """Returns the rules in an ignore file, and a message about lines that can match nothing."""
    patterns, useless = parse_lines(data)
    texts = tuple(line.decode("utf-8", "surrogateescape") for line in patterns)
    rule = IgnoreRules(directory, texts)
    if not useless:
        return rule, None
    where = printable(treepath.join(directory, IGNORE_FILE))
    named = first_few(useless, lambda item: f"line {item[0]} ({quoted(item[1])})", _LINES_NAMED_MAX)
    return rule, f"Ignored in {quoted(where)}, because it can match nothing: {named}"


def given(patterns: Iterable[str], directory: bytes = b"") -> tuple[IgnoreRules, ...]:
    """Returns rules for patterns that a caller gave.

    Raises InvalidArgument for one that is not a text or can match nothing, because nothing else
    would point out the mistake. The syntax is that of an ignore file, except that trailing spaces
    and a ``#`` at the beginning are literal.
    """
    if isinstance(patterns, str | bytes):
        raise InvalidArgument("Patterns are a list of texts, not one text")
    kept = tuple(patterns)
    for text in kept:
        if not isinstance(text, str):
            raise InvalidArgument(f"A pattern is a text, not {type(text).__name__}")
        try:
            encoded = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidArgument(f"The pattern {text!a} is not UTF-8") from None
        if parse_pattern(encoded) is None:
            raise InvalidArgument(f"The pattern {quoted(text)} can match nothing")
    rules = (IgnoreRules(directory, kept),) if kept else ()
    if sum(map(size_of, rules)) > RULES_SIZE_MAX:
        raise InvalidArgument("The patterns are too long")
    return rules
