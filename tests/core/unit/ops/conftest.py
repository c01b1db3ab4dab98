"""A root with a few files, its store, and a handle on both."""

from __future__ import annotations

import pytest

from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "directory").mkdir(parents=True)
    (root / "one").write_bytes(b"one")
    (root / "directory/two").write_bytes(b"two")
    return root


@pytest.fixture
def store_path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def make_handle(root, store_path):
    """Opens another handle on the same root and store, or on others."""

    def maker(**options) -> Handle:
        defaults = {
            "root": root,
            "store_path": str(store_path),
            "fs": UnsyncedFileSystem(),
            "wait_s": 0.0,
            "monitor": CollectingMonitor(),
        }
        return Handle(context_at(**(defaults | options)))

    return maker


@pytest.fixture
def handle(make_handle):
    return make_handle()


@pytest.fixture
def after(before, root):
    """The state that a restore begins with."""
    return tree_state(root)
