"""The roots that a store knows."""

from __future__ import annotations

import pytest

from treesnap.core.codec.root_files import HISTORY, HoldRecord, RestoreHistory
from treesnap.core.model.errors import Busy, Corrupt
from treesnap.core.store.roots import registered_roots
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem


@pytest.fixture
def root(store):
    root = store.root(b"/some/\xffwhere")
    root.register()
    return root


def test_a_registered_root_is_known_by_its_path(fs, store, root):
    assert registered_roots(fs, store.layout) == [b"/some/\xffwhere"]


def test_registering_again_changes_nothing(fs, store, root):
    root.register()

    assert registered_roots(fs, store.layout) == [b"/some/\xffwhere"]


def test_a_root_that_was_only_looked_at_is_not_known(fs, store):
    store.root(b"/elsewhere")

    assert registered_roots(fs, store.layout) == []


def test_a_damaged_record_is_left_out(fs, store, root):
    store.root(b"/good").register()
    with open(root.file("root"), "wb") as file:
        file.write(b"damaged")

    assert registered_roots(fs, store.layout) == [b"/good"]


def test_files_come_and_go(root):
    root.write("history", HISTORY, RestoreHistory())
    held = root.read("history", HISTORY)

    root.remove("history")

    assert held == RestoreHistory()
    assert root.read("history", HISTORY) is None


def test_a_damaged_file_is_named(root):
    root.write("history", HISTORY, RestoreHistory())
    with open(root.file("history"), "r+b") as file:
        file.seek(26)
        file.write(b"X")

    with pytest.raises(Corrupt, match="history"):
        root.read("history", HISTORY)


def test_the_lock_names_the_root(root):
    with root.locked("create", 0), pytest.raises(Busy, match="some"), root.locked("restore", 0):
        pass


@pytest.mark.parametrize("is_left", [False, True])
def test_a_process_that_lets_go_of_a_snapshot_during_a_look_was_not_killed(
    store_path, root, is_left
):
    """Else every command beside the end of a step would tell to go back to before it."""
    hold = root.hold("1" * 64, HoldRecord(7, "run", None))

    class Ending(WrappedFileSystem):
        def around(self, call: Call):
            if call.method == "lock" and call.path == hold.path:
                hold.close() if is_left else hold.release()
            return call.proceed()

    with Store.open(Ending(UnsyncedFileSystem()), store_path) as other:
        looked = other.root(root.path)
        assert bool(looked.dead_holds(looked.names())) == is_left
