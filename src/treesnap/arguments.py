"""Checks the arguments of public functions against their annotations.

A decorated function raises InvalidArgument, which names the parameter, for an argument of
another type than its annotation says, before it does anything. An unknown annotation is a
TypeError on every call, so that no parameter stays unchecked. Annotations are parsed at the
first call: most commands call one of the many functions that they import.

Not here: what a value means. The operation decides whether a step is too large.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from treesnap.errors import InvalidArgument, printable

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class")

_NUMBER_MAX = (1 << 63) - 1
_SHOWN_MAX = 40


class _Unfit(Exception):
    """A value has another type; the message says which."""


class _Kind:
    """What an annotation allows."""

    __slots__ = ("take", "words")

    def __init__(self, words: str, take: Callable[[Any], Any]) -> None:
        self.words = words
        self.take = take
        """Returns the checked value, or raises _Unfit."""


NAME_SIZE_MAX = 255
"""Bytes of the name of a snapshot or session: as many as a file's name may have."""


def checked(function: _Function) -> _Function:
    """Returns the function with its arguments checked; raises InvalidArgument for others.

    Collections arrive as tuples and dictionaries of their own, so that an iterator can be
    checked as well, and a list may change afterwards.
    """
    inner: Any = function
    while hasattr(inner, "__wrapped__"):  # the parameters are those of the innermost
        inner = inner.__wrapped__
    code = inner.__code__
    positional = code.co_varnames[: code.co_argcount]
    has_more = bool(code.co_flags & 0x04)
    more = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if has_more else ""
    kinds: dict[str, _Kind] = {}

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if not kinds:
            kinds.update(_kinds_of(inner))
        values = [
            _taken(name, kinds, value) for name, value in zip(positional, arguments, strict=False)
        ]
        values += [_taken(more, kinds, value) for value in arguments[len(positional) :]]
        return function(
            *values, **{name: _taken(name, kinds, value) for name, value in named.items()}
        )

    return call  # type: ignore[return-value]  # it takes and returns the same


def problem_of_name(name: str) -> str | None:
    """Returns why a text cannot be a name that people type and lists show in one line, or None."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if size_bytes > NAME_SIZE_MAX:
        return f"has more than {NAME_SIZE_MAX} bytes"
    if not name.isprintable():
        return "holds a line break or another character that cannot be shown"
    if name.startswith("-"):
        return "begins with a hyphen, as options do"
    return None


def checked_methods(cls: type[_Class]) -> type[_Class]:
    """Returns the class with :func:`checked` public methods, and initialiser if it has one."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, checked(method))
    return cls


def _kinds_of(function: Any) -> dict[str, _Kind]:
    return {
        name: _kind(annotation, f"{function.__qualname__}({name})")
        for name, annotation in function.__annotations__.items()
        if name != "return"
    }


def _taken(name: str, kinds: Mapping[str, _Kind], value: Any) -> Any:
    kind = kinds.get(name)
    if kind is None:  # self, or a name that the function itself refuses
        return value
    try:
        return kind.take(value)
    except _Unfit as unfit:
        raise InvalidArgument(f"{name} must be {kind.words}, not {unfit}") from None


def _kind(annotation: str, where: str) -> _Kind:
    """Returns what an annotation allows; raises TypeError for one that is not understood."""
    kinds = [_single(word.strip(), where) for word in _alternatives(annotation)]
    if len(kinds) == 1:
        return kinds[0]

    def take(value: Any) -> Any:
        unfit: _Unfit | None = None
        for kind in kinds:
            try:
                return kind.take(value)
            except _Unfit as error:
                unfit = unfit or error
        raise unfit or _Unfit

    either = ", or " if any("," in kind.words for kind in kinds) else " or "
    return _Kind(either.join(kind.words for kind in kinds), take)


def _alternatives(annotation: str) -> list[str]:
    found, depth = [""], 0
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return found


