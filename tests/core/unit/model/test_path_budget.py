"""The budget of the paths that an operation holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import ErrorCode, OperationFailed
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.store.store import Store


def test_a_small_result_does_not_look_at_the_store():
    def stored_bytes() -> int:
        raise AssertionError("the size of the store was asked for")

    budget = PathBudget(stored_bytes)
    for number in range(1000):
        budget.hold(b"%d" % number)


def test_a_larger_store_may_give_more_paths_and_is_measured_once():
    asked: list[int] = []

    def stored_bytes() -> int:
        asked.append(1)
        return 1 << 20

    budget = PathBudget(stored_bytes)
    for _ in range(60):
        budget.hold(b"p" * (1 << 19))
    budget.hold(b"p" * (1 << 22))
    budget.hold(b"p" * (1 << 22))
    budget.hold(b"p" * (1 << 22))
    with pytest.raises(OperationFailed) as caught:
        budget.hold(b"p" * (32 << 20))  # uses up what is free

    assert caught.value.code == ErrorCode.TOO_MANY_PATHS
    assert asked == [1]


def test_holes_of_a_pack_are_no_part_of_the_size(tmp_path):
    store = Store.open(LocalFileSystem(), str(tmp_path / "store"), create=True)
    packs = Path(store.path) / "packs"
    (packs / ("d" * 32)).write_bytes(b"x" * 4096)
    with (packs / ("e" * 32)).open("wb") as file:
        file.truncate(1 << 40)

    assert 0 < store.packs.allocated_bytes() < 1 << 20
