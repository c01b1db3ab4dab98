"""A step that was killed before it could go back is not forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from treesnap.errors import WarningCode
from treesnap.events import NullMonitor
from treesnap.plans import Planner, Step
from treesnap.results import UnfinishedWork
from treesnap.testing.children import in_child


class Told(NullMonitor):
    """Keeps the messages about killed steps."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, code: WarningCode, message: str) -> None:
        if code is WarningCode.STEP_KILLED:
            self.messages.append(message)


@pytest.fixture
def monitor() -> Told:
    return Told()


@pytest.fixture
def handle(tmp_path: Path, monitor: Told) -> treesnap.Handle:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("before")
    handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
    handle.create(name="first")
    return handle


def kill_in_block(handle: treesnap.Handle, paths: list[str] | None = None) -> None:
    """Ends a process inside of a block, as SIGKILL does."""

    def die() -> None:
        with handle.rollback_on_error("risky", paths=paths):
            Path(handle.root, "file").write_text("half done")
            os._exit(0)

    assert in_child(die).error is None


OPERATIONS: dict[str, Callable[[treesnap.Handle], object]] = {
    "list": lambda handle: list(handle.list()),
    "status": lambda handle: handle.status(),
    "diff": lambda handle: handle.diff(),
    "create": lambda handle: handle.create(),
    "restore": lambda handle: handle.restore("first"),
    "run": lambda handle: handle.run(["true"]),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_next_operation_names_it_and_the_state_before(operation, handle, monitor):
    kill_in_block(handle)
    checkpoint = next(item for item in handle.list() if item.record.label == "risky")
    monitor.messages.clear()

    operation(handle)

    assert (
        "rollback_on_error. What that did was not taken back; the state before is "
        in (monitor.messages[0])
    )
    assert monitor.messages[0].endswith(checkpoint.id[:12])


def test_doctor_lists_it_and_changes_nothing(handle):
    kill_in_block(handle)

    found = [*handle.doctor().unfinished, *handle.doctor().unfinished]

    assert [(item.work, item.blocked) for item in found] == [(UnfinishedWork.STEP, True)] * 2
    handle.restore(found[0].target_id)
    assert Path(handle.root, "file").read_text() == "before"


SETTLED: dict[str, Callable[[treesnap.Handle], object]] = {
    "a restore": lambda handle: handle.restore("first"),
    "a snapshot by hand": lambda handle: handle.create(),
    "another step": lambda handle: handle.run(["true"]),
    "forgetting": lambda handle: handle.doctor(forget=True),
    "deletion of the checkpoint": lambda handle: handle.delete(
        *[item.id for item in handle.list() if item.record.label == "risky"]
    ),
}


@pytest.mark.parametrize("settle", SETTLED.values(), ids=SETTLED)
def test_it_is_told_until_it_is_settled(settle, handle, monitor):
    kill_in_block(handle)
    settle(handle)
    monitor.messages.clear()

    handle.status()

    assert monitor.messages == []
    assert handle.doctor().unfinished == ()


def test_parts_settle_nothing(handle, monitor):
    kill_in_block(handle)
    handle.restore("first", ["file"])
    handle.create(["file"])
    monitor.messages.clear()

    handle.status()

    assert len(monitor.messages) == 1


def test_a_step_that_ended_or_lives_is_not_told_of(handle, monitor):
    handle.run(["false"])
    with handle.rollback_on_error("lives"):
        handle.status()
        assert handle.doctor().unfinished == ()
    handle.status()

    assert monitor.messages == []


def test_a_step_of_a_plan_is_told_of_by_its_plan_alone(handle, monitor):
    step = Step(name="step", run="kill -KILL $PPID")
    with pytest.raises(RuntimeError, match="-9"):
        in_child(lambda: Planner(handle).run("plan", [step]))

    handle.status()

    assert monitor.messages == []
    assert len(Planner(handle).unfinished()) == 1
