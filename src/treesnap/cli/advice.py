"""Advice of a command for an error of the library, which knows no commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from treesnap.core.model.errors import ErrorCode, NotFound

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.core.handle import Handle


@contextmanager
def advising_on_absent(path: str, advice: str) -> Iterator[None]:
    """Gives the error that there is no such path, outside of snapshots, advice of its own."""
    try:
        yield
    except NotFound as error:
        if error.path == os.path.abspath(path):
            from treesnap.cli.failure import advised

            advised(error, advice)
        raise


@contextmanager
def advising_on_paths(
    invocation: Invocation, handle: Handle, words: Sequence[str], *command: str
) -> Iterator[None]:
    """Makes the right command the advice, where ``words``, of which one is a REF, are paths.

    The words come behind ``command``. Only the error for an unknown snapshot gets the advice.
    """
    try:
        yield
    except NotFound as error:
        if error.code is ErrorCode.SNAPSHOT_NOT_FOUND and words:
            from treesnap.cli.way_back import advise_on_path

            advise_on_path(invocation, handle, words, command, error)
        raise
