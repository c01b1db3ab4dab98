"""``snap describe``, ``tag``, ``pin``, ``delete``, ``prune``: what becomes of snapshots."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import argument, option
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import keep_options, session_option
from treesnap.cli.parameters import SIZE, TAG, by_key
from treesnap.cli.retention import print_decisions
from treesnap.core.model.type_names import Any


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
@argument("tags", nargs=-1, type=TAG, collect=by_key, metavar="[K=V]...")
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


@command("delete", examples=["snap delete latest~1", "snap delete 3f2a 9c01 --json"])
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@session_option
@pass_invocation
def delete(invocation: Invocation, *, refs: Sequence[str]) -> None:
    """Delete snapshots; 'snap gc' then frees their space.

    Every REF is looked up before the first snapshot is deleted. Prints the ids.
    """
    output = invocation.output
    with invocation.open(progress=False) as handle:
        removed = handle.delete(*[invocation.resolve(handle, ref) for ref in refs])
    output.result(
        "delete",
        lambda: {"snapshots": removed, "damaged": removed.damaged, "newer": removed.newer},
        [*(snapshot.id for snapshot in removed), *removed.damaged, *removed.newer],
    )
    output.note(f"To free their space: {invocation.command_text('gc')}")


def _pinning(name: str, sentence: str) -> click.Command:
    """Returns ``pin`` or ``unpin``."""

    @command(
        name,
        help=f"{sentence}\n\nPrints the id.",
        examples=[f"snap {name} latest", f"snap {name} v1 --json"],
    )
    @click.argument("ref")
    @session_option
    @pass_invocation
    def pinning(invocation: Invocation, *, ref: str) -> None:
        with invocation.open(progress=False) as handle:
            change = handle.pin if name == "pin" else handle.unpin
            snapshot = change(invocation.resolve(handle, ref))
        invocation.output.result(name, snapshot.to_dict, [snapshot.id])

    return pinning


pin: click.Command = _pinning("pin", "Protect a snapshot from deletion.")
unpin: click.Command = _pinning("unpin", "End the protection of a snapshot.")


@command(
    "prune",
    examples=[
        "snap prune --dry-run",
        "snap prune --keep-last 10 --keep-daily 7",
        "snap prune --keep-daily 30 --keep-monthly 12 --keep-yearly 5",
        "snap prune --keep-within 2w --keep-tag release --max-size 10G",
    ],
)
@keep_options
@option("--max-size", type=SIZE, metavar="SIZE", help="Delete the oldest until the rest fits.")
@click.option("--session", metavar="ID", help="Delete snapshots of this session only.")
@click.option("-n", "--dry-run", is_flag=True, help="Print what would go and why; delete nothing.")
@pass_invocation
def prune(
    invocation: Invocation,
    /,
    *,
    max_size: int | None,
    session: str | None,
    dry_run: bool,
    **rules: Any,
) -> None:
    """Delete the root's snapshots that no rule keeps.

    'snap gc' then frees their space. Without a rule those of 'snap config' hold: automatic
    snapshots are thinned out and those made by hand stay. Pinned and named snapshots
    always stay.
    """
    from treesnap.core.store.maintenance.retention import Policy

    with invocation.open() as handle:
        result = handle.prune(
            Policy(**rules), session=session, max_size_bytes=max_size, dry_run=dry_run
        )
    print_decisions(
        invocation,
        "prune",
        result.to_dict,
        result,
        again=["prune"],
        collect=["gc"],
        without_snapshots=(
            f"This directory has no snapshots here; '{invocation.program} root list' shows those "
            "that have some"
        ),
        delete=["delete", "REF"],
    )
