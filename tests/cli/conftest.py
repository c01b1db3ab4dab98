"""All tests of the command line have its fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from command_line import *  # noqa: F403 - pytest finds fixtures by name, in a conftest
from treesnap.core.ops.history.steps import EventPhase


@pytest.fixture
def agent_step(root: Path, store: Path) -> Callable[..., None]:
    """Captures a step of an agent, as its host's hook does."""
    from treesnap.agents.event import Event
    from treesnap.agents.hook import record as record_event

    handle = treesnap.open(root, store)

    def capture(phase: EventPhase, number: int, **more: str) -> None:
        event = Event(
            host="claude", session="s-1", key=f"k{number}", phase=phase, root=str(root), **more
        )
        record_event(handle.context, event)

    return capture
