"""The collector's lock comes before the gate: who has it can close the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from capabilities import require
from garbage import pack_files
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.store.fence import collector_held
from treesnap.core.store.layout import Layout
from treesnap.core.store.lock import closed_gate
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

WAIT_S = 60.0


class Waiting(WrappedFileSystem):
    """Does something once, when a lock cannot be had."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self.action = action
        self.has_waited = False

    def around(self, call: Call):
        result = call.proceed()
        if call.method == "lock" and not result and not self.has_waited:
            self.has_waited = True
            self.action()
        return result


def repair(handle: Handle) -> None:
    handle.verify(read_data=True, repair=True)


COMMANDS: dict[str, Callable[[Handle, Path], object]] = {
    "gc": lambda handle, base: handle.gc(),
    "repair": lambda handle, base: repair(handle),
    "copy": lambda handle, base: handle.store_copy(base / "copy"),
    "move": lambda handle, base: handle.store_move(base / "elsewhere"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_process_that_waits_for_the_collectors_lock_is_not_inside_the_gate(tmp_path, name):
    if name == "move":
        require("exchange")
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    (root / "file").write_bytes(b"content" * 100)
    Handle(context_at(root, str(store), fs=UnsyncedFileSystem())).create(name="first")
    if name == "repair":
        (pack,) = pack_files(store)
        data = bytearray((store / "packs" / pack).read_bytes())
        data[data.index(b"TSBK") + 40] ^= 1
        (store / "packs" / pack).write_bytes(data)
    fs = LocalFileSystem()
    closed = []

    with ExitStack() as collector:
        collector.enter_context(
            collector_held(fs, Layout(str(store)), operation="test", wait_s=0.0)
        )

        def close() -> None:
            with closed_gate(fs, str(store), 0.0):
                closed.append(name)
            collector.close()

        handle = Handle(context_at(root, str(store), fs=Waiting(close), wait_s=WAIT_S))
        COMMANDS[name](handle, tmp_path)

    assert closed == [name]
