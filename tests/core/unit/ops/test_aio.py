"""``handle.aio``: in a thread, as the handle does it, and never half done when cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from treesnap.core.event_loop import InThread
from treesnap.core.handle import AsyncHandle, Handle
from treesnap.core.model.errors import Busy, InvalidArgument, NotFound
from treesnap.core.model.events import CollectingMonitor, Phase

WAIT_S = 30.0
PURE = {"tree_path", "tree_paths"}
"""Methods of a handle that read and write nothing, so there is nothing to wait for."""


class Gate(CollectingMonitor):
    """Stops an operation when a phase begins, until the test lets it go on."""

    def __init__(self, phase: Phase) -> None:
        super().__init__()
        self._phase = phase
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.open = threading.Event()

    def begin(self, phase, files, size_bytes):
        if phase == self._phase:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self.open.wait(60)


async def let_others_run():
    for _ in range(10):
        await asyncio.sleep(0)


def methods(kind):
    """Returns the public functions and descriptors of a class, by name."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and not isinstance(value, property)
    }


def test_it_has_every_method_of_a_handle_and_no_other():
    assert methods(AsyncHandle).keys() == methods(Handle).keys() - PURE


@pytest.mark.parametrize("name", sorted(methods(AsyncHandle)))
def test_a_method_is_that_of_the_handle_with_its_parameters(name, handle):
    of_handle, of_loop = getattr(Handle, name), vars(AsyncHandle)[name]
    if isinstance(of_loop, InThread):
        assert of_loop.method is of_handle
        assert inspect.iscoroutinefunction(getattr(handle.aio, name))
    else:
        assert inspect.signature(of_loop).parameters == inspect.signature(of_handle).parameters
    assert of_loop.__doc__


def test_a_history_is_made_and_used(handle, root):
    async def use():
        made = await handle.aio.create(label="first")
        (root / "one").write_bytes(b"changed")
        assert [change.path for change in await handle.aio.diff()] == [b"one"]
        await handle.aio.restore("latest", ["one"])
        await handle.aio.undo()
        assert (root / "one").read_bytes() == b"changed"
        await handle.aio.redo()
        assert [item.label for item in await handle.aio.list()][-1] == "first"
        assert (await handle.aio.run(["true"])).exit_code == 0
        return made

    made = asyncio.run(use())

    assert (root / "one").read_bytes() == b"one"
    assert handle.list()[-1] == made.snapshot


def test_errors_are_those_of_the_handle(handle):
    async def call(awaited):
        await awaited

    with pytest.raises(NotFound):
        asyncio.run(call(handle.aio.restore("nothing")))
    with pytest.raises(InvalidArgument, match="dry_run must be True or False"):
        asyncio.run(call(handle.aio.restore("latest", dry_run="no")))


def test_the_loop_goes_on_meanwhile(make_handle):
    async def use():
        gate = Gate(Phase.SCAN)
        task = asyncio.create_task(make_handle(monitor=gate).aio.create())
        await gate.reached.wait()
        gate.open.set()  # which no blocked loop could do
        return await task

    assert asyncio.run(use()).complete


def test_a_restore_that_is_cancelled_while_it_commits_completes(handle, make_handle, root):
    handle.create()
    (root / "one").write_bytes(b"changed")

    async def use():
        gate = Gate(Phase.APPLY)
        task = asyncio.create_task(make_handle(monitor=gate).aio.restore("latest"))
        await gate.reached.wait()
        task.cancel()
        await let_others_run()
        task.cancel()  # as one who is impatient does
        await let_others_run()
        assert not task.done()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (root / "one").read_bytes() == b"one"

    asyncio.run(use())
    assert handle.status().changes == ()
    handle.undo()
    assert (root / "one").read_bytes() == b"changed"


def test_a_call_that_is_cancelled_before_a_thread_begins_it_does_nothing(handle):
    async def use():
        gate = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            busy = asyncio.get_running_loop().run_in_executor(None, gate.wait)
            task = asyncio.create_task(handle.aio.create())
            await let_others_run()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()
            await busy

    asyncio.run(use())

    assert handle.list() == ()


