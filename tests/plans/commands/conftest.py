"""Commands of this feature are tried as those of the core: with the fixture ``snap``."""

from __future__ import annotations

import pytest

from command_line import *  # noqa: F403 - pytest finds fixtures by name, in a conftest


@pytest.fixture
def failed(snap, plan_file) -> str:
    """The id of a plan whose second step failed."""
    return snap("plan", "run", "--json", plan_file).json["plan_id"]


@pytest.fixture
def completed(snap, root, failed) -> str:
    """The id of a plan that is completed."""
    (root / "ready").touch()
    assert snap("plan", "resume", failed).code == 0
    return failed
