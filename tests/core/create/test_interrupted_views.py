"""An interruption while views of files are alive is what the caller gets, not a BufferError."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import treesnap

pytestmark = pytest.mark.sampled(3)


def interrupted_at(number: int, action: Callable[[], object]) -> bool:
    """Does something; interrupts it at the n-th call of a function that holds a view.

    Returns whether there were so many.
    """
    left = number

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        if event == "call" and any(type(item) is memoryview for item in frame.f_locals.values()):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def verify(handle: treesnap.Handle) -> None:
    assert handle.verify(read_data=True).ok


def create(handle: treesnap.Handle) -> None:
    Path(handle.root, "new").write_bytes(os.urandom(64))
    handle.create()


def restore(handle: treesnap.Handle) -> None:
    Path(handle.root, "file").write_bytes(os.urandom(64))
    handle.restore("latest~1")


def status(handle: treesnap.Handle) -> None:
    Path(handle.root, "file").write_bytes(os.urandom(64))
    handle.status()


def test_nothing_closes_what_a_view_may_still_show():
    """What an interrupted frame holds of a mapping makes closing it a BufferError."""
    source = Path(treesnap.__file__).parent
    found = [
        f"{path.relative_to(source)}:{node.lineno}"
        for path in source.rglob("*.py")
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.withitem)
        for call in [node.context_expr]
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] in {"map", "mmap", "memoryview"}
        for node in [call]
    ]

    assert found == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("action", [verify, create, restore, status])
def test_interruption_stays_one_wherever_a_view_is_alive(tmp_path: Path, action):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(os.urandom(5000))
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    (root / "other").write_bytes(os.urandom(5000))
    handle.create()
    number = 1

    while number < 40 and interrupted_at(number, lambda: action(handle)):
        number += 1

    assert number > 1
    assert handle.verify(read_data=True).ok
