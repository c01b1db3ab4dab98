"""``snap remote deliver`` and ``receive``: machines that write and cannot read."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, size_text
from treesnap.remote.commands.completion import remote_argument
from treesnap.remote.commands.members import given_invitation
from treesnap.remote.commands.secret import remotes_of


@command(
    "deliver",
    examples=["snap remote deliver s3://bucket/me", "snap remote deliver s3://bucket/me latest"],
)
@click.argument("url")
@click.argument("refs", metavar="[REF]...", nargs=-1)
@click.option("--all", "every_kind", is_flag=True, help="Also snapshots that no person asked for.")
@click.option("--whole", is_flag=True, help="Also what was delivered before.")
@click.option(
    "--append-only", is_flag=True, help="Replace nothing there: credentials need not allow it."
)
@pass_invocation
def deliver(
    invocation: Invocation,
    *,
    url: str,
    refs: Sequence[str],
    every_kind: bool,
    whole: bool,
    append_only: bool,
) -> None:
    """Deliver snapshots of the root to a remote, with the invitation of a writer.

    Nothing is read there. What was delivered is seen once 'snap remote receive' ran on a machine
    with a key. Without REF all that was not delivered before and a person asked for.
    """
    invitation = given_invitation()
    with invocation.open() as handle:
        ids = [invocation.resolve(handle, ref) for ref in refs]
        done = remotes_of(handle).deliver(
            url, invitation, ids, every_kind=every_kind, whole=whole, append_only=append_only
        )
    count, size = count_text(len(done.snapshots), "snapshot"), size_text(done.stored.size_bytes)
    line = (
        f"Delivered {count}, {size}, for the history {done.history}"
        if done.snapshots
        else "Everything that you asked for was delivered"
    )
    invocation.output.result(
        "remote.deliver",
        lambda: {
            "writer": done.writer,
            "history": done.history,
            "snapshots": done.snapshots,
            "objects": done.stored.objects,
            "size_bytes": done.stored.size_bytes,
        },
        [line],
    )


@command("receive", examples=["snap remote receive backup"])
@remote_argument("name", required=False)
@pass_invocation
def receive(invocation: Invocation, *, name: str | None) -> None:
    """Store what writers delivered as histories of a remote.

    Every content is compared with its hash before it is stored. What is not whole stays in the
    inbox and is named, with exit code 7.
    """
    with invocation.open(needs_root=False) as handle:
        result = remotes_of(handle).receive(name)
    lines = [
        f"Received {count_text(len(item.snapshots), 'snapshot')}: {printable(item.history_name)} "
        f"({item.history_id[:12]})"
        for item in result.received
    ]
    lines += [f"Left {where}: {printable(why)}" for where, why in result.left.items()]
    if not result.received and not result.left:
        invocation.output.note("Nothing was delivered")
    if result.incomplete:
        files = count_text(result.incomplete, "file")
        invocation.output.note(f"The inbox has {files} of deliveries that are not complete")
    invocation.output.result("remote.receive", result._asdict, lines)
    if result.left:
        click.get_current_context().exit(ExitCode.DAMAGED)
