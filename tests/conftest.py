"""What tests in all directories use."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from watching import WatchedWorld


@pytest.fixture
def of_any_depth(tmp_path: Path) -> Iterator[None]:
    """Removes what a test leaves that is deeper than Python's own functions can remove.

    Otherwise some later run fails on its way out, when it tidies up after this one.
    """
    yield
    subprocess.run(["rm", "-rf", "--", str(tmp_path)], check=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WatchedWorld]:
    """A root that can be watched, with its store."""
    made = WatchedWorld(tmp_path)
    with made.stack:
        yield made
