"""Signals do not interrupt what has to be done whole: beginning a block, and leaving it.

Python calls the handlers of signals in the main thread, between any two of its instructions, and
what a handler raises is raised there. No flag that code sets closes the gap before it is set. So a
handler of ours stands in front of the program's, and looks at what is running:

    in a function marked :func:`uninterrupted`     the signal is kept, until that function is left
    in a loop, while threads leave their blocks    the signal is kept, until those have ended
    in a loop with a block that is open            the third Ctrl-C and later ones are kept
    anywhere else                                  the program's handler is called, as without ours

Functions marked :func:`interruptible` run within the others, and take long. There a kept signal is
delivered by :func:`interrupt_here`, where an operation waits or tells of its progress, and a
failure is expected; once, because what the first one raises must be able to clean up.

:class:`Guard` puts our handler in front and takes it away. It concerns the main thread alone, since
signals interrupt no other. Signals that the program ignores stay ignored, and handlers in C code
stay. asyncio.Runner cancels its main task for the first Ctrl-C, and ends the loop for the second
one; then it cancels the other tasks, and what they do about that needs a loop that runs. One
without a handler ends the process without a word, which raises nothing: it is kept while
something is left, not before.

Tasks of a loop may leave their blocks all the time, one while the other does. So a signal waits
for those that were being left when it came. Where it then ends what the loop does, the program
goes on only when the others have been left too.

Only the functions of ``_signal`` are called here: those of ``signal`` are written in Python, and
can themselves be interrupted.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has only the slow one
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from weakref import ref

from treesnap.core.ending_signals import ENDING
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

EXIT_BASE = 128
"""Shells add the number of the signal that ended a command to this."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_whole: set[CodeType] = set()
"""What signals must not interrupt."""
_long: set[CodeType] = set()
"""What they may interrupt within that."""
_program: dict[int, Any] = {}
"""The program's handlers that ours stands or stood in front of."""
_guards: dict[int, int] = {}
"""How many guards want a signal to be kept."""
_kept: list[_Kept] = []


class _Kept(NamedTuple):
    """A signal that is not delivered yet."""

    number: int
    leaves: frozenset[Future[Any]]
    """What threads were leaving when it came, and has to end before."""
    is_excessive: bool
    """Whether all blocks of loops have to be left before."""

    @property
    def is_due(self) -> bool:
        is_early = self.is_excessive and _state.open_in_loops
        return not is_early and all(leave.done() for leave in self.leaves)


class Stopped(SystemExit):
    """A signal asked the program to end; its code is 128 plus the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_BASE + number)
        self.signal = number


def uninterrupted(function: _Function) -> _Function:
    """Marks a function during which signals are kept, as long as a :class:`Guard` stands.

    From its first instruction to its last, with all that it calls.
    """
    _whole.add(function.__code__)
    return function


def interruptible(function: _Function) -> _Function:
    """Marks a function within one that is uninterrupted; see :func:`interrupt_here`."""
    _long.add(function.__code__)
    return function


class Guard:
    """Keeps signals while an uninterrupted function runs, from the beginning of it to the end.

    Its methods are called in such functions. In threads other than the main one it does nothing.
    As a context manager it stands, for signals that end the process too, while its body runs.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def __enter__(self) -> None:
        self.stand(ending=True)

    def __exit__(self, *_: object) -> None:
        self.go()

    def stand(self, *, ending: bool) -> None:
        """Puts our handler in front of those of the program, where it does not stand yet.

        With ``ending`` also where there is none, and the signal would end the process.
        """
        if not _is_main_thread():
            return
        mask = _mask()
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _MASKED)
            for number in _MASKED:
                handler = _signal.getsignal(number)
                is_silent = handler == _signal.SIG_DFL and ending and number in ENDING
                if callable(handler) or is_silent:
                    if handler is not _arrived:
                        _program[number] = handler
                        _signal.signal(number, _arrived)
                    if number not in self._numbers:
                        self._numbers.add(number)
                        _guards[number] = _guards.get(number, 0) + 1
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def deliver(self) -> None:
        """Calls the program's handlers for what was kept; all of them, then raises the first error.

        Does nothing in an uninterrupted function that another one called: that one delivers.
        A signal for which a block is still being left stays for that one.
        """
        if not _kept or not _is_main_thread() or not _is_outermost():
            return
        failure: BaseException | None = None
        while due := next((kept for kept in _kept if kept.is_due), None):
            _kept.remove(due)
            if _program[due.number] == _signal.SIG_DFL:
                _wait_for_leaves()
            try:
                _call(due.number, _running())
            except BaseException as error:  # noqa: BLE001 - it is raised when all are called
                failure = failure or error
        try:
            if failure is not None:
                _wait_for_leaves()
                raise failure
        finally:
            del failure  # which would keep the frames that it went through, and their files

    def go(self) -> None:
        """Delivers what was kept, and takes our handler away where no other guard needs it.

        A handler that the program has set meanwhile stays.
        """
        if not self._numbers:
            return
        if _is_outermost():
            _state.has_interrupted = False
        try:
            self.deliver()
        finally:
            self._take_away()

    def _take_away(self) -> None:
        numbers, self._numbers = self._numbers, set()
        is_main = _is_main_thread()
        mask = _mask() if is_main else None
        try:
            if is_main:
                _signal.pthread_sigmask(_signal.SIG_BLOCK, numbers)
            for number in numbers:
                _guards[number] -= 1
                if is_main and not _guards[number] and _signal.getsignal(number) is _arrived:
                    _signal.signal(number, _handler_to_be(number))
            self.deliver()  # what came since
        finally:
            if mask is not None:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


