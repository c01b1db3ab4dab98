"""A new store, and helpers that put objects and snapshots into it."""

from __future__ import annotations

import pytest

from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Totals
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.testing.doubles import UnsyncedFileSystem

ROOT_ID = "0" * 32


@pytest.fixture
def fs() -> LocalFileSystem:
    return UnsyncedFileSystem()


@pytest.fixture
def store_path(tmp_path):
    return str(tmp_path / "store")


@pytest.fixture
def open_store(fs, store_path):
    """Opens the store again, with nothing in memory."""
    opened = []

    def opener(**options) -> Store:
        store = Store.open(fs, store_path, create=True, **options)
        opened.append(store)
        return store

    yield opener
    for store in opened:
        store.__exit__(None, None, None)


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def put(open_store):
    """Stores chunks in a session of their own; returns their ids."""

    def putter(*chunks: bytes) -> list[ObjectId]:
        with Writer(open_store()) as writer:
            ids = [writer.put(ObjectKind.CHUNK, chunk) for chunk in chunks]
            writer.flush()
            return ids

    return putter


@pytest.fixture
def record_of():
    """Returns a snapshot record of a root tree."""

    def maker(tree_id: ObjectId, number: int = 0) -> SnapshotRecord:
        return SnapshotRecord(
            root=Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, tree_id, None),
            links=None,
            root_path=b"/somewhere",
            created_at_ns=number,
            totals=Totals(),
        )

    return maker
