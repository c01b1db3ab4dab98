"""A block is left whole, wherever a signal arrives while it begins or is left.

A trace function sends SIGINT at one position of the code: an instruction at which a line or another
instruction begins. That is more than the interpreter does, which calls handlers at few of them.
A position counts once, when it is reached first. One in the function of the user, between what the
body raised and the call of ``__exit__``, is out of reach of a library; there the interpreter calls
no handler, and the block warns.

In full size each position of the modules about blocks is tried, and of the others a sixteenth,
another one for each ``TREESNAP_TEST_SEED``: all of them take hours. ``tox -e sweep`` does that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import treesnap
from descriptors import open_descriptors
from sampling import seeded, sized
from treesnap.core import handle, interruption
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops import checkpoint_locks
from treesnap.core.ops.run import checkpoint, rollback
from treesnap.core.ops.run.checkpoint import CheckpointBlock

pytestmark = pytest.mark.sampled(12)

SOURCE = os.path.dirname(treesnap.__file__)
CORE = tuple(
    module.__file__ for module in (checkpoint, checkpoint_locks, handle, interruption, rollback)
)
"""Where each position is tried in full size; of the others so many parts of it as seeds."""
PARTS = 16
SAMPLE = 5

Position = tuple[CodeType, int]


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE)


class Scene:
    """A directory with a history, and what a block does in it."""

    def __init__(self, path: Path) -> None:
        self.root, self.store = path / "root", path / "store"
        self.root.mkdir()
        (self.root / "kept").write_text("kept")
        self.file = self.root / "file"
        self.monitor = CollectingMonitor()
        self.handle = treesnap.open(self.root, self.store, monitor=self.monitor)
        self.has_begun = False

    def begin(self) -> None:
        self.file.write_text("before")
        self.has_begun = False
        self.monitor.codes.clear()

    def end_well(self) -> None:
        with self.handle.rollback_on_error():
            self.has_begun = True
            self.file.write_text("after")

    def fail(self) -> None:
        with self.handle.rollback_on_error():
            self.has_begun = True
            self.file.write_text("after")
            raise ZeroDivisionError

    def fail_without_our_handler(self) -> None:
        """Does what asyncio does when a handler of ``loop.add_signal_handler`` is removed."""
        with self.handle.rollback_on_error():
            self.has_begun = True
            self.file.write_text("after")
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise ZeroDivisionError

    def be_interrupted(self) -> None:
        with self.handle.rollback_on_error():
            self.has_begun = True
            self.file.write_text("after")
            raise KeyboardInterrupt


def positions(work: Callable[[], None], concerns: Callable[[CodeType], bool]) -> list[Position]:
    """Returns where the code may be interrupted, in the order in which it gets there."""
    found: dict[Position, None] = {}

    def trace(frame: FrameType, event: str, _value: object) -> Any:
        if not concerns(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode", "call"):
            found[frame.f_code, frame.f_lasti] = None
        return trace

    with tracing(trace), suppress(ZeroDivisionError, KeyboardInterrupt):
        work()
    return list(found)


@contextmanager
def tracing(trace: Callable[..., Any]) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Sender:
    """Sends SIGINT at a position, and perhaps another one so many positions later."""

    def __init__(self, position: Position, gap: int | None) -> None:
        self._position = position
        self._gap = gap
        self.sent = 0

    def trace(self, frame: FrameType, event: str, _value: object) -> Any:
        code = frame.f_code
        if self.sent == 0:
            if code is not self._position[0]:
                return None
            frame.f_trace_opcodes = True
            if event in ("line", "opcode", "call") and frame.f_lasti == self._position[1]:
                self.sent = 1
                if self._gap is not None:
                    self._follow(frame)
                signal.raise_signal(signal.SIGINT)
        elif self.sent == 1 and self._gap is not None and is_ours(code):
            frame.f_trace_opcodes = True
            self._gap -= 1
            if self._gap == 0:
                self.sent = 2
                signal.raise_signal(signal.SIGINT)
        return self.trace

    def _follow(self, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != __file__:
            frame.f_trace = self.trace
            frame.f_trace_opcodes = True
            frame = frame.f_back


def problems(scene: Scene, work: Callable[[], None], sender: Sender) -> list[str]:
    """Returns what is not as it has to be after the interruption of a block."""
    scene.begin()
    descriptors = len(open_descriptors())
    raised: type[BaseException] | None = None
    try:
        with tracing(sender.trace):
            work()
    except BaseException as error:  # noqa: BLE001 - looked at below
        raised = type(error)
    if not sender.sent:
        return []
    found = []
    keeps = work == scene.end_well and scene.has_begun
    is_told = "block-abandoned" in scene.monitor.codes
    if scene.file.read_text() != ("after" if keeps else "before") and not is_told:
        found.append("the tree is not as it was")
    if raised is not KeyboardInterrupt:
        found.append(f"the signal was lost: {raised}")
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        found.append("the handler is not the program's")
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        found.append("the handler of SIGTERM is not the program's")
    if signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        found.append("signals are blocked")
    if list(scene.store.glob("roots/*/hold-*")):
        found.append("the checkpoint is held")
    try:
        with treesnap.open(scene.root, scene.store, wait_s=0).rollback_on_error(overlap="refuse"):
            pass
    except treesnap.Busy as error:
        found.append(str(error))
    left = len(open_descriptors()) - descriptors
    if left > 0:
        found.append(f"{left} descriptors are open")
    return found


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    found = Scene(tmp_path)
    for work in (found.end_well, found.fail, found.be_interrupted, found.fail):
        found.begin()  # and imports what is imported late
        with suppress(ZeroDivisionError, KeyboardInterrupt):
            work()
    return found


def spread(found: list[Position], count: int) -> list[Position]:
    step = max(1, len(found) // count)
    return found[::step]


def interrupted_at(
    scene: Scene, work: Callable[[], None], tried: list[Position], gap: int | None
) -> tuple[dict[str, list[str]], int]:
    """Returns what is not as it has to be, by position, and how many positions were reached."""
    left, reached = {}, 0
    for code, offset in tried:
        sender = Sender((code, offset), gap)
        wrong = problems(scene, work, sender)
        reached += bool(sender.sent)
        if wrong:
            left[f"{code.co_qualname} at {offset}"] = wrong

    return left, reached


@pytest.mark.parametrize("gap", [None, 1, 40], ids=["once", "twice", "twice later"])
@pytest.mark.parametrize("name", ["end_well", "fail", "fail_without_our_handler", "be_interrupted"])
def test_a_block_is_left_wherever_it_is_interrupted(scene, name, gap, record_property):
    work = getattr(scene, name)
    scene.begin()
    found = positions(work, is_ours)
    core = [each for each in found if each[0].co_filename in CORE]
    others = [each for each in found if each[0].co_filename not in CORE]
    tried = sized(spread(core, SAMPLE), core) + sized(spread(others, SAMPLE), seeded(others, PARTS))

    left, reached = interrupted_at(scene, work, tried, gap)

    record_property("positions", f"{reached} of {len(tried)}, {len(left)} left")
    assert left == {}
    assert len(core) > len(CORE)
    assert reached >= SAMPLE


@pytest.mark.parametrize("gap", [None, 1], ids=["once", "twice"])
def test_a_block_is_left_though_its_body_has_put_our_handler_away(scene, gap):
    """Interrupted before ours stands again, the block rolls back, or warns that it does not."""
    leaving = CheckpointBlock.__exit__.__code__
    scene.begin()
    found = positions(scene.fail_without_our_handler, lambda code: code is leaving)
    tried = sized(spread(found, 2 * SAMPLE), found)

    left, reached = interrupted_at(scene, scene.fail_without_our_handler, tried, gap)

    assert left == {}
    assert reached == len(tried) > SAMPLE
