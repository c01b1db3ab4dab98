"""``snap describe`` and ``tag``: what people call a snapshot, after it was taken."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
from treesnap.cli.parameters import TAG, by_key


@command(
    "describe",
    examples=["snap describe latest 'before the upgrade'", "snap describe 3f2a ''"],
)
@click.argument("ref")
@click.argument("label")
@session_option
@pass_invocation
def describe(invocation: Invocation, *, ref: str, label: str) -> None:
    """Give a snapshot another label.

    An empty LABEL removes it. Prints the id, which stays the same.
    """
    with invocation.open(progress=False) as handle:
        snapshot = handle.describe(ref, label, session=invocation.session)
    invocation.output.result("describe", snapshot.to_dict, [snapshot.id])


@command(
    "tag",
    examples=["snap tag latest release=1.4 reviewed=yes", "snap tag v1 --remove reviewed"],
)
@click.argument("ref")
@click.argument("tags", nargs=-1, type=TAG, callback=by_key, metavar="[K=V]...")
@click.option("--remove", multiple=True, metavar="K", help="Remove this tag; repeatable.")
@session_option
@pass_invocation
def tag(invocation: Invocation, *, ref: str, tags: dict[str, str], remove: Sequence[str]) -> None:
    """Set tags of a snapshot, or remove them.

    Prints the id, which stays the same. 'snap show REF' lists its tags.
    """
    if not tags and not remove:
        raise click.UsageError("Give a tag to set, K=V, or one to remove: --remove K")
    with invocation.open(progress=False) as handle:
        snapshot = handle.tag(ref, tags, remove=remove, session=invocation.session)
    invocation.output.result("tag", snapshot.to_dict, [snapshot.id])
