"""Frameworks for agents: a snapshot before each prompt and each tool, one module per framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Names the extra in the ModuleNotFoundError of an import in the body."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"The Python module {error.name!r} is missing; install treesnap[{extra}]"
        raise ModuleNotFoundError(message, name=error.name) from error
