"""What a hook does with an event: a snapshot, a command that was typed as a prompt, or nothing.

A hook must not stand in the way of the agent, so whatever fails lets the host go on, and is kept
as a gap. Only a strict hook blocks then: no tool runs that cannot be undone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from treesnap.agents.event import Event, Reply
from treesnap.agents.fork_places import fork_around
from treesnap.agents.git_head import git_head
from treesnap.agents.hosts.base import Host, one_line
from treesnap.agents.marks import add_marks, marks_of
from treesnap.agents.repository_part import repository_part
from treesnap.agents.session_status import note_status, session_status
from treesnap.agents.sessions import (
    PROMPT_COMMANDS,
    REASON_LENGTH_MAX,
    Before,
    look_back,
    note_command,
    note_gap,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import ensure_directories, read_file, replace_file
from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.entries import Change, SkipReason
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    StoreMissing,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.events import Monitor, NullMonitor, Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags
from treesnap.core.model.results import CreateResult
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import (
    Context,
    Session,
    check_root,
    user_state_directory,
    worktree_of,
)
from treesnap.core.ops.create import create
from treesnap.core.ops.history.steps import EventPhase
from treesnap.core.ops.watching import watch_directory
from treesnap.core.store.lock import held
from treesnap.core.store.roots import read_journal

WATCH_IDLE_S = 3600
"""How long a watcher that a hook has started goes on without being asked."""
_WATCH_AGAIN_NS = 60 * 10**9
"""How soon after a watcher was started for agents another may be: where one cannot watch, or is
killed again and again, starting it would cost more than it saves."""
_WATCH_NOTE = "for-agents"
"""A file in the directory of watchers, as old as the newest watcher that was started for agents."""
_CAPTURE_SHARE = 0.8
"""Of the time that a caller waits; the rest is for publishing and for the reply."""
_PROMPTS_MAX = 100
"""Prompts that were commands and are remembered."""
_PROMPTS_SIZE_MAX = 1 << 20
_SHOWN_MAX = 20
"""Changed paths that a model is told of; it can ask for the others."""

RunCommand = Callable[[Sequence[str]], tuple[int, str]]
"""Carries out words of the command line; returns the exit code and what was printed."""
USAGE = 2
"""The exit code for words that are not a command, as in ``cli.failure``."""
NOT_FOUND = 5
"""The exit code of a command that names what is not there, likewise."""
_SENTENCE = 3
"""What begins like a command, has more words and names nothing that is there, is a sentence."""
INTERRUPTED = 130
"""The exit code of a command that was stopped, likewise."""


class OutOfTime(KeyboardInterrupt):
    """The time of a hook has run out.

    Operations take it as they take Ctrl-C: what has begun is left as a crash would leave it, or
    undone.
    """


class Capturing(NamedTuple):
    """The snapshot of an event, and what came before it."""

    result: CreateResult
    before: Before


class DeadlineMonitor(NullMonitor):
    """Raises OutOfTime in a capture that goes on after its end: a tool may change files by then.

    In any thread, unlike :func:`time_limit`, but only while the tree is read: a snapshot that is
    published is whole.
    """

    def __init__(self, inner: Monitor, end_s: float) -> None:
        self._inner = inner
        self._end_s = end_s
        self._phase: Phase | None = None

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Passes the phase on, or ends what begins too late."""
        self._phase = phase
        self._end_if_late()
        self._inner.begin(phase, files, size_bytes)

    def advance(self, files: int, size_bytes: int) -> None:
        """Passes the progress on, or ends what takes too long."""
        self._end_if_late()
        self._inner.advance(files, size_bytes)

    def warn(self, code: WarningCode, message: str) -> None:
        """Passes the warning on."""
        self._inner.warn(code, message)

    def _end_if_late(self) -> None:
        if self._phase is Phase.SCAN and time.monotonic() > self._end_s:
            raise OutOfTime


def with_deadline(context: Context, patience_s: float) -> Context:
    """Returns a context whose captures end before a caller stops waiting for them."""
    share_s = patience_s * _CAPTURE_SHARE
    monitor = DeadlineMonitor(context.monitor, time.monotonic() + share_s)
    return context._replace(monitor=monitor, wait_s=min(context.wait_s, share_s))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the body after some seconds.

    Handlers of signals belong to the main thread, so there is no limit in another one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def in_its_root(event: Event, host: Host, fs: FileSystem) -> Event:
    """Returns an event with the root of its session, or of the working tree in which the agent is.

    A host may tell the directory of a call in the place of that of the session: it is the one of
    the newest prompt then.
    """
    if host.moves_with_calls and event.phase in (EventPhase.PRE, EventPhase.POST):
        status = session_status(fs, event.host, event.session)
        if status is not None and event.directory is not None:
            event = event._replace(root=status.directory)
    return in_its_worktree(event)


