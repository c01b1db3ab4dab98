"""Parts of a record: what an operation on some paths concerns, and what it must leave alone."""

from __future__ import annotations

import os
from dataclasses import replace

import trees
from oracle import Facts, Record, without

Scope = tuple[bytes, ...] | None
"""Paths that an operation concerned, or None for the whole root."""


def is_inside(path: bytes, scope: Scope) -> bool:
    """Returns whether an operation with this scope concerns a path."""
    return scope is None or any(path == item or path.startswith(item + b"/") for item in scope)


def ancestors(scope: Scope) -> set[bytes]:
    """Returns the directories above the paths of a scope."""
    found = set()
    for path in scope or ():
        above = path
        while above:
            above = os.path.dirname(above)
            found.add(above)
    return found


def captured(state: Record) -> Record:
    """Returns what a snapshot holds of a state."""
    return without(state, *trees.LEFT_OUT)


def inside(state: Record, scope: Scope) -> Record:
    """Returns the part of a state that an operation with this scope concerns."""
    return relinked({path: facts for path, facts in state.items() if is_inside(path, scope)})


def outside(state: Record, scope: Scope) -> Record:
    """Returns the rest of a state; times of directories above the scope are free to change."""
    above = ancestors(scope)
    return relinked(
        {
            path: replace(facts, mtime_ns=0) if path in above else facts
            for path, facts in state.items()
            if not is_inside(path, scope)
        }
    )


def relinked(state: Record) -> Record:
    """Returns a part of a state with no hard links that leave it."""

    def names(facts: Facts) -> tuple[bytes, ...]:
        kept = tuple(path for path in facts.links if path in state)
        return kept if len(kept) > 1 else ()

    return {path: replace(facts, links=names(facts)) for path, facts in state.items()}


def common_scope(held: Scope, wanted: Scope) -> Scope:
    """Returns what both scopes concern."""
    if held is None or wanted is None:
        return wanted if held is None else held
    found = [path for path in wanted if is_inside(path, held)]
    found += [path for path in held if is_inside(path, wanted) and path not in found]
    return tuple(found)
