"""Ids of plans and checkpoints: 26 characters that sort by the time they were made.

Made by the library `python-ulid`, whose only home this is; the specification is at
https://github.com/ulid/spec.
"""

from __future__ import annotations

_ALPHABET = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
LENGTH = 26


def new_ulid(now_ns: int) -> str:
    """Returns a new ULID for a time in nanoseconds since 1970."""
    from ulid import ULID

    return str(ULID.from_timestamp(now_ns // 1_000_000))


def is_ulid(text: str) -> bool:
    """Returns whether a text is a whole ULID in its canonical form."""
    return len(text) == LENGTH and not set(text) - _ALPHABET and text[0] in "01234567"


def may_begin_ulid(text: str) -> bool:
    """Returns whether a text can be the beginning of a ULID; letters of either case."""
    return 4 <= len(text) <= LENGTH and not set(text.upper()) - _ALPHABET
