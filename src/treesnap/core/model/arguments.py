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
from functools import cache, wraps
from itertools import chain, repeat
from types import FunctionType

from treesnap.core.model.errors import InvalidArgument, quoted
from treesnap.core.model.named_tuple import NamedTuple, constructor_of
from treesnap.core.model.type_names import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class")

NAME_SIZE_MAX = 255
"""Bytes of the name of a snapshot or session: as many as a file's name may have."""
_NUMBER_MAX = (1 << 63) - 1
_SHOWN_MAX = 40
_REFERENCES = frozenset({"a", "b", "ref", "refs"})
"""Parameters that name snapshots."""
_COLLECTIONS = {"Sequence": tuple, "Iterable": tuple, "tuple": tuple, "frozenset": frozenset}


class _Unfit(Exception):
    """A value has another type; the message says which."""


class _Kind(NamedTuple):
    """What an annotation allows."""

    words: str
    fits: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value
    """Returns what the function gets, or raises _Unfit."""

    def take(self, value: Any) -> Any:
        """Returns the checked value, or raises _Unfit."""
        if not self.fits(value):
            raise _Unfit(_described(value))
        return self.convert(value)


def checked(function: _Function) -> _Function:
    """Returns the function with its arguments checked; raises InvalidArgument for others.

    Collections arrive as tuples, sets and dictionaries of their own, so that an iterator can be
    checked as well, and a list may change afterwards.
    """
    inner: Any = function
    while hasattr(inner, "__wrapped__"):  # the parameters are those of the innermost
        inner = inner.__wrapped__
    code = inner.__code__
    positional = code.co_varnames[: code.co_argcount]
    has_more = bool(code.co_flags & 0x04)
    more = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if has_more else ""
    kinds = cache(lambda: _kinds_of(inner))

    def take(name: str, value: Any) -> Any:
        kind = kinds().get(name)
        if kind is None:  # self, or a name that the function itself refuses
            return value
        try:
            return kind.take(value)
        except _Unfit as unfit:
            error = InvalidArgument(f"{name} must be {kind.words}, not {unfit}")
            if name in _REFERENCES and isinstance(getattr(value, "id", None), str):
                error.add_note("pass its .id")
            raise error from None

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        names = chain(positional, repeat(more))
        values = [take(name, value) for name, value in zip(names, arguments, strict=False)]
        return function(*values, **{name: take(name, value) for name, value in named.items()})

    return call  # type: ignore[return-value]  # it takes and returns the same


