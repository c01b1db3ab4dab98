"""What may have changed in a tree since an earlier walk, as a tree of names.

A walk that is given one looks at nothing else: what is not in it is as the rows of the
stat cache say. It may hold more than what really changed, never less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from treesnap import treepath


@dataclass(slots=True)
class Changed:
    """What to look at in one directory; with no names and no flags, nothing in it."""

    names: dict[bytes, Changed] = field(default_factory=dict)
    """Names of the directory that may have changed, or hold something that may have."""
    is_listed: bool = False
    """Whether every name of the directory is to be looked at, and what is below only if named."""
    is_whole: bool = False
    """Whether everything below is to be looked at."""

    def at(self, path: bytes) -> Changed:
        """Returns the node of a path, made if need be."""
        node = self
        for name in treepath.components(path):
            node = node.names.setdefault(name, Changed())
        return node

    def find(self, path: bytes) -> Changed | None:
        """Returns the node of a path, or the nearest above it that is whole, or None."""
        node: Changed | None = self
        for name in treepath.components(path):
            if node is None or node.is_whole:
                break
            node = node.names.get(name)
        return node


def changed_from(
    paths: Iterable[bytes], whole: Iterable[bytes] = (), listed: Iterable[bytes] = ()
) -> Changed:
    """Returns the tree of changes of single paths, of all below some, and of directories."""
    root = Changed()
    for path in paths:
        root.at(path)
    for path in whole:
        root.at(path).is_whole = True
    for path in listed:
        root.at(path).is_listed = True
    return root
