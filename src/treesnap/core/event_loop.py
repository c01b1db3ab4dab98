"""Calls that block, for programs whose event loop must go on: each runs in a thread of the loop.

A thread cannot be interrupted. So a call that is cancelled before it began does nothing, and one
that has begun ends first: CancelledError is raised when nothing works in the root any more.
The call that leaves a block is always made, in a thread of its own.

Not here: what is called (``handle``). asyncio and threading are imported by programs that use them,
not by commands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial, update_wrapper
from types import TracebackType

from treesnap.core.interruption import LoopGuard, left_in_thread, uninterrupted, wait_until_left
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.type_names import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

P = ParamSpec("P")
T = TypeVar("T")
Target = TypeVar("Target")

if TYPE_CHECKING:
    from asyncio import CancelledError, Task
    from concurrent.futures import Future
    from typing import Protocol

    Target_co = TypeVar("Target_co", covariant=True)

    class HasHandle(Protocol[Target_co]):
        """What stands before something that blocks."""

        @property
        def handle(self) -> Target_co:
            """That which blocks."""


class InThread(Generic[Target, P, T]):
    """A method that runs one of the handle in a thread: same parameters, its result awaitable."""

    def __init__(self, method: Callable[Concatenate[Target, P], T]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: HasHandle[Target], owner: type[object]
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(
        self, instance: HasHandle[Target] | None, owner: type[object]
    ) -> Self | Callable[P, Coroutine[Any, Any, T]]:
        if instance is None:
            return self
        handle = instance.handle

        async def call(*arguments: P.args, **named: P.kwargs) -> T:
            return await in_thread(self.method, handle, *arguments, **named)

        return update_wrapper(call, self.method)


class _Call(Generic[T]):
    """A call that a thread makes, unless it is abandoned before; then it releases its result."""

    def __init__(
        self,
        function: Callable[[], T],
        release: Callable[[], object],
        is_unwanted: Callable[[], bool],
    ) -> None:
        """Prepares a call. ``is_unwanted`` tells whether its caller cannot go on any more."""
        from threading import Lock

        self._function = function
        self._release = release
        self._is_unwanted = is_unwanted
        self._lock = Lock()
        self._has_begun = self._has_result = self._is_abandoned = False

    def __call__(self) -> T:
        from asyncio import CancelledError

        with self._lock:
            if self._is_abandoned:
                raise CancelledError
            self._has_begun = True
        result = self._function()
        if self._is_late():
            self._release()
            raise CancelledError
        return result

    def _is_late(self) -> bool:
        with self._lock:
            self._has_result = True
            self._is_abandoned = self._is_abandoned or self._is_unwanted()
            return self._is_abandoned

    def cancel(self) -> bool:
        """Returns whether the call will never be made, which is so unless it has begun."""
        with self._lock:
            self._is_abandoned = self._is_abandoned or not self._has_begun
            return self._is_abandoned

    def abandon(self) -> None:
        """Releases the result, or lets the thread do it; its caller no longer waits."""
        with self._lock:
            is_due = self._has_result and not self._is_abandoned
            self._is_abandoned = True
        if is_due:
            self._release()


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Returns what a function returns in a thread; if cancelled, raises when that has ended."""
    return await _ended(partial(function, *arguments, **named), lambda: None)


async def _ended(function: Callable[[], T], release: Callable[[], object]) -> T:
    """Calls in a thread; where the result comes too late for its caller, releases it."""
    from asyncio import CancelledError, get_running_loop, wait
    from contextvars import copy_context

    loop = get_running_loop()
    call = _Call(partial(copy_context().run, function), release, loop.is_closed)
    future = loop.run_in_executor(None, call)
    cancellation: CancelledError | None = None
    while not future.done():
        try:
            await wait([future])
        except CancelledError as error:
            if call.cancel():
                future.cancel()
                raise
            cancellation = error
        except BaseException:  # collected with its task, or a second Ctrl-C
            call.abandon()
            raise
    if cancellation is None:
        return future.result()
    failure = future.exception()
    if failure is None:
        await _left(release)
    raise cancellation from failure


