"""Two steps in one root: the one that fails never removes what the other made."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import treesnap
from treesnap.compat import position
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.plans import Planner, PlanState, Step
from treesnap.testing.doubles import Fault, FaultyFileSystem

pytestmark = pytest.mark.sampled(10)


class Failed(Exception):
    """The body of a block has failed."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    (path / "figures").mkdir(parents=True)
    (path / "data").mkdir()
    return path


@pytest.fixture
def handle(root: Path, tmp_path: Path) -> treesnap.Handle:
    return treesnap.open(root, tmp_path / "store", wait_s=0.2)


def fail_after(handle: treesnap.Handle, action: Callable[[], object], **options: object) -> None:
    """Does something in a block that fails."""
    with pytest.raises(Failed):
        _failing(handle, action, options)


def _failing(
    handle: treesnap.Handle, action: Callable[[], object], options: dict[str, object]
) -> None:
    with handle.rollback_on_error("block", **options):
        action()
        raise Failed


def elsewhere(action: Callable[[], object]) -> object:
    """Does something in another thread, and returns or raises what it did.

    The thread has a context of its own: a free-threaded Python gives it that of its maker.
    """
    outcome: list[object] = []

    def act() -> None:
        try:
            outcome.append(action())
        except Exception as error:  # noqa: BLE001 - it is raised in the caller
            outcome.append(error)

    thread = threading.Thread(target=contextvars.Context().run, args=(act,))
    thread.start()
    thread.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def block(handle: treesnap.Handle) -> None:
    with handle.rollback_on_error("other"):
        pass


def run(handle: treesnap.Handle) -> None:
    handle.run(["true"])


def plan(handle: treesnap.Handle) -> None:
    Planner(handle).run("plan", [Step(name="step", run="true")])


def restore(handle: treesnap.Handle) -> None:
    handle.restore("first", ["data"])


def undo(handle: treesnap.Handle) -> None:
    handle.undo()


def redo(handle: treesnap.Handle) -> None:
    handle.undo()
    handle.redo()


def revert(handle: treesnap.Handle) -> None:
    handle.revert("first..second")


def rollback(handle: treesnap.Handle) -> None:
    position.rollback(handle.context, "first")


STEPS = pytest.mark.parametrize(
    "step", [block, run, pytest.param(plan, marks=pytest.mark.needs("exit codes"))]
)
RESTORES = pytest.mark.parametrize("change", [restore, undo, redo, revert, rollback])


@STEPS
def test_step_is_refused_while_a_block_of_another_thread_is_at_work(handle, step):
    with (
        handle.rollback_on_error("first"),
        pytest.raises(treesnap.Busy, match="rollback_on_error"),
    ):
        elsewhere(lambda: step(handle))

    elsewhere(lambda: step(handle))


@STEPS
def test_step_inside_of_a_block_belongs_to_it(handle, root, step):
    def act() -> None:
        step(handle)
        (root / "made").write_text("inside")

    fail_after(handle, act)

    assert not (root / "made").exists()


@pytest.fixture
def with_history(handle: treesnap.Handle, root: Path) -> treesnap.Handle:
    """A root with something to go back to, by every way."""
    for name in ("first", "second"):
        (root / "data" / "file").write_text(name)
        handle.create(name=name)
    handle.restore("first")
    handle.undo()
    handle.restore("first")
    (root / "data" / "file").write_text("second")
    return handle


@RESTORES
def test_a_restore_does_not_walk_into_a_block_that_may_go_back(with_history, root, change):
    before = {path: path.read_text() for path in root.rglob("*") if path.is_file()}
    with (
        with_history.rollback_on_error("first"),
        pytest.raises(treesnap.Busy, match=r"is in use by process \d+: rollback_on_error"),
    ):
        elsewhere(lambda: change(with_history))

    assert {path: path.read_text() for path in root.rglob("*") if path.is_file()} == before
    elsewhere(lambda: change(with_history))


@RESTORES
def test_a_restore_inside_of_a_block_belongs_to_it(with_history, root, change):
    fail_after(with_history, lambda: change(with_history))

    assert (root / "data" / "file").read_text() == "second"


def test_a_restore_of_other_paths_than_a_block_goes_on(with_history, root):
    with with_history.rollback_on_error("first", paths=["figures"]):
        elsewhere(lambda: restore(with_history))

    assert (root / "data" / "file").read_text() == "first"


SNAP = f"{sys.executable} -m treesnap -q --store ../store"


@pytest.mark.parametrize("prefix", ["", "setsid "], ids=["a child", "a session of its own"])
def test_a_restore_that_a_command_starts_belongs_to_it(prefix, with_history, root):
    script = f"({prefix}{SNAP} restore first; echo $? > ../code) & wait; exit 1"

    with_history.run(["sh", "-c", script])

    assert (root.parent / "code").read_text() == "0\n"
    assert (root / "data" / "file").read_text() == "second"


