"""``snap maker``: the checkpoint manager of the MAKER framework."""

from __future__ import annotations

import sys

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import from_error
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.progress import WarningMonitor


@command("maker", examples=["snap maker", "snap maker --metadata --json"])
@click.option(
    "--metadata/--no-metadata",
    default=None,
    help="Also write .maker-checkpoints/metadata/ID.json in the root [maker.metadata].",
)
@pass_invocation
def maker(invocation: Invocation, *, metadata: bool | None) -> None:
    """Carry out one operation block of MAKER from standard input.

    CREATE, RESTORE or CLEANUP; the result block goes to standard output. The root is the
    block's working directory. Exits 2 when the block cannot be understood, otherwise as
    create, restore and delete do; nothing was changed then.
    """
    from treesnap.compat.maker import carry_out
    from treesnap.compat.maker_block import BLOCK_SIZE_MAX
    from treesnap.compat.maker_result import Failed, result_fields, result_text

    result = carry_out(
        sys.stdin.buffer.read(BLOCK_SIZE_MAX + 1),
        store=invocation.store,
        root=invocation.directory,
        metadata=metadata,
        wait_s=invocation.wait_s,
        monitor=WarningMonitor(invocation.output.warn),
    )
    invocation.output.result("maker", lambda: result_fields(result), [result_text(result)])
    if isinstance(result, Failed):
        click.get_current_context().exit(from_error(result.error).exit_code)
