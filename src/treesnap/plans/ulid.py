"""Ids of plans and checkpoints: 26 characters that sort in the order in which they were made.

Made by the library `python-ulid`, whose only home this is; the specification is at
https://github.com/ulid/spec.
"""

from __future__ import annotations

_ALPHABET = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
LENGTH = 26
_TIME_MS_MAX = (1 << 48) - 1


def new_ulid(now_ns: int, after: str | None = None) -> str:
    """Returns a new ULID for a time in nanoseconds since 1970.

    It sorts behind ``after``, though the clock may have been put back since that was made.
    """
    from ulid import ULID

    earliest_ms = ULID.from_str(after).milliseconds + 1 if after is not None else 0
    now_ms = max(now_ns // 1_000_000, earliest_ms)
    return str(ULID.from_timestamp(min(now_ms, _TIME_MS_MAX)))


def is_ulid(text: str) -> bool:
    """Returns whether a text is a whole ULID in its canonical form."""
    return len(text) == LENGTH and not set(text) - _ALPHABET and text[0] in "01234567"


def may_begin_ulid(text: str) -> bool:
    """Returns whether a text can be the beginning of a ULID; letters of either case."""
    return 4 <= len(text) <= LENGTH and not set(text.upper()) - _ALPHABET
