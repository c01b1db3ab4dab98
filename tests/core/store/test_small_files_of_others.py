"""Small files of a store that several processes write to at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treesnap.core.codec.root_files import HoldRecord
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy
from treesnap.core.ops.context import context_at
from treesnap.core.store.roots import LOCK_WAIT_S, locked_roots
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem


def handle_of(base: Path, **options: Any) -> Handle:
    defaults = {"fs": UnsyncedFileSystem(), "wait_s": 0.0}
    return Handle(context_at(base / "root", str(base / "store"), **defaults | options))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    handle_of(tmp_path).create(name="kept")
    return tmp_path


class BeforeRename(WrappedFileSystem):
    """Does something before a file gets a name."""

    def __init__(self, target: Path, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self.target, self.action = str(target), action

    def around(self, call: Call) -> Any:
        """Makes the call, after the action where it is its turn."""
        if call.method == "rename" and self.target in call.paths:
            self.target = ""
            self.action()
        return call.proceed()


def test_of_two_settings_that_are_changed_at_once_none_is_lost(base):
    said: list[str] = []

    def change() -> None:
        try:
            handle_of(base).config("keep.daily", "9")
        except Busy:
            said.append("busy")

    fs = BeforeRename(base / "store" / "config.toml", change)
    handle_of(base, fs=fs).config("keep.last", "8")

    assert said == ["busy"]
    assert handle_of(base).config("keep.last").settings[0].value == "8"


def test_the_list_of_roots_is_waited_for_no_longer_than_said(base):
    (base / "other").mkdir()
    store = Store(UnsyncedFileSystem(), str(base / "store"))
    with (
        locked_roots(store.fs, store.layout, LOCK_WAIT_S),
        pytest.raises(Busy, match="list of roots"),
    ):
        Handle(context_at(base / "other", store.path, wait_s=0.0)).create()


def test_two_holds_of_one_snapshot_are_two(base):
    """The end of one does not let the snapshot go that the other one needs."""
    store = Store(UnsyncedFileSystem(), str(base / "store"))
    root = store.root(os.fsencode(base / "root"))
    kept = handle_of(base).resolve("kept").id
    first = root.hold(kept, HoldRecord(1, "first", None))
    second = root.hold(kept, HoldRecord(2, "second", ()))

    assert {item.operation for item in root.holds()[kept] if item} == {"first", "second"}
    second.release()
    with pytest.raises(Busy):
        handle_of(base).delete("kept")
    first.release()
    handle_of(base).delete("kept")
