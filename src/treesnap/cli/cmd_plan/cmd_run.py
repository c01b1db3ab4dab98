"""``snap plan run``: carries out a plan."""

from __future__ import annotations

from typing import BinaryIO

import click

from treesnap.cli.cmd_plan.session import planner, report, runner_option
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.errors import ErrorCode, InvalidArgument
from treesnap.plans.document import SIZE_BYTES_MAX, parse_document


@click.command(
    "run",
    cls=SnapCommand,
    examples=[
        "snap plan run release.yaml",
        "snap plan run pipeline.yaml --runner 'agent --print {prompt}'",
    ],
)
@click.argument("file", type=click.File("rb"), metavar="FILE")
@runner_option
@pass_invocation
def command(invocation: Invocation, *, file: BinaryIO, runner: str | None) -> None:
    """Carries out the plan in a YAML file.

    Exits 1 when a step failed: what it did was taken back, and what came before it stays.
    """
    data = file.read(SIZE_BYTES_MAX + 1)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"The plan in {file.name} cannot be used: it is not UTF-8",
            code=ErrorCode.INVALID_PLAN,
            path=file.name,
        ) from error
    definition = parse_document(text, file.name)
    if definition.prompt_line is not None and runner is None:
        raise InvalidArgument(
            f"The plan in {file.name}, line {definition.prompt_line} cannot be used: the step has "
            "a prompt, and no --runner says what carries it out",
            code=ErrorCode.INVALID_PLAN,
            path=file.name,
        )
    with planner(invocation, runner) as plans:
        plan = plans.run_definition(definition)
    report(invocation, "plan.run", plan)
