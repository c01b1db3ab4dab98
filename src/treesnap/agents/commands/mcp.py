"""``snap mcp``: serves the history of some roots to a model, by the Model Context Protocol."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import failure_fields, from_error
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import OperationFailed
from treesnap.core.model.presentation import Fields

if TYPE_CHECKING:
    from treesnap.core.handle import Handle


@command("mcp", examples=["snap mcp", "snap mcp --allow-restore ~/project"])
@click.argument("directories", nargs=-1, metavar="[DIR]...")
@click.option("--allow-restore", is_flag=True, help="Let the model restore files.")
@click.option("--hooks", is_flag=True, help="Offer the tool 'hook', which hooks of hosts call.")
@pass_invocation
def mcp(
    invocation: Invocation, *, directories: Sequence[str], allow_restore: bool, hooks: bool
) -> None:
    """Serve the history of directories to a model, by the Model Context Protocol.

    Hosts of agents start it; it talks to them through standard input and output.
    Without a DIR the root is that of -C, else it is looked for from
    $CLAUDE_PROJECT_DIR or the current directory on. No tool deletes history.
    """
    from treesnap.cli.output.patches import patches
    from treesnap.core.ops.context import refuse_dangerous

    try:
        from treesnap.agents.mcp.server import HistoryServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("treesnap"):
            raise
        from treesnap.core.features import missing_text

        raise OperationFailed(missing_text(error, "mcp")) from error
    handles: list[Handle] = []
    with ExitStack() as stack:
        for directory in directories or (invocation.directory,):
            invocation.directory = directory
            start = os.environ.get("CLAUDE_PROJECT_DIR")
            opened = invocation.open(progress=False, makes_store=True, start=start)
            handle = stack.enter_context(opened)
            refuse_dangerous(handle.root, handle.store_path)
            handles.append(handle)

        server = HistoryServer(
            handles,
            describe,
            patches,
            allow_restore=allow_restore,
            offers_hook=hooks,
            answers_hooks=not os.environ.get("SNAP_DISABLE"),
        )
        if sys.stdin.isatty():
            invocation.output.note("Waiting for a host on standard input; Ctrl-C ends the wait")
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            # Else Ctrl-C waits for the thread that reads. A killed restore is finished or undone.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        with closing(server):
            server.run("stdio")


def describe(error: BaseException) -> Fields:
    """Returns what a program and a person are told of an error."""
    fields = failure_fields(from_error(error))
    del fields["exit_code"]
    return fields
