"""The command ``snap``: its global options, its commands, and how a call ends.

Invariant (kept by ``cli.group``): a command's module is imported when it runs or shows its
help, and not before; ``snap --version`` and ``snap --help`` import none.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import treesnap
from treesnap.cli import render
from treesnap.cli.exits import ExitCode
from treesnap.cli.group import LazyGroup
from treesnap.cli.invocation import Invocation

COMMANDS = {
    "create": "Captures the root, or only PATHs of it, and prints the snapshot's id.",
    "list": "Lists the root's snapshots, newest first.",
    "show": "Shows everything that is known of one snapshot.",
    "ls": "Lists a directory in a snapshot.",
    "cat": "Prints a file of a snapshot, verified.",
    "find": "Finds paths in all snapshots, or in one.",
    "status": "Shows what changed since the newest snapshot.",
    "diff": "Shows what changed between two snapshots, or one and the live tree.",
    "restore": "Makes the root, or only PATHs of it, exactly as in a snapshot.",
    "undo": "Takes the newest restore back.",
    "redo": "Takes the newest undo back.",
    "run": "Runs a command, and rolls back what it did if it fails.",
    "watch": "Keeps the list of changed paths ready, and makes snapshots by itself if asked.",
    "plan": "Runs steps in order, with checkpoints to go back to.",
    "session": "Makes and uses the checkpoints of Maestro sessions.",
    "delete": "Removes snapshots; gc then gives their space back.",
    "pin": "Protects a snapshot from deletion.",
    "unpin": "Takes the protection of a snapshot away.",
    "prune": "Removes the root's snapshots that no rule keeps; gc then gives their space back.",
    "config": "Shows or changes the settings of the store, or of one root.",
    "root": "Lists, moves and forgets the roots of a store.",
    "gc": "Gives the space of everything that no snapshot needs back.",
    "verify": "Checks the store, and repairs it if asked.",
    "maker": "Carries out one operation block of MAKER from standard input.",
    "doctor": "Shows work that was interrupted, in all roots, and what becomes of it.",
    "stats": "Shows the sizes of the store, of each root, and of this root's history.",
}
"""The first sentence of each command's help."""

PROGRAMS = {"snap", "treesnap"}
_COLLECTION_THRESHOLD = 50_000
"""New objects after which Python looks for unreachable cycles: a command makes few."""


def _print_version(
    context: click.Context,
    parameter: click.Parameter,  # noqa: ARG001 - the signature is click's
    value: Any,
) -> None:
    if value:
        click.echo(f"treesnap {treesnap.__version__}")
        context.exit()


@click.group(cls=LazyGroup, package="treesnap.cli", sentences=COMMANDS)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def snap() -> None:
    """Gives any directory an undo that can be trusted.

    The root is DIR of -C, else the nearest directory above the current one that
    was captured before, else the current directory. A REF is an id or its unique
    beginning, a name, 'latest', 'latest~N', or 'step:N' with --session.
    """


def execute(arguments: Sequence[str], program: str = "snap") -> int:
    """Runs one command line and returns its exit code; prints every error.

    What cannot be printed changes the code of no command that did more than printing.
    """
    render.prepare_streams()
    invocation = Invocation(program)
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
        render.abandon_stdout()
        return ExitCode.BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - nobody else reports it
        try:
            return _report(error, invocation, arguments)
        except OSError as second:  # no file can be opened, not even our own modules
            render.print_plainly(f"{program}: {error}; the error could not be described: {second}")
            return ExitCode.FAILED
    return ExitCode.DONE


def _report(error: BaseException, invocation: Invocation, arguments: Sequence[str]) -> int:
    """Prints an error in the form that was asked for and returns the exit code."""
    from treesnap.cli import failure

    if os.environ.get("SNAP_DEBUG"):
        render.print_traceback(error)
    described = failure.from_error(error, invocation.program)
    output = invocation.output
    if described.code == "usage" and "--json" in arguments:
        output.as_json = True  # perhaps it comes behind what is wrong
    output.prints_only = True
    try:
        output.error(described)
        output.flush()
    except OSError:  # the code says that it failed, and perhaps standard error did
        render.abandon_stdout()
    return described.exit_code


def main() -> NoReturn:
    """Runs the command line of this process and ends it."""
    name = os.path.basename(sys.argv[0])
    program = name if name in PROGRAMS else "treesnap"
    variable = f"_{program.upper()}_COMPLETE"
    if instruction := os.environ.get(variable):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(snap, {}, program, variable, instruction))
    # Most of what is alive now are modules, which stay to the end.
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)
    render.end_process(execute(sys.argv[1:], program))