def in_its_worktree(event: Event) -> Event:
    """Returns an event with the working tree as its root in which the agent is, if that is another.

    The main project is what hosts call it also while a sub-agent works in a tree of its own. Such
    a tree has a history of its own, wherever it lies; so has a fork that was made in its place.
    """
    if event.directory is None:
        return event
    here = fork_around(event.directory)
    if here is None:
        here = worktree_of(event.directory)
        if here is None or here == worktree_of(event.root):
            return event
    return event._replace(root=here)


def respond(
    event: Event,
    host: Host,
    context: Context,
    run_command: RunCommand | None = None,
    *,
    is_strict: bool = False,
) -> Reply:
    """Does what an event asks for and returns the reply; keeps as a gap what was not captured.

    Without ``run_command``, prompts are not typed, and all go to the model.
    """
    if event.is_read_only:
        return host.go_on(event)
    done: Capturing | None = None
    problem = news = notice = None
    try:
        if event.phase is EventPhase.SESSION:
            begin_session(context)
        elif run_command and (reply := _answered(event, host, context, run_command)) is not None:
            return reply
        else:
            done = record(context, event)
            problem = problem_of(done.result)
            news, notice = _news(context, event, done), _notice(context, done)
            if host.begins_with_prompt and done.before.newest is None:
                begin_session(context)
    except (TreesnapError, OSError, OutOfTime) as error:
        if done is None:  # else what failed is only of use, and the files are captured
            problem = reason_of(error)
            if isinstance(error, Busy) and not _has_snapshots(context):
                problem = f"the first snapshot is not ready yet: {problem}"
            note_gap(context, event, problem)
            if isinstance(error, OutOfTime):
                _capture_in_background(context)
    if event.phase is not EventPhase.SESSION:
        _keep_watched(context)
    _note_outcome(context, event, done, problem)
    return reply_to(event, host, problem, context=news, notice=notice, is_strict=is_strict)


def carried_out(event: Event, host: Host, context: Context, *, is_strict: bool) -> Reply | None:
    """Does what an event asks for in the process of a watcher; returns None for what it may not.

    That is what begins a session, and what carries out commands. Raises what a capture raises.
    """
    if event.phase is EventPhase.SESSION or _typed_words(event) is not None:
        return None
    done = record(context, event)
    news, notice = _news(context, event, done), _notice(context, done)
    problem = problem_of(done.result)
    _note_outcome(context, event, done, problem)
    return reply_to(event, host, problem, context=news, notice=notice, is_strict=is_strict)


def _note_outcome(
    context: Context, event: Event, done: Capturing | None, problem: str | None
) -> None:
    """Keeps for the status of the session what became of an event."""
    step = done.result.snapshot.record.step if done is not None else None
    note_status(context.fs, event, context.clock_ns(), step=step, problem=problem)


def reply_to(
    event: Event | None,
    host: Host,
    problem: str | None,
    *,
    context: str | None = None,
    notice: str | None = None,
    is_strict: bool = False,
) -> Reply:
    """Returns the reply that lets the host go on, or blocks it for a problem if that is strict.

    ``context`` is for the model, and ``notice`` for the user where there is no problem. Only what
    the host lets a hook block is: with the end of a turn the agent would not end.
    """
    if problem is None:
        return host.go_on(event, context=context, warning=notice)
    reason = printable(problem)[:REASON_LENGTH_MAX]
    warning = f"treesnap did not capture the files: {reason}"
    if is_strict and (event is None or event.phase in host.blocked_phases):
        return host.block(event, f"{warning}; this hook is strict, so nothing was done")
    return host.go_on(event, context=context, warning=warning)


def reason_of(error: BaseException) -> str:
    """Returns why something was not captured."""
    if isinstance(error, OutOfTime):
        return "it took longer than the hook may take"
    if isinstance(error, TreesnapError) and error.code is ErrorCode.STORE_UNAVAILABLE:
        return f"{error_text(error)}; {error.hint}"
    return error_text(error) if isinstance(error, Exception) else "it was interrupted"


