"""Exclusions as stored values.

Patterns are byte strings like the names that they stand for: not every one is UTF-8.
"""

from __future__ import annotations

from typing import Any

from treesnap.codec.message import require
from treesnap.errors import Corrupt, InvalidArgument
from treesnap.model import IgnoreRules
from treesnap.treepath import parse


def encode_rules(rules: tuple[IgnoreRules, ...]) -> tuple[Any, ...]:
    """Returns rules as arrays of a directory and its patterns."""
    return tuple(
        (
            rule.directory,
            tuple(pattern.encode("utf-8", "surrogateescape") for pattern in rule.patterns),
        )
        for rule in rules
    )


def decode_rules(value: tuple[Any, ...], what: str) -> tuple[IgnoreRules, ...]:
    """Returns stored rules, or raises Corrupt."""
    rules = []
    for item in value:
        require(
            type(item) is tuple
            and len(item) == 2
            and type(item[0]) is bytes
            and type(item[1]) is tuple
            and all(type(pattern) is bytes for pattern in item[1]),
            what,
            "its exclusions are no patterns",
        )
        try:
            patterns = tuple(pattern.decode("utf-8", "surrogateescape") for pattern in item[1])
            rules.append(IgnoreRules(parse(item[0]), patterns))
        except InvalidArgument as error:
            raise Corrupt(f"Stored {what} is not valid: {error}") from error
    return tuple(rules)