@pytest.mark.needs("exit codes")
def test_a_restore_that_an_orphan_of_a_step_starts_belongs_to_it(with_history, root):
    os.mkfifo(root.parent / "fifo")
    inner = f"{SNAP} restore first; echo $? > ../code; echo > ../fifo"
    script = f"(setsid sh -c '{inner}' &); cat ../fifo"

    plan = Planner(with_history).run("plan", [Step(name="step", run=script)])

    assert plan.state == PlanState.COMPLETED
    assert (root.parent / "code").read_text() == "0\n"
    assert (root / "data" / "file").read_text() == "first"


def test_a_restore_waits_for_a_block_and_goes_on_after_it(with_history, root, tmp_path):
    patient = treesnap.open(root, tmp_path / "store", wait_s=60)
    with ThreadPoolExecutor(1) as pool:
        with with_history.rollback_on_error("first"):
            waiting = pool.submit(contextvars.Context().run, restore, patient)
            (root / "data" / "file").write_text("made by the block")
            assert not waiting.done()
        waiting.result(60)

    assert (root / "data" / "file").read_text() == "first"


OTHER = """
import sys, treesnap
handle = treesnap.open(sys.argv[1], sys.argv[2])
with handle.rollback_on_error("other process"):
    print("inside", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def other_process(root: Path, store: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is inside of a block, until it gets a line."""
    words = [*before, sys.executable, "-c", OTHER, str(root), str(store)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        try:
            yield process
        finally:
            process.kill()


NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")
"""What a command follows that is to be the first process of a namespace."""
SHELL = ("sh", "-c", '"$@"; exit $?', "sh")
"""A process of its own before a command."""

WITH_CHILD = """
import subprocess, sys, treesnap
handle = treesnap.open(sys.argv[1], sys.argv[2])
with handle.rollback_on_error("first process"):
    print(subprocess.run([sys.executable, "-c", *sys.argv[3:]], check=True))
"""
INSIDE = """
import sys, treesnap
with treesnap.open(sys.argv[1], sys.argv[2]).rollback_on_error("child", overlap="refuse"):
    pass
"""


@pytest.fixture(scope="module")
def new_namespace() -> tuple[str, ...]:
    try:
        subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespace of processes can be made here")
    return NEW_NAMESPACE


@pytest.mark.needs("processes")
def test_a_child_of_the_first_process_of_a_container_belongs_to_its_block(
    handle, root, tmp_path, new_namespace
):
    place = [str(root), str(tmp_path / "store")]
    words = [*new_namespace, sys.executable, "-c", WITH_CHILD, *place, INSIDE, *place]

    subprocess.run(words, check=True, timeout=60)


@pytest.mark.needs("processes")
@pytest.mark.parametrize("shells", [0, 1])
@pytest.mark.parametrize("is_contained", [False, True])
def test_a_process_does_not_belong_to_a_block_of_another_container(
    handle, root, tmp_path, new_namespace, shells, is_contained
):
    """An ancestor of the one, or the first process of the machine, has the id of the other."""
    place = [str(root), str(tmp_path / "store")]
    inside = [sys.executable, "-c", INSIDE, *place]
    if is_contained:
        inside = [*new_namespace, *SHELL * (shells + 1), *inside]
    with other_process(root, tmp_path / "store", *new_namespace, *SHELL * shells):
        refused = subprocess.run(inside, check=False, timeout=60, capture_output=True, text=True)

    assert refused.returncode == 1
    assert f"is in use by process {shells + 1}: rollback_on_error" in refused.stderr


@STEPS
def test_step_is_refused_while_another_process_is_at_work_and_not_after_it_was_killed(
    handle, root, tmp_path, step
):
    with (
        other_process(root, tmp_path / "store"),
        pytest.raises(treesnap.Busy, match=r"process \d+: rollback_on_error"),
    ):
        step(handle)

    step(handle)


def test_step_waits_for_another_one_and_finds_what_it_made(handle, root, tmp_path):
    patient = treesnap.open(root, tmp_path / "store", wait_s=60)
    made = root / "made"

    with other_process(root, tmp_path / "store") as other:
        assert other.stdin is not None
        made.write_text("by the other one")
        thread = threading.Thread(target=lambda: fail_after(patient, made.unlink))
        thread.start()
        other.stdin.write("\n")
        other.stdin.flush()
        thread.join()

    assert made.read_text() == "by the other one"


def test_blocks_of_other_paths_run_at_once_and_roll_back_theirs_alone(handle, root):
    def draw() -> None:
        with handle.rollback_on_error("draw", paths=["figures"], overlap="refuse"):
            (root / "figures/one").write_text("drawn")

    def work() -> None:
        (root / "data/half").write_text("half")
        elsewhere(draw)

    fail_after(handle, work, paths=["data", "absent"])

    assert (root / "figures/one").read_text() == "drawn"
    assert not (root / "data/half").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("paths", [None, ["figures"], ["figures/below"], ["data", "figures/x"]])
def test_block_of_a_path_is_refused_beside_one_that_holds_it(handle, paths):
    with (
        handle.rollback_on_error("draw", paths=["figures/below", "figures/x"]),
        pytest.raises(treesnap.Busy),
    ):
        elsewhere(lambda: fail_after(handle, int, paths=paths, overlap="refuse"))


def test_task_that_was_started_inside_belongs_to_the_block(handle):
    with handle.rollback_on_error("outer"):
        inside = contextvars.copy_context()
        elsewhere(lambda: inside.run(block, handle))


@pytest.mark.parametrize(
    ("context", "belongs"),
    [
        (contextvars.copy_context, True),
        (contextvars.Context, False),
        (None, bool(getattr(sys.flags, "thread_inherit_context", 0))),
    ],
)
def test_a_thread_belongs_to_the_block_whose_context_it_has(handle, root, context, belongs):
    found: list[bool] = []

    def part() -> None:
        try:
            with handle.rollback_on_error(overlap="refuse"):
                (root / "part").touch()
                found.append(True)
        except treesnap.Busy:
            found.append(False)

    def in_a_thread() -> None:
        run = (context().run,) if context is not None else ()
        target, *arguments = (*run, part)
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        thread.join()

    fail_after(handle, in_a_thread)

    assert found == [belongs]
    assert not (root / "part").exists()


def test_unknown_way_to_overlap_is_an_invalid_argument(handle):
    with pytest.raises(treesnap.InvalidArgument):
        fail_after(handle, int, overlap="merge")


def test_generator_that_is_closed_inside_a_block_is_rolled_back(handle, root):
    def work() -> Iterator[None]:
        with handle.rollback_on_error():
            (root / "made").write_text("half")
            yield

    working = work()
    next(working)
    working.close()

    assert not (root / "made").exists()


def test_delete_refuses_what_a_plan_goes_back_to(handle, root):
    def delete() -> None:
        identity = handle.list()[0].id
        with pytest.raises((treesnap.Busy, treesnap.Refused)):
            handle.delete(identity)
        handle.unpin(identity)
        with pytest.raises(treesnap.Busy, match="goes back to if it fails"):
            handle.delete(identity)
        raise Failed

    (root / "file").write_text("before")
    plan = Planner(handle, calls={"delete": delete}).run("plan", [Step(name="s", call="delete")])

    assert plan.state == PlanState.FAILED


@pytest.mark.parametrize("is_lasting", [True, False])
def test_hold_for_which_there_is_no_room_is_written_in_place_of_the_reserve_or_missed_aloud(
    handle, root, is_lasting
):
    handle.create()
    full = Fault(
        errno=errno.ENOSPC,
        methods=frozenset({"rename"}),
        where=lambda call: any("/hold-" in str(item) for item in call.arguments),
        lasting=is_lasting,
    )
    monitor = CollectingMonitor()
    filled = treesnap.Handle(
        context_at(
            root=handle.root,
            store_path=handle.store_path,
            fs=FaultyFileSystem(full),
            monitor=monitor,
        )
    )

    with filled.rollback_on_error():
        is_held = bool(list(Path(handle.store_path).rglob("hold-*")))

    assert is_held != is_lasting
    said = [text for text in monitor.warnings if text.startswith("The checkpoint cannot be held")]
    assert bool(said) == is_lasting


def test_a_block_that_is_entered_inside_itself_is_refused_and_rolls_back(handle, root):
    block = handle.rollback_on_error("block")

    def enter_twice() -> None:
        with block:
            (root / "made").touch()
            with block:
                pass

    for _ in range(2):  # and it can be used again when it was left
        with pytest.raises(treesnap.InvalidArgument, match="entered again before it was left"):
            enter_twice()
        assert not (root / "made").exists()
    with block:
        (root / "made").touch()
    assert (root / "made").exists()


def test_a_block_of_a_loop_that_is_entered_inside_itself_is_refused_and_rolls_back(handle, root):
    async def enter_twice(block: object) -> None:
        async with block:
            (root / "made").touch()
            async with block:
                pass

    async def all_of_it() -> None:
        block = handle.aio.rollback_on_error("block")
        for _ in range(2):
            with pytest.raises(treesnap.InvalidArgument, match="entered again"):
                await enter_twice(block)
            assert not (root / "made").exists()

    asyncio.run(all_of_it())
