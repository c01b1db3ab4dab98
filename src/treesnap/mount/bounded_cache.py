"""A cache that is bounded in bytes, not in items."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Keeps the values that were used last, up to a sum of their sizes. Not for several threads."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: Key) -> Value | None:
        """Returns a value, which is then the newest one, or None."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def add(self, key: Key, value: Value, size: int) -> None:
        """Takes a value of some size, and lets the oldest ones go; itself if it is too large."""
        old = self._items.pop(key, None)
        if old is not None:
            self.size_bytes -= old[1]
        self._items[key] = value, size
        self.size_bytes += size
        while self.size_bytes > self._size_max:
            self.size_bytes -= self._items.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Lets all values go."""
        self._items.clear()
        self.size_bytes = 0
