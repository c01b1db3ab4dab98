"""What all providers share: a checkpoint before each command, and the history handed out.

treesnap runs in the sandbox, as any command does there. Its store and the remote that it pushes to
are in the sandbox too, so a checkpoint costs one call of the provider, and no file leaves the
sandbox for it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import shlex
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypedDict

from treesnap.core.handle import Handle
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    Refused,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.ops.context import is_disabled_for_agents, system_clock_ns
from treesnap.sandboxes.handover import HandedOut, Receiver

_LOG = logging.getLogger(__name__)
PLACE = ".treesnap-handed-out"
"""The directory in a sandbox that the history is handed out from, where commands start there."""
HAND_OUT_EVERY_S = 30.0
PATIENCE_S = 60.0
"""How long a checkpoint or a push may take."""
_LABEL_LENGTH_MAX = 80
_SNAP_MISSING = (126, 127)
"""The exit codes of a shell that cannot run a program."""
_INCOMPLETE = 4
"""The exit code of ``snap create`` for a snapshot that lacks what could not be read."""
_ORIGINAL = "treesnap_original"
"""What a method is called that makes a checkpoint, in the one that was put in its place."""
_MESSAGE_LENGTH_MAX = 500


class Finished(NamedTuple):
    """How a command ended, and what it printed."""

    exit_code: int
    text: str


class Method(NamedTuple):
    """A method of a provider's client that runs what an agent wants to run."""

    owner: Any
    name: str
    parameter: str
    """What has what runs, as a text or as its ``command``."""

    def label(self, words: Sequence[Any], options: Mapping[str, Any]) -> str:
        """Returns what a call runs; the name of the method where its arguments do not say."""
        with suppress(TypeError, KeyError):  # a call that fails has to fail in the method itself
            bound = inspect.signature(getattr(self.owner, self.name)).bind(*words, **options)
            what = bound.arguments[self.parameter]
            return str(getattr(what, "command", what))
        return self.name


class Sandbox:
    """A sandbox of a provider, as a recording uses it; a subclass for each provider."""

    provider: str
    is_asynchronous: bool
    """Whether the methods of the client are coroutines."""
    loop: asyncio.AbstractEventLoop | None = None
    """Where those run: calls come from other threads."""

    def methods(self) -> Sequence[Method]:
        """Returns the methods before which a checkpoint is made."""
        raise NotImplementedError

    def run(self, command: str, timeout_s: float) -> Finished:
        """Runs a command by a shell, without a checkpoint; raises what the provider raises."""
        raise NotImplementedError

    def read(self, path: str) -> Iterable[bytes]:
        """Yields the bytes of a file; raises what the provider raises."""
        raise NotImplementedError

    def result(self, value: Any) -> Any:
        """Returns what a method of the client returned, which may be to be awaited."""
        if self.loop is None:
            return value
        with suppress(RuntimeError):  # in other threads
            if asyncio.get_running_loop() is self.loop:
                value.close()
                raise InvalidArgument("In an event loop: await asyncio.to_thread(...) does this")
        return asyncio.run_coroutine_threadsafe(value, self.loop).result()

    def chunks(self, stream: Iterable[bytes] | AsyncIterable[bytes]) -> Iterable[bytes]:
        """Yields what a stream of the client yields."""
        if isinstance(stream, Iterable):
            yield from stream
            return
        iterator = aiter(stream)
        while (chunk := self.result(_next_of(iterator))) is not None:
            yield chunk


