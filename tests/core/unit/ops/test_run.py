"""Running a command with a way back, and the same for a block of code."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from state import tree_state
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, OperationFailed
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.create import create
from treesnap.core.ops.run.checkpoint import HeldCheckpoint
from treesnap.testing.doubles import Fault, FaultyFileSystem


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@contextmanager
def interrupted_in(function: Callable[..., object]) -> Iterator[None]:
    """Sends SIGINT as a function begins, once."""
    before = sys.gettrace()

    def trace(frame: FrameType, _event: str, _value: object) -> None:
        if frame.f_code is function.__code__:
            sys.settrace(before)
            signal.raise_signal(signal.SIGINT)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


WRITE = "open('one', 'w').write('changed')"


class TestRun:
    def test_a_command_that_succeeds_keeps_what_it_did(self, handle, root):
        result = handle.run(python(WRITE))

        assert (result.exit_code, result.attempts, result.rolled_back) == (0, 1, False)
        assert (root / "one").read_bytes() == b"changed"

    def test_a_command_that_fails_is_undone(self, handle, root):
        before = tree_state(root)

        result = handle.run(python(WRITE + "; raise SystemExit(7)"))

        assert (result.exit_code, result.rolled_back) == (7, True)
        assert tree_state(root) == before

    def test_the_checkpoint_stays(self, handle):
        result = handle.run(python("raise SystemExit(1)"), label="risky")

        checkpoint = handle.resolve(result.snapshot_id)
        assert (checkpoint.kind, checkpoint.label) == (SnapshotKind.RUN, "risky")

    def test_a_roll_back_can_be_undone(self, handle, root):
        handle.run(python(WRITE + "; raise SystemExit(1)"))

        handle.undo()

        assert (root / "one").read_bytes() == b"changed"

    def test_each_retry_begins_at_the_checkpoint(self, handle, root):
        code = "open('one', 'a').write('+'); raise SystemExit(1)"

        result = handle.run(python(code), retries=2)

        assert (result.attempts, result.rolled_back) == (3, True)
        assert (root / "one").read_bytes() == b"one"
        handle.undo()
        assert (root / "one").read_bytes() == b"one+"

    def test_a_retry_may_succeed(self, handle, root, tmp_path):
        marker = str(tmp_path / "marker")
        code = (
            f"import os; {WRITE}; done = os.path.exists({marker!r}); "
            f"open({marker!r}, 'w'); raise SystemExit(not done)"
        )

        result = handle.run(python(code), retries=3)

        assert (result.exit_code, result.attempts, result.rolled_back) == (0, 2, False)
        assert (root / "one").read_bytes() == b"changed"

    def test_the_command_runs_in_the_root(self, handle, root):
        handle.run(python("open('here', 'w')"))

        assert (root / "here").exists()

    def test_a_command_that_does_not_exist_is_not_found(self, handle):
        with pytest.raises(NotFound) as caught:
            handle.run(["no-such-command-anywhere"])

        assert caught.value.code == ErrorCode.COMMAND_NOT_FOUND

    @pytest.mark.parametrize(("command", "retries"), [([], 0), (["true"], -1)])
    def test_senseless_calls_are_refused_before_anything_is_stored(
        self, handle, store_path, command, retries
    ):
        with pytest.raises(InvalidArgument):
            handle.run(command, retries=retries)

        assert not store_path.exists()

    def test_an_interruption_takes_back_and_goes_on(self, handle, root):
        interrupt = f"import os, signal, time; {WRITE}; os.kill(os.getppid(), signal.SIGINT)"

        with pytest.raises(KeyboardInterrupt) as raised:
            handle.run(python(f"{interrupt}; time.sleep(600)"))

        assert (root / "one").read_bytes() == b"one"
        (note,) = raised.value.__notes__
        assert re.fullmatch("what the command did to 1 path was rolled back, to [0-9a-f]{12}", note)

    def test_an_interruption_of_a_command_that_had_changed_nothing_says_so(self, handle):
        interrupt = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT)"

        with pytest.raises(KeyboardInterrupt) as raised:
            handle.run(python(f"{interrupt}; time.sleep(600)"))

        assert raised.value.__notes__[0].startswith("the command had changed nothing since ")

    def test_an_interruption_as_the_roll_back_begins_does_not_skip_it(self, handle, root):
        with pytest.raises(KeyboardInterrupt) as raised, interrupted_in(HeldCheckpoint.go_back):
            handle.run(python(f"{WRITE}; raise SystemExit(7)"))

        assert (root / "one").read_bytes() == b"one"
        assert "was rolled back, to " in raised.value.__notes__[0]

    def test_an_interruption_before_the_command_says_that_it_was_not_started(self, handle, root):
        with pytest.raises(KeyboardInterrupt) as raised, interrupted_in(create):
            handle.run(python(WRITE))

        assert (root / "one").read_bytes() == b"one"
        assert raised.value.__notes__ == ["the command was not started, and nothing was changed"]


def change_and_raise(handle, path, error: BaseException) -> None:
    """Changes a file in a block that can be undone, and raises."""
    with handle.rollback_on_error():
        path.write_bytes(b"changed")
        raise error


class TestRollbackOnError:
    def test_a_body_that_ends_well_keeps_what_it_did(self, handle, root):
        with handle.rollback_on_error("step") as checkpoint:
            (root / "one").write_bytes(b"changed")

        assert (root / "one").read_bytes() == b"changed"
        assert handle.resolve(checkpoint.id).label == "step"

    @pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit()])
    def test_a_body_that_raises_is_undone(self, handle, root, error):
        before = tree_state(root)

        with pytest.raises(type(error)):
            change_and_raise(handle, root / "one", error)

        assert tree_state(root) == before

    def test_blocks_nest(self, handle, root):
        with handle.rollback_on_error():
            (root / "one").write_bytes(b"outer")
            with pytest.raises(ValueError, match="inner"):
                change_and_raise(handle, root / "one", ValueError("inner"))

        assert (root / "one").read_bytes() == b"outer"

    def test_a_failing_roll_back_is_raised_with_the_bodys_error_as_its_cause(
        self, make_handle, root
    ):
        fault = Fault(
            methods=frozenset({"make_directory"}),
            where=lambda call: ".treesnap-restore" in call.path,
            errno=5,
        )
        handle = make_handle(fs=FaultyFileSystem(fault))
        body = ValueError("body")

        with pytest.raises(OperationFailed) as caught:
            change_and_raise(handle, root / "one", body)

        assert caught.value.__cause__ is body
        assert (root / "one").read_bytes() == b"changed"