class TestBlocks:
    def test_an_error_rolls_the_body_back(self, handle, root):
        async def use():
            async with handle.aio.rollback_on_error("step", tags={"a": "1"}) as made:
                assert made.snapshot.label == "step"
                (root / "one").unlink()
                raise ValueError("the step failed")

        with pytest.raises(ValueError, match="the step failed"):
            asyncio.run(use())

        assert (root / "one").read_bytes() == b"one"

    def test_a_body_that_ends_well_stays(self, handle, root):
        async def use():
            async with handle.aio.rollback_on_error():
                (root / "one").unlink()

        asyncio.run(use())

        assert not (root / "one").exists()

    def test_a_cancelled_body_is_rolled_back_before_the_task_ends(self, handle, root):
        async def work(begun):
            async with handle.aio.rollback_on_error():
                (root / "one").unlink()
                begun.set()
                await asyncio.Event().wait()

        async def use():
            begun = asyncio.Event()
            task = asyncio.create_task(work(begun))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (root / "one").exists()

        asyncio.run(use())

    def test_one_is_left_though_it_is_cancelled_twice_and_the_executor_is_busy(self, handle, root):
        async def work(begun):
            async with handle.aio.rollback_on_error():
                (root / "one").unlink()
                begun.set()
                await asyncio.Event().wait()

        async def use():
            gate, begun = threading.Event(), asyncio.Event()
            with ThreadPoolExecutor(1) as executor:
                loop = asyncio.get_running_loop()
                loop.set_default_executor(executor)
                task = asyncio.create_task(work(begun))
                await begun.wait()
                busy = loop.run_in_executor(None, gate.wait, 60)
                try:
                    task.cancel()
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert not busy.done()
                    assert (root / "one").read_bytes() == b"one"
                finally:
                    gate.set()
                    await busy

        asyncio.run(use())
        with handle.rollback_on_error(overlap="refuse"):
            pass

    def test_blocks_inside_belong_to_the_outer_one(self, handle, root):
        async def use():
            async with handle.aio.rollback_on_error("outer"):
                with suppress(ValueError):
                    async with handle.aio.rollback_on_error("inner"):
                        (root / "one").unlink()
                        raise ValueError
                assert (root / "one").exists()
                async with asyncio.TaskGroup() as group:
                    group.create_task(inside())

        async def inside():
            async with handle.aio.rollback_on_error("task", overlap="refuse"):
                pass

        asyncio.run(use())

    def test_tasks_of_one_loop_wait_for_each_other_without_threads(self, make_handle, root):
        handle = make_handle(wait_s=WAIT_S)
        (root / "log").write_text("")

        async def work(number, fails):
            async with handle.aio.rollback_on_error():
                text = (root / "log").read_text()
                await let_others_run()
                (root / "log").write_text(text + str(number))
                if fails:
                    raise ValueError

        async def use():
            with ThreadPoolExecutor(1) as executor:
                asyncio.get_running_loop().set_default_executor(executor)
                tasks = [work(number, fails=number == 2) for number in range(5)]
                return await asyncio.gather(*tasks, return_exceptions=True)

        ended = asyncio.run(use())

        assert [type(item) for item in ended].count(ValueError) == 1
        assert sorted((root / "log").read_text()) == ["0", "1", "3", "4"]

    def test_one_who_does_not_wait_is_refused(self, handle):
        async def use():
            held, over = asyncio.Event(), asyncio.Event()

            async def hold():
                async with handle.aio.rollback_on_error():
                    held.set()
                    await over.wait()

            task = asyncio.create_task(hold())
            await held.wait()
            with pytest.raises(Busy):
                async with handle.aio.rollback_on_error(overlap="refuse"):
                    pass
            with pytest.raises(Busy):  # the handle waits for no time at all
                async with handle.aio.rollback_on_error():
                    pass
            over.set()
            await task

        asyncio.run(use())

    def test_one_that_is_cancelled_while_it_begins_is_over(self, make_handle, root):
        async def use():
            gate = Gate(Phase.SCAN)
            handle = make_handle(monitor=gate)

            async def work():
                async with handle.aio.rollback_on_error():
                    pytest.fail("the body must not run")

            task = asyncio.create_task(work())
            await gate.reached.wait()
            task.cancel()
            await let_others_run()
            (root / "since").write_text("of another")
            gate.open.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with make_handle().aio.rollback_on_error(overlap="refuse"):
                pass

        asyncio.run(use())
        assert (root / "since").exists()

    def test_another_word_for_overlap_is_an_invalid_argument(self, handle):
        async def use():
            async with handle.aio.rollback_on_error(overlap="ignore"):
                pass

        with pytest.raises(InvalidArgument):
            asyncio.run(use())

    @pytest.mark.needs("notices")
    def test_a_watched_handle_has_the_same_methods(self, handle, root):
        async def use():
            async with handle.aio.watch() as watched:
                await watched.create()
                (root / "one").write_bytes(b"changed")
                return await watched.create()

        assert asyncio.run(use()).stats.files_read == 1


class TestCat:
    def test_it_yields_the_bytes_of_a_file(self, handle, root):
        (root / "large").write_bytes(b"x" * (3 << 20))
        handle.create()

        async def use():
            return [piece async for piece in handle.aio.cat("latest", "large")]

        pieces = asyncio.run(use())
        assert b"".join(pieces) == b"x" * (3 << 20)
        assert len(pieces) > 1

    def test_it_may_be_left_early(self, handle, root):
        (root / "large").write_bytes(b"x" * (3 << 20))
        handle.create()

        async def use():
            pieces = handle.aio.cat("latest", "large")
            async for _ in pieces:
                break
            await pieces.aclose()

        asyncio.run(use())

    def test_its_errors_come_with_the_first_piece(self, handle):
        handle.create()

        async def use():
            pieces = handle.aio.cat("latest", "nothing")
            with pytest.raises(NotFound):
                await anext(pieces)

        asyncio.run(use())
