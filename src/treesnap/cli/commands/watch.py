"""``snap watch``: keeps the list of changed paths ready, and makes automatic snapshots."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import option
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import create_notes, short_id
from treesnap.cli.parameters import Seconds
from treesnap.core.features import functions_by_command
from treesnap.core.model.errors import path_fields, printable, quoted
from treesnap.core.model.presentation import Fields
from treesnap.core.model.quantities import count_text, time_text
from treesnap.core.model.requests import WatchRequest
from treesnap.core.model.results import FollowStatus, WatchStatus
from treesnap.core.model.type_names import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.results import CreateResult
    from treesnap.core.watch.service import WatchService

_EVERY_MAX_S = 366 * 24 * 60 * 60
"""Some systems cannot wait for centuries."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@command(
    "watch",
    examples=[
        "snap watch --detach",
        "snap watch --on-change",
        "snap watch --on-change --then 'snap push backup --all'",
        "snap watch --status",
        "snap watch --stop",
    ],
)
@click.option("--detach", is_flag=True, help="Continue in the background.")
@click.option("--status", is_flag=True, help="Show the state of the root's watcher.")
@click.option("--stop", is_flag=True, help="Stop the root's watcher.")
@option(
    "--every",
    "every_s",
    type=Seconds(min=0.1, max=_EVERY_MAX_S),
    metavar="SECONDS",
    help="Make a snapshot every SECONDS seconds, if something changed.",
)
@click.option("--on-change", is_flag=True, help="Make a snapshot soon after a change.")
@option(
    "--idle",
    "idle_s",
    type=Seconds(min=0.1, max=_EVERY_MAX_S),
    metavar="SECONDS",
    help="End when no command has asked it for SECONDS seconds.",
)
@click.option(
    "--then",
    metavar="CMD",
    help="Run CMD by sh after each snapshot that it makes; repeat it later if it fails.",
)
@click.option("--force", is_flag=True, help="Allow a dangerous root, such as $HOME.")
@click.option("--detached", is_flag=True, hidden=True)
@pass_invocation
def watch(
    invocation: Invocation,
    /,
    *,
    detach: bool,
    status: bool,
    stop: bool,
    detached: bool,
    then: str | None,
    **asked: Any,
) -> None:
    """Watch the root for changes, and make automatic snapshots if asked.

    While it runs, create, status, diff and restore look only at what changed.
    Ctrl-C ends it. The policy of 'snap prune' thins its snapshots out.
    """
    if detach + status + stop > 1:
        raise click.UsageError("--detach, --status and --stop exclude each other")
    request = WatchRequest(**asked)
    if (status or stop) and (then is not None or any(request)):
        raise click.UsageError("--status and --stop take no other option")
    if then is not None and not (request.every_s or request.on_change):
        raise click.UsageError("--then needs --every or --on-change")
    if then is not None and not then.strip():
        raise click.UsageError("--then is empty, so it would do nothing")
    from treesnap.core.watch import control

    with invocation.open(progress=False, makes_store=not (status or stop)) as handle:
        if status or stop:
            invocation.output.prints_only = status
            found = control.stop(handle.context) if stop else control.status(handle.context)
            _show(invocation, handle, found, is_stopped=stop)
        elif detach:
            options = ["--every", str(request.every_s)] if request.every_s else []
            options += ["--idle", str(request.idle_s)] if request.idle_s else []
            options += ["--on-change"] if request.on_change else []
            options += ["--force"] if request.force else []
            options += [f"--then={then}"] if then is not None else []
            _show(invocation, handle, control.start(handle.context, options))
        else:
            _watch(invocation, handle, request, is_detached=detached, then=then)


