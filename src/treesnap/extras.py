"""What to type where the libraries of an extra are missing.

A module of its own, because only that case needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """Says in the ModuleNotFoundError of an import in the body what to type."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing_text(error, extra), name=error.name) from error


def missing_text(error: ImportError, extra: str) -> str:
    """Returns which module is missing; the text ends with the line to type."""
    return f"The Python module {error.name!r} is missing; type: {command_for(extra)}"


def command_for(extra: str) -> str:
    """Returns the line that installs an extra beside this treesnap.

    A program of pipx or of uv has an environment of its own, which pip does not reach.
    """
    requirement = f"'treesnap[{extra}]'"
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject treesnap {requirement}"
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv tool install {requirement}"
    return f"pip install {requirement}"
