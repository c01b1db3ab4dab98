"""Calls that block, for programs whose event loop must go on: each runs in a thread of the loop.

A thread cannot be interrupted. So a call that is cancelled before it began does nothing, and one
that has begun ends first: CancelledError is raised when nothing works in the root any more.
The call that leaves a block is always made, in a thread of its own.

Not here: what is called (``handle``). asyncio is imported by programs that use it, not by commands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import copy_context
from functools import partial, update_wrapper
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")
Target = TypeVar("Target")

if TYPE_CHECKING:
    from asyncio import CancelledError
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
    """A call that a thread makes, unless it is abandoned before."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._has_begun = False
        self._is_abandoned = False

    def __call__(self) -> T:
        # Each side says what it does before it looks at what the other one said.
        self._has_begun = True
        if self._is_abandoned:
            from asyncio import CancelledError

            raise CancelledError
        return self._function()

    def abandon(self) -> bool:
        """Returns whether the call will never be made."""
        self._is_abandoned = True
        return not self._has_begun


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Returns what a function returns in a thread; if cancelled, raises when that has ended."""
    return await _ended(partial(function, *arguments, **named), lambda: None)


async def _ended(function: Callable[[], T], release: Callable[[], object]) -> T:
    """Calls in a thread; where the result comes too late for a cancelled caller, releases it."""
    from asyncio import CancelledError, get_running_loop, wait

    call = _Call(partial(copy_context().run, function))
    future = get_running_loop().run_in_executor(None, call)
    cancellation: CancelledError | None = None
    while not future.done():
        try:
            await wait([future])
        except CancelledError as error:
            if call.abandon():
                future.cancel()
                raise
            cancellation = error
    if cancellation is None:
        return future.result()
    failure = future.exception()
    if failure is None:
        await _left(release)
    raise cancellation from failure


async def _left(leave: Callable[[], T]) -> T:
    """Calls in a thread of its own, which begins at once, and is waited for in any case.

    An executor may be busy, for ever, and what leaves a block must not wait until other work has
    begun. A task that is collected meanwhile waits without its loop.
    """
    from asyncio import CancelledError, wait, wrap_future

    result: Future[T] = Future()

    def work() -> None:
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
    cancellation: CancelledError | None = None
    while not ended.done():
        try:
            await wait([ended])
        except CancelledError as error:
            cancellation = error
        except GeneratorExit:
            thread.join()
            raise
    if cancellation is not None:
        raise cancellation from ended.exception()
    return ended.result()


@asynccontextmanager
async def block_in_thread(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enters and leaves a context in threads, the body stays in the loop.

    When the caller is cancelled while it is entered, it is left as after a body without an error.
    """
    value = await _ended(block.__enter__, partial(block.__exit__, None, None, None))
    try:
        yield value
    except BaseException as error:
        if not await _left(partial(block.__exit__, type(error), error, error.__traceback__)):
            raise
    else:
        await _left(partial(block.__exit__, None, None, None))


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
