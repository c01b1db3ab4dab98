"""The command ``snap``: its commands, and how a call ends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import treesnap
from treesnap.cli.command import LazyGroup
from treesnap.cli.failure import ExitCode, from_error
from treesnap.cli.invocation import Invocation
from treesnap.cli.output import streams
from treesnap.core.features import Commands, with_features
from treesnap.core.fs import own_process
from treesnap.core.model.errors import TreesnapError

_OF_THE_CORE: Commands = {
    "Everyday": {
        "create": ("treesnap.cli.commands.create", "Capture the root, or only PATHs of it."),
        "list": ("treesnap.cli.commands.browse", "List the root's snapshots, newest first."),
        "log": (
            "treesnap.cli.commands.log",
            "Show the history of the root or of PATH, newest first.",
        ),
        "status": (
            "treesnap.cli.commands.changes",
            "Show what changed since the newest snapshot, or since REF.",
        ),
        "diff": (
            "treesnap.cli.commands.changes",
            "Show changes between two snapshots, or a snapshot and the live tree.",
        ),
        "restore": ("treesnap.cli.commands.restore", "Restore a snapshot, or only PATHs of it."),
        "revert": (
            "treesnap.cli.commands.merges",
            "Undo what happened between two snapshots, and keep everything since.",
        ),
        "adopt": (
            "treesnap.cli.commands.merges",
            "Bring what was done in the fork DIR into the root that it was forked from.",
        ),
        "undo": ("treesnap.cli.commands.restore", "Undo the newest restore."),
        "redo": ("treesnap.cli.commands.restore", "Undo the newest undo."),
        "run": (
            "treesnap.cli.commands.restore",
            "Run a command, and roll back what it did if it fails.",
        ),
        "fork": (
            "treesnap.cli.commands.merges",
            "Make working copies of a snapshot that share its blocks.",
        ),
    },
    "History": {
        "show": ("treesnap.cli.commands.browse", "Show the metadata of a snapshot."),
        "ls": ("treesnap.cli.commands.browse", "List a directory of a snapshot."),
        "cat": ("treesnap.cli.commands.browse", "Print a file of a snapshot."),
        "find": ("treesnap.cli.commands.browse", "Find paths in all snapshots, or in one."),
        "grep": (
            "treesnap.cli.commands.grep",
            "Print the lines of files in snapshots that match a pattern.",
        ),
        "blame": (
            "treesnap.cli.commands.blame",
            "Show which snapshot brought each line of a file.",
        ),
        "archive": (
            "treesnap.cli.commands.archive",
            "Write a snapshot, or one path of it, to a tar archive.",
        ),
        "import": (
            "treesnap.cli.commands.archive",
            "Make a snapshot of a tar archive or of another directory.",
        ),
        "describe": ("treesnap.cli.commands.snapshots", "Give a snapshot another label."),
        "tag": ("treesnap.cli.commands.snapshots", "Set tags of a snapshot, or remove them."),
        "pin": ("treesnap.cli.commands.snapshots", "Protect a snapshot from deletion."),
        "unpin": ("treesnap.cli.commands.snapshots", "End the protection of a snapshot."),
        "delete": (
            "treesnap.cli.commands.snapshots",
            "Delete snapshots; 'snap gc' then frees their space.",
        ),
    },
    "Space and maintenance": {
        "prune": (
            "treesnap.cli.commands.snapshots",
            "Delete the root's snapshots that no rule keeps.",
        ),
        "gc": (
            "treesnap.cli.commands.maintenance",
            "Free the space of everything that no snapshot needs.",
        ),
        "stats": (
            "treesnap.cli.commands.maintenance",
            "Show the sizes of the store, its roots, and this root's history.",
        ),
        "du": (
            "treesnap.cli.commands.maintenance",
            "Show the space that a snapshot takes, by path.",
        ),
        "verify": ("treesnap.cli.commands.maintenance", "Check the store, and repair it if asked."),
        "doctor": (
            "treesnap.cli.commands.maintenance",
            "Show interrupted work in all roots, and what becomes of it.",
        ),
        "config": (
            "treesnap.cli.commands.config",
            "Show or change the settings of the store, or of one root.",
        ),
        "store": (
            "treesnap.cli.commands.store",
            "Show where the store is, copy it, or move it.",
        ),
        "root": ("treesnap.cli.commands.root", "List, move and forget the roots of a store."),
        "completion": (
            "treesnap.cli.completion",
            "Print a script with which a shell completes commands, options and REFs.",
        ),
    },
    "Automation": {
        "watch": (
            "treesnap.cli.commands.watch",
            "Watch the root for changes, and make automatic snapshots if asked.",
        ),
    },
}
COMMANDS = with_features(_OF_THE_CORE)
"""The commands by section of the help, each with its module and the first sentence of its help."""

_IS_VERBOSE = "treesnap.is_verbose"
_COLLECTION_THRESHOLD = 50_000
"""New objects after which Python looks for reference cycles; a command makes few cycles, and most
live objects are modules, which stay to the end."""


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


def execute(
    arguments: Sequence[str], program: str = "snap", *, may_start_server: bool = False
) -> int:
    """Runs one command line and returns its exit code; prints every error.

    An error of printing changes the code only of a command that does nothing but print.
    ``may_start_server`` says whether a fork server may be started for the commands that follow.
    """
    streams.prepare_streams()
    invocation = Invocation(program, may_start_server=may_start_server)
    code = _execute(arguments, invocation)
    invocation.output.report_unwritten()
    return code


def _execute(arguments: Sequence[str], invocation: Invocation) -> int:
    program = invocation.program
    try:
        try:
            with snap.make_context(program, list(arguments), obj=invocation) as context:
                snap.invoke(context)
        finally:
            invocation.output.flush()
    except click.exceptions.Exit as ending:
        return int(ending.exit_code)
    except BrokenPipeError:
        streams.abandon_stdout()
        return ExitCode.BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is the last place to report it
        try:
            return _report(error, invocation, arguments)
        except OSError as second:  # no file can be opened, not even our own modules
            streams.print_plainly(f"{program}: {error}; the error could not be described: {second}")
            return ExitCode.FAILED
    return ExitCode.DONE


def _report(error: BaseException, invocation: Invocation, arguments: Sequence[str]) -> int:
    """Prints an error in the form that was asked for and returns the exit code."""
    if os.environ.get("SNAP_DEBUG"):
        streams.print_traceback(error)
    described = from_error(_cause(error), invocation.program)
    checkpoint_id = getattr(error, "checkpoint_id", None)
    if checkpoint_id is not None:
        again = f"'{invocation.command_text('restore', checkpoint_id[:12])}' goes back"
        described = described._replace(
            hint=f"{described.hint}; then {again}" if described.hint else again
        )
    if described.code == "usage" and "--json" in arguments:
        invocation.output.as_json = True  # parsing may have stopped before it came to --json
    invocation.output.error(described)
    return described.exit_code


def _cause(error: BaseException) -> BaseException:
    """Returns what an error comes from: also libraries fail where the clock is far off."""
    if isinstance(error, OverflowError):
        from treesnap.core.ops.context import system_clock_ns

        try:
            system_clock_ns()
        except TreesnapError as of_clock:
            return of_clock
    return error


def prepare_process() -> None:
    """Tunes a process in which nothing but our own commands runs.

    Keeps Python's collector away from what is loaded by now, and from most commands.
    """
    own_process.claim()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)


def main(*, may_start_server: bool = False) -> NoReturn:
    """Runs the command line of this process and ends it."""
    program = streams.program_name()
    variable = f"_{program.upper()}_COMPLETE"
    if instruction := os.environ.get(variable):
        from treesnap.cli.completion import answer

        streams.prepare_streams()
        streams.end_process(answer(snap, program, instruction))
    prepare_process()
    streams.end_process(execute(sys.argv[1:], program, may_start_server=may_start_server))
