"""What all commands share: the global options, examples in the help, parameter types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from treesnap.cli.invocation import WAIT_DEFAULT_S, Invocation

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

Function = TypeVar("Function", bound=Callable[..., Any])

pass_invocation = click.make_pass_decorator(Invocation)


class SnapCommand(click.Command):
    """A command that takes the global options too, and ends its help with examples."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        prints_only: bool = False,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.prints_only = prints_only
        """Whether it does nothing but print, and so fails when that fails."""
        self.context_settings = {**HELP_OPTIONS, **self.context_settings}
        self.examples = tuple(examples)
        """Commands as a person types them."""
        self.params += global_options()

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        invocation = ctx.find_object(Invocation)
        if invocation is not None:
            invocation.output.prints_only = self.prints_only
        return super().invoke(ctx)

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002 - the signature is click's
        formatter: click.HelpFormatter,
    ) -> None:
        """Writes the examples as they are typed."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def global_options() -> list[click.Parameter]:
    """Returns the options that are understood before and after a command's name."""
    return [
        _global_option(
            "-C",
            "directory",
            metavar="DIR",
            help="The root; also what relative PATHs start from.",
        ),
        _global_option(
            "--store", "store", metavar="DIR", help="The store; relative to the current directory."
        ),
        _global_option(
            "--wait",
            "wait_s",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help=f"How long to wait for another command in this root [{WAIT_DEFAULT_S:g}].",
        ),
        _global_option(
            "--json", "as_json", is_flag=True, help="Print one JSON object, errors included."
        ),
        _global_option(
            "-q", "--quiet", "quiet", is_flag=True, help="Print no warnings and no progress."
        ),
    ]


def _global_option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_set_global, **attributes)


def _set_global(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keeps a global option that was given; later ones win over earlier ones."""
    invocation = context.find_object(Invocation)
    if invocation is None or value is None or value is False:
        return
    if value == "":
        raise click.BadParameter("is empty", ctx=context, param=parameter)
    target = invocation.output if parameter.name in {"as_json", "quiet"} else invocation
    setattr(target, str(parameter.name), value)


def session_option(function: Function) -> Function:
    """Adds the option that says in which session ``step:N`` is meant."""
    return click.option("--session", metavar="ID", help="The session that 'step:N' is about.")(
        function
    )


def parse_tags(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    """Returns tags of the form KEY=VALUE by key; the last one of a key wins."""
    tags: dict[str, str] = {}
    for value in values:
        key, equals, content = value.partition("=")
        if not equals or not key:
            message = f"{value!r} is not of the form KEY=VALUE"
            raise click.BadParameter(message, ctx=context, param=parameter)
        tags[key] = content
    return tags
