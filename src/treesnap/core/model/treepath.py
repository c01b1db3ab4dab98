"""Paths inside a root: relative, made of raw bytes, validated once.

A tree path is a ``bytes`` value of components joined by ``/``; the empty value
is the root itself. Components are never empty, ``.`` or ``..`` and hold no NUL
and no ``/``, so that no tree path can point outside the root. Names come from
the file system or from a store, neither of which is trusted.

Not here: the file system (fs, worktree).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from treesnap.core.model.errors import InvalidArgument, quoted

NAME_SIZE_MAX = 4095
"""The longest name in bytes: what one system call takes.

Most Linux file systems stop at 255, those with names in UTF-16 at 765, FUSE at 1024.
"""

_ABOVE_SIZE_FREE = 64 << 20
"""What the paths above those of a stored scope may take, and so much for each byte of these:"""
_ABOVE_SIZE_PER_BYTE = 32

PathLike = str | bytes | os.PathLike[str]

ROOT = b""
"""The tree path of the root itself."""


def is_valid_name(name: bytes) -> bool:
    """Returns whether a name may stand for one entry of a directory."""
    return (
        0 < len(name) <= NAME_SIZE_MAX
        and b"/" not in name
        and b"\x00" not in name
        and name not in {b".", b".."}
    )


def are_valid_names(names: Sequence[bytes]) -> bool:
    """Returns whether each name may stand for one entry; costs little for each of many."""
    joined = b"/".join(names)
    return not names or (
        min(map(len, names)) > 0
        and max(map(len, names)) <= NAME_SIZE_MAX
        and joined.count(b"/") == len(names) - 1
        and b"\x00" not in joined
        and b"." not in names
        and b".." not in names
    )


def join(parent: bytes, name: bytes) -> bytes:
    """Returns the path of the entry ``name`` of the directory ``parent``."""
    return parent + b"/" + name if parent else name


class Descent:
    """The path of the directory that a walk is in.

    A walk that kept the path of each directory above would need memory by the square of the
    depth, and the writer of a store chooses depth and names. This keeps one path.
    """

    __slots__ = ("_path", "_size", "_sizes")

    def __init__(self, path: bytes = ROOT) -> None:
        self._path = path
        self._size = len(path)
        self._sizes: list[int] = []

    @property
    def path(self) -> bytes:
        """The path of the directory."""
        if len(self._path) != self._size:  # cut only when asked for, or leaving costs as much
            self._path = self._path[: self._size]
        return self._path

    def enter(self, path: bytes) -> None:
        """Goes into the directory at a path, right below the one that the walk is in."""
        self._sizes.append(self._size)
        self._path = path
        self._size = len(path)

    def leave(self) -> None:
        """Goes back to the directory above; does nothing where the walk began."""
        if self._sizes:
            self._size = self._sizes.pop()


def split(path: bytes) -> tuple[bytes, bytes]:
    """Returns the path of the directory that holds ``path``, and its name there."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


def components(path: bytes) -> list[bytes]:
    """Returns the names from the root down to ``path``; none for the root."""
    return path.split(b"/") if path else []


def is_within(path: bytes, ancestor: bytes) -> bool:
    """Returns whether ``path`` is ``ancestor`` or lies below it."""
    return not ancestor or path == ancestor or path.startswith(ancestor + b"/")


def parse(path: bytes) -> bytes:
    """Returns a tree path from stored bytes, or raises InvalidArgument."""
    if path and not all(is_valid_name(name) for name in path.split(b"/")):
        raise InvalidArgument(f"Path {quoted(path)} is not valid inside a root", path=path)
    return path


def from_user(path: PathLike, *, root: str, base: str) -> bytes:
    """Returns the tree path of a path that a user gave.

    ``path`` is absolute, or relative to the directory ``base``; ``root`` and
    ``base`` are real paths. The path is normalised as text, and nothing on disk
    is looked at, so that paths that no longer exist can be named. Raises
    InvalidArgument for a path outside the root.
    """
    given = os.fsencode(path)
    if not given:
        raise InvalidArgument("A path is empty")
    absolute = os.path.normpath(os.path.join(os.fsencode(base), given))
    root_bytes = os.fsencode(root)
    if absolute == root_bytes:
        return ROOT
    prefix = root_bytes.rstrip(b"/") + b"/"
    if b"\0" in absolute or not absolute.startswith(prefix):
        raise InvalidArgument(
            f"Path {quoted(given)} is outside the root {quoted(root_bytes)}", path=given
        )
    return parse(absolute[len(prefix) :])


def parse_scope(paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Returns stored paths that are sorted and not nested, or raises InvalidArgument."""
    if not paths or without_nested([parse(path) for path in paths]) != paths:
        raise InvalidArgument("The paths of a scope are nested or not in order")
    if _are_too_deep(paths):
        raise InvalidArgument("The paths of a scope lie too deep")
    return paths


def _are_too_deep(paths: tuple[bytes, ...]) -> bool:
    """Returns whether the paths above some paths, which are sorted, take far more than these.

    A path of a million directories is two megabytes, and those above it are a million megabytes.
    """
    size_max = _ABOVE_SIZE_FREE + _ABOVE_SIZE_PER_BYTE * sum(map(len, paths))
    if sum(len(path) * path.count(b"/") for path in paths) <= size_max:
        return False
    size, before = 0, list[bytes]()
    for path in paths:
        names = path.split(b"/")
        pairs = enumerate(zip(before, names, strict=False))
        common = next((at for at, (old, new) in pairs if old != new), len(before))
        length = sum(map(len, names[:common])) + common
        for name in names[common:-1]:
            length += len(name) + 1
            size += length
        if size > size_max:
            return True
        before = names
    return False


def without_nested(paths: list[bytes]) -> tuple[bytes, ...]:
    """Returns the paths sorted, without those that lie below another of them."""
    kept: list[bytes] = []
    for path in sorted(set(paths), key=components):
        if not kept or not is_within(path, kept[-1]):
            kept.append(path)
    return tuple(kept)


def parents(path: bytes) -> Iterator[bytes]:
    """Yields every directory above a path, the nearest first, the root last."""
    while path:
        path, _ = split(path)
        yield path


def ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """Returns all directories above the given paths, the root included."""
    return {parent for path in paths for parent in parents(path)}