class LoopGuard(Guard):
    """Keeps signals for a block of an event loop, which is left in a thread.

    A runner can still end the loop while the body runs, which gives its tasks their last turn;
    a body that does not take it is ended by other signals than SIGINT.
    """

    _is_open = False

    def open(self) -> None:
        """Begins to count what interrupts the runner, while the block is open."""
        self.stand(ending=False)
        if self._numbers:
            if not _state.open_in_loops:
                _state.loop_interrupts = 0
            self._is_open = True
            _state.open_in_loops += 1

    def go(self) -> None:
        """Ends what :meth:`open` began, and delivers what was kept."""
        _state.open_in_loops -= self._is_open
        self._is_open = False
        super().go()

    def __del__(self) -> None:
        self.go()


@contextmanager
def left_in_thread(result: Future[Any]) -> Iterator[None]:
    """Keeps each signal in front of which a guard stands, until a thread has left its block.

    The body waits for the result of the thread.
    """
    if not _is_main_thread():
        yield
        return
    leave = ref(result)
    _state.leaves.add(leave)
    try:
        yield
    finally:
        _state.leaves.discard(leave)


def wait_until_left(result: Future[Any]) -> None:
    """Waits until what leaves a block has ended, however often that is interrupted."""
    while not result.done():
        with suppress(KeyboardInterrupt):
            result.exception()


def _wait_for_leaves() -> None:
    for leave in _being_left():
        wait_until_left(leave)


def _being_left() -> frozenset[Future[Any]]:
    """Returns what threads are leaving; a task whose loop was stopped learns of no end."""
    leaves = [leave() for leave in tuple(_state.leaves)]
    return frozenset(leave for leave in leaves if leave is not None and not leave.done())


_MASKED = tuple(
    sorted(
        _signal.valid_signals()
        - {
            getattr(_signal, name)
            for name in ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
        }
    )
)
"""All that can be handled in Python."""


_INTERRUPTS_OF_RUNNER = 2
"""The first one cancels its task, the second one ends its loop."""


def _is_of_runner(handler: object) -> bool:
    """Returns whether a handler is that of an asyncio.Runner, which is a partial of its method."""
    asyncio = sys.modules.get("asyncio")
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return asyncio is not None and isinstance(owner, asyncio.Runner)


def _handler_to_be(number: int) -> Any:
    """Returns the program's handler; a runner that has ended would have taken its own away."""
    handler = _program[number]
    if _is_of_runner(handler):
        from asyncio import Runner

        if _marked(_running(), {Runner.run.__code__}) is None:
            return _signal.default_int_handler
    return handler


class _State:
    """Of the main thread."""

    def __init__(self) -> None:
        self.leaves: set[ref[Future[Any]]] = set()
        """What threads leave, each of which a task waits for.

        A future has its task, which must be collected if its loop was stopped, to end its guard.
        """

    first: FirstSignal | None = None
    """Gets the signals that would end the program."""
    has_interrupted: bool = False
    """Whether a signal has interrupted what is interruptible, which cleans up now."""
    open_in_loops: int = 0
    """How many blocks of event loops have begun and are not left."""
    loop_interrupts: int = 0
    """How often a runner was interrupted since the first of them began."""


