"""Every test of plans has a root and a store of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from plan_bench import STEPS, Bench, noted
from treesnap.plans import Plan


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def plan(bench: Bench) -> Plan:
    """A completed plan of three steps, with a checkpoint before each."""
    return bench.run(*STEPS)


@pytest.fixture
def failed(bench: Bench) -> Plan:
    """A plan of which the second step failed."""
    return bench.run(noted("one"), noted("two", "test -e ready"), noted("three"))


@pytest.fixture
def snap_script(bench: Bench) -> str:
    """The beginning of a command line for steps that run ``snap`` themselves."""
    words = [sys.executable, "-m", "treesnap", "-C", str(bench.root), "--store", str(bench.store)]
    return shlex.join(words)
