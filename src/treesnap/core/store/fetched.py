"""Histories of other machines that were fetched from remotes: roots without a directory.

Such a root has a path that nothing can be at: in the store, below a directory that is never made,
``fetched/REMOTE/NAME/ID``. So its snapshots are listed, kept, checked and collected like any
others, and can be restored anywhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from treesnap.core.model.errors import ErrorCode, InvalidArgument, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.roots import Root, registered_records
from treesnap.core.store.store import Store

_DIRECTORY = "fetched"
_PATH = re.compile(rb".*/fetched/([^/]+)/([^/]+)/([0-9a-f]{32})\Z", re.DOTALL)


class FetchedHistory(NamedTuple):
    """A history of which the store has snapshots."""

    remote: str
    """Name of the remote that it was fetched from first."""
    name: str
    id: str
    path: bytes
    """Path of its root."""

    def is_meant_by(self, words: str) -> bool:
        """Returns whether words are its name, the part before the machine's, or begin its id."""
        return is_meant_by(words, self.name, self.id)


def is_meant_by(words: str, name: str, history_id: str) -> bool:
    """Returns whether words are a history's name, the part before ``@``, or begin its id."""
    return words in {name, name.partition("@")[0]} or (
        len(words) >= 4 and history_id.startswith(words)
    )


def name_and_ref(words: str) -> Iterator[tuple[str, str | None]]:
    """Yields what ``HISTORY[@REF]`` may mean: a name may have an ``@`` in it, and comes first."""
    yield words, None
    history, separator, ref = words.rpartition("@")
    if separator and history and ref:
        yield history, ref


def fetched_histories(store: Store) -> list[FetchedHistory]:
    """Returns the histories that were fetched, by path. Reads the records of all roots."""
    found = []
    for record in registered_records(store.fs, store.layout):
        history = history_at(record.path)
        if history is not None:
            found.append(history)
    return found


def history_at(path: bytes) -> FetchedHistory | None:
    """Returns the history that the root with a path is, or None for a directory's root."""
    match = _PATH.match(path)
    if match is None:
        return None
    remote, name, history_id = map(os.fsdecode, match.groups())
    return FetchedHistory(remote, name, history_id, path)


def fetched_root(store: Store, remote: str, name: str, history_id: str) -> Root:
    """Returns the root of a history, which may be new; it keeps the names that it had first."""
    for history in fetched_histories(store):
        if history.id == history_id:
            return store.root(history.path)
    parts = (store.path, _DIRECTORY, remote, printable(name).replace("/", "_") or "_", history_id)
    return store.root(os.fsencode("/".join(parts)))


def find_fetched(store: Store, ref: str) -> tuple[FetchedHistory, str | None] | None:
    """Returns the history that ``REMOTE/HISTORY[@REF]`` names, and the REF in it.

    Returns None where there is none; raises InvalidArgument where there are several.
    """
    remote, separator, words = ref.partition("/")
    if not separator:
        return None
    histories = [history for history in fetched_histories(store) if history.remote == remote]
    for name, inner in name_and_ref(words):
        found = [history for history in histories if history.is_meant_by(name)]
        if len(found) > 1:
            names = ", ".join(f"{history.name} ({history.id[:12]})" for history in found)
            raise InvalidArgument(
                f"Several histories are possible: {names}", code=ErrorCode.AMBIGUOUS_REF
            )
        if found:
            return found[0], inner
    return None