def without_checkpoint(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of a client as it was before any recording."""
    while (original := getattr(method, _ORIGINAL, None)) is not None:
        method = original
    return method


class Options(TypedDict, total=False):
    """How a directory of a sandbox is recorded, where that is not as usual."""

    remote: str
    """In place of a handle and a directory: what ``snap remote add`` named in the sandbox."""
    session: str
    """The session of the steps; by default a new one."""
    snap: str
    """What runs treesnap in the sandbox, such as ``/opt/venv/bin/snap`` or ``sudo snap``."""
    place: str
    """A directory in the sandbox in which files wait to be handed out, beside the one that is
    recorded."""
    hand_out_every_s: float
    """How often the history is handed out before a command; with 0 before each."""
    patience_s: float
    """How long a checkpoint or a push may take."""
    force: bool
    """Whether the directory may be a dangerous one, such as a home directory."""


class CommandGap(NamedTuple):
    """A command without a checkpoint, or a history that was not handed out before it."""

    command: str
    reason: str


class Recording:
    """Records a directory of a sandbox in the body of ``with``, or ``async with``.

    In the body the methods of the client that run commands make a checkpoint first. Two threads,
    or tasks, may run commands at once. What fails of it is kept in ``gaps`` and logged once; the
    commands run as without it. If SNAP_DISABLE is set, nothing is done.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        root: str,
        handle: Handle | None,
        directory: str | os.PathLike[str] | None,
        options: Options,
    ) -> None:
        remote = options.get("remote")
        is_received = handle is not None and directory is not None
        if is_received == (remote is not None) or (handle is None) != (directory is None):
            raise InvalidArgument(
                "Say where the history goes: a handle and a directory of this machine, or the "
                "remote that snap has in the sandbox"
            )
        self.session: str = options.get("session") or f"{sandbox.provider}-{system_clock_ns()}"
        self.gaps: list[CommandGap] = []
        self.handed_out: HandedOut | None = None
        """What was handed out last."""
        self._sandbox = sandbox
        self._receiver = Receiver(handle, directory) if handle and directory is not None else None
        self._remote = remote or "handed-out"
        self._place = options.get("place", PLACE)
        """Absolute from the beginning on."""
        self._program = options.get("snap", "snap")
        self._snap = f"{self._program} -C {shlex.quote(root)}"
        self._flags = ["--force"] if options.get("force") else []
        self._every_s = options.get("hand_out_every_s", HAND_OUT_EVERY_S)
        self._patience_s = options.get("patience_s", PATIENCE_S)
        self._is_disabled = is_disabled_for_agents()
        self._pushed: set[str] = set()
        """Snapshots that were pushed, and have not come here yet."""
        self._next_step = 0
        self._next_hand_out_s = 0.0
        self._counting = threading.Lock()
        self._handing_out = threading.Lock()
        self._replaced: list[tuple[Method, Any]] = []
        """The methods, and what the objects themselves had in their place: None, or the method of
        another recording."""

    # ------------------------------------------------------------------- the body

    def __enter__(self) -> Self:
        if self._sandbox.is_asynchronous:
            raise InvalidArgument("The sandbox is an asynchronous one: write 'async with'")
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unwrap()
        self._end(has_failed=kind is not None)

    async def __aenter__(self) -> Self:
        if not self._sandbox.is_asynchronous:
            raise InvalidArgument("The sandbox is not an asynchronous one: write 'with'")
        self._sandbox.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._begin)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unwrap()
        await asyncio.to_thread(self._end, has_failed=kind is not None)

    def _begin(self) -> None:
        """Finds treesnap in the sandbox and captures the directory; nothing has run until then."""
        if self._is_disabled:
            return
        shown = self._sandbox.run(f"{self._program} --version", self._patience_s)
        if shown.exit_code in _SNAP_MISSING or "treesnap" not in shown.text:
            raise NotFound(
                f"There is no treesnap in the sandbox as {quoted(self._program)}; install it there "
                "with 'pip install treesnap', or in the template that the sandbox is made of",
                code=ErrorCode.COMMAND_NOT_FOUND,
            )
        self.checkpoint("the recording begins")  # so that snap knows the root, and what is in it
        if self._receiver is not None:
            place = shlex.quote(self._place)
            add = f"{self._snap} remote add {self._remote} {place}/{self._remote} --json -q"
            set_up = self._ask(f"mkdir -p -m 700 {place} && (cd {place} && pwd) && {add}")
            self._place = next((line for line in set_up.lines if line.startswith("/")), "")
            if not self._place:
                raise _not_understood("no place")
        self.hand_out()  # what stands in its way is known before anything runs
        self._wrap()

    def _end(self, *, has_failed: bool) -> None:
        """Hands out what there is; raises only where the body did not, whose error counts more."""
        if self._is_disabled:
            return
        try:
            self.checkpoint("the recording ends")
            self.hand_out()
        except Exception as error:  # the provider raises what it likes
            newest = self.handed_out.ref if self.handed_out is not None else "nothing"
            text = (
                f"The newest history was not handed out of the sandbox: {_text(error)}; handed out "
                f"before: {newest}"
            )
            if has_failed:
                _LOG.warning("%s", printable(text))
                return
            raise OperationFailed(text) from error

    # ----------------------------------------------------------------- checkpoints

    def checkpoint(self, label: str) -> SnapshotId:
        """Captures the directory in the sandbox; returns the id of the snapshot.

        Raises Refused, and what the provider raises.
        """
        with self._counting:
            step = self._next_step
            self._next_step += 1
        words = ["create", "--automatic", "--json", "-q", *self._flags]
        words += ["--session", self.session, "--step", str(step), "-m", _one_line(label)]
        made = self._ask(f"{self._snap} {shlex.join(words)}", allowed=(0, _INCOMPLETE))
        if not made.fields.get("complete", True):
            self._note(label, "some files could not be read, and are not in the checkpoint")
        return SnapshotId(made.text("id"))

    def hand_out(self) -> HandedOut | None:
        """Pushes in the sandbox, and brings what is new to the host; returns what came, if to here.

        Durable after return. Raises what :meth:`Receiver.receive` does.
        """
        with self._handing_out:
            self._next_hand_out_s = time.monotonic() + self._every_s
            push = f"{self._snap} push {shlex.quote(self._remote)} --all --json -q"
            if self._receiver is None:
                self._ask(push)
                return None
            there = f"{self._place}/{self._remote}"
            pushed = self._ask(f"{push} && cd {shlex.quote(there)} && find . -type f")
            names = [line.removeprefix("./") for line in pushed.lines if line.startswith("./")]
            ids = pushed.fields.get("snapshots")
            if not isinstance(ids, list) or not all(isinstance(item, str) for item in ids):
                raise _not_understood("no snapshots")
            self._pushed.update(ids)
            self.handed_out = self._receiver.receive(
                pushed.text("history_id"),
                self._pushed,
                names,
                lambda name: self._sandbox.read(f"{there}/{name}"),
            )
            self._pushed.clear()
            return self.handed_out

    def _before(self, label: str) -> None:
        """Makes what a command needs before it; whatever fails, the command runs."""
        try:
            self.checkpoint(label)
        except Exception as error:  # noqa: BLE001 - the provider raises what it likes
            self._note(label, _text(error))
            return
        if time.monotonic() < self._next_hand_out_s or self._handing_out.locked():
            return
        try:
            self.hand_out()
        except Exception as error:  # noqa: BLE001 - as above
            self._note(label, f"the history was not handed out: {_text(error)}")

    def _note(self, command: str, reason: str) -> None:
        if not self.gaps:
            _LOG.warning(
                "treesnap made no whole checkpoint before a command in the sandbox, which runs all "
                "the same: %s (said once; the others are in 'gaps')",
                printable(reason),
            )
        self.gaps.append(CommandGap(_one_line(command), reason))

    def _ask(self, command: str, allowed: Sequence[int] = (0,)) -> _Answer:
        """Runs snap in the sandbox; raises Refused with its message where it fails."""
        done = self._sandbox.run(command, self._patience_s)
        answer = _Answer.of(done.text)
        if done.exit_code not in allowed:
            message = (
                answer.fields.get("message")
                or done.text.strip()[-_MESSAGE_LENGTH_MAX:]
                or "no message"
            )
            raise Refused(f"snap failed in the sandbox, exit {done.exit_code}: {message}")
        return answer

    # --------------------------------------------------------------------- methods

    def _wrap(self) -> None:
        around = self._asynchronous if self._sandbox.is_asynchronous else self._synchronous
        for method in self._sandbox.methods():
            own = vars(method.owner).get(method.name)
            self._replaced.append((method, own))
            wrapped = around(method, getattr(method.owner, method.name))
            setattr(method.owner, method.name, wrapped)

    def _unwrap(self) -> None:
        for method, own in reversed(self._replaced):
            if own is None:
                delattr(method.owner, method.name)
            else:
                setattr(method.owner, method.name, own)
        self._replaced.clear()

    def _synchronous(self, method: Method, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(*words: Any, **options: Any) -> Any:
            self._before(method.label(words, options))
            return original(*words, **options)

        setattr(run, _ORIGINAL, original)
        return run

    def _asynchronous(
        self, method: Method, original: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        @wraps(original)
        async def run(*words: Any, **options: Any) -> Any:
            await asyncio.to_thread(self._before, method.label(words, options))
            return await original(*words, **options)

        setattr(run, _ORIGINAL, original)
        return run


class _Answer(NamedTuple):
    """What snap printed in the sandbox, where a shell may print as well; not to be trusted."""

    fields: dict[str, Any]
    lines: list[str]

    @classmethod
    def of(cls, text: str) -> Self:
        """Returns the last object that snap printed, and all lines."""
        lines = text.splitlines()
        objects = (line for line in reversed(lines) if line.startswith('{"schema": "treesnap.'))
        try:
            fields = json.loads(next(objects, "{}"))
        except (ValueError, RecursionError):
            fields = {}
        return cls(fields, lines)

    def text(self, name: str) -> str:
        """Returns a field; raises Refused where it is not there, or not a text."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise _not_understood(f"no {name}")
        return value


def _not_understood(what: str) -> Refused:
    return Refused(f"What snap answered in the sandbox is not understood: {what}")


async def _next_of(iterator: Any) -> Any:
    return await anext(iterator, None)


def _one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LABEL_LENGTH_MAX else f"{line[: _LABEL_LENGTH_MAX - 3]}..."


def _text(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MESSAGE_LENGTH_MAX]
