"""Where a path of an interrupted restore stands: pure, from three trees.

A path may have its old state, its new one, nothing at all (between two renames),
or metadata of both (between two calls that change it). Everything else is somebody
else's change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum

from treesnap.compare import changes, kind_of_change
from treesnap.model import ChangeKind, Entry
from treesnap.ops.state import State

_SET_IDS = 0o6000
"""Bits that a change of owner takes away."""


class Standing(Enum):
    """What a path of an interrupted restore holds."""

    DONE = "the new state"
    OPEN = "the old state, or something on the way to the new one"
    CHANGED = "what somebody else put there"


def standing_of(
    found: Entry | None, current: State, path: bytes, old: State, new: State, *, touch: bool
) -> Standing:
    """Returns where a path stands that has ``found`` in the current state."""
    after = new.entry(path)
    if current.is_hidden(path):
        return Standing.CHANGED
    if found is None:
        return Standing.DONE if after is None else Standing.OPEN
    if found.is_skipped:
        unreadable = after is not None and after.mode & 0o400 == 0
        return Standing.DONE if unreadable else Standing.CHANGED
    before = old.entry(path)
    is_new = after is not None and holds_same(found, current, after, new)
    is_old = before is not None and holds_same(found, current, before, old)
    if not is_new and not is_old:
        return Standing.CHANGED
    possible = [entry for entry in (before, after) if entry is not None]
    if not _has_metadata_of(found, possible, touch=touch):
        return Standing.CHANGED
    is_done = is_new and after is not None and _is_equal(found, after, touch=touch)
    return Standing.DONE if is_done else Standing.OPEN


def holds_same(found: Entry, state: State, wanted: Entry, other: State) -> bool:
    """Returns whether two entries of two states have the same content, metadata aside."""
    if kind_of_change(found, wanted) not in (None, ChangeKind.METADATA):
        return False
    if not found.is_directory or found.content == wanted.content:
        return True
    below = changes(found, wanted, state.trees.entries, other.trees.entries)
    return all(change.change == ChangeKind.METADATA for change in below)


def holds_no_more(found: Entry, state: State, wanted: Entry, other: State) -> bool:
    """Returns whether all content of one entry is in another, which may hold more."""
    if kind_of_change(found, wanted) not in (None, ChangeKind.METADATA):
        return False
    if not found.is_directory or found.content == wanted.content:
        return True
    below = changes(found, wanted, state.trees.entries, other.trees.entries)
    return all(change.change in (ChangeKind.METADATA, ChangeKind.ADDED) for change in below)


def _is_equal(found: Entry, wanted: Entry, *, touch: bool) -> bool:
    """Returns whether nothing is left to do about an entry."""
    if touch or found.is_directory:
        found = found._replace(mtime_ns=wanted.mtime_ns)
    return found[1:] == wanted[1:]


def _has_metadata_of(found: Entry, possible: Iterable[Entry], *, touch: bool) -> bool:
    """Returns whether all metadata is of one of the possible entries, each field on its own.

    The time of a directory says nothing, as it changes with the names in it. Owners
    and attributes say nothing where they could not be restored for want of privileges.
    """
    modes = set()
    for entry in possible:
        writable = 0o700 if entry.is_directory else 0o200
        modes |= {entry.mode, entry.mode & ~_SET_IDS, entry.mode | writable}
    if found.mode not in modes:
        return False
    times = {entry.mtime_ns for entry in possible}
    if not (touch or found.is_directory) and found.mtime_ns not in times:
        return False
    if os.geteuid() != 0:
        return True
    return all(
        getattr(found, name) in [getattr(entry, name) for entry in possible]
        for name in ("uid", "gid", "xattrs")
    )
