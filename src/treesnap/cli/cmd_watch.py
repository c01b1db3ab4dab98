"""``snap watch``: knows what changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from treesnap.cli import text_forms, watch_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.quantities import Seconds

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.results import CreateResult, WatchStatus
    from treesnap.watch.service import WatchService

EXAMPLES = [
    "snap watch --detach",
    "snap watch --on-change",
    "snap watch --status",
    "snap watch --stop",
]
_EVERY_MAX_S = 366 * 24 * 60 * 60
"""A wait of centuries is more than the system's clock can say."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("watch", cls=SnapCommand, examples=EXAMPLES)
@click.option("--detach", is_flag=True, help="Go on in the background.")
@click.option("--status", is_flag=True, help="Show what the root's watcher does.")
@click.option("--stop", is_flag=True, help="Stop the root's watcher.")
@click.option(
    "--every",
    "every_s",
    type=Seconds(min=0.1, max=_EVERY_MAX_S),
    metavar="SECONDS",
    help="Make a snapshot so often, if something changed.",
)
@click.option("--on-change", is_flag=True, help="Make a snapshot soon after something changed.")
@click.option("--force", is_flag=True, help="Watch a dangerous root, such as $HOME, too.")
@click.option("--detached", is_flag=True, hidden=True)
@pass_invocation
def command(
    invocation: Invocation,
    *,
    detach: bool,
    status: bool,
    stop: bool,
    every_s: float | None,
    on_change: bool,
    force: bool,
    detached: bool,
) -> None:
    """Keeps the list of changed paths ready, and makes snapshots by itself if asked.

    While it runs, create, status, diff and restore look at nothing but what changed.
    Ctrl-C ends it. Its snapshots are automatic ones, which the policy thins out.
    """
    if detach + status + stop > 1:
        raise click.UsageError("--detach, --status and --stop exclude each other")
    if (status or stop) and (every_s is not None or on_change or force):
        raise click.UsageError("--status and --stop take no other option")
    from treesnap.watch import control

    with invocation.open(progress=False, makes_store=not (status or stop)) as handle:
        if status or stop:
            invocation.output.prints_only = status
            found = control.stop(handle.context) if stop else control.status(handle.context)
            _show(invocation, handle, found, is_stopped=stop)
        elif detach:
            options = ["--every", str(every_s)] if every_s is not None else []
            options += ["--on-change"] if on_change else []
            options += ["--force"] if force else []
            _show(invocation, handle, control.start(handle.context, options))
        else:
            _watch(
                invocation,
                handle,
                every_s=every_s,
                on_change=on_change,
                force=force,
                is_detached=detached,
            )


def _watch(
    invocation: Invocation,
    handle: Handle,
    *,
    every_s: float | None,
    on_change: bool,
    force: bool,
    is_detached: bool,
) -> None:
    from treesnap.watch.service import WatchService

    output = invocation.output

    def made(result: CreateResult) -> None:
        for warning in text_forms.create_warnings(result):
            said(f"{result.id[:12]}: {warning}")

    def said(message: str) -> None:
        if not output.as_json:  # the one object is printed already
            output.warn(message)

    def ready(status: WatchStatus) -> None:
        _show(invocation, handle, status)
        output.flush()
        if is_detached:
            output.detach()

    service = WatchService(
        handle.context,
        every_s=every_s,
        on_change=on_change,
        force=force,
        on_snapshot=made,
        on_error=said,
    )
    with _stopped_by_signals(service):
        service.run(ready)


@contextmanager
def _stopped_by_signals(service: WatchService) -> Iterator[None]:
    """Stops the service when a signal ends the process, but for signals that are ignored.

    A thread waits for them: a handler could interrupt the service while it has the lock that
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
        fields=lambda: watch_forms.fields(handle.root, status, is_stopped=is_stopped),
        lines=lambda: watch_forms.lines(handle.root, status, is_stopped=is_stopped),
    )
