"""How commands are declared, and how a plain command line is read, without click.

Importing click takes more time than many commands do. So modules of commands declare by
``command``, ``argument`` and ``option``; ``cli.command`` makes click's commands of the same
declarations, for help, completion and everything else. ``read_plainly`` reads what click would
certainly read in the same way, and leaves all other command lines to click, also each with an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from treesnap.cli.invocation import WAIT_DEFAULT_S
from treesnap.cli.parameters import OneOf, Seconds, ValueKind
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    _Function = TypeVar("_Function", bound=Callable[..., Any])


class Decorator(Protocol):
    """What adds to the function of a command, and returns it."""

    def __call__(self, function: _Function, /) -> _Function:
        """Returns the function."""


class NotPlain(Exception):
    """Click has to read this command line."""


class Parameter:
    """An option or an argument, as a decorator of the function of a command."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        kind: ValueKind | None,
        collect: Callable[[Any], Any] | None,
        is_kept: bool,
        is_tag: bool,
        attributes: Mapping[str, Any],
    ) -> None:
        self.words = words
        """The options, or none for an argument, and the name if it is not that of an option."""
        self.kind = kind
        """What its values are; None for texts."""
        self.collect = collect
        """What is made of its value, or of all its values."""
        self.is_kept = is_kept
        """Whether it is for the invocation, and not for the function."""
        self.is_tag = is_tag
        """Whether the invocation keeps it as the tag of its name; a flag as ``true``."""
        self.attributes = attributes
        """As click has them."""
        self.options: list[str] = [word for word in words if word.startswith("-")]
        named = [word for word in words if word not in self.options]
        longest = max(self.options, key=lambda option: option.startswith("--"), default="")
        self.name: str = named[0] if named else longest.lstrip("-").replace("-", "_").lower()

    def __call__(self, function: _Function) -> _Function:
        """Adds this to the parameters of a command, which stand in the order of their lines.

        They lie where click's own decorators keep theirs, so that both can be mixed.
        """
        vars(function).setdefault("__click_params__", []).append(self)
        return function

    def value_of(self, given: Sequence[Any]) -> Any:
        """Returns the value of what was given for an option; raises NotPlain."""
        if self.attributes.get("is_flag"):
            return bool(given)
        if self.attributes.get("multiple"):
            return self._collected(tuple(map(self._converted, given)))
        value = given[-1] if given else self.attributes.get("default")
        return self._collected(self._converted(value) if value is not None else None)

    def argument_of(self, words: list[str]) -> Any:
        """Returns the value of an argument, whose words it takes off the list; raises NotPlain."""
        count = self.attributes.get("nargs", 1)
        if not words and self.attributes.get("required", count == 1):
            raise NotPlain
        if count == 1:
            value = self._converted(words.pop(0)) if words else None
        else:
            value = tuple(map(self._converted, words))
            words.clear()
        return self._collected(value)

    def _converted(self, text: str) -> Any:
        if self.kind is None:
            return text
        try:
            return self.kind.convert(text)
        except InvalidArgument as error:
            raise NotPlain from error

    def _collected(self, value: Any) -> Any:
        return value if self.collect is None else self.collect(value)


def option(
    *words: str,
    type: ValueKind | None = None,  # noqa: A002 - as click has it
    collect: Callable[[Any], Any] | None = None,
    is_kept: bool = False,
    is_tag: bool = False,
    **attributes: Any,
) -> Parameter:
    """Declares an option; ``attributes`` are those of click's.

    One that is kept is for the invocation, and not for the function of the command. One that is a
    tag says something of the new snapshot: the invocation keeps it among its tags, and the library
    has no keyword for it but ``tags``.
    """
    return Parameter(
        words,
        kind=type,
        collect=collect,
        is_kept=is_kept or is_tag,
        is_tag=is_tag,
        attributes=attributes,
    )


def argument(
    name: str,
    *,
    type: ValueKind | None = None,  # noqa: A002 - as click has it
    collect: Callable[[Any], Any] | None = None,
    **attributes: Any,
) -> Parameter:
    """Declares an argument; ``attributes`` are those of click's."""
    return Parameter(
        [name], kind=type, collect=collect, is_kept=False, is_tag=False, attributes=attributes
    )


