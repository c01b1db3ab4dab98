"""How many stored paths one operation may hold at a time, and how many it may walk through.

A tree that names one directory twice, and so on for thirty levels, is a few kilobytes and has a
thousand million paths; a chain of long names has paths whose bytes grow by the square of its
depth. Both are trees like any other, so they are not damage. What bounds the memory is that a
result may hold a fixed amount of paths, and beyond it so much for each byte of the store:
a sender that wants more memory taken has to hand over more bytes. Real trees stay far below.

A walk that holds nothing takes time alone, so it may pass far more: see :func:`paths_max`.
"""

from __future__ import annotations

from collections.abc import Callable

from treesnap.core.model.errors import ErrorCode, OperationFailed
from treesnap.core.model.type_names import NoReturn

_FREE_BYTES = 64 << 20
"""About 300,000 paths, without looking at the size of the store."""
_BYTES_PER_STORED_BYTE = 32
"""A stored tree takes some ten bytes for each path, one that is shared often takes less."""
_PATH_COST_BYTES = 128
"""What a path costs beside its bytes, which are held once more when they are printed."""
_FREE_PATHS = 1 << 24
"""What one walk may pass in a store of any size, in some minutes: 16,777,216 paths."""
_STORED_BYTES_PER_PATH = 8
"""Below the ten bytes that a path takes where no directory is shared."""


def paths_max(stored_bytes: int) -> int:
    """Returns how many paths one walk may pass in a store that takes so many bytes on disk."""
    return _FREE_PATHS + stored_bytes // _STORED_BYTES_PER_PATH


def refuse_paths(count: int | None, most: int) -> NoReturn:
    """Raises OperationFailed for a tree of more paths than :func:`paths_max`, if they are known."""
    number = f"{count:,}" if count is not None else f"more than {most:,}"
    raise OperationFailed(
        f"The tree has {number} paths, and one in a store of this size may have {most:,}",
        code=ErrorCode.TOO_MANY_PATHS,
    )


class PathBudget:
    """Counts the paths that an operation holds. Not for several threads.

    ``stored_bytes`` returns the size of the store; it is called once, if at all.
    """

    def __init__(self, stored_bytes: Callable[[], int]) -> None:
        self._stored_bytes = stored_bytes
        self._left = _FREE_BYTES
        self._is_extended = False

    def hold(self, path: bytes) -> None:
        """Counts a path. Raises OperationFailed (``too-many-paths``) if that is one too many."""
        self._left -= _PATH_COST_BYTES + 2 * len(path)
        if self._left < 0:
            self._extend()

    def _extend(self) -> None:
        if not self._is_extended:
            self._is_extended = True
            self._left += _BYTES_PER_STORED_BYTE * self._stored_bytes()
        if self._left < 0:
            raise OperationFailed(
                "The result has more paths than a store of this size may make this process hold",
                code=ErrorCode.TOO_MANY_PATHS,
            )