def record(context: Context, event: Event) -> Capturing:
    """Captures the root for an event, and says what came before it.

    An event that was told before gets its first snapshot again: the files have changed since.
    After tools that changed nothing it is the newest snapshot, whatever that was made for.
    Decided under the root's lock, so of several processes with one event one captures; there the
    marks of the event are added, too. Raises what :func:`treesnap.core.ops.create.create` does.
    """
    before: list[Before] = []

    def settle(session: Session, request: CaptureRequest) -> Snapshot | CaptureRequest:
        before[:] = [look_back(session, event)]
        return before[0].same or request._replace(step=before[0].number)

    def note(session: Session, result: CreateResult) -> None:
        with suppress(OSError):  # a mark is worth no failure: it only makes changes less certain
            at, now_ns = result.snapshot.sequence, context.clock_ns()
            add_marks(session, marks_of(session, event, at, now_ns))

    head = git_head(context.root)
    request = CaptureRequest(
        label=_label(event),
        tags=fact_tags(
            host=event.host,
            key=event.key or None,
            tool=event.tool,
            phase=event.phase.value,
            git=head.text if head is not None else None,
            ref=event.ref or None,
        ),
        session=event.session,
        kind=SnapshotKind.AUTOMATIC,
        skip_unchanged=event.phase is EventPhase.POST or event.ends_agent,
    )
    return Capturing(create(context, request, settle=settle, note=note), before[0])


def begin_session(context: Context) -> None:
    """Starts what makes the next events cheap: a watcher, and the first snapshot if there is none.

    Waits for neither. Raises Refused for a root that no event would capture.
    """
    check_root(context, force=False)
    _start_watcher(context, watch_directory(context))
    if not _has_snapshots(context):
        _capture_in_background(context)


def _has_snapshots(context: Context) -> bool:
    """Returns whether the root has a snapshot; reads no record."""
    with suppress(StoreMissing), opened(context, "look for a snapshot", recover=False) as session:
        return bool(session.store.snapshots.names(session.root.id))
    return False


def _keep_watched(context: Context) -> None:
    """Starts a watcher where one that was started for agents is gone: it may have been killed.

    Not again within a minute. Waits for nothing. Costs an opened store.
    """
    with suppress(OSError, TreesnapError):
        with opened(context, "look for a watcher", recover=False) as session:
            directory = session.root.file("watch")
        note = context.fs.lstat(os.path.join(directory, _WATCH_NOTE))
        if not 0 <= context.clock_ns() - note.st_mtime_ns < _WATCH_AGAIN_NS:
            _start_watcher(context, directory)


def _start_watcher(context: Context, directory: str) -> None:
    """Starts a watcher if there is none, and notes when."""
    from treesnap.core.watch.control import launched, status

    with suppress(Busy):  # a suspended watcher is one
        if status(context._replace(wait_s=0.0)) is None:
            note = os.path.join(directory, _WATCH_NOTE)
            replace_file(context.fs, note, b"", temporary=directory, durable=False)
            launched(context, ["watch", "--idle", str(WATCH_IDLE_S), "--detached"])


def _capture_in_background(context: Context) -> None:
    """Starts a snapshot in a process of its own, after which the next one has less to look at.

    Without it, a root that takes longer than a hook may take would never be captured.
    """
    from treesnap.core.watch.control import launched

    label = ["--label", "taken in the background for an agent"]
    with suppress(OSError):
        launched(context, ["--wait", "0", "create", "--automatic", "--skip-unchanged", *label])


def _label(event: Event) -> str | None:
    """Returns what tells the step from others in a list."""
    if event.phase is EventPhase.TURN:
        return one_line(event.prompt or "") or None
    if event.phase is EventPhase.END:
        return "end of the turn"
    if event.phase is EventPhase.POST:
        return f"after {one_line(event.tool)}" if event.tool else "after the tools"
    if event.phase is EventPhase.WAKE:
        return "after another agent" if event.ends_agent else "after work in the background"
    name = one_line(event.tool or "a tool")
    summary = one_line((event.summary or "").removeprefix(event.root.rstrip("/") + "/"))
    return f"{name}: {summary}" if summary else name


def problem_of(result: CreateResult) -> str | None:
    """Returns what a snapshot does not hold, or None. No gap is kept: the snapshot says it."""
    unreadable = [item.path for item in result.skipped if item.reason == SkipReason.UNREADABLE]
    return f"{quoted(unreadable[0])} cannot be read" if unreadable else None


