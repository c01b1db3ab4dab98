"""What tests in all directories use."""

from __future__ import annotations

import gc
import os
import posix
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

from capabilities import (
    CAPABILITIES,
    counts_of,
    hide_attributes,
    is_unexplained,
    require,
    require_marked,
)
from fenced import watch_takers
from sampling import IS_FULL, chosen, sized
from treesnap.core.fs import native, processes
from watching import WatchedWorld
from younger_processes import all_names, hide_older_processes

TESTS = Path(__file__).parent
MEMORY = Path("/dev/shm")
MEMORY_FREE_MIN_BYTES = 4 << 30
COLLECTION_THRESHOLD = 50_000
"""New objects after which Python looks for reference cycles, as in the command line."""
EXAMPLES = sized(30, 100)
"""Values that a random test tries which does not say how many."""

QUICK = (
    "cli/test_browse.py",
    "cli/test_history.py",
    "cli/test_options.py",
    "cli/test_restore.py",
    "compat/test_maestro_history.py",
    "compat/unit/",
    "core/conformance/",
    "core/unit/",
    "plans/test_document.py",
    "plans/test_plan.py",
    "structure/test_layers.py",
    "testing/",
)
"""What ``-m quick`` selects: something of every package, in half a minute of processor time."""
NOT_QUICK = (
    "compat/unit/test_position.py",
    "core/unit/codec/test_bombs.py",
    "core/unit/codec/test_formats.py",
    "core/unit/codec/test_fuzz.py",
    "core/unit/codec/test_statcache.py",
    "core/unit/codec/test_tree.py",
    "core/unit/codec/test_watch.py",
    "core/unit/fs/test_mappings.py",
    "core/unit/ops/test_conflicts.py",
    "core/unit/ops/test_merge.py",
    "core/unit/ops/test_naming.py",
    "core/unit/ops/test_recover",
    "core/unit/ops/test_stats.py",
    "core/unit/ops/test_undo.py",
    "core/unit/watch/test_service.py",
    "testing/test_oracle.py",
)
"""Modules among them that take a second or more."""

UNMEASURED = (
    "core/costs/",
    "core/crash/test_black_box.py",
    "core/crash/test_kill_points.py",
    "core/crash/test_power_cuts.py",
    "core/create/test_complete.py",
    "core/damage/test_every_file.py",
    "core/damage/test_partial.py",
    "core/ignore/test_gitignore.py",
    "core/soak/",
    "core/space/test_auto_maintenance.py",
    "core/stateful/",
    "core/steps/test_way_back.py",
    "core/store/test_compaction.py",
    "core/unit/codec/test_fuzz.py",
    "docs/",
    "formats/",
    "plans/test_crashes.py",
    "remote/soak/",
    "remote/test_remote_model.py",
    "structure/",
)
"""Tests that are not measured: they go again and again where others go once."""
MEASURED_ALONE = (
    "agents/commands/",
    "cli/",
    "compat/",
    "core/crash/",
    "core/create/",
    "core/damage/",
    "core/restore/",
    "core/roots/",
    "core/space/",
    "core/steps/",
    "core/unit/ops/",
    "mount/commands/",
    "plans/",
    "remote/commands/",
    "schedule/commands/",
    "timeline/commands/",
)
"""Tests of which the processes that they start or fork are not measured, which takes 0.05 s and
more for each: most of them are killed on a way that the tests' own process goes to its end."""
MEASURED_WITH_CHILDREN = (
    "cli/test_start.py",
    "cli/test_streams.py",
    "cli/test_watch.py",
    "core/create/test_parallel_capture.py",
    "core/restore/test_parallel_restore.py",
    "core/space/test_background_maintenance.py",
    "core/space/test_displaced_files.py",
    "plans/test_process.py",
)
"""Exceptions from these, which are about processes."""
TAKEN = Path(tempfile.gettempdir()) / f"taken-from-stores-{os.getpid()}"
"""What tests and their children took from stores without what keeps others out."""
PROCESSES_MEASURED = "COVERAGE_PROCESS_CONFIG"
"""The variable by which coverage measures each Python that a test starts."""


def pytest_configure(config: pytest.Config) -> None:
    """Puts temporary directories into memory where it has room, because a sync is free there.

    With TMPDIR set, everything stays where that says. Tests of single file systems mount
    their own in either case.
    """
    if "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)  # processes that tests start use it as well
        tempfile.tempdir = None
    # Tests that run as root give roots to other users;
    # ``core/privileges/test_foreign_owners.py`` asks.
    os.environ["SNAP_SAFE_DIRECTORIES"] = "/"
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        # Else each run compiles the tests again, and each command that they start itself.
        sys.dont_write_bytecode = False
        sys.pycache_prefix = str(config.rootpath / ".pytest_cache" / "bytecode")
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:  # as for what a shell runs with "&"
            signal.signal(number, signal.SIG_DFL)
    settings.register_profile(
        "sample",
        max_examples=EXAMPLES,
        deadline=None,  # machines may be busy
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=settings().derandomize or config.option.markexpr == "quick",
    )
    settings.load_profile("sample")
    if not IS_FULL:
        hide_older_processes()
    watch_takers(_note_taken)
    hide_attributes()


