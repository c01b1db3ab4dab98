"""``snap watch``: knows what changed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from treesnap.cli import text_forms, watch_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.results import CreateResult, WatchStatus

EXAMPLES = [
    "snap watch --detach",
    "snap watch --on-change",
    "snap watch --status",
    "snap watch --stop",
]


@click.command("watch", cls=SnapCommand, examples=EXAMPLES)
@click.option("--detach", is_flag=True, help="Go on in the background.")
@click.option("--status", is_flag=True, help="Show what the root's watcher does.")
@click.option("--stop", is_flag=True, help="Stop the root's watcher.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Make a snapshot so often, if something changed.",
)
@click.option("--on-change", is_flag=True, help="Make a snapshot soon after something changed.")
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
    detached: bool,
) -> None:
    """Keeps the list of changed paths ready, and makes snapshots by itself if asked.

    While it runs, create, status, diff and restore look at nothing but what changed.
    Ctrl-C ends it. Its snapshots are automatic ones, which the policy thins out.
    """
    if detach + status + stop > 1 or ((status or stop) and (every_s is not None or on_change)):
        raise click.UsageError("--detach, --status and --stop exclude each other")
    from treesnap.watch import control

    with invocation.open(progress=False) as handle:
        if status or stop:
            found = control.stop(handle) if stop else control.status(handle)
            _show(invocation, handle, found, is_stopped=stop)
        elif detach:
            options = ["--every", str(every_s)] if every_s is not None else []
            options += ["--on-change"] if on_change else []
            _show(invocation, handle, control.start(handle, options))
        else:
            _watch(invocation, handle, every_s, on_change=on_change, is_detached=detached)


def _watch(
    invocation: Invocation,
    handle: Handle,
    every_s: float | None,
    *,
    on_change: bool,
    is_detached: bool,
) -> None:
    from treesnap.watch.service import WatchService

    output = invocation.output

    def told(result: CreateResult) -> None:
        for remark in text_forms.create_remarks(result):
            output.remark(f"{result.id[:12]}: {remark}")

    def ready(status: WatchStatus) -> None:
        _show(invocation, handle, status)
        output.flush()
        if is_detached:
            output.detach()

    service = WatchService(
        handle, every_s=every_s, on_change=on_change, on_snapshot=told, on_error=output.remark
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: service.stop())
    service.run(ready)


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
