"""The state of a path of an interrupted restore: pure, from three trees.

A path may have its old state, its new one, nothing at all (between two renames), or metadata of
both (between two calls that change it). Everything else is another process's change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from stat import S_ISGID, S_ISUID

from treesnap.core.diff.trees import differing, kind_of_change
from treesnap.core.fs.processes import may_give_owners
from treesnap.core.model.entries import ChangeKind, Entry, SkipReason, Xattrs
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.tree_state import State

_SET_IDS = (0, S_ISUID, S_ISGID, S_ISUID | S_ISGID)
"""Bits that a change of owner takes away, and that are not set where it is not permitted."""
_TIME_STEPS_NS = (100, 10**3, 10**6, 10**7, 10**9, 2 * 10**9)
"""How exact times may be that a file system keeps; it cuts off the rest."""
_USER = b"user."
"""Begins the extended attributes that a restore can set without privileges."""


class PathState(Enum):
    """What a path of an interrupted restore holds."""

    DONE = "the new state"
    OPEN = "the old state, or something on the way to the new one"
    CHANGED = "what another process put there"


def path_state(path: bytes, current: State, old: State, new: State, *, touch: bool) -> PathState:
    """Returns the state of a path in the current tree."""
    present, before, after = current.entry(path), old.entry(path), new.entry(path)
    if current.is_hidden(path):
        return PathState.CHANGED
    if present is None:
        return PathState.DONE if after is None else PathState.OPEN
    if present.is_skipped:
        unreadable = after is not None and after.mode & 0o400 == 0
        return PathState.DONE if unreadable else PathState.CHANGED
    is_new = after is not None and Comparison(current, new, touch).holds_same(present, after)
    is_old = before is not None and Comparison(current, old).holds_same(present, before)
    if not is_new and not is_old:
        return PathState.CHANGED
    possible = [
        (entry, state) for entry, state in ((before, old), (after, new)) if entry is not None
    ]
    if not _has_metadata_of(present, current, possible, touch=touch):
        return PathState.CHANGED
    is_done = is_new and after is not None and _is_equal(present, after, touch=touch)
    return PathState.DONE if is_done else PathState.OPEN


class Comparison(NamedTuple):
    """Compares entries of the tree as it was found with entries of the state that it should have.

    With ``touch`` the modification times of files are ignored.
    """

    found_in: State
    wanted_in: State
    touch: bool = False

    def holds_same(self, present: Entry, intended: Entry) -> bool:
        """Returns whether two entries hold the same, except for their own metadata.

        A directory is put and moved whole, with the metadata of all that is below it. So what
        differs there was set by another process.
        """
        return _has_content_of(present, intended) and all(
            self._is_same(mine, theirs)
            for mine, theirs in self._differences_below(present, intended)
        )

    def holds_no_more(self, present: Entry, intended: Entry) -> bool:
        """Returns whether all that one entry holds is in another, which may hold more.

        Compares metadata too, except permissions that moving and removing give directories.
        """
        pairs = [(present, intended), *self._differences_below(present, intended)]
        return _has_content_of(present, intended) and all(
            mine is None or self._is_same(_removable(mine, theirs), theirs)
            for mine, theirs in pairs
        )

    def _differences_below(
        self, present: Entry, intended: Entry
    ) -> Iterator[tuple[Entry | None, Entry | None]]:
        if present.is_directory and intended.is_directory:
            walks = self.found_in.trees.walk(), self.wanted_in.trees.walk()
            for path, mine, theirs in differing(
                present, intended, walks[0].entries, walks[1].entries
            ):
                if path:
                    yield mine, theirs

    def _is_same(self, present: Entry | None, intended: Entry | None) -> bool:
        """Returns whether a path has the content and the metadata of an entry; ignores children.

        What one side skipped is unknown, and left alone. But the restore does not make a readable
        file unreadable.
        """
        if present is None or intended is None:
            only = present or intended
            return only is None or only.is_skipped
        if present.is_skipped or intended.is_skipped:
            is_unreadable = present.is_skipped and present.skip_reason == SkipReason.UNREADABLE
            return intended.is_skipped or not (is_unreadable and intended.mode & 0o400)
        if not _has_content_of(present, intended):
            return False
        modes = {intended.mode} if may_give_owners() else _without_set_ids(intended.mode)
        is_time_known = self.touch or present.is_directory or _has_time_of(present, intended)
        return (
            present.mode in modes
            and is_time_known
            and _has_owner_of(present, [intended])
            and _has_attributes_of(present, self.found_in, [(intended, self.wanted_in)])
        )


def _has_content_of(present: Entry, intended: Entry) -> bool:
    """Returns whether two entries have the same kind and bytes; ignores children."""
    return kind_of_change(present, intended) in (None, ChangeKind.METADATA)


def _removable(present: Entry, intended: Entry | None) -> Entry:
    """Returns an entry without the permissions that moving or removing it may have given."""
    if intended is None or not present.is_directory or present.mode != intended.mode | 0o700:
        return present
    return present._replace(mode=intended.mode)


def _is_equal(present: Entry, intended: Entry, *, touch: bool) -> bool:
    """Returns whether nothing is left to do about an entry that holds the new state."""
    if present.is_directory:
        present = present._replace(content=intended.content)
    if touch or present.is_directory or _has_time_of(present, intended):
        present = present._replace(mtime_ns=intended.mtime_ns)
    return present[1:] == intended[1:]


def _has_metadata_of(
    present: Entry, state: State, possible: Sequence[tuple[Entry, State]], *, touch: bool
) -> bool:
    """Returns whether each field of the metadata is that of one of the possible entries.

    The time of a directory is ignored, as it changes with the names in it. A directory has
    write permission while it is moved, and so has a file that is changed in place while its
    attributes are set; what is put has its final metadata from the start.
    """
    entries = [entry for entry, _ in possible]
    is_in_place = len(entries) > 1 and _has_content_of(*entries)
    modes = set()
    for entry in entries:
        modes.add(entry.mode)
        if entry.is_directory:
            modes.add(entry.mode | 0o700)
        if is_in_place:
            modes.add(entry.mode | 0o200)
        if is_in_place or not may_give_owners():
            modes |= _without_set_ids(entry.mode)
    if present.mode not in modes:
        return False
    if not (touch or present.is_directory or any(_has_time_of(present, one) for one in entries)):
        return False
    return _has_owner_of(present, entries) and _has_attributes_of(present, state, possible)


def _without_set_ids(mode: int) -> set[int]:
    """Returns a mode, and the same without one or both of its set-user-ID and set-group-ID bits."""
    return {mode & ~bits for bits in _SET_IDS}


def _has_time_of(present: Entry, intended: Entry) -> bool:
    """Returns whether a time is the one that was set, as exact as a file system kept it."""
    set_ns = intended.mtime_ns
    return present.mtime_ns == set_ns or any(
        present.mtime_ns == set_ns // step_ns * step_ns for step_ns in _TIME_STEPS_NS
    )


def _has_owner_of(present: Entry, possible: Iterable[Entry]) -> bool:
    """Returns whether owner and group are known.

    They are ignored where a restore lacks the privileges to set them.
    """
    return not may_give_owners() or (
        present.uid in [entry.uid for entry in possible]
        and present.gid in [entry.gid for entry in possible]
    )


def _has_attributes_of(
    present: Entry, state: State, possible: Iterable[tuple[Entry, State]]
) -> bool:
    """Returns whether the extended attributes that a restore can set are known."""
    mine = _attributes(present, state)
    return any(mine == _attributes(entry, other) for entry, other in possible)


def _attributes(entry: Entry, state: State) -> Xattrs:
    if entry.xattrs is None:
        return ()
    xattrs = state.trees.xattrs(entry) or ()
    if may_give_owners():
        return xattrs
    return tuple((name, value) for name, value in xattrs if name.startswith(_USER))
