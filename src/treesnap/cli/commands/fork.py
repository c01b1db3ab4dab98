"""``snap fork``: working copies of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.results import ForkResult


@command(
    "fork",
    examples=[
        "snap fork latest ../attempt-1 ../attempt-2 ../attempt-3",
        "snap fork before-upgrade /tmp/old",
    ],
)
@click.argument("ref", metavar="REF")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@session_option
@pass_invocation
def fork(invocation: Invocation, *, ref: str, directories: Sequence[str]) -> None:
    """Make working copies of a snapshot that share its blocks.

    Each DIR is absent or empty, and appears whole or not at all. It is a root of its own: 'snap
    diff forked' shows there what changed since, 'snap root list' where it comes from. Changes
    that were not captured are not in it; 'snap create' first captures them. Relative DIRs start
    from the directory of -C, else from the current one.
    """
    with invocation.open() as handle:
        places = [invocation.absolute(directory, handle.root) for directory in directories]
        result = handle.fork(invocation.resolve(handle, ref), places)
    invocation.output.result("fork", result.to_dict, _lines(result))


def _lines(result: ForkResult) -> Iterator[str]:
    for fork in result.forks:
        cloned = f"{count_text(fork.cloned_files, 'file')} cloned"
        copied = f"{fork.copied_files:,} copied ({size_text(fork.copied_bytes)})"
        yield f"{printable(fork.path)}  {cloned}, {copied}"
