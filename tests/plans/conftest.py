"""Every test of plans has a root and a store of its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import pytest

from capabilities import require
from plan_bench import STEPS, Bench, noted
from prepared import Prepared
from treesnap.plans import Plan


@pytest.fixture(scope="session", autouse=True)
def exit_codes() -> None:
    """No plan runs a step without them."""
    require("exit codes")


@pytest.fixture(scope="session")
def plan_made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Plan]:
    place = tmp_path_factory.mktemp("plan")
    plan = Bench(place).run(*STEPS)
    return Prepared(place), plan


@pytest.fixture(scope="session")
def failed_made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Plan]:
    place = tmp_path_factory.mktemp("failed")
    plan = Bench(place).run(noted("one"), noted("two", "test -e ready"), noted("three"))
    return Prepared(place), plan


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A place in which nothing has run, or where the plans of another fixture were made."""
    made = [name for name in request.fixturenames if name.endswith("_made")]
    if made:
        (name,) = made
        with request.getfixturevalue(name)[0].placed() as place:
            yield Bench(place)
    else:
        yield Bench(request.getfixturevalue("tmp_path"))


@pytest.fixture
def plan(plan_made: tuple[Prepared, Plan]) -> Plan:
    """A completed plan of three steps, with a checkpoint before each."""
    return plan_made[1]


@pytest.fixture
def failed(failed_made: tuple[Prepared, Plan]) -> Plan:
    """A plan of which the second step failed."""
    return failed_made[1]


@pytest.fixture
def snap_script(bench: Bench) -> str:
    """The beginning of a command line for steps that run ``snap`` themselves."""
    words = [sys.executable, "-m", "treesnap", "-C", str(bench.root), "--store", str(bench.store)]
    return shlex.join(words)
