"""The command ``snap``: its commands, and how a call ends."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from treesnap.cli.commands import COMMANDS
from treesnap.cli.declarations import (
    GLOBAL_OPTIONS,
    DeclaredCommand,
    NotPlain,
    declared_in,
    kept_values,
    read_plainly,
    values_of,
)
from treesnap.cli.failure import ExitCode, from_error
from treesnap.cli.invocation import Invocation
from treesnap.cli.output import streams
from treesnap.core import own_program
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Any, NoReturn

_COLLECTION_THRESHOLD = 50_000
"""New objects after which Python looks for reference cycles; a command makes few cycles, and most
live objects are modules, which stay to the end."""


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
            code = _run_plainly(arguments, invocation)
            if code is None:
                from treesnap.cli.group import run

                code = run(arguments, invocation)
        finally:
            invocation.output.flush()
    except BrokenPipeError:
        streams.abandon_stdout()
        return ExitCode.BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is the last place to report it
        try:
            return _report(error, invocation, arguments)
        except OSError as second:  # no file can be opened, not even our own modules
            streams.print_plainly(f"{program}: {error}; the error could not be described: {second}")
            return ExitCode.FAILED
    return code


def _run_plainly(arguments: Sequence[str], invocation: Invocation) -> int | None:
    """Runs a plain command line and returns its exit code, or None where click has to read it."""
    try:
        declared, values = plain_call(arguments, invocation)
    except NotPlain:
        return None
    invocation.output.prepare(
        values,
        prints_only=declared.attributes.get("prints_only", False),
        is_paged=declared.attributes.get("is_paged", False),
    )
    try:
        code = declared.function(invocation, **values)
    except Exception as error:
        if "click" in sys.modules:
            from treesnap.cli.group import name_command

            name_command(error, declared, invocation.program)
        raise
    return ExitCode.DONE if code is None else code


class PlainCall(NamedTuple):
    """What a plain command line asks for."""

    declared: DeclaredCommand
    values: dict[str, Any]
    """What its function is called with, besides the invocation."""


def plain_call(arguments: Sequence[str], invocation: Invocation) -> PlainCall:
    """Returns what a command line asks for; raises NotPlain where click has to read it.

    Gives the invocation its options. Those before the command are given before its module is
    imported, as click does: they say how an error of that is printed.
    """
    outer = read_plainly(arguments, GLOBAL_OPTIONS, is_group=True)
    for option, value in kept_values(outer):
        invocation.keep(option.name, value)
    name, *words = outer.arguments or [""]
    declared = _declared(name)
    inner = read_plainly(words, declared.parameters)
    kept, values = kept_values(inner), values_of(declared, inner)
    for option, value in kept:
        invocation.keep(option.name, value, is_tag=option.is_tag)
    return PlainCall(declared, values)


def _declared(name: str) -> DeclaredCommand:
    for section in COMMANDS.values():
        if name in section:
            declared = declared_in(import_module(section[name][0]), name)
            if declared is not None:
                return declared
    raise NotPlain


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
    own_program.claim()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)


def main(*, may_start_server: bool = False) -> NoReturn:
    """Runs the command line of this process and ends it."""
    program = streams.program_name()
    variable = f"_{program.upper()}_COMPLETE"
    if instruction := os.environ.get(variable):
        from treesnap.cli.completion import answer
        from treesnap.cli.group import snap

        streams.prepare_streams()
        streams.end_process(answer(snap, program, instruction))
    prepare_process()
    streams.end_process(execute(sys.argv[1:], program, may_start_server=may_start_server))