def _single(annotation: str, where: str) -> _Kind:
    known = _KINDS.get(annotation)
    if known is not None:
        return known
    class_name = annotation.rpartition(".")[2]
    if class_name.isidentifier():
        return _instance(class_name)
    outer, _, rest = annotation.partition("[")
    if outer in {"Sequence", "Iterable"}:
        return _collection(_kind(rest.removesuffix("]"), where))
    raise TypeError(f"No check for the annotation {annotation!r} of {where}")


def _instance(class_name: str) -> _Kind:
    """Returns the kind of a class, found by name so that nothing is imported."""

    def take(value: Any) -> Any:
        if any(kind.__name__ == class_name for kind in type(value).__mro__):
            return value
        raise _Unfit(_described(value))

    return _Kind(f"{_article(class_name)} {class_name}", take)


def _collection(member: _Kind) -> _Kind:
    def take(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _Unfit(_described(value))
        try:
            return tuple(member.take(item) for item in value)
        except _Unfit as unfit:
            raise _Unfit(f"one that holds {unfit}") from None

    return _Kind(f"a list, each {member.words}", take)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(_described(value))
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _Unfit("text with half of a surrogate pair") from None
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, str | bytes | os.PathLike):
        raise _Unfit(_described(value))
    plain = os.fspath(value)
    if (b"\0" if isinstance(plain, bytes) else "\0") in plain:
        raise _Unfit("one with a NUL byte")
    if isinstance(plain, str):
        _text(plain)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unfit(_described(value))
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _NUMBER_MAX:
        raise _Unfit(_described(value))
    return value


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value >= 0:  # NaN is neither
        raise _Unfit(_described(value))
    return float(value) if value <= _NUMBER_MAX else float("inf")


def _nothing(value: Any) -> None:
    if value is not None:
        raise _Unfit(_described(value))


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _Unfit(_described(value))
    try:
        return {_text(key): _text(item) for key, item in value.items()}
    except _Unfit as unfit:
        raise _Unfit(f"one that holds {unfit}") from None


def _two_numbers(value: Any) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise _Unfit(_described(value))
    return _whole(value[0]), _whole(value[1])


def _object_with(*names: str) -> Callable[[Any], Any]:
    """Returns what takes an object that has some methods, of whatever class it is."""

    def take(value: Any) -> Any:
        if not all(callable(getattr(value, name, None)) for name in names):
            raise _Unfit(_described(value))
        return value

    return take


def _functions(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Unfit(_described(value))
    for item in value.values():
        if not callable(item):
            raise _Unfit(f"one that holds {_described(item)}")
    try:
        return {_text(key): item for key, item in value.items()}
    except _Unfit as unfit:
        raise _Unfit(f"one that holds {unfit}") from None


_KINDS = {
    "None": _Kind("None", _nothing),
    "str": _Kind("text", _text),
    "bytes": _Kind("bytes", lambda value: _exactly(bytes, value)),
    "bool": _Kind("True or False", _flag),
    "int": _Kind(f"a whole number from 0 to {_NUMBER_MAX}", _whole),
    "float": _Kind("a number of 0 or more", _number),
    "PathLike": _Kind("a path", _path),
    "Mapping[str, str]": _Kind("a mapping of text to text", _texts),
    "tuple[int, int]": _Kind("two whole numbers", _two_numbers),
    "Monitor": _Kind("a Monitor", _object_with("begin", "advance", "warn")),
    "PlanMonitor": _Kind(
        "a PlanMonitor",
        _object_with("attempt_began", "output", "attempt_ended", "checkpoint_taken"),
    ),
    "Calls": _Kind("a mapping of text to functions", _functions),
}


def _exactly(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _Unfit(_described(value))
    return value


def _described(value: Any) -> str:
    """Returns what a value is, for a message: on one line, and not too long."""
    if value is None or isinstance(value, bool | int | float):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**_SHOWN_MAX else "more"
        return text if value is None or isinstance(value, bool) else f"the number {text}"
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "..."
        return f"the text {printable(cut.encode('utf-8', 'surrogatepass'))!r}"
    name = type(value).__name__
    return name if isinstance(value, bytes) else f"{_article(name)} {name}"


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeio" else "a"