_state = _State()


def _arrived(number: int, frame: FrameType | None) -> None:
    """Stands in front of the program's handlers."""
    leaves, is_excessive = _being_left(), _is_excessive(number)
    if leaves or is_excessive or _marked(frame, _whole) is not None:
        _kept.append(_Kept(number, leaves, is_excessive))
    else:
        _call(number, frame)


def _is_excessive(number: int) -> bool:
    """Returns whether a signal would keep a runner from ending tasks that are in blocks."""
    if not _state.open_in_loops or number != _signal.SIGINT or not _is_of_runner(_program[number]):
        return False
    _state.loop_interrupts += 1
    return _state.loop_interrupts > _INTERRUPTS_OF_RUNNER


def _call(number: int, frame: FrameType | None) -> None:
    """Does what the signal does without us."""
    handler = _program[number]
    if _state.first is not None and handler in (_signal.SIG_DFL, _signal.default_int_handler):
        _state.first.arrived(number)
    elif callable(handler):
        handler(number, frame)
    elif handler == _signal.SIG_DFL:
        _signal.signal(number, _signal.SIG_DFL)
        _signal.raise_signal(number)


def _marked(frame: FrameType | None, codes: set[CodeType]) -> FrameType | None:
    """Returns the frame itself, or the nearest of those that called it, of marked functions."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame


def _running() -> FrameType:
    return sys._getframe(1)  # noqa: SLF001 - as inspect.currentframe, which takes long to import


def _mask() -> set[int]:
    """Returns which signals are blocked.

    The call that blocks more of them does not always return that: it calls handlers for what has
    arrived already, and these may raise.
    """
    blocked: set[int] = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    return blocked


def _is_outermost() -> bool:
    """Returns whether no more than one uninterrupted function runs."""
    frame = _marked(_running(), _whole)
    return frame is None or _marked(frame.f_back, _whole) is None


def _is_main_thread() -> bool:
    import threading  # here, because most commands need no guard

    return threading.current_thread() is threading.main_thread()


def interrupt_here() -> None:
    """Delivers the first signal that was kept, if what runs is interruptible."""
    if not _kept or _state.has_interrupted or not _is_main_thread():
        return
    nearest = _marked(_running(), _whole | _long)
    if nearest is not None and nearest.f_code in _long:
        number = _kept.pop(0).number
        try:
            _call(number, nearest)
        except BaseException:
            _state.has_interrupted = True
            raise


def pause(duration_s: float) -> None:
    """Sleeps; a signal may interrupt what is interruptible, before and after."""
    interrupt_here()
    time.sleep(duration_s)
    interrupt_here()


class FirstSignal:
    """Makes the first signal that ends the program raise KeyboardInterrupt or :class:`Stopped`.

    In its body, for signals that the program does not handle itself. Later ones are only counted,
    so that they do not interrupt how the body reacts.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._is_deferring = False
        self._guard = Guard()
        self._outer: FirstSignal | None = None

    @uninterrupted
    def __enter__(self) -> Self:
        if _is_main_thread():
            self._outer, _state.first = _state.first, self
            self._guard.stand(ending=True)
        return self

    @uninterrupted
    def __exit__(self, *_: object) -> None:
        if _state.first is self:
            try:
                self._guard.deliver()
            finally:
                _state.first = self._outer
                self._guard.go()

    def arrived(self, number: int) -> None:
        """Counts a signal, and raises for the first one."""
        is_first = not self.numbers  # before another one can arrive in between
        self.numbers.append(number)
        if is_first and not self._is_deferring:
            self._raise()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raises for a signal that arrives in the body once the body has ended.

        A process that is being started has no name yet by which it could be ended.
        """
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False
            if self.numbers:
                self._raise()

    def _raise(self) -> None:
        number = self.numbers[0]
        raise KeyboardInterrupt if number == _signal.SIGINT else Stopped(number)

    @property
    def is_urgent(self) -> bool:
        """Whether there was more than one: the user does not want to wait."""
        return len(self.numbers) + len(_kept) > 1
