"""The restores of a root: the journal of one under way, and the history for undo."""

from __future__ import annotations

from treesnap.codec.envelope import FileKind
from treesnap.codec.journal import Journal
from treesnap.codec.root_files import RestoreHistory, decode_history
from treesnap.errors import Corrupt, ErrorCode, printable
from treesnap.model import SnapshotId
from treesnap.store.roots import Root


def read_journal(root: Root) -> Journal | None:
    """Returns the journal of a root, or None when there is none.

    Raises Corrupt, also for a journal that was copied from another root: it would apply that
    root's metadata and files to this one.
    """
    from treesnap.codec.journal import decode_journal

    payload = root.read("journal", FileKind.JOURNAL)
    if payload is None:
        return None
    journal = decode_journal(payload)
    if journal.root_id != root.id:
        path = root.file("journal")
        raise Corrupt(
            f"The journal {printable(path)!r} of an interrupted restore is of another root",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=path,
        )
    return journal


def needed_snapshots(root: Root) -> frozenset[SnapshotId]:
    """Returns the snapshots without which an interrupted restore could not be finished."""
    journal = read_journal(root)
    commit = journal.commit if journal is not None else None
    return frozenset({commit.target_id, commit.safety_id} if commit is not None else ())


def load_history(root: Root) -> RestoreHistory:
    """Returns a root's restore history; an unreadable one counts as empty."""
    try:
        payload = root.read("history", FileKind.HISTORY)
        return decode_history(payload) if payload is not None else RestoreHistory()
    except Corrupt:
        return RestoreHistory()