def _watch(
    invocation: Invocation,
    handle: Handle,
    request: WatchRequest,
    *,
    is_detached: bool,
    then: str | None,
) -> None:
    from treesnap.core.watch.follower import Follower
    from treesnap.core.watch.service import WatchService

    output = invocation.output

    # With JSON, the one object is printed already when these are called.
    def made(result: CreateResult) -> None:
        output.note(*(f"{short_id(result.id)}: {note}" for note in create_notes(result)))

    def ready(status: WatchStatus) -> None:
        _show(invocation, handle, status)
        output.flush()
        if is_detached:
            output.detach()

    service = WatchService(
        handle.context,
        request,
        on_snapshot=made,
        on_error=output.note,
        follower=Follower(handle.context, then, output.note) if then is not None else None,
        carries_out=functions_by_command("carries_out"),
    )
    with _stopped_by_signals(service):
        service.run(ready)


@contextmanager
def _stopped_by_signals(service: WatchService) -> Iterator[None]:
    """Stops the service on signals that end the process, unless they are ignored.

    A thread waits for them: a handler could interrupt the service while it holds the lock that
    stopping it needs.
    """
    numbers = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def wait() -> None:
        signal.sigwait(numbers)
        service.stop()

    thread = threading.Thread(target=wait, name="treesnap-watch-signals", daemon=True)
    if numbers:
        thread.start()
    try:
        yield
    finally:
        if thread.is_alive():
            with suppress(ProcessLookupError):  # it ended just now
                signal.pthread_kill(thread.ident or 0, numbers[0])
            thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _show(
    invocation: Invocation,
    handle: Handle,
    status: WatchStatus | None,
    *,
    is_stopped: bool = False,
) -> None:
    invocation.output.result(
        "watch",
        lambda: status_fields(handle.root, status, is_stopped=is_stopped),
        status_lines(handle.root, status, is_stopped=is_stopped),
    )


def status_fields(root: str, status: WatchStatus | None, *, is_stopped: bool) -> Fields:
    """Returns everything that is known; ``running`` says whether there is a watcher now."""
    fields = status._asdict() if status is not None else dict.fromkeys(WatchStatus._fields)
    every_ms = fields.pop("every_ms")
    return {
        "running": status is not None and not is_stopped,
        "stopped": status is not None and is_stopped,
        **path_fields(root, "root"),
        **fields,
        "every_s": None if every_ms is None else every_ms / 1000,
    }


def status_lines(root: str, status: WatchStatus | None, *, is_stopped: bool) -> Iterator[str]:
    """Yields whether the root is watched, and the state of its watcher."""
    if status is None:
        yield f"Not watched: {printable(root)}"
        return
    if is_stopped:
        yield f"Stopped watching {printable(root)}"
    else:
        directories = count_text(status.directories, "directory", "directories")
        yield f"Watching {printable(root)}: {directories}, process {status.process_id}"
        if status.every_ms is not None:
            yield f"  a snapshot every {status.every_ms / 1000:g} s, if something changed"
        if status.on_change:
            yield "  a snapshot soon after something changed"
    if status.snapshots and status.last_snapshot is not None:
        made = count_text(status.snapshots, "snapshot")
        yield f"  {made} made, the last one is {short_id(status.last_snapshot)}"
    if status.last_error is not None:
        yield f"  the last snapshot failed: {printable(status.last_error)}"
    if status.then is not None:
        yield from _follow_lines(status.then)
    if status.why_lost is not None:
        yield f"  started again, because {printable(status.why_lost)}"


def _follow_lines(status: FollowStatus) -> Iterator[str]:
    """Yields which command follows snapshots, when it last succeeded, and why it now fails."""
    at_ns = status.succeeded_at_ns
    when = f"last success at {time_text(at_ns)}" if at_ns is not None else "no success yet"
    now = "running now, " if status.running else ""
    yield f"  runs {quoted(status.command)} after each snapshot: {now}{when}"
    if status.failure is not None:
        failures = count_text(status.failures, "failure")
        message = printable(status.failure.message)
        yield f"  it {message} ({failures} in a row; it is tried again)"
