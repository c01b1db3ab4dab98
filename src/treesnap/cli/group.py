"""Groups of commands, each command imported on first use.

Invariant: a group lists its commands and their first sentences without importing
any; a command's module is imported when the command runs or shows its help.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from treesnap.cli.command import HELP_OPTIONS, global_options
from treesnap.cli.exits import ExitCode


class LazyGroup(click.Group):
    """The commands of a package: ``command`` of its module ``cmd_NAME`` is the command NAME.

    A command may be a group itself: then ``cmd_NAME`` is a package. Takes the global
    options too.
    """

    def __init__(
        self, *args: Any, package: str, sentences: Mapping[str, str], **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.no_args_is_help = False  # parse_args shows it, on standard error
        self.context_settings = {**HELP_OPTIONS, **self.context_settings}
        self.package = package
        """Full name of the package with the commands' modules."""
        self.sentences = dict(sentences)
        """The first sentence of each command's help, by name; the most usual ones first."""
        self.params += global_options()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the names, the most usual ones first."""
        return list(self.sentences)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - the signature is click's
        cmd_name: str,
    ) -> click.Command | None:
        """Returns a command, or None when there is none of that name."""
        if cmd_name not in self.sentences:
            return None
        command: click.Command = import_module(f"{self.package}.cmd_{cmd_name}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Shows the help when there is nothing to do; that is no success."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - the signature is click's
        formatter: click.HelpFormatter,
    ) -> None:
        """Writes the table, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.rstrip(".")) for name, text in self.sentences.items()])
