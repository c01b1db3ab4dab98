"""A step that was not gone back from is not forgotten: it was killed, or the roll-back failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from treesnap.core.fs.base import FileSystem
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import NullMonitor
from treesnap.core.model.results import WorkKind
from treesnap.core.ops.context import context_at
from treesnap.plans import Planner, Step
from treesnap.plans.planner import unfinished
from treesnap.testing.children import in_child, killed
from treesnap.testing.doubles import Fault, FaultyFileSystem


class Told(NullMonitor):
    """Keeps the messages about steps that were not gone back from."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, code: WarningCode, message: str) -> None:
        if code in {WarningCode.STEP_KILLED, WarningCode.ROLL_BACK_FAILED}:
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_next_operation_names_it_and_the_state_before(operation, handle, monitor):
    kill_in_block(handle)
    checkpoint = next(item for item in handle.list() if item.record.label == "risky")
    monitor.messages.clear()

    operation(handle)

    assert (
        "rollback_on_error. What that did was not rolled back; the state before is "
        in (monitor.messages[0])
    )
    assert monitor.messages[0].endswith(checkpoint.id[:12])


@pytest.mark.parametrize("paths", [None, ["file"]], ids=["root", "paths"])
def test_the_restore_that_goes_back_says_nothing_and_settles_it(handle, monitor, paths):
    kill_in_block(handle, paths)
    (found,) = handle.doctor().unfinished
    monitor.messages.clear()

    handle.restore(found.target_id)
    handle.status()

    assert monitor.messages == []
    assert handle.doctor().unfinished == ()
    assert Path(handle.root, "file").read_text() == "before"


def test_the_restore_that_goes_back_heeds_nothing_that_the_step_excluded(handle):
    def die() -> None:
        with handle.rollback_on_error("risky"):
            Path(handle.root, "left").write_text("by the step")
            Path(handle.root, ".snapignore").write_text("*\n")
            handle.config("exclude", "file")
            Path(handle.root, "file").write_text("half done")
            os.chmod(handle.root, 0)
            os._exit(0)

    assert in_child(die).error is None
    (found,) = handle.doctor().unfinished

    planned = handle.restore(found.target_id, dry_run=True)
    result = handle.restore(found.target_id)

    assert os.listdir(handle.root) == ["file"]
    assert Path(handle.root, "file").read_text() == "before"
    assert (result.untouched, planned.deleted, result.deleted) == ((), 2, 2)
    handle.undo()
    assert Path(handle.root, "left").read_text() == "by the step"


@pytest.mark.parametrize("paths", [None, ["file"]], ids=["root", "paths"])
def test_a_roll_back_that_was_killed_and_finished_is_one(handle, monitor, paths):
    def be_killed(fs: FileSystem) -> None:
        own = treesnap.Handle(context_at(handle.root, handle.store_path, fs=fs))
        with own.rollback_on_error("risky", paths=paths):
            Path(handle.root, "file").write_text("half done")
            raise InterruptedError

    assert killed(be_killed, Fault(methods=frozenset({"exchange"}))).was_killed

    handle.status()

    assert monitor.messages == []
    assert Path(handle.root, "file").read_text() == "before"
    assert handle.doctor().unfinished == ()


def test_doctor_lists_it_and_changes_nothing(handle):
    kill_in_block(handle)

    found = [*handle.doctor().unfinished, *handle.doctor().unfinished]

    assert [(item.work, item.blocked) for item in found] == [(WorkKind.STEP, True)] * 2
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


@pytest.mark.sampled(5)
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


@pytest.mark.needs("exit codes")
def test_a_step_of_a_plan_is_told_of_by_its_plan_alone(handle, monitor):
    step = Step(name="step", run="kill -KILL $PPID")
    with pytest.raises(RuntimeError, match="-9"):
        in_child(lambda: Planner(handle).run("plan", [step]))

    handle.status()

    assert monitor.messages == []
    assert len(unfinished(handle)) == 1


STAGED = Fault(
    errno=errno.EIO,
    methods=frozenset({"write_at"}),
    where=lambda call: "/.treesnap-restore-" in call.path,
    lasting=True,
)


def fail_to_go_back(handle: treesnap.Handle, how: str) -> None:
    """Lets a roll-back fail, as on a broken disk."""
    fs = FaultyFileSystem(STAGED)
    broken = treesnap.Handle(context_at(handle.root, handle.store_path, fs=fs))

    @broken.rollback_on_error("risky")
    def spoil() -> None:
        Path(handle.root, "file").write_text("half done")
        raise InterruptedError

    steps = {"run": lambda: broken.run(["sh", "-c", "echo > file; exit 3"]), "block": spoil}
    with pytest.raises(treesnap.OperationFailed, match="The roll-back to "):
        steps[how]()


@pytest.mark.parametrize("how", ["run", "block"])
def test_a_roll_back_that_failed_is_told_of_as_such(how, handle, monitor):
    fail_to_go_back(handle, how)

    (found,) = handle.doctor().unfinished
    handle.status()

    assert (found.work, found.blocked) == (WorkKind.STEP, True)
    assert found.target_id is not None
    short = found.target_id[:12]
    (message,) = monitor.messages
    assert message.startswith(f"A roll-back failed in {handle.root!r}: ")
    assert message.endswith(
        f"Input/output error. What that did was not rolled back; the state before is {short}"
    )
    assert found.resolution.startswith(f"{message}. 'restore {short}' goes back, ")

    handle.restore(found.target_id)

    assert Path(handle.root, "file").read_text() == "before"
    assert handle.doctor().unfinished == ()


@pytest.mark.needs("mounts")
def test_a_roll_back_that_a_mount_of_the_root_on_itself_refused_is_told_of(handle):
    root = Path(handle.root)
    with mounting() as mounter:

        @handle.rollback_on_error("risky")
        def spoil() -> None:
            (root / "file").write_text("half done")
            mounter.bind(root, root)
            raise InterruptedError

        with pytest.raises(treesnap.Refused):
            spoil()
        (found,) = handle.doctor().unfinished

    assert "A roll-back failed in " in found.resolution
    handle.restore(found.target_id)
    assert (root / "file").read_text() == "before"


@pytest.mark.needs("mounts")
def test_a_roll_back_that_failed_on_a_full_disk_is_told_of_as_such(handle):
    root, reserve = Path(handle.root), Path(handle.store_path, "collector", "reserve-0")
    with mounting() as mounter:
        no_room = Fault(
            errno=errno.ENOSPC,
            methods=frozenset({"write"}),
            where=lambda call: (root / "spoiled").exists() and reserve.exists(),
            lasting=True,
        )
        fs = FaultyFileSystem(no_room)
        full = treesnap.Handle(context_at(root, handle.store_path, fs=fs))

        @full.rollback_on_error("risky")
        def spoil() -> None:
            (root / "spoiled").write_text("half done")
            mounter.bind(root, root)
            raise InterruptedError

        with pytest.raises(treesnap.Refused):
            spoil()

        (found,) = handle.doctor().unfinished
        assert "A roll-back failed in " in found.resolution
