"""The names of ``typing`` that the core and the command line use, for type checkers alone.

Importing ``typing``, with its classes made by it, takes 4 % of the processor time of a command in
a small tree, and nothing here asks at run time what a type is. So these names stand for nothing
then: a generic class is a plain one, and a new type returns what it is called with.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import (
        IO,
        Any,
        ClassVar,
        Concatenate,
        Final,
        Generic,
        Literal,
        NewType,
        NoReturn,
        ParamSpec,
        Protocol,
        Self,
        TypeVar,
        cast,
        dataclass_transform,
        overload,
    )
else:

    class _Unasked:
        """Stands for a type, or for a function that returns what it is given last."""

        def __init__(self, *_names: object, **_bounds: object) -> None:
            pass

        def __call__(self, *values: object, **_options: object) -> object:
            return values[-1] if values else self

        def __getitem__(self, _parameters: object) -> object:
            return self

        def __or__(self, _other: object) -> object:
            return self

        __ror__ = __or__

    class Generic:
        """Each class of it is its own generic form."""

        __slots__ = ()

        def __class_getitem__(cls, _parameters: object) -> type:
            return cls

    class Protocol(Generic):
        """A plain base class."""

        __slots__ = ()

    IO = Any = ClassVar = Concatenate = Final = Literal = NoReturn = Self = _Unasked()
    cast = overload = dataclass_transform = _Unasked()
    NewType = ParamSpec = TypeVar = _Unasked

__all__ = [
    "IO",
    "TYPE_CHECKING",
    "Any",
    "ClassVar",
    "Concatenate",
    "Final",
    "Generic",
    "Literal",
    "NewType",
    "NoReturn",
    "ParamSpec",
    "Protocol",
    "Self",
    "TypeVar",
    "cast",
    "dataclass_transform",
    "overload",
]
