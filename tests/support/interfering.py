"""A file system on which another process acts at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treesnap.testing.doubles import Call, WrappedFileSystem


class Interfering(WrappedFileSystem):
    """Does something just before the n-th call of a method, once.

    ``where`` says which of its calls are counted; None counts them all.
    """

    def __init__(
        self,
        method: str,
        number: int,
        action: Callable[[], object],
        where: Callable[[Call], bool] | None = None,
    ) -> None:
        super().__init__()
        self.method, self.left, self.action, self.where = method, number, action, where

    def around(self, call: Call) -> Any:
        """Makes the call, after the action where it is its turn."""
        if call.method == self.method and (self.where is None or self.where(call)):
            self.left -= 1
            if self.left == 0:
                self.action()
        return call.proceed()