@uninterrupted
async def _left(leave: Callable[[], T]) -> T:
    """Calls in a thread of its own, which begins at once, and is waited for in any case.

    An executor may be busy, for ever, and what leaves a block must not wait until other work has
    begun. A task that is collected meanwhile waits without its loop.
    """
    from asyncio import CancelledError, wait, wrap_future
    from concurrent.futures import Future
    from contextvars import copy_context
    from threading import Lock, Thread

    result: Future[T] = Future()
    once = Lock()

    def work() -> None:
        if not once.acquire(blocking=False):
            return
        try:
            result.set_result(leave())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            result.set_exception(error)

    thread = Thread(target=partial(copy_context().run, work), name="treesnap-leave")
    ended = wrap_future(result)
    try:
        thread.start()
    except RuntimeError:  # there may be no more threads
        work()
    except KeyboardInterrupt:  # the thread may have begun, or not
        work()
        wait_until_left(result)
        raise
    cancellation: CancelledError | None = None
    with left_in_thread(result):
        while not ended.done():
            try:
                await wait([ended])
            except CancelledError as error:
                cancellation = error
            except BaseException:  # collected with its task, or a handler of the program raised
                wait_until_left(result)
                raise
    if cancellation is not None:
        raise cancellation from ended.exception()
    return ended.result()


class BlockInThread(Generic[T]):
    """Enters and leaves a context in threads, the body stays in the loop.

    When the caller is cancelled while it is entered, it is left as after a body without an error.
    When the body is closed by another than its task, because that is collected or the loop ends,
    the block is abandoned at once: what it would do later, it would do to new work.
    """

    def __init__(
        self, block: AbstractContextManager[T], abandon: Callable[[], object] | None = None
    ) -> None:
        """Prepares a block; without ``abandon`` it is left as after a body without an error."""
        self._take(block, abandon)
        self._task: Task[Any] | None = None
        self._guard = LoopGuard()

    def _take(
        self, block: AbstractContextManager[T], abandon: Callable[[], object] | None = None
    ) -> None:
        self._block = block
        self._leave_well = partial(block.__exit__, None, None, None)
        self._abandon = abandon if abandon is not None else self._leave_well

    def when_left(self) -> None:
        """Is called in the task of the block when that is left."""

    if not TYPE_CHECKING:  # a type checker says itself that there is no such method

        def __enter__(self) -> T:
            raise TypeError("A block of handle.aio is entered with 'async with', not with 'with'")

        def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> T:
        if self._task is not None:
            raise entered_again()
        self._task = _current_task()
        self._guard.open()
        try:
            return await _ended(self._block.__enter__, self._leave_well)
        except BaseException:
            self._task = None
            self._guard.go()
            raise

    @property
    def _is_in_its_task(self) -> bool:
        """Whether the task runs that entered the block, and not a finaliser."""
        return _current_task() is self._task

    @uninterrupted
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:  # checkers would take ``bool`` for a block that swallows errors
        from asyncio import CancelledError

        try:
            if isinstance(error, GeneratorExit | CancelledError) and not self._is_in_its_task:
                self._abandon()
                return False
            self._guard.stand(ending=True)
            return bool(await _left(partial(self._block.__exit__, kind, error, traceback)))
        finally:
            if self._is_in_its_task:
                self.when_left()
            self._task = None
            self._guard.go()


def entered_again() -> InvalidArgument:
    """Returns the error for a block that is entered inside itself."""
    return InvalidArgument(
        "A block was entered again before it was left; make another one inside it"
    )


def _current_task() -> Task[Any] | None:
    from asyncio import current_task

    try:
        return current_task()
    except RuntimeError:  # no loop runs
        return None


async def items_in_thread(iterator: Iterator[T]) -> AsyncIterator[T]:
    """Yields what an iterator yields, of which each step runs in a thread; closes it at the end."""
    end = object()
    try:
        while True:
            item = await in_thread(next, iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]  # not the end, so one of its items
    finally:
        if isinstance(iterator, Generator):
            await in_thread(iterator.close)
