"""``snap config``: what holds for a store and for a root."""

from __future__ import annotations

from collections.abc import Iterator

import click

from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.results import ConfigResult


@click.command(
    "config",
    cls=SnapCommand,
    examples=[
        "snap config",
        "snap config max-size 20G",
        "snap config --root keep.last 200",
        "snap config --unset keep.daily",
    ],
)
@click.argument("key", required=False, metavar="[KEY]")
@click.argument("value", required=False, metavar="[VALUE]")
@click.option("--root", "for_root", is_flag=True, help="Change it for this root alone.")
@click.option("--unset", is_flag=True, help="Take the setting back.")
@pass_invocation
def command(
    invocation: Invocation, *, key: str | None, value: str | None, for_root: bool, unset: bool
) -> None:
    """Shows or changes the settings of the store, or of one root.

    Without KEY all settings that hold for the root, with where each one was set.
    """
    changes = value is not None or unset
    with invocation.open(makes_store=changes) as handle:
        result = handle.config(key, value, for_root=for_root, unset=unset)
    if key is None and not invocation.output.as_json:
        invocation.output.warn(f"Settings of {handle.root} in the store {handle.store_path}")
    invocation.output.prints_only = not changes
    invocation.output.result(
        "config",
        fields=lambda: {
            "settings": [
                {"key": item.key, "value": item.value, "source": item.source.value}
                for item in result.settings
            ]
        },
        lines=lambda: () if changes else _lines(result, alone=key is not None),
    )


def _lines(result: ConfigResult, *, alone: bool) -> Iterator[str]:
    for item in result.settings:
        value = item.value if item.value is not None else "-"
        yield value if alone else f"{item.key:<12}  {value:<12}  {item.source.value}"
