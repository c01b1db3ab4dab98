"""The program's own handlers of signals get what arrives while a block is left, and stay."""

from __future__ import annotations

import _signal
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import treesnap
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import CollectingMonitor, Phase
from treesnap.testing.children import in_child


class SignallingMonitor(CollectingMonitor):
    """Sends a signal twice whenever a phase begins, once it is switched on."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.is_on = False
        self.sent = 0

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        if self.is_on:
            for _ in range(2):
                signal.raise_signal(self._number)
                self.sent += 1


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "root" / "file"
    found.parent.mkdir()
    found.write_text("before")
    return found


def opened(file: Path, number: int) -> tuple[treesnap.Handle, SignallingMonitor]:
    monitor = SignallingMonitor(number)
    return treesnap.open(file.parent, file.parent.parent / "store", monitor=monitor), monitor


def fail(handle: treesnap.Handle, monitor: SignallingMonitor, file: Path) -> None:
    with handle.rollback_on_error():
        file.write_text("after")
        monitor.is_on = True
        raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_one_that_returns_is_called_for_each_signal_when_the_block_is_left(file, number):
    handle, monitor = opened(file, number)
    seen = []

    def handler(number: int, _frame: object) -> None:
        seen.append((number, file.read_text()))

    with handled(number, handler), pytest.raises(ZeroDivisionError):
        fail(handle, monitor, file)

    assert monitor.sent
    assert seen == [(number, "before")] * monitor.sent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_raises_raises_when_the_block_is_left(file, number):
    handle, monitor = opened(file, number)

    def handler(_number: int, _frame: object) -> None:
        raise LookupError

    with handled(number, handler), pytest.raises(LookupError):
        fail(handle, monitor, file)

    assert file.read_text() == "before"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ignored_signal_stays_ignored(file, number):
    handle, monitor = opened(file, number)

    with handled(number, signal.SIG_IGN), pytest.raises(ZeroDivisionError):
        fail(handle, monitor, file)

    assert file.read_text() == "before"


def test_one_that_the_body_sets_stays(file):
    handle, _ = opened(file, signal.SIGINT)

    def handler(_number: int, _frame: object) -> None:
        raise LookupError

    before = signal.getsignal(signal.SIGINT)
    try:
        with handle.rollback_on_error():
            signal.signal(signal.SIGINT, handler)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_without_a_handler_ends_the_program_after_the_roll_back(file):
    handle, monitor = opened(file, signal.SIGTERM)

    with pytest.raises(RuntimeError, match=f"ended with -{signal.SIGTERM}"):
        in_child(lambda: fail(handle, monitor, file))

    assert file.read_text() == "before"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_it_ends_the_program_at_once_in_the_body(file):
    handle, _ = opened(file, signal.SIGTERM)

    def be_ended() -> None:
        with handle.rollback_on_error():
            file.write_text("after")
            signal.raise_signal(signal.SIGTERM)
            file.write_text("much later")

    with pytest.raises(RuntimeError, match=f"ended with -{signal.SIGTERM}"):
        in_child(be_ended)

    assert file.read_text() == "after"


def test_one_that_raises_as_signals_are_being_blocked_leaves_none_blocked(file, monkeypatch):
    """The call first blocks them, then calls the handlers of what came just before."""
    handle, _ = opened(file, signal.SIGINT)
    block_in_the_kernel = _signal.pthread_sigmask

    def block(how: int, numbers: Collection[int]) -> set[int]:
        before = block_in_the_kernel(how, numbers)
        if numbers:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return before

    monkeypatch.setattr(_signal, "pthread_sigmask", block)
    with pytest.raises(KeyboardInterrupt), handle.rollback_on_error():
        file.write_text("after")

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert file.read_text() == "before"


def test_blocks_in_blocks_leave_the_handler_of_the_program(file):
    handle, _ = opened(file, signal.SIGINT)

    def handler(_number: int, _frame: object) -> None:
        raise LookupError

    with handled(signal.SIGINT, handler), handle.rollback_on_error():
        with handle.rollback_on_error():
            pass
        with pytest.raises(LookupError):
            signal.raise_signal(signal.SIGINT)


def test_a_block_that_is_collected_goes_nowhere_and_warns(file):
    handle, monitor = opened(file, signal.SIGINT)
    block = handle.rollback_on_error()
    before = signal.getsignal(signal.SIGINT)
    block.__enter__()
    file.write_text("after")

    del block

    assert monitor.codes == [WarningCode.STORE_MADE, WarningCode.BLOCK_ABANDONED]
    assert file.read_text() == "after"
    assert signal.getsignal(signal.SIGINT) is before
    with handle.rollback_on_error(overlap="refuse"):
        pass


def test_a_function_may_be_decorated_with_a_block(file):
    handle, _ = opened(file, signal.SIGINT)

    @handle.rollback_on_error()
    def work(depth: int) -> None:
        file.write_text("after")
        if depth == 0:
            raise ZeroDivisionError
        work(depth - 1)

    with pytest.raises(ZeroDivisionError):
        work(1)

    assert file.read_text() == "before"
