"""Commands of this feature are tried as those of the core: with the fixture ``snap``."""

from __future__ import annotations

import pytest

from command_line import *  # noqa: F403 - pytest finds fixtures by name, in a conftest


@pytest.fixture
def standing_in_the_root() -> None:
    """The command is told where the root is."""
