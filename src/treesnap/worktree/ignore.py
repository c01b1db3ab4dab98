"""Which names a capture leaves out: ``.snapignore`` files and given patterns.

Patterns have gitignore syntax and are relative to the directory of their file,
or to the root when they were given with the capture. A later pattern overrules
an earlier one and ``!`` takes names back in, except below a directory that is
itself left out. Other tools' ignore files mean nothing here. The only module
that imports pathspec, and only when there are patterns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from treesnap.errors import InvalidArgument
from treesnap.hashing import checksum
from treesnap.model import IgnoreRules
from treesnap.treepath import is_within

IGNORE_FILE = b".snapignore"
IGNORE_FILE_SIZE_MAX = 1 << 20
NO_RULES = b""


class Exclusions:
    """The rules in force in one directory; children add theirs with :meth:`entering`.

    Without ``heeds_files`` they cannot, and what ignore files say is nothing but content.
    """

    def __init__(self, rules: tuple[IgnoreRules, ...] = (), *, heeds_files: bool = True) -> None:
        self.rules = rules
        self._heeds_files = heeds_files
        self._specs: list[tuple[bytes, Any]] = []
        for rule in rules:
            self._specs.append((rule.directory, _compile(rule.patterns)))
        self.fingerprint = _fingerprint(rules) if rules else NO_RULES
        """Equal for equal rules; empty when there are none."""

    def __bool__(self) -> bool:
        return bool(self.rules)

    def entering(self, rule: IgnoreRules) -> Exclusions:
        """Returns these rules with those of one more directory."""
        if not rule.patterns or not self._heeds_files:
            return self
        return Exclusions((*self.rules, rule))

    def hides(self, path: bytes, *, is_directory: bool) -> bool:
        """Returns whether a path is left out. Its parents are known not to be.

        Rules of a snapshot may be of any directory, so each is asked for its own only.
        """
        hidden = False
        for directory, spec in self._specs:
            if not is_within(path, directory):
                continue
            relative = path[len(directory) + 1 :] if directory else path
            text = _on_one_line(os.fsdecode(relative)) + ("/" if is_directory else "")
            verdict = spec.check_file(text).include
            if verdict is not None:
                hidden = verdict
        return hidden


def _compile(patterns: Iterable[str]) -> Any:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(map(_on_one_line, patterns))
    except (ValueError, TypeError, re.error) as error:
        raise InvalidArgument(f"A pattern is not valid: {error}") from error


def _on_one_line(text: str) -> str:
    """Returns text with another character for newlines, which wildcards do not match.

    No name holds that character.
    """
    return text.replace("\n", "\0")


def _fingerprint(rules: tuple[IgnoreRules, ...]) -> bytes:
    text = repr([(rule.directory, rule.patterns) for rule in rules])
    return checksum(text.encode("utf-8", "surrogateescape"), 16)


def parse_patterns(data: bytes) -> tuple[str, ...]:
    """Returns the patterns in an ignore file, without blank lines and comments."""
    # Not splitlines(), which also cuts at characters that a name may hold.
    lines = data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    return tuple(line for line in lines if line.strip() and not line.startswith("#"))


def given(patterns: Iterable[str], directory: bytes = b"") -> tuple[IgnoreRules, ...]:
    """Returns rules for patterns that a caller gave; raises InvalidArgument for a bad one."""
    kept = tuple(patterns)
    if not kept:
        return ()
    _compile(kept)
    return (IgnoreRules(directory, kept),)