def _note_taken(problem: str) -> None:
    """Notes what was taken from a store: a file, because a forked child may have done it.

    What a test does itself counts for nothing, such as a state that it writes as another process.
    """
    frames = traceback.extract_stack()[:-2]
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(TESTS) and path.name != "fenced.py":
            return
        if "/treesnap/" in frame.filename and "/treesnap/testing/" not in frame.filename:
            module = frame.filename.rpartition("/treesnap/")[2]
            if not module.startswith(
                ("core/fs/", "core/store/", "core/worktree/", "plans/repository.py")
            ):
                break
    stack = [f"{frame.name}:{frame.lineno}" for frame in frames[-12:-2]]
    with TAKEN.open("a") as file:
        file.write(f"{problem}, by {' '.join(stack)}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what needs more than is here."""
    require_marked(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that was left out and does not say what it needs."""
    report = yield
    if is_unexplained(report):
        report.outcome = "failed"
        report.longrepr = f"left out without a word of what it needs: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests were left out for what is not here."""
    for name, count in counts_of(terminalreporter.stats.get("skipped", ())).most_common():
        terminalreporter.write_line(f"{count:6} need {name}: {CAPABILITIES.get(name, '')}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test in which something was taken from a store without what keeps others out."""
    result = yield
    if TAKEN.exists():
        problems = TAKEN.read_text()
        TAKEN.unlink()
        if item.get_closest_marker("unwatched"):
            return result
        pytest.fail(f"nothing kept others out: see the table of fenced.py\n{problems}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures under ``--cov`` what the tables above leave to measure."""
    if Coverage.current() is None:
        return (yield)
    module = module_of(item)
    configuration = os.environ.get(PROCESSES_MEASURED)
    tracer = sys.gettrace()
    if module.startswith(UNMEASURED):
        sys.settrace(None)
    if module.startswith((*UNMEASURED, *MEASURED_ALONE)) and not module.startswith(
        MEASURED_WITH_CHILDREN
    ):
        os.environ.pop(PROCESSES_MEASURED, None)
    try:
        return (yield)
    finally:
        if configuration is not None:
            os.environ[PROCESSES_MEASURED] = configuration
        sys.settrace(tracer)


def _measure_no_more() -> None:
    """Lets a child of fork go without saving its lines, and with them those of its parent."""
    if Coverage.current() and PROCESSES_MEASURED not in os.environ:
        sys.settrace(None)
        os._exit = posix._exit


os.register_at_fork(after_in_child=_measure_no_more)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps Python's collector away from the tests themselves, which stay to the end.

    They are most of the live objects, and it would visit them again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(COLLECTION_THRESHOLD)
        gc.enable()


def module_of(item: pytest.Item) -> str:
    """Returns the file of a test, below the directory of tests."""
    return str(item.path).removeprefix(f"{TESTS}/")


def _has_room(directory: Path) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= MEMORY_FREE_MIN_BYTES


def _is_quick(module: str) -> bool:
    return module.startswith(QUICK) and not module.startswith(NOT_QUICK)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out modules of which ``-m`` selects nothing: to import them takes seconds."""
    selected = config.getoption("-m")
    if "not hosts" in selected and collection_path == TESTS / "agents" / "hosts":
        return True
    if selected != "quick" or collection_path.suffix != ".py":
        return None
    return True if not _is_quick(collection_path.relative_to(TESTS).as_posix()) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is quick, and leaves out what ``sampled`` says.

    A mark on a module or a class is about the tests in it, a mark on a test about its cases.
    Nothing is left out in full size, nor where tests are named, with ``-k`` too.
    """
    for item in items:
        if _is_quick(module_of(item)):
            item.add_marker("quick")
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        for node, _ in item.iter_markers_with_node("sampled"):
            if not item.get_closest_marker("slow"):
                groups[node.nodeid.partition("[")[0]].append(item)
            break  # the closest one counts
    if IS_FULL or config.option.keyword or any("::" in word for word in config.args):
        return
    left_out = []
    for found in groups.values():
        (every,) = found[0].get_closest_marker("sampled").args
        kept = chosen([item.nodeid for item in found], every)
        left_out += [item for item in found if item.nodeid not in kept]
    config.hook.pytest_deselected(items=left_out)
    unwanted = set(left_out)
    items[:] = [item for item in items if item not in unwanted]


@pytest.fixture
def of_any_depth(tmp_path: Path) -> Iterator[None]:
    """Removes what a test leaves that is deeper than Python's own functions can remove.

    Otherwise some later run fails on its way out, when it tidies up after this one.
    """
    yield
    subprocess.run(["rm", "-rf", "--", str(tmp_path)], check=True)


@pytest.fixture
def every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets operations see those that ran before the tests: of the system, and of other users."""
    monkeypatch.setattr(processes, "process_names", all_names)


@pytest.fixture(params=["in C", "in Python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: with the module in C, and without it."""
    if request.param == "in Python":
        monkeypatch.setattr(native, "module", None)
    elif native.module is None:
        require("native")
        pytest.skip("the module in C is not built, or TREESNAP_PURE is set")
    return str(request.param)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WatchedWorld]:
    """A root that can be watched, with its store."""
    made = WatchedWorld(tmp_path)
    with made.stack:
        yield made


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may use."""
    path = Path(tempfile.mkdtemp(prefix="open-"))
    path.chmod(0o1777)
    closed = [item for item in path.parents if not item.stat().st_mode & 0o001]
    if closed:
        shutil.rmtree(path)
        pytest.skip(f"only the owner may look into {closed[0]}")
    yield path
    shutil.rmtree(path)
