"""A root that an agent and a person worked in, and its timeline at 80 x 24."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from textual.worker import WorkerCancelled

from treesnap.core.handle import Handle
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.ops.create import create
from treesnap.testing.doubles import UnsyncedFileSystem
from treesnap.timeline.app import Timeline, TimelineTools
from treesnap.timeline.command import lines_of_patches

SIZE = (80, 24)


def opened(root, store, monitor=None) -> Handle:
    """Returns a handle on a test's root."""
    return Handle(
        context_at(
            root=root, store_path=str(store), fs=UnsyncedFileSystem(), wait_s=0.0, monitor=monitor
        )
    )


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src/main.py").write_text("def main():\n    return 1\n")
    (root / "notes.txt").write_text("first\n")
    return root


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def handle(root, store):
    return opened(root, store)


@pytest.fixture
def step(handle) -> Callable[..., str]:
    """Takes the snapshot of an agent's event; returns its id."""

    def take(number: int, phase: str, label: str, tool: str | None = None) -> str:
        tags = fact_tags(host="claude", phase=phase, key=str(number), tool=tool)
        request = CaptureRequest(
            label=label, session="s1", step=number, kind=SnapshotKind.AUTOMATIC, tags=tags
        )
        return create(handle.context, request).id

    return take


@pytest.fixture
def history(handle, root, step):
    """Ids by name: a snapshot by hand, a prompt with two steps, its end, another by hand."""
    ids = {"hand": handle.create(label="by hand").id}
    ids["prompt"] = step(1, "turn", "make it two")
    ids["edit"] = step(2, "pre", "Edit: src/main.py", "Edit")
    (root / "src/main.py").write_text("def main():\n    return 2\n")
    ids["write"] = step(3, "pre", "Write: added.txt", "Write")
    (root / "added.txt").write_text("added\n")
    ids["end"] = step(4, "end", "end of the turn")
    (root / "notes.txt").unlink()
    ids["after"] = handle.create(label="cleaned up").id
    return ids


@pytest.fixture
def running(root, store):
    """Runs the timeline of the root; yields the application and its pilot."""

    @asynccontextmanager
    async def run(**options) -> AsyncIterator[tuple[Timeline, object]]:
        app = Timeline(
            lambda monitor: opened(root, store, monitor), TimelineTools(lines_of_patches, str)
        )
        async with app.run_test(size=SIZE, **options) as pilot:
            await settled(app, pilot)
            yield app, pilot

    return run


async def settled(app, pilot) -> None:
    """Waits until no worker works, and everything that they sent was shown.

    A pause of no time waits until every message was handled; one without a number waits in
    addition until the process does little, 0.02 s and more each.
    """
    for _ in range(4):  # what a worker sends may start another
        with suppress(WorkerCancelled):
            await app.workers.wait_for_complete()
        await pilot.pause(0.0)
