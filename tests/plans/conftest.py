"""Every test of plans has a root and a store of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from plan_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def snap_script(bench: Bench) -> str:
    """The beginning of a command line for steps that run ``snap`` themselves."""
    words = [sys.executable, "-m", "treesnap", "-C", str(bench.root), "--store", str(bench.store)]
    return shlex.join(words)
