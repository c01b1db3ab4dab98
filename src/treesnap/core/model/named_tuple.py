"""``NamedTuple``: as in ``typing``, but cheap to define.

Every command defines about a hundred records when it starts, and does not use all. ``typing``
compiles a constructor for each record, and each annotation that is text: 62 of the 379 million
instructions of a ``create`` of ten files. Here the constructor is compiled when the third record
is made, and annotations stay text. All else is as in ``typing``, which type checkers see.

A module that defines records has to import ``annotations`` from ``__future__``.
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]  # the fastest way to read a field
from collections.abc import Iterable

from treesnap.core.model.type_names import TYPE_CHECKING, Any, Self

__all__ = ["NamedTuple"]

_MADE_PLAINLY_MAX = 2
"""Records of a class that are made without a constructor of its own: most commands make no more."""


class _Definition(type):
    """Makes a class of the fields that the body of a class statement lists."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **keywords: Any
    ) -> _Definition:
        fields = tuple(body.get("__annotations__", ()))
        body["__slots__"] = ()
        body["_fields"] = body["__match_args__"] = fields
        body["_field_defaults"] = {field: body[field] for field in fields if field in body}
        body.update({field: _tuplegetter(at, None) for at, field in enumerate(fields)})
        return super().__new__(cls, name, bases, body, **keywords)

    @property
    def __signature__(cls) -> object:
        """The signature of the constructor, for documentation."""
        from inspect import signature

        described = signature(constructor_of(cls))
        return described.replace(parameters=list(described.parameters.values())[1:])


class _NamedTuple(tuple[Any, ...], metaclass=_Definition):
    _fields = tuple[str, ...]()
    _field_defaults = dict[str, Any]()  # noqa: RUF012 - each class has its own
    _made_plainly = 0

    def __new__(cls, /, *values: Any, **named: Any) -> Self:
        """Makes the first records; then gives the class its own constructor, and calls that."""
        count = vars(cls).get("_made_plainly", 0)
        if count < _MADE_PLAINLY_MAX and len(values) <= len(cls._fields):
            cls._made_plainly = count + 1
            fields, defaults = cls._fields[len(values) :], {**cls._field_defaults, **named}
            if len(defaults.keys() & fields) == len(fields) and not named.keys() - set(fields):
                return cls._make((*values, *map(defaults.__getitem__, fields)))
        constructor = constructor_of(cls)
        cls.__new__ = staticmethod(constructor)  # type: ignore[method-assign]  # the same, with names
        made: Self = constructor(cls, *values, **named)
        return made

    @classmethod
    def _make(cls, values: Iterable[Any], /) -> Self:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **changed: Any) -> Self:
        made = self._make(map(changed.pop, self._fields, self))
        if changed:
            raise TypeError(f"Got unexpected field names: {list(changed)!r}")  # as from 3.13 on
        return made

    __replace__ = _replace

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({fields})"


def constructor_of(cls: Any) -> Any:
    """Returns a function of the class and its fields by name, as ``collections`` compiles it."""
    fields = "".join(f"{field}, " for field in cls._fields)
    source = f"lambda _cls, {fields}: _new(_cls, ({fields}))"
    made = eval(source, {"_new": tuple.__new__})  # noqa: S307 - nothing but names of fields
    made.__name__, made.__qualname__ = "__new__", f"{cls.__qualname__}.__new__"
    made.__defaults__ = tuple(cls._field_defaults.values())
    made.__annotations__ = cls.__annotations__
    return made


def make_constructors() -> None:
    """Gives each class that is defined by now the constructor that its first record would make."""
    classes = [_NamedTuple]
    for cls in classes:
        classes += cls.__subclasses__()
        if cls._fields and cls.__new__ is _NamedTuple.__new__:
            cls.__new__ = staticmethod(constructor_of(cls))  # type: ignore[method-assign]  # the same


if TYPE_CHECKING:
    from typing import NamedTuple
else:
    NamedTuple = _NamedTuple
