"""The command ``snap``: its commands, and how a call ends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import treesnap
from treesnap import own_process
from treesnap.cli import streams
from treesnap.cli.command import LazyGroup
from treesnap.cli.failure import ExitCode, from_error
from treesnap.cli.invocation import Invocation

COMMANDS = {
    "Everyday": {
        "create": ("cmd_create", "Capture the root, or only PATHs of it."),
        "list": ("cmd_browse", "List the root's snapshots, newest first."),
        "log": ("cmd_log", "Show the history of the root or of a path, and what changed."),
        "status": ("cmd_changes", "Show what changed since the newest snapshot, or since REF."),
        "diff": (
            "cmd_changes",
            "Show changes between two snapshots, or a snapshot and the live tree.",
        ),
        "restore": ("cmd_restore", "Restore a snapshot, or only PATHs of it."),
        "revert": (
            "cmd_revert",
            "Undo what happened between two snapshots, and keep everything since.",
        ),
        "adopt": (
            "cmd_revert",
            "Bring what was done in the fork DIR into the root that it was forked from.",
        ),
        "undo": ("cmd_restore", "Undo the newest restore."),
        "redo": ("cmd_restore", "Undo the newest undo."),
        "run": ("cmd_restore", "Run a command, and roll back what it did if it fails."),
        "fork": ("cmd_fork", "Make working copies of a snapshot that share its blocks."),
    },
    "History": {
        "timeline": (
            "cmd_timeline",
            "Look through the history: snapshots, what each changed, and how.",
        ),
        "mount": ("cmd_mount", "Show the history as directories at DIR, read-only, until Ctrl-C."),
        "umount": ("cmd_mount", "End 'snap mount' at DIR, or clear what a killed one left."),
        "show": ("cmd_browse", "Show the metadata of a snapshot."),
        "ls": ("cmd_browse", "List a directory of a snapshot."),
        "cat": ("cmd_browse", "Print a file of a snapshot."),
        "find": ("cmd_browse", "Find paths in all snapshots, or in one."),
        "grep": ("cmd_grep", "Print the lines of files in snapshots that match a pattern."),
        "blame": ("cmd_blame", "Show which snapshot brought each line of a file."),
        "archive": ("cmd_archive", "Write a snapshot, or one path of it, to a tar archive."),
        "import": ("cmd_archive", "Make a snapshot of a tar archive or of another directory."),
        "describe": ("cmd_describe", "Give a snapshot another label."),
        "tag": ("cmd_describe", "Set tags of a snapshot, or remove them."),
        "pin": ("cmd_delete", "Protect a snapshot from deletion."),
        "unpin": ("cmd_delete", "End the protection of a snapshot."),
        "delete": ("cmd_delete", "Delete snapshots; 'snap gc' then frees their space."),
    },
    "Space and maintenance": {
        "prune": ("cmd_delete", "Delete the root's snapshots that no rule keeps."),
        "gc": ("cmd_store", "Free the space of everything that no snapshot needs."),
        "stats": ("cmd_store", "Show the sizes of the store, its roots, and this root's history."),
        "du": ("cmd_du", "Show the space that a snapshot takes, by path."),
        "verify": ("cmd_store", "Check the store, and repair it if asked."),
        "doctor": ("cmd_doctor", "Show interrupted work in all roots, and what becomes of it."),
        "config": ("cmd_config", "Show or change the settings of the store, or of one root."),
        "store": ("cmd_store_place", "Show where the store is, copy it, or move it."),
        "root": ("cmd_root", "List, move and forget the roots of a store."),
        "completion": (
            "cmd_completion",
            "Print a script with which a shell completes commands, options and REFs.",
        ),
    },
    "Automation": {
        "watch": (
            "cmd_watch",
            "Watch the root for changes, and make automatic snapshots if asked.",
        ),
        "schedule": ("cmd_schedule", "Take snapshots of the root regularly, by systemd or cron."),
        "plan": ("cmd_plan", "Run steps in order, with checkpoints to go back to."),
    },
    "Remotes": {
        "remote": ("cmd_remote", "Keep history on object storage or on another disk."),
        "push": ("cmd_remote", "Store snapshots of the root on a remote."),
        "fetch": ("cmd_remote", "Bring a history of another machine into the store."),
        "pull": ("cmd_remote", "Bring what another machine changed into the root."),
        "clone": ("cmd_remote", "Make a directory of a history on a remote."),
    },
    "Agents": {
        "agent": ("cmd_agent", "Install hooks in the hosts of agents, and show their state."),
        "hook": ("cmd_hook", "Capture the root before an agent's prompt or tool."),
        "rewind": (
            "cmd_rewind",
            "Undo what an agent did since its newest prompt, or since STEP.",
        ),
        "mcp": (
            "cmd_mcp",
            "Serve the history of directories to a model, by the Model Context Protocol.",
        ),
    },
    "Compatibility": {
        "session": ("cmd_session", "Make and use the checkpoints of Maestro sessions."),
        "maker": ("cmd_maker", "Carry out one operation block of MAKER from standard input."),
    },
}
"""The commands by section of the help, each with its module and the first sentence of its help."""

_COLLECTION_THRESHOLD = 50_000
"""New objects after which Python looks for reference cycles; a command makes few cycles, and most
live objects are modules, which stay to the end."""


@click.group(
    cls=LazyGroup,
    package="treesnap.cli",
    commands_by_section=COMMANDS,
    invoke_without_command=True,
)
@click.version_option(
    treesnap.__version__, message="treesnap %(version)s", help="Print the version."
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
        from treesnap.cli.cmd_overview import show_overview

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
    described = from_error(error, invocation.program)
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
