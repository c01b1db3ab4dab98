"""A restore shows which state it would replace, before it changes anything."""

from __future__ import annotations

import os
import shutil

import pytest

from state import tree_state
from treesnap.core.model.errors import Conflict
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore


def shown(handle, *paths: bytes) -> str:
    """Returns the identity of the state that a restore would replace."""
    states: list[str] = []
    restore(handle.context, RestoreRequest("first", paths, dry_run=True, approve=states.append))
    (state,) = states
    return state


@pytest.fixture
def first(handle, root):
    (root / "linked").write_bytes(b"linked")
    os.link(root / "linked", root / "other name")
    handle.create(name="first")
    return handle


def test_the_dry_run_and_the_restore_show_the_same_state(first, root):
    (root / "linked").write_bytes(b"changed")
    expected, states = shown(first), []

    restore(first.context, RestoreRequest("first", approve=states.append))

    assert states == [expected]


def test_whatever_changes_shows_another_state(first, root):
    states = [shown(first)]
    (root / "one").write_bytes(b"changed")
    states.append(shown(first))
    (root / "one").chmod(0o600)
    states.append(shown(first))
    (root / "other name").unlink()
    (root / "other name").write_bytes(b"linked")
    states.append(shown(first))
    shutil.rmtree(root)
    states.append(shown(first))

    assert len(set(states)) == len(states)


def test_what_is_outside_of_the_paths_does_not_count(first, root):
    before = shown(first, b"one")
    (root / "linked").write_bytes(b"changed")

    assert shown(first, b"one") == before


@pytest.mark.parametrize("is_absent", [False, True])
def test_a_restore_that_is_not_approved_leaves_everything(first, root, is_absent):
    (root / "one").write_bytes(b"changed")
    if is_absent:
        shutil.rmtree(root)
    tree = tree_state(root) if not is_absent else None
    snapshots = first.list()

    def refuse(state: str) -> None:
        raise Conflict(f"not {state}")

    with pytest.raises(Conflict, match="not "):
        restore(first.context, RestoreRequest("first", approve=refuse))

    assert root.exists() != is_absent
    assert is_absent or tree_state(root) == tree
    assert first.list() == snapshots
    assert first.doctor().unfinished == ()
