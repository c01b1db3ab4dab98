"""What ``rollback_on_error`` returns: blocks and decorators that go back when what they hold fails.

Not here: how a checkpoint is taken and held, and the way back to it (``checkpoint``); how a block
of an event loop is entered and left in threads (``event_loop``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import CoroutineType

from treesnap.core.event_loop import BlockInThread
from treesnap.core.model.results import CreateResult
from treesnap.core.model.type_names import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from treesnap.core.ops.checkpoint_locks import Overlap, Overlapping, entered
from treesnap.core.ops.run.checkpoint import CheckpointBlock, HeldCheckpoint, warn_of_untouched

if TYPE_CHECKING:
    from treesnap.core.model.requests import CaptureRequest
    from treesnap.core.ops.context import Context

P = ParamSpec("P")
T = TypeVar("T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_PAUSE_S = 0.05
"""How often a block of an event loop asks whether another one is over."""


class RollbackBlock(CheckpointBlock[CreateResult]):
    """A block that rolls back when its body raises; also a decorator of functions.

    Each call of a decorated function has a block of its own; that of a coroutine function is one of
    the event loop, as of ``handle.aio``. The body of a generator runs after the call, so generator
    functions are refused.
    """

    def __init__(self, context: Context, request: CaptureRequest, overlap: str) -> None:
        def give_up(held: HeldCheckpoint, _error: BaseException) -> None:
            warn_of_untouched(context, held.go_back())

        super().__init__(
            context, request, "rollback_on_error", give_up, lambda held: held.made, overlap
        )
        self._request = request
        self._overlap = overlap

    def again(self, overlap: str | None = None) -> RollbackBlock:
        """Returns another block for the same, because one can be entered only once."""
        return RollbackBlock(self._context, self._request, overlap or self._overlap)

    def in_loop(self) -> RollbackInLoop:
        """Returns a block for the same in an event loop."""
        return RollbackInLoop(self, self._context.wait_s, self._overlap)

    def __call__(self, function: _Function) -> _Function:
        """Returns the function with a block around each call; raises TypeError for generators."""
        if _is_coroutine_function(function):
            return cast("_Function", self.in_loop()(function))
        _refuse_generators(function)

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with self.again():
                result = function(*arguments, **named)
                if isinstance(result, CoroutineType):
                    result.close()
                    raise TypeError(
                        f"rollback_on_error cannot protect {_name_of(function)}: it returned a "
                        "coroutine, which would run after the block. Decorate the coroutine "
                        "function itself, or use 'async with handle.aio.rollback_on_error(...)'"
                    )
                return result

        return cast("_Function", call)

    if not TYPE_CHECKING:  # a type checker says itself that there is no such method

        async def __aenter__(self) -> CreateResult:
            raise TypeError(
                "'async with' needs the block of handle.aio, which does not stop the event loop: "
                "'async with handle.aio.rollback_on_error(...)'"
            )

        async def __aexit__(self, *_: object) -> None: ...


class RollbackInLoop(BlockInThread[CreateResult]):
    """Waits for other blocks in a loop, then holds a checkpoint while a body runs there.

    Or a decorator, which gives each call of a coroutine function a block of its own.
    """

    def __init__(self, block: RollbackBlock, wait_s: float, overlap: str) -> None:
        self._first = block
        self._is_waiting = overlap == Overlap.WAIT
        self._wait_s = wait_s
        self._overlap = overlap
        self._outside = entered.get()
        block = self._make()
        super().__init__(block, block.abandon)

    def _make(self) -> RollbackBlock:
        return self._first.again(Overlap.REFUSE.value if self._is_waiting else self._overlap)

    async def __aenter__(self) -> CreateResult:
        from asyncio import get_running_loop, sleep

        loop = get_running_loop()
        deadline = loop.time() + self._wait_s
        self._outside = entered.get()
        while True:
            try:
                made = await super().__aenter__()
                break
            except Overlapping:
                if not (self._is_waiting and loop.time() < deadline):
                    raise
            await sleep(_PAUSE_S)
            block = self._make()
            self._take(block, block.abandon)
        entered.set(self._outside | {made.id})  # what the thread set was its own
        return made

    def when_left(self) -> None:
        """Puts the task outside the block again."""
        entered.set(self._outside)

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]]
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """Returns a coroutine function with a block around each call; raises TypeError else."""
        if not _is_coroutine_function(function):
            _refuse_generators(function)
            raise TypeError(
                f"handle.aio.rollback_on_error cannot protect {_name_of(function)}, which is not a "
                "coroutine function: decorate it with handle.rollback_on_error"
            )

        @wraps(function)
        async def call(*arguments: P.args, **named: P.kwargs) -> T:
            async with self._first.in_loop():
                return await function(*arguments, **named)

        return call


def _is_coroutine_function(function: object) -> bool:
    from inspect import iscoroutinefunction  # blocks that decorate nothing do not need it

    return any(iscoroutinefunction(each) for each in _called(function))


def _refuse_generators(function: object) -> None:
    """Raises TypeError for what only makes a generator, whose body runs later."""
    from inspect import isasyncgenfunction, isgeneratorfunction

    functions = _called(function)
    is_async = any(isasyncgenfunction(each) for each in functions)
    if is_async or any(isgeneratorfunction(each) for each in functions):
        kind = "an async generator" if is_async else "a generator"
        block = "async with handle.aio" if is_async else "with handle"
        raise TypeError(
            f"rollback_on_error cannot protect {_name_of(function)} as a decorator: it makes "
            f"{kind}, whose body runs after the call. Write '{block}.rollback_on_error(...):' "
            "inside it"
        )


def _called(function: object) -> tuple[object, object]:
    """Returns what a call may run: the function itself, or the method of an object."""
    return function, type(function).__call__


def _name_of(function: object) -> str:
    return repr(getattr(function, "__qualname__", function))