def checked_methods(cls: type[_Class]) -> type[_Class]:
    """Returns the class with :func:`checked` public methods, and initialiser if it has one."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, checked(method))
    return cls


def checked_record(cls: type[_Class]) -> type[_Class]:
    """Returns a class of named tuples that takes its fields by keyword, and checks their types."""
    make: Callable[..., _Class] = checked(constructor_of(cls))

    def construct(cls: type[_Class], /, **fields: Any) -> _Class:
        return make(cls, **fields)

    cls.__new__ = staticmethod(construct)  # type: ignore[method-assign,assignment]  # by keyword
    return cls


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


def _kinds_of(function: Any) -> dict[str, _Kind]:
    return {
        name: _kind(annotation, f"{function.__qualname__}({name})")
        for name, annotation in function.__annotations__.items()
        if name != "return"
    }


def _kind(annotation: str, where: str) -> _Kind:
    """Returns what an annotation allows; raises TypeError for one that is not understood."""
    kinds = [_single(word, where) for word in _alternatives(annotation)]
    if len(kinds) == 1:
        return kinds[0]
    either = ", or " if any("," in kind.words for kind in kinds) else " or "
    return _Kind(
        either.join(kind.words for kind in kinds),
        lambda value: any(kind.fits(value) for kind in kinds),
        lambda value: next(kind for kind in kinds if kind.fits(value)).convert(value),
    )


def _alternatives(annotation: str) -> list[str]:
    """Returns the types of which a value has one: those between bars that stand in no brackets."""
    words: list[str] = []
    for word in annotation.split(" | "):
        if words and words[-1].count("[") > words[-1].count("]"):
            words[-1] += f" | {word}"
        else:
            words.append(word)
    return words


def _single(annotation: str, where: str) -> _Kind:
    if annotation in _KINDS:
        return _KINDS[annotation]
    class_name = annotation.rpartition(".")[2]
    if class_name.isidentifier():
        return _Kind(
            f"{_article(class_name)} {class_name}",
            # By name, so that nothing is imported.
            lambda value: any(kind.__name__ == class_name for kind in type(value).__mro__),
        )
    outer, _, rest = annotation.partition("[")
    if outer in _COLLECTIONS:
        member = _kind(rest.removesuffix("]").removesuffix(", ..."), where)
        return _Kind(
            f"a list, each {member.words}",
            _is_collection,
            lambda value: _COLLECTIONS[outer](_members(member, value)),
        )
    raise TypeError(f"No check for the annotation {annotation!r} of {where}")


def _is_collection(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX


def _is_number(value: Any) -> bool:  # NaN is not
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _members(kind: _Kind, values: Iterable[Any]) -> list[Any]:
    try:
        return [kind.take(value) for value in values]
    except _Unfit as unfit:
        raise _Unfit(f"one that holds {unfit}") from None


def _mapping(words: str, kind: _Kind) -> _Kind:
    def convert(value: Mapping[Any, Any]) -> dict[str, Any]:
        keys, values = _members(_TEXT, value), _members(kind, value.values())
        return dict(zip(keys, values, strict=True))

    return _Kind(words, lambda value: isinstance(value, Mapping), convert)


def _object(words: str, *methods: str) -> _Kind:
    """Returns the kind of an object that has some methods, of whatever class it is."""
    return _Kind(words, lambda value: all(callable(getattr(value, name, None)) for name in methods))


def _checked_text(value: str) -> str:
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _Unfit("text with half of a surrogate pair") from None
    return value


def _checked_path(value: Any) -> Any:
    plain = os.fspath(value)
    if (b"\0" if isinstance(plain, bytes) else "\0") in plain:
        raise _Unfit("one with a NUL byte")
    if isinstance(plain, str):
        _checked_text(plain)
    return value


_TEXT = _Kind("text", lambda value: isinstance(value, str), _checked_text)
_KINDS = {
    "None": _Kind("None", lambda value: value is None),
    "str": _TEXT,
    "bytes": _Kind("bytes", lambda value: isinstance(value, bytes)),
    "bool": _Kind("True or False", lambda value: isinstance(value, bool)),
    "int": _Kind(f"a whole number from 0 to {_NUMBER_MAX}", _is_whole),
    "float": _Kind(
        "a number of 0 or more",
        _is_number,
        lambda value: float(value) if value <= _NUMBER_MAX else float("inf"),
    ),
    "PathLike": _Kind(
        "a path", lambda value: isinstance(value, str | bytes | os.PathLike), _checked_path
    ),
    "Mapping[str, str]": _mapping("a mapping of text to text", _TEXT),
    "tuple[int, int]": _Kind(
        "two whole numbers",
        lambda value: isinstance(value, tuple | list) and [*map(_is_whole, value)] == [True] * 2,
        tuple,
    ),
    "Monitor": _object("a Monitor", "begin", "advance", "warn"),
    "Readable": _object("a file that is open for reading bytes", "read"),
    "PlanMonitor": _object(
        "a PlanMonitor", "attempt_began", "output", "attempt_ended", "checkpoint_taken"
    ),
    "Calls": _mapping("a mapping of text to functions", _Kind("a function", callable)),
}


def _described(value: Any) -> str:
    """Returns what a value is, for a message: on one line, and not too long."""
    if value is None or isinstance(value, bool | int | float):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**_SHOWN_MAX else "more"
        return text if value is None or isinstance(value, bool) else f"the number {text}"
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "..."
        return f"the text {quoted(cut.encode('utf-8', 'surrogatepass'))}"
    name = type(value).__name__
    return name if isinstance(value, bytes) else f"{_article(name)} {name}"


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeio" else "a"
