"""What all commands and groups of commands share: the global options, the form of the help.

Commands and parameters that are declared without click become click's here.

Invariant: ``LazyGroup`` lists its commands without importing any. A command's module is
imported when the command runs or shows its help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from importlib import import_module

import click

from treesnap.cli import declarations
from treesnap.cli.failure import ExitCode, advised
from treesnap.cli.invocation import Invocation
from treesnap.cli.parameters import OneOf, Seconds, ValueKind, WholeNumber
from treesnap.core.features import Commands
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.type_names import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    P = ParamSpec("P")
    R = TypeVar("R")


SHOWS_ALL = "treesnap.shows_all"
"""In the context: whether the help of the outermost group lists all commands."""
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
SENTENCE_LENGTH_MAX = 200
"""Characters of a command's sentence in the table of its group; none comes near it."""

SEPARATOR = "--"


def pass_invocation(function: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
    """Gives the function of a command its invocation first."""
    return click.make_pass_decorator(Invocation)(function)


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function."""
    return click.command(name, cls=SnapCommand, **attributes)


class SnapCommand(click.Command):
    """A command that takes the global options too, and ends its help with examples."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        prints_only: bool = False,
        is_paged: bool = False,
        separates_paths: bool = False,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.params: list[click.Parameter] = list(map(_parameter_of_click, self.params))
        self._separates_paths = separates_paths
        """Whether the words behind ``--`` are its ``paths``, which click does not keep apart."""
        self.prints_only = prints_only
        """Whether it does nothing but print, so that it fails when that fails."""
        self.is_paged = is_paged
        """Whether what it prints goes through a pager on a terminal."""
        self.context_settings: MutableMapping[str, Any] = {**HELP_OPTIONS, **self.context_settings}
        self.examples: tuple[str, ...] = tuple(examples)
        """Commands as a person types them."""
        self.params.extend(global_options())

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns the parameters; for completion those that offer words."""
        parameters = super().get_params(ctx)
        return _completing(parameters) if ctx.resilient_parsing else parameters

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the words; refuses an option as the value of another one."""
        cut = len(args)
        if self._separates_paths and SEPARATOR in args:
            cut = args.index(SEPARATOR)
        behind = tuple(args[cut + 1 :]) if cut < len(args) else None
        args = args[:cut]
        _refuse_swallowed_options(self, ctx, args)
        rest = super().parse_args(ctx, args)
        if self._separates_paths:
            ctx.params["paths"] = behind
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; a dry run does nothing but print, whatever the command does."""
        invocation = ctx.find_object(Invocation)
        if invocation is not None:
            invocation.output.prepare(
                ctx.params, prints_only=self.prints_only, is_paged=self.is_paged
            )
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


class SnapGroup(click.Group):
    """A group of commands that takes the global options too; alone it shows its help."""

    command_class: type[click.Command] | None = SnapCommand

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.no_args_is_help = False  # parse_args shows it, on standard error
        self.context_settings: MutableMapping[str, Any] = {**HELP_OPTIONS, **self.context_settings}
        self.params.extend(global_options())

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the names, the most usual ones first."""
        return [name for _, section in self.sections() for name in section]

    def sections(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yields headings, each with names and the first sentence of each command's help."""
        yield (
            "Commands",
            {
                name: command.get_short_help_str(SENTENCE_LENGTH_MAX)
                for name, command in self.commands.items()
            },
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Shows the help of a group that does nothing alone, which is not a success."""
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        _refuse_swallowed_options(self, ctx, args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns the parameters; for completion those that offer words."""
        parameters = super().get_params(ctx)
        return _completing(parameters) if ctx.resilient_parsing else parameters

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands and options that fit; imports no command."""
        from click.shell_completion import CompletionItem

        words = {name: text for _, section in self.sections() for name, text in section.items()}
        return [
            *(
                CompletionItem(name, help=text.rstrip("."))
                for name, text in words.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that is meant; an unknown name is an error that says what to type.

        The names of other tools count in the outermost group, ``help`` in all.
        """
        name = args[0]
        if name in self.list_commands(ctx) or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from treesnap.cli.aliases import did_you_mean, expanded, hint_for

        if ctx.parent is None or name == "help":
            args = expanded(args)
        if args[0].startswith("-") and not ctx.resilient_parsing:
            self.parse_args(ctx, args)  # which prints, and ends the command
        elif args[0] not in self.list_commands(ctx) and not ctx.resilient_parsing:
            hint = hint_for(
                args[0], ctx.command_path, self.list_commands(ctx), is_top=ctx.parent is None
            )
            program = ctx.find_root()
            if isinstance(program.command, click.Group) and args[
                0
            ] in program.command.list_commands(program):
                hint = did_you_mean([f"{program.command_path} {args[0]}"])
            raise advised(click.UsageError(f"No such command {args[0]!r}", ctx), hint)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,
        formatter: click.HelpFormatter,
    ) -> None:
        """Writes a table for each section, all with the same columns.

        Of a group with an option for all of them, the first one alone without that.
        """
        sections = list(self.sections())
        is_short = not ctx.meta.get(SHOWS_ALL) and any(it.name == "shows_all" for it in self.params)
        if is_short:
            sections = [sections[0], ("More", {"help --all": "List all commands."})]
        width = max(len(name) for _, section in sections for name in section)
        for heading, section in sections:
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), text.rstrip(".")) for name, text in section.items()]
                )