def _news(context: Context, event: Event, done: Capturing) -> str | None:
    """Returns which files a restore has changed since the agent's newest step, in a prompt."""
    before, now = done.before, done.result.snapshot
    if event.phase is not EventPhase.TURN or before.newest is None or before.last_seen is None:
        return None
    from treesnap.core.ops.history.compare import diff

    changes = diff(context, before.last_seen.id, now.id, ())
    paths = [printable(item.path) for item in changes if not _is_of_directory(item)]
    if not paths:
        return None
    more = f" and {len(paths) - _SHOWN_MAX} more" if len(paths) > _SHOWN_MAX else ""
    return (
        "The user has restored files since your last step. These are not as you last saw them: "
        f"{', '.join(paths[:_SHOWN_MAX])}{more}. Read them again before you rely on them."
    )


def _notice(context: Context, done: Capturing) -> str | None:
    """Returns what the user has to know at the first step of a session: what is not captured."""
    part = None
    if done.before.newest is None:
        part = repository_part(context.root, context.store_path)
    return part.text if part is not None else None


def _is_of_directory(change: Change) -> bool:
    """Returns whether a change concerns no file: times, and what a directory itself is."""
    from treesnap.core.diff.trees import is_time_alone

    entries = [entry for entry in (change.old, change.new) if entry is not None]
    return is_time_alone(change) or all(entry.is_directory for entry in entries)


def _answered(event: Event, host: Host, context: Context, run_command: RunCommand) -> Reply | None:
    """Carries out a command that was typed as a prompt; returns None for any other prompt.

    So is what the command line does not understand: it may be a sentence.
    """
    words = _typed_words(event)
    if words is None or host.answer("") is None:
        return None
    if not _is_first(context, event):
        return host.go_on(event)  # the other hook answers
    import shlex

    note_command(context, event)
    of_session = words[0] in ("rewind", "prompts")
    is_named = any(word.startswith("--session") for word in words)
    session = ["--session", event.session] if of_session and not is_named else []
    options = ["-C", context.root, "--store", context.store_path]
    code, text = run_command([*options, *words, *session])
    if code == INTERRUPTED:
        text = _why_stopped(context)
    # What it says to type next is typed as a prompt, too.
    text = text.replace(shlex.join(["snap", *options]), "snap")
    is_sentence = code == NOT_FOUND and len(words) > _SENTENCE
    return host.answer(text.strip() or "Done") if code != USAGE and not is_sentence else None


def _why_stopped(context: Context) -> str:
    """Returns what is to be done about a command that took too long: once, not twice."""
    with (
        suppress(TreesnapError, OSError),
        opened(context, "look for a restore", recover=False) as session,
    ):
        journal = read_journal(session.root)
        if journal is not None and journal.commit is not None:
            return (
                "It took longer than a hook may take, and a restore has begun to change files: "
                "the next snap command completes it. See snap status before you type this again"
            )
    return "It took longer than a hook may take, and was stopped: type it in a terminal"


def _is_first(context: Context, event: Event) -> bool:
    """Returns True for the first hook that reports a prompt, and remembers the prompt.

    A host that has hooks from its settings and from a package tells both. Two would undo twice.
    """
    if not event.key:
        return True
    import json

    told = f"{event.host} {event.session} {event.key}"
    with suppress(TreesnapError, OSError):  # where this cannot be kept, one hook has to do
        directory = user_state_directory()
        path = os.path.join(directory, "prompts.json")
        ensure_directories(context.fs, directory)
        what = "The list of prompts"
        with held(context.fs, f"{path}.lock", operation="hook", what=what, wait_s=context.wait_s):
            prompts: list[str] = []
            with suppress(OSError, Corrupt, ValueError, TypeError, RecursionError):  # damaged
                prompts = list(json.loads(read_file(context.fs, path, _PROMPTS_SIZE_MAX)))
            if told in prompts:
                return False
            content = json.dumps([*prompts, told][-_PROMPTS_MAX:]).encode()
            replace_file(context.fs, path, content, temporary=directory)
    return True


def _typed_words(event: Event) -> list[str] | None:
    """Returns the words after ``snap`` of a prompt that is such a command, or None."""
    if event.phase is not EventPhase.TURN or not (event.prompt or "").lstrip().startswith("snap "):
        return None
    import shlex

    try:
        words = shlex.split(event.prompt or "")
    except ValueError:  # a sentence with an apostrophe
        return None
    return words[1:] if len(words) > 1 and words[1] in PROMPT_COMMANDS else None
