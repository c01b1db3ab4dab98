"""The table that watches all tests finds who takes something from a store without its lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenced import problem_of
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.store.layout import Layout
from treesnap.core.store.lock import held
from treesnap.core.store.writer_slot import acquire
from world import World


@pytest.fixture
def store(tmp_path) -> Path:
    """A store with two snapshots, in which no process is at work."""
    return World(tmp_path).store


def one_of(store: Path, pattern: str) -> str:
    """Returns the first path that fits a pattern."""
    return str(min(store.glob(pattern)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "pattern",
    ["packs/*", "snapshots/*/*", "collector/state", "format", "roots/*/history", "roots/*/root"],
)
def test_what_others_rely_on_needs_a_lock(store, pattern):
    (store / "collector" / "state").touch()

    assert problem_of("unlink", one_of(store, pattern)) is not None


def test_a_snapshot_goes_under_the_lock_of_its_root(store):
    snapshot, lock = one_of(store, "snapshots/*/*"), one_of(store, "roots/*/lock")
    with held(LocalFileSystem(), lock, operation="test", what="The root", wait_s=0.0):
        assert problem_of("unlink", snapshot) is None
    assert problem_of("unlink", snapshot) is not None


def test_a_pack_that_is_not_condemned_stays_in_every_collection(store):
    fs, lock = LocalFileSystem(), Layout(str(store)).collector_lock
    with held(fs, lock, operation="test", what="The collector", wait_s=0.0):
        assert problem_of("unlink", one_of(store, "packs/*")) is not None


def test_a_writer_may_shorten_its_pack_and_not_remove_it(store):
    slot = acquire(LocalFileSystem(), Layout(str(store)))

    assert problem_of("truncate", one_of(store, "packs/*")) is None
    assert problem_of("unlink", one_of(store, "packs/*")) is not None
    slot.release()


def test_a_file_that_the_table_does_not_know_needs_a_row(store):
    assert problem_of("rename", str(store / "roots" / "new")) is not None
    assert problem_of("rename", str(store / "something")) is not None


def test_hints_and_files_outside_of_stores_are_free(store):
    assert problem_of("unlink", one_of(store, "index/*")) is None
    assert problem_of("unlink", str(store.parent / "root" / "packs" / "text")) is None
