"""``snap plan run``: carries out a plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan.session import planner, report, runner_option
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.errors import ErrorCode, InvalidArgument, printable
from treesnap.plans import Milestones
from treesnap.plans.document import SIZE_BYTES_MAX, STANDARD_INPUT, parse_document


@click.command(
    "run",
    cls=SnapCommand,
    examples=[
        "snap plan run release.yaml",
        "snap plan run pipeline.yaml --runner 'agent --print {prompt}'",
    ],
)
@click.argument("path", metavar="FILE")
@runner_option
@click.option(
    "--architect",
    is_flag=True,
    help="Take checkpoints as Architect's pipelines do: its defaults, its labels.",
)
@pass_invocation
def command(invocation: Invocation, *, path: str, runner: str | None, architect: bool) -> None:
    """Carries out the plan in a YAML file.

    Exits 1 when a step failed: what it did was undone, and what came before it stays.
    """
    where = STANDARD_INPUT if path == "-" else path
    definition = parse_document(_read(path, where), where, _architect() if architect else None)
    if definition.prompt_line is not None and runner is None:
        raise _invalid(
            f"{printable(where)}, line {definition.prompt_line}",
            where,
            "the step has a prompt, and no --runner says what carries it out",
        )
    with planner(invocation, runner, makes_store=True) as plans:
        plan = plans.run_definition(definition)
    report(invocation, "plan.run", plan)


def _architect() -> Milestones:
    from treesnap.compat.architect import MILESTONES

    return MILESTONES


def _read(path: str, where: str) -> str:
    try:
        with click.open_file(path, "rb") as file:
            data: bytes = file.read(SIZE_BYTES_MAX + 1)
            return data.decode()
    except OSError as error:
        raise _invalid(printable(where), where, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _invalid(printable(where), where, "it is not UTF-8") from error


def _invalid(place: str, path: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"The plan in {place} cannot be used: {why}", code=ErrorCode.INVALID_PLAN, path=path
    )
