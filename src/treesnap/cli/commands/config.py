"""``snap config``: the settings of a store and of a root."""

from __future__ import annotations

from collections.abc import Iterator

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.fork_client import end_server
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import aligned
from treesnap.core.model.errors import printable
from treesnap.core.model.results import ConfigResult


@command(
    "config",
    examples=[
        "snap config",
        "snap config max-size 20G",
        "snap config --root keep.last 200",
        "snap config --unset keep.daily",
        "snap config 'diff.*.sqlite' '~/bin/dump-sqlite {}'",
    ],
)
@click.argument("key", required=False, metavar="[KEY]")
@click.argument("value", required=False, metavar="[VALUE]")
@click.option("--root", "for_root", is_flag=True, help="Change it for this root only.")
@click.option("--unset", is_flag=True, help="Remove the setting.")
@pass_invocation
def config(
    invocation: Invocation, *, key: str | None, value: str | None, for_root: bool, unset: bool
) -> None:
    """Show or change the settings of the store, or of one root.

    Without KEY, show all settings that apply to the root, and where each one is set.
    'diff.PATTERN' is a command that prints files as text for diff; it is yours alone,
    for all stores.
    """
    changes = value is not None or unset
    with invocation.open(makes_store=changes) as handle:
        result = handle.config(key, value, for_root=for_root, unset=unset)
        if (
            changes
            and key == "fork-server"
            and not for_root
            and result.settings[0].value == "false"
        ):
            end_server(handle.store_path)
    if key is None:
        invocation.output.note(f"Settings of {handle.root} in the store {handle.store_path}")
    invocation.output.prints_only = not changes
    invocation.output.result(
        "config",
        result.to_dict,
        () if changes else _lines(result, alone=key is not None),
    )


def _lines(result: ConfigResult, *, alone: bool) -> Iterator[str]:
    """Yields the value that was asked for, or a table of all."""
    rows = [
        (item.key, printable(item.value if item.value is not None else "-"), item.source.value)
        for item in result.settings
    ]
    yield from (value for _, value, _ in rows) if alone else aligned(rows, to_the_right=())
