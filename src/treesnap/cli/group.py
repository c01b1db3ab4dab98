"""The command ``snap`` as click has it: for help, completion, and any line that is not plain."""

from __future__ import annotations

from collections.abc import Sequence

import click

import treesnap
from treesnap.cli.command import SHOWS_ALL, LazyGroup, command_of_click
from treesnap.cli.commands import COMMANDS
from treesnap.cli.declarations import DeclaredCommand
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation

_IS_VERBOSE = "treesnap.is_verbose"


def _show_version(context: click.Context, parameter: click.Parameter, is_asked: object) -> None:
    """Prints the version and ends, where that was asked for."""
    del parameter
    if not is_asked or context.resilient_parsing:
        return
    click.echo(f"treesnap {treesnap.__version__}")
    if context.meta.get(_IS_VERBOSE):
        from treesnap.core.fs.native import implementation

        click.echo(f"looks at directories in {implementation()}")
    context.exit()


@click.group(
    cls=LazyGroup,
    commands_by_section=COMMANDS,
    invoke_without_command=True,
)
@click.option(
    "-v",
    "is_verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    hidden=True,
    callback=lambda context, _, is_asked: context.meta.update({_IS_VERBOSE: is_asked}),
)
@click.option(
    "--all",
    "shows_all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    hidden=True,
    callback=lambda context, _, is_asked: context.meta.update({SHOWS_ALL: is_asked}),
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version; with -v, how directories are looked at.",
)
@click.pass_context
def snap(context: click.Context) -> None:
    """Undo for any directory.

    The root is DIR of -C, else the nearest directory above the current one that
    was captured before, else the current directory. A REF is an id or its unique
    beginning, a name, 'latest', 'latest~N', 'latest:TYPE', '@2h', '@yesterday', or
    'step:N' with --session. Without COMMAND: where you are, and what changed.
    """
    if context.invoked_subcommand is None:
        from treesnap.cli.commands.overview import show_overview

        show_overview(context.ensure_object(Invocation))


def run(arguments: Sequence[str], invocation: Invocation) -> int:
    """Runs a command line and returns its exit code."""
    try:
        with snap.make_context(invocation.program, list(arguments), obj=invocation) as context:
            code: int | None = snap.invoke(context)
    except click.exceptions.Exit as ending:
        return int(ending.exit_code)
    return ExitCode.DONE if code is None else code


def name_command(error: BaseException, declared: DeclaredCommand, program: str) -> None:
    """Lets an error of click's say of which command it is, as click does itself."""
    if isinstance(error, click.UsageError) and error.ctx is None:
        outermost = click.Context(snap, info_name=program)
        error.ctx = click.Context(
            command_of_click(declared), info_name=declared.name, parent=outermost
        )