def several_options(*options: Decorator) -> Decorator:
    """Makes one decorator of those of several options, for commands that share them."""

    def add(function: _Function) -> _Function:
        for decorate in reversed(options):
            function = decorate(function)
        return function

    return add


GLOBAL_OPTIONS = [
    option(
        "-C",
        "directory",
        metavar="DIR",
        help="The root; also what relative PATHs start from.",
        is_kept=True,
    ),
    option(
        "--store",
        metavar="DIR",
        help="The store; relative to the current directory.",
        is_kept=True,
    ),
    option(
        "--wait",
        "wait_s",
        type=Seconds(min=0),
        metavar="SECONDS",
        help=f"How long to wait for another command in this root [{WAIT_DEFAULT_S:g}].",
        is_kept=True,
    ),
    option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON object, errors included.",
        is_kept=True,
    ),
    option(
        "-q",
        "--quiet",
        is_flag=True,
        help="Print no warnings and no progress.",
        is_kept=True,
    ),
    option(
        "--color",
        "colour",
        type=OneOf(["auto", "always", "never"]),
        metavar="WHEN",
        help="When to use colour [auto]: on a terminal, without NO_COLOR.",
        is_kept=True,
    ),
]
"""The options that are understood before and after a command's name."""


class DeclaredCommand:
    """A command as its module declares it.

    Its function takes an invocation and the values of its parameters, and returns the exit code,
    or None where that is 0.
    """

    def __init__(
        self, name: str, function: Callable[..., int | None], attributes: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.function = function
        self.attributes = attributes
        """As ``SnapCommand`` has them."""

    @property
    def parameters(self) -> Iterator[Parameter]:
        """Its own and the global ones, in the order of their lines."""
        yield from reversed(vars(self.function).get("__click_params__", ()))
        yield from GLOBAL_OPTIONS


def command(name: str, **attributes: Any) -> Callable[[Callable[..., int | None]], DeclaredCommand]:
    """Declares a command; ``attributes`` are those of ``SnapCommand``."""
    return lambda function: DeclaredCommand(name, function, attributes)


def declared_in(module: object, name: str) -> DeclaredCommand | None:
    """Returns the command of that name that a module declares without click, or None."""
    for item in vars(module).values():
        if isinstance(item, DeclaredCommand) and item.name == name:
            return item
    return None


class PlainWords(NamedTuple):
    """A command line that was read without click."""

    given: dict[Parameter, list[Any]]
    """What was given for each option, in its order."""
    arguments: list[str]


def read_plainly(
    words: Sequence[str], parameters: Iterable[Parameter], *, is_group: bool = False
) -> PlainWords:
    """Returns which words are options and which are arguments; raises NotPlain.

    Of a group, the first argument and all behind it are arguments.
    """
    options = {name: parameter for parameter in parameters for name in parameter.options}
    given: dict[Parameter, list[Any]] = {}
    arguments: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            arguments.append(word)
            if is_group:
                arguments += rest
            continue
        name, sign, value = word.partition("=")
        option = options.get(name)
        if option is None:
            raise NotPlain
        if option.attributes.get("is_flag"):
            is_plain = not sign
        else:
            value = value if sign else next(rest, "")
            is_plain = bool(value) and not value.startswith("-")
        if not is_plain or (sign and not name.startswith("--")):
            raise NotPlain
        given.setdefault(option, []).append(value)
    if "" in arguments:
        raise NotPlain
    return PlainWords(given, arguments)


def kept_values(plain: PlainWords) -> list[tuple[Parameter, Any]]:
    """Returns the values that are for the invocation; raises NotPlain."""
    return [(item, item.value_of(given)) for item, given in plain.given.items() if item.is_kept]


def values_of(declared: DeclaredCommand, plain: PlainWords) -> dict[str, Any]:
    """Returns the values of a command's own parameters by name; raises NotPlain."""
    arguments = list(plain.arguments)
    values: dict[str, Any] = {}
    for parameter in declared.parameters:
        if not parameter.options:
            values[parameter.name] = parameter.argument_of(arguments)
        elif not parameter.is_kept:
            values[parameter.name] = parameter.value_of(plain.given.get(parameter, ()))
    if arguments:
        raise NotPlain
    return values
