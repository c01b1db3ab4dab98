"""A root, its store and a handle, as tests of operations have them."""

from __future__ import annotations

import pytest

from unit.ops.conftest import *  # noqa: F403 - pytest finds fixtures by name, in a conftest


@pytest.fixture
def standing_in_the_root() -> None:
    """Operations are told where the root is."""
