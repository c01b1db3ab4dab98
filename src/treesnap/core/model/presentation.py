"""How records show themselves: a short ``repr``, JSON, and tables for notebooks; pure.

In JSON a record is an object with the names of its fields. A path whose bytes are UTF-8 is given
as text, exactly. Otherwise ``path`` is the text that people see, and ``path_bytes`` beside it
is the path in base64. What ``--json`` prints and what ``to_dict`` returns is made here.

In a table every text is escaped, and names are made printable first: a name of a file or a label
cannot become markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from treesnap.core.model.errors import path_fields, printable
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

Fields = dict[str, Any]

ID_DIGITS = 12
"""Digits of an abbreviated id."""
ITEMS_SHOWN_MAX = 3
"""Items of a field that a ``repr`` shows; the others are counted."""
TEXT_LENGTH_MAX = 60
"""Characters of a text that a ``repr`` shows."""
ROWS_MAX = 200
"""Rows of a table; the others are counted."""

_PLAIN = (str, int, float, type(None))
"""What JSON takes as it is. As a tuple, because to ask a union takes three times as long."""
_HASH = LateRegex(r"[0-9a-f]{32,}\Z")


def json_fields(values: Mapping[str, Any]) -> Fields:
    """Returns named values as JSON; ``bytes`` are a path, in one field or in two."""
    fields: Fields = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            fields |= path_fields(value, name)
        else:
            fields[name] = json_value(value)
    return fields


def json_value(value: Any) -> Any:
    """Returns a value as JSON, with everything in it: records as objects, tuples as lists.

    A record with ``to_dict`` says itself what it becomes, a number with ``word`` is that word.
    """
    if type(value) in _PLAIN:
        return value
    if hasattr(value, "word"):
        return value.word
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, bytes):
        return path_fields(value)
    if isinstance(value, dict):
        return json_fields(value)
    if hasattr(value, "_fields") or hasattr(value, "__dataclass_fields__"):
        return value.to_dict() if hasattr(value, "to_dict") else json_fields(fields_of(value))
    return [json_value(item) for item in value]


def fields_of(record: Any, without: Collection[str] = ()) -> Fields:
    """Returns the fields of a named tuple or dataclass by name, as they are."""
    names = getattr(record, "_fields", None) or record.__dataclass_fields__
    return {name: getattr(record, name) for name in names if name not in without}


def path_text(path: bytes) -> str:
    """Returns a path as text that Python's file functions take; the root itself is a dot.

    Bytes that are not UTF-8 become what ``os.fsencode`` turns back into them.
    """
    return path.decode("utf-8", "surrogateescape") or "."


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    class _Record(tuple[Any, ...]):
        """What type checkers see of a record: they let no class inherit from a named tuple."""

        _fields: ClassVar[tuple[str, ...]]
        _field_defaults: ClassVar[dict[str, Any]]

        def _asdict(self) -> dict[str, Any]: ...
        def _replace(self, **changed: Any) -> Self: ...

else:
    _Record = NamedTuple


class Presented:
    """What the library returns, a named tuple or a dataclass: short as ``repr``, and as JSON.

    JSON has its fields by name. ``json_names``, in the class statement, gives some of them other
    names; a snapshot under another name is given by its id. ``json_first`` names properties that
    come before the fields. A dataclass needs ``repr=False``, or it makes its own.
    """

    __slots__ = ()
    _json_names: ClassVar[Mapping[str, str]] = {}
    _json_first: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls, *, json_names: Mapping[str, str] | None = None, json_first: tuple[str, ...] = ()
    ) -> None:
        if json_names is not None:
            cls._json_names = json_names
        if json_first:
            cls._json_first = json_first

    def to_dict(self) -> Fields:
        """Returns what ``--json`` prints of it; ``json.dumps`` takes it."""
        return json_fields(self._json_values())

    def _json_values(self) -> Fields:
        """Returns the values that make up its JSON, by their names there."""
        values: Fields = {name: getattr(self, name) for name in self._json_first}
        for name, value in fields_of(self).items():
            shown = self._json_names.get(name, name)
            values[shown] = value if shown == name else getattr(value, "id", value)
        return values

    def __repr__(self) -> str:
        return short_repr(self)


class AtPath:
    """What has a ``path`` below a root, or that of a root."""

    __slots__ = ()

    path: bytes

    @property
    def path_text(self) -> str:
        """The path as text that Python's file functions take; the root itself is a dot."""
        return path_text(self.path)


class Record(Presented, _Record):
    """A named tuple that the library returns."""


def short_repr(record: Any) -> str:
    """Returns the fields of a record that differ from their defaults, each shortened."""
    defaults = _defaults_of(record)
    shown = [
        f"{name}={_short(value)}"
        for name, value in fields_of(record).items()
        if name not in defaults or defaults[name] != value
    ]
    return f"{type(record).__name__}({', '.join(shown)})"


def _defaults_of(record: Any) -> Mapping[str, Any]:
    """Returns defaults by name; that of a dataclass's field without one equals no value."""
    if hasattr(record, "_field_defaults"):
        named: Mapping[str, Any] = record._field_defaults
        return named
    return {name: field.default for name, field in record.__dataclass_fields__.items()}


def _short(value: Any) -> str:
    if isinstance(value, str) and _HASH.compiled.match(value):
        return repr(value[:ID_DIGITS])
    if isinstance(value, str | bytes) and len(value) > TEXT_LENGTH_MAX:
        return f"{value[:TEXT_LENGTH_MAX]!r}..."
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        items = [*map(_short, value[:ITEMS_SHOWN_MAX])]
        if len(value) > ITEMS_SHOWN_MAX:
            items.append(f"... {len(value) - ITEMS_SHOWN_MAX:,} more")
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, Mapping) and len(value) > ITEMS_SHOWN_MAX:
        return f"{{... {len(value):,} items}}"
    return repr(value)


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], above: str = "") -> str:
    """Returns rows as HTML, below a sentence if one is given; escapes everything.

    A cell without a value is empty. Without a head, the first cell of each row is the row's name.
    """
    listed = list(rows)
    lines = [f"<p>{html_text(above)}</p>"] if above else []
    if listed:
        lines.append("<table>")
        if head:
            lines.append(f"<thead>{_html_row(head, names=len(head))}</thead>")
        lines.append("<tbody>")
        lines += [_html_row(row, names=0 if head else 1) for row in listed[:ROWS_MAX]]
        lines.append("</tbody></table>")
    if len(listed) > ROWS_MAX:
        lines.append(f"<p>and {len(listed) - ROWS_MAX:,} more</p>")
    return "\n".join(lines)


def html_text(value: object) -> str:
    """Returns a value as text that is neither markup nor acts on what shows it."""
    from html import escape

    if value is None:
        return ""
    return escape(printable(value if isinstance(value, bytes) else str(value)))


def _html_row(cells: Sequence[object], *, names: int) -> str:
    """Returns a row, of which the first cells name a column or the row."""
    marked = []
    for number, cell in enumerate(cells):
        kind = "th" if number < names else "td"
        marked.append(f"<{kind}>{html_text(cell)}</{kind}>")
    return f"<tr>{''.join(marked)}</tr>"
