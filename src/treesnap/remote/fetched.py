"""Histories of other machines that were fetched from remotes: which REFs name them.

Each is a root of the store whose path says so, :func:`treesnap.core.store.roots.history_at`. So its
snapshots are listed, kept, checked and collected like any others, and can be restored anywhere
else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from treesnap.core.model.errors import ErrorCode, InvalidArgument, printable
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session
from treesnap.core.ops.references import Filter, resolve_in
from treesnap.core.store.roots import FetchedHistory, Root, history_at, registered_records
from treesnap.core.store.store import Store


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
    records = registered_records(store.fs, store.layout)
    return [history for record in records if (history := history_at(record.path)) is not None]


def fetched_root(store: Store, remote: str, name: str, history_id: str) -> Root:
    """Returns the root of a history of a remote, which may be new; it keeps its first name.

    Another remote may say that it has a history with the same id, as the copy of a sandbox does:
    its snapshots must not be taken for those of this one.
    """
    for history in fetched_histories(store):
        if (history.remote, history.id) == (remote, history_id):
            return store.root(history.path)
    above = f"{store.path}/fetched/{remote}"
    path = f"{above}/{printable(name).replace('/', '_') or '_'}/{history_id}"
    return store.root(os.fsencode(path))


def find_fetched(
    session: Session, ref: str, criteria: Filter, paths: Sequence[bytes]
) -> Snapshot | None:
    """Returns the snapshot that ``REMOTE/HISTORY[@REF]`` names, or None where there is no history.

    Raises InvalidArgument where there are several, and what resolving the REF in it raises.
    """
    remote, _, words = ref.partition("/")
    histories = [
        each
        for each in fetched_histories(session.store)
        if each.remote == remote and session.reaches(session.store.root(each.path).id)
    ]
    for name, inner in name_and_ref(words):
        matches = [each for each in histories if is_meant_by(name, each.name, each.id)]
        if len(matches) > 1:
            names = ", ".join(f"{history.name} ({history.id[:12]})" for history in matches)
            raise InvalidArgument(
                f"Several histories are possible: {names}", code=ErrorCode.AMBIGUOUS_REF
            )
        if matches:
            there = session._replace(root=session.store.root(matches[0].path))
            return resolve_in(there, inner or "latest", criteria=criteria, paths=paths)
    return None
