"""``snap diff``: what changed between two states."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.diff_forms import DiffForms
from treesnap.cli.diff_words import parse_words
from treesnap.cli.invocation import Invocation
from treesnap.cli.render import is_terminal

SEPARATOR = "--"


class DiffCommand(SnapCommand):
    """Keeps the words behind ``--`` apart, which click does not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses what is before ``--``; the rest are paths as they stand."""
        cut = args.index(SEPARATOR) if SEPARATOR in args else len(args)
        behind = tuple(args[cut + 1 :]) if SEPARATOR in args else None
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["paths"] = behind
        return rest


@click.command(
    "diff",
    cls=DiffCommand,
    prints_only=True,
    examples=[
        "snap diff",
        "snap diff latest~1 latest --stat",
        "snap diff latest src/ notes.txt",
        "snap diff --name-status -- src/",
    ],
)
@click.argument("words", nargs=-1, metavar="[A [B]] [--] [PATH]...")
@click.option("--stat", is_flag=True, help="How many lines changed, a line for each path.")
@click.option("--name-status", is_flag=True, help="A letter and a path, as 'status' has them.")
@session_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    words: Sequence[str],
    paths: Sequence[str] | None,
    stat: bool,
    name_status: bool,
    session: str | None,
) -> None:
    """Shows what changed between two snapshots, or one and the live tree.

    From A (else the newest snapshot) to B (else the live tree), as patches. Binary
    files, and those of more than 1 MiB, are summarised. Exits 0 with and without
    changes.
    """
    if stat and name_status:
        raise click.UsageError("--stat and --name-status exclude each other")
    output = invocation.output
    with invocation.open() as handle:
        sides = parse_words(handle, invocation, words, paths, session)
        changes = handle.diff(sides.old_id, sides.new_id, sides.paths)
        fields = json_forms.diff_fields(sides.old_id, sides.new_id, changes)
        forms = DiffForms(handle, sides)
        if stat:
            lines = forms.stat_lines(changes)
            stat_fields = forms.stat_fields
            output.result(
                "diff",
                fields=lambda: fields | {"changes": stat_fields(changes)},
                lines=lambda: lines,
            )
        elif name_status:
            output.result(
                "diff", fields=lambda: fields, lines=lambda: text_forms.change_lines(changes)
            )
        else:
            for_terminal = is_terminal("stdout")
            output.raw(
                "diff",
                fields=lambda: fields,
                pieces=lambda: forms.patches(changes, for_terminal=for_terminal),
            )
