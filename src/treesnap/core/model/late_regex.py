"""Regular expressions that are compiled when they are first used.

To import ``re`` and to compile those of the modules that a command loads takes 6 % of the processor
time of a command in a small tree, which uses none or few of them.
"""

from __future__ import annotations

from functools import cached_property

from treesnap.core.model.type_names import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import re


_Text = TypeVar("_Text", str, bytes)


class LateRegex(Generic[_Text]):
    """A pattern, with its flags in it."""

    def __init__(self, pattern: _Text) -> None:
        self._pattern: _Text = pattern

    @cached_property
    def compiled(self) -> re.Pattern[_Text]:
        """The regular expression."""
        import re

        return re.compile(self._pattern)
