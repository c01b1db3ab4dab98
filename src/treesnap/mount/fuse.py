"""Loads mfusepy, with libfuse 3 where both generations of libfuse are installed.

Left alone it takes libfuse 2, which does not tell programs where files have holes.
"""

from __future__ import annotations

import os
from ctypes.util import find_library

from treesnap.core.model.errors import OperationFailed

_NAME = "FUSE_LIBRARY_NAME"
_PATH = "FUSE_LIBRARY_PATH"
"""Variables by which a user chooses another library; mfusepy reads them when it is imported."""


def load_binding() -> None:
    """Imports mfusepy; raises OperationFailed, which says what to install."""
    chosen = _NAME in os.environ or _PATH in os.environ
    if not chosen and find_library("fuse3") is not None:
        os.environ[_NAME] = "fuse3"
    try:
        import mfusepy  # noqa: F401 - the adapter uses it
    except ModuleNotFoundError as error:
        raise OperationFailed(
            f"The Python module {error.name!r} is missing; install treesnap[mount]"
        ) from error
    except (OSError, AttributeError) as error:  # it looks for the library
        raise OperationFailed(
            "The library libfuse is missing or too old; install the package fuse3 of this system"
        ) from error
    finally:
        if not chosen:
            os.environ.pop(_NAME, None)