class LazyGroup(SnapGroup):
    """A group that imports the module of a command when the command is asked for.

    ``commands_by_section`` has, for each command, the module that defines it and the first
    sentence of its help.
    """

    def __init__(
        self,
        *args: Any,
        commands_by_section: Commands,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self._sections = commands_by_section

    def sections(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yields headings, each with names and sentences; imports nothing."""
        for heading, listed in self._sections.items():
            yield heading, {name: sentence for name, (_, sentence) in listed.items()}

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - the signature is click's
        cmd_name: str,
    ) -> click.Command | None:
        """Returns a command, or None when there is none of that name."""
        for listed in self._sections.values():
            if cmd_name in listed:
                module = import_module(listed[cmd_name][0])
                declared = declarations.declared_in(module, cmd_name)
                if declared is not None:
                    return command_of_click(declared)
                return next(
                    item
                    for item in vars(module).values()
                    if isinstance(item, click.Command) and item.name == cmd_name
                )
        return None


def _refuse_swallowed_options(
    command: click.Command, ctx: click.Context, args: Sequence[str]
) -> None:
    """Raises UsageError where the value of an option is left out before the next option.

    Click takes the next word, whatever it is: ``create -m --json`` would have the label "--json".
    """
    if ctx.resilient_parsing:
        return
    options = {
        name: parameter
        for parameter in command.get_params(ctx)
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    words = iter(args)
    for word in words:
        if word == "--" or (not _is_option(word) and not ctx.allow_interspersed_args):
            return
        name = _asking(word, options)
        value = next(words, None) if name is not None else None
        if name is not None and value in options:
            joined = f"{name}={value}" if name.startswith("--") else f"{name}{value}"
            raise advised(
                click.UsageError(f"Option {name!r} requires an argument", ctx),
                f"write {joined!r} if {value!r} is what you mean",
            )


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-")


def _asking(word: str, options: Mapping[str, click.Option]) -> str | None:
    """Returns the option that takes the word after this one, or None."""
    if word in options or word.startswith("--") or not _is_option(word):
        names = [word]
    else:  # letters in one word; the first that takes a value takes the rest
        names = [f"-{letter}" for letter in word[1:]]
    for number, name in enumerate(names, 1):
        option = options.get(name)
        if option is None:
            return None
        if not (option.is_flag or option.count):
            return name if number == len(names) else None
    return None


def _completing(parameters: Sequence[click.Parameter]) -> list[click.Parameter]:
    """Returns the parameters as those that offer words to a shell."""
    from treesnap.cli.completion_values import values_of

    return [values_of(parameter) for parameter in parameters]


@cache
def global_options() -> list[click.Parameter]:
    """Returns the options that are understood before and after a command's name.

    All commands share them, which halves the time to load a module that defines five.
    """
    return list(map(_parameter_of_click, declarations.GLOBAL_OPTIONS))


@cache
def command_of_click(declared: declarations.DeclaredCommand) -> click.Command:
    """Returns click's command of a declaration."""
    make = click.command(declared.name, cls=SnapCommand, **declared.attributes)
    return make(pass_invocation(declared.function))


def _parameter_of_click(parameter: click.Parameter | declarations.Parameter) -> click.Parameter:
    if isinstance(parameter, click.Parameter):
        return parameter
    attributes = dict(parameter.attributes)
    if parameter.kind is not None:
        attributes["type"] = _type_of_click(parameter.kind)
    if parameter.is_kept:
        attributes |= {"expose_value": False, "callback": _keeping(parameter)}
    elif (collect := parameter.collect) is not None:
        attributes["callback"] = lambda _context, _parameter, value: collect(value)
    make = click.Option if parameter.options else click.Argument
    return make([*parameter.words], **attributes)


def _keeping(declared: declarations.Parameter) -> Callable[..., None]:
    """Returns what keeps an option of the invocation; later ones win over earlier ones."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        invocation = context.find_object(Invocation)
        if invocation is None or value is None or value is False:
            return
        if value == "" and not declared.is_tag:
            raise click.BadParameter("is empty", ctx=context, param=parameter)
        invocation.keep(declared.name, value, is_tag=declared.is_tag)

    return keep


def _type_of_click(kind: ValueKind) -> click.ParamType[Any]:
    if isinstance(kind, OneOf):
        return click.Choice(kind.words)
    if isinstance(kind, WholeNumber):
        return _WholeNumber(kind.min, kind.max)
    if isinstance(kind, Seconds):
        return _Seconds(kind.min, kind.max)
    return _Converted(kind)


class _Converted(click.ParamType[Any]):
    """What a kind of values reads."""

    def __init__(self, kind: ValueKind) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value; a text that the kind does not accept is a usage error."""
        try:
            return self._kind.convert(value)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)


class _WholeNumber(click.IntRange):
    name = WholeNumber.name


class _Seconds(click.FloatRange):
    name = Seconds.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the seconds, which NaN is not."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds
