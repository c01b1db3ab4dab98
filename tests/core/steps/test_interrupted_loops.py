"""A block of an event loop is left whatever happens to its task, and never by a finaliser."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import treesnap
from sampling import sized
from treesnap.core.event_loop import BlockInThread
from treesnap.core.handle import AsyncHandle
from treesnap.core.model.events import CollectingMonitor, Phase

pytestmark = pytest.mark.sampled(3)

ABANDONED = "block-abandoned"


class Listening(CollectingMonitor):
    """Calls something in the thread of an operation when a phase begins, once it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.act = lambda: None

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        self.act()


class Scene:
    """A directory with one file, and what a task does to it."""

    def __init__(self, path: Path) -> None:
        (path / "root").mkdir()
        self.file = path / "root" / "file"
        self.file.write_text("before")
        self.monitor = Listening()
        self.handle = treesnap.open(path / "root", path / "store", monitor=self.monitor)
        self.handle.create()
        self.monitor.codes.clear()

    @property
    def aio(self) -> AsyncHandle:
        return self.handle.aio

    async def work(self, begun: asyncio.Event) -> None:
        async with self.aio.rollback_on_error():
            self.file.write_text("after")
            begun.set()
            await asyncio.Event().wait()

    def refuse_nothing(self) -> None:
        with self.handle.rollback_on_error(overlap="refuse"):
            pass


@pytest.fixture(autouse=True)
def no_guard_is_left() -> Iterator[None]:
    """Tasks of a loop that was closed keep their guards until they are collected."""
    yield
    gc.collect()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.monitor.act = lambda: None
    found.refuse_nothing()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_is_collected_is_not_rolled_back_over_new_work(scene):
    loop = asyncio.new_event_loop()
    begun = asyncio.Event()
    task = loop.create_task(scene.work(begun))
    loop.set_exception_handler(lambda _loop, _context: None)
    loop.run_until_complete(begun.wait())
    loop.close()
    scene.file.write_text("new good work")

    del task, begun
    gc.collect()

    assert scene.file.read_text() == "new good work"
    assert scene.monitor.codes == [ABANDONED]
    identity = scene.handle.list()[0].id
    assert identity[:12] in scene.monitor.warnings[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_checkpoint_that_comes_when_its_loop_is_closed_is_released(scene):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    reached, gate = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        assert gate.wait(60)

    with ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        scene.monitor.act = stop
        task = loop.create_task(scene.work(asyncio.Event()))
        loop.run_until_complete(asyncio.sleep(0))
        assert reached.wait(60)
        loop.close()
        del task
        gc.collect()
        gate.set()

    assert scene.file.read_text() == "before"
    scene.monitor.act = lambda: None
    scene.refuse_nothing()


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle executor", "busy executor"])
@pytest.mark.parametrize("turns", [0, 10], ids=["at once", "one after the other"])
def test_two_timeouts_that_end_leave_nothing(scene, turns, is_busy):
    gate, ending = threading.Event(), []

    async def end(outer: asyncio.Timeout) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        outer.reschedule(asyncio.get_running_loop().time())

    async def use() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as outer:
            async with asyncio.timeout(None) as inner:
                async with scene.aio.rollback_on_error():
                    if is_busy:
                        loop.run_in_executor(None, gate.wait, 60)
                    scene.file.write_text("after")
                    inner.reschedule(loop.time())
                    ending.append(asyncio.create_task(end(outer)))
                    await asyncio.Event().wait()

    async def watch() -> None:
        asyncio.get_running_loop().set_default_executor(executor)
        with pytest.raises(TimeoutError):
            await use()
        assert scene.file.read_text() == "before"
        gate.set()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(watch())


def test_a_second_interruption_of_the_loop_waits_for_the_roll_back(scene):
    sent = []

    def interrupt_again() -> None:
        if not sent:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    async def use() -> None:
        async with scene.aio.rollback_on_error():
            scene.file.write_text("after")
            scene.monitor.act = interrupt_again
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(use())

    assert sent
    assert scene.file.read_text() == "before"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_tasks_that_are_cancelled_twice_leave_nothing(scene):
    async def cancel_twice(pauses: int) -> str:
        begun = asyncio.Event()
        task = asyncio.create_task(scene.work(begun))
        await begun.wait()
        task.cancel()
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return scene.file.read_text()

    async def use() -> list[str]:
        return [await cancel_twice(number % 10) for number in range(sized(20, 100))]

    assert set(asyncio.run(use())) == {"before"}


@pytest.mark.needs("notices")
def test_a_watcher_ends_though_its_task_is_cancelled_twice(scene):
    async def work(begun: asyncio.Event) -> None:
        async with scene.aio.watch():
            begun.set()
            await asyncio.Event().wait()

    async def use() -> set[str]:
        begun = asyncio.Event()
        with ThreadPoolExecutor(1) as executor:
            loop, gate = asyncio.get_running_loop(), threading.Event()
            loop.set_default_executor(executor)
            names = {thread.name for thread in threading.enumerate()}
            task = asyncio.create_task(work(begun))
            await begun.wait()
            busy = loop.run_in_executor(None, gate.wait, 60)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            left = {thread.name for thread in threading.enumerate()} - names
            gate.set()
            await busy
        return {name for name in left if not name.startswith(("ThreadPool", "treesnap-leave"))}

    assert asyncio.run(use()) == set()


async def paused(scene: Scene) -> AsyncIterator[None]:
    async with scene.aio.rollback_on_error():
        scene.file.write_text("after")
        yield


def test_a_generator_that_its_task_closes_is_rolled_back(scene):
    async def use() -> None:
        generator = paused(scene)
        await anext(generator)
        await generator.aclose()

    asyncio.run(use())

    assert scene.file.read_text() == "before"
    assert scene.monitor.codes == []


def test_a_generator_that_is_collected_is_not_rolled_back_over_new_work(scene):
    async def use() -> None:
        generator = paused(scene)
        await anext(generator)
        scene.file.write_text("new good work")
        del generator
        gc.collect()

    asyncio.run(use())

    assert scene.file.read_text() == "new good work"
    assert scene.monitor.codes == [ABANDONED]


def test_a_fork_that_is_cancelled_twice_is_whole_or_absent(scene, tmp_path):
    reached, gate = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        assert gate.wait(60)

    async def use() -> None:
        scene.monitor.act = stop
        task = asyncio.create_task(scene.aio.fork("latest", [tmp_path / "fork"]))
        await asyncio.to_thread(reached.wait, 60)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())

    assert (tmp_path / "fork" / "file").read_text() == "before"


class Leaving:
    """A block whose end waits until it is let go."""

    def __init__(self, name: str, left: list[str]) -> None:
        self.name, self.left = name, left
        self.reached, self.gate = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.reached.set()
        assert self.gate.wait(60)
        self.left.append(self.name)

    async def use(self) -> None:
        async with BlockInThread(self):
            pass

    async def begin_to_leave(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.use())
        await asyncio.to_thread(self.reached.wait, 60)
        return task


def in_a_bare_loop(work: Coroutine[None, None, None]) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGALRM])
def test_a_signal_waits_only_for_what_was_being_left_when_it_came(number):
    left: list[str] = []
    first, second = Leaving("first", left), Leaving("second", left)

    async def use() -> list[str]:
        one = await first.begin_to_leave()
        signal.raise_signal(number)
        other = await second.begin_to_leave()
        assert left == []
        first.gate.set()
        await one
        found = list(left)
        second.gate.set()
        await other
        return found

    previous = signal.signal(number, lambda *_: left.append("signal"))
    try:
        assert asyncio.run(use()) == ["first", "signal"]
    finally:
        signal.signal(number, previous)
    assert left == ["first", "signal", "second"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("run", [asyncio.run, in_a_bare_loop])
def test_what_a_handler_raises_ends_the_loop_when_all_blocks_are_left(run):
    left: list[str] = []
    first, second = Leaving("first", left), Leaving("second", left)

    def end(*_: object) -> None:
        left.append("signal")
        second.gate.set()
        raise SystemExit(7)

    async def use() -> None:
        tasks = [await first.begin_to_leave()]
        signal.raise_signal(signal.SIGTERM)
        tasks += [await second.begin_to_leave()]
        first.gate.set()
        await asyncio.wait(tasks)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            run(use())
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert left == ["first", "signal", "second"]


KILLED_WHILE_TWO_LEAVE = """
import asyncio, signal, threading, treesnap
from treesnap.core.event_loop import BlockInThread

class Leaving(BlockInThread):
    def __init__(self, name):
        super().__init__(self)
        self.name, self.reached, self.gate = name, threading.Event(), threading.Event()
    def __enter__(self):
        pass
    def __exit__(self, *_):
        self.reached.set()
        self.gate.wait(60)
        sum(range(10**7))
        print(self.name, flush=True)
    def when_left(self):
        second.gate.set()

first, second = Leaving("first"), Leaving("second")
async def use(block):
    async with block:
        pass
async def main():
    tasks = []
    for block in (first, second):
        tasks += [asyncio.create_task(use(block))]
        await asyncio.to_thread(block.reached.wait, 60)
        if block is first:
            signal.raise_signal(signal.SIGTERM)
    first.gate.set()
    await asyncio.wait(tasks)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_signal_without_a_handler_ends_the_process_when_all_blocks_are_left():
    words = [sys.executable, "-c", KILLED_WHILE_TWO_LEAVE]

    ended = subprocess.run(words, capture_output=True, check=False)

    assert ended.stdout == b"first\nsecond\n", ended
    assert ended.returncode == -signal.SIGTERM, ended


class LoopInBlock:
    """A synchronous block around a whole loop, with a main task and another one beside it."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.ended: dict[str, str] = {}
        self.files_at_end: set[str] = set()

    def run(self, work: Callable[[], Awaitable[object]]) -> None:
        with self._scene.handle.rollback_on_error():
            self._scene.file.write_text("after")
            asyncio.run(self._main(work))

    async def _main(self, work: Callable[[], Awaitable[object]]) -> None:
        begun = asyncio.Event()
        beside = asyncio.create_task(self._noted("beside", lambda: wait_for_ever(begun)))
        await begun.wait()
        await self._noted("main", work)
        await beside

    async def _noted(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except BaseException as error:
            self.ended[name] = type(error).__name__
            self.files_at_end.add(self._scene.file.read_text())
            raise


async def wait_for_ever(begun: asyncio.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


async def be_interrupted() -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.Event().wait()


async def be_interrupted_between_tasks() -> None:
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "ended"),
    [
        (be_interrupted, {"main": "KeyboardInterrupt", "beside": "CancelledError"}),
        (be_interrupted_between_tasks, {"main": "CancelledError", "beside": "CancelledError"}),
    ],
)
def test_a_loop_inside_a_block_is_interrupted_where_it_is_and_its_tasks_end_first(
    scene, work, ended
):
    """The loop does not put its handler in the place of ours, which cancels the main task."""
    loop = LoopInBlock(scene)

    with pytest.raises(KeyboardInterrupt):
        loop.run(work)

    assert loop.ended == ended
    assert loop.files_at_end == {"after"}
    assert scene.file.read_text() == "before"


def test_a_second_interruption_ends_the_wait_for_tasks_inside_a_block(scene):
    cancelled = []

    async def go_on_for_ever(begun: asyncio.Event) -> None:
        try:
            await wait_for_ever(begun)
        except asyncio.CancelledError:
            cancelled.append(scene.file.read_text())
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await asyncio.Event().wait()

    async def work() -> None:
        begun = asyncio.Event()
        stubborn = asyncio.create_task(go_on_for_ever(begun))
        await begun.wait()
        await be_interrupted()
        await stubborn

    with pytest.raises(KeyboardInterrupt):
        LoopInBlock(scene).run(work)

    assert cancelled == ["after"]
    assert scene.file.read_text() == "before"


def test_a_block_of_a_loop_inside_a_block_is_left_before_it(scene):
    found = []

    async def work() -> None:
        try:
            async with scene.aio.rollback_on_error():
                scene.file.write_text("inside")
                await be_interrupted()
        finally:
            found.append(scene.file.read_text())

    with pytest.raises(KeyboardInterrupt):
        LoopInBlock(scene).run(work)

    assert found == ["after"]
    assert scene.file.read_text() == "before"


def test_a_handler_of_the_loop_takes_the_place_of_ours_until_the_block_is_left(scene):
    seen = []

    async def work() -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, asked.set)
        signal.raise_signal(signal.SIGINT)
        await asked.wait()
        loop.remove_signal_handler(signal.SIGINT)
        seen.append(signal.getsignal(signal.SIGINT))
        raise InterruptedError

    with pytest.raises(InterruptedError):
        LoopInBlock(scene).run(work)

    assert seen == [signal.default_int_handler]
    assert scene.file.read_text() == "before"


INTERRUPTED = """
import asyncio, os, signal, sys, threading, time, treesnap
root, store, count, pause_s = *sys.argv[1:3], int(sys.argv[3]), float(sys.argv[4])
handle = treesnap.open(root, store)
def interrupt():
    for _ in range(count):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(pause_s)
async def main():
    async with handle.aio.rollback_on_error():
        with open(os.path.join(root, "file"), "w") as file:
            file.write("by the step")
        threading.Thread(target=interrupt).start()
        await asyncio.sleep(60)
try:
    asyncio.run(main())
finally:
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.write(1, b"%r\\n" % is_default)  # whole, whatever interrupts the end of Python
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("pause_s", [0, 0.001, 0.01])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_a_program_that_interruptions_end_has_rolled_back(tmp_path, count, pause_s):
    root = tmp_path / "root"
    root.mkdir()
    for _ in range(sized(2, 20)):
        (root / "file").write_text("before")
        words = [sys.executable, "-c", INTERRUPTED, root, tmp_path / "store"]

        ended = subprocess.run([*words, str(count), str(pause_s)], capture_output=True, check=False)

        assert (root / "file").read_text() == "before", ended
        assert ended.returncode == -signal.SIGINT, ended
        assert ended.stdout == b"True\n", ended
