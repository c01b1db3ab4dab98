"""Progress: when a bar appears, what it shows, and that nothing pays for it before."""

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from treesnap.cli.progress import ProgressMonitor, WarningMonitor
from treesnap.cli.text_output import time_text
from treesnap.errors import WarningCode
from treesnap.events import Phase
from treesnap.quantities import size_text


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def screen():
    return io.StringIO()


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def monitor(clock, screen, warnings):
    console = Console(file=screen, force_terminal=True, width=120)
    monitor = ProgressMonitor(
        lambda *warning: warnings.append(warning), clock=clock, make_console=lambda: console
    )
    yield monitor
    monitor.close()


def test_short_operation_shows_nothing(monitor, clock, screen):
    monitor.begin(Phase.SCAN, 10, 1000)
    clock.now = 0.49
    monitor.advance(10, 1000)

    assert (monitor.is_visible, screen.getvalue()) == (False, "")


def test_long_operation_shows_files_and_bytes(monitor, clock, screen):
    monitor.begin(Phase.SCAN, 1234, 10_000_000)
    clock.now = 0.5
    monitor.advance(217, 2_000_000)
    clock.now = 1.5
    monitor.advance(400, 3_000_000)
    clock.now = 2.5
    monitor.advance(0, 0)
    monitor.close()

    assert "Reading" in screen.getvalue()
    assert "617 of 1,234 files  4.8 MiB of 9.5 MiB  1.9 MiB/s" in screen.getvalue()
    assert "0:00:" in screen.getvalue()


def test_unknown_totals_show_what_is_done(monitor, clock, screen):
    monitor.begin(Phase.MARK, None, None)
    clock.now = 1.0
    monitor.advance(5, 100)
    monitor.close()

    assert "Marking" in screen.getvalue()
    assert "5 objects  100 B  100 B/s" in screen.getvalue()


def test_next_phase_begins_from_nothing(monitor, clock, screen):
    monitor.begin(Phase.SCAN, 5, 100)
    clock.now = 1.0
    monitor.advance(5, 100)
    monitor.begin(Phase.APPLY, 3, 50)
    monitor.close()

    assert "Replacing" in screen.getvalue()
    assert "0 of 3 files  0 B of 50 B" in screen.getvalue()


def test_remark_is_passed_on_while_a_bar_is_shown(monitor, clock, warnings):
    monitor.begin(Phase.SCAN, 5, 100)
    monitor.warn(WarningCode.ROOM_MADE, "early")
    clock.now = 1.0
    monitor.advance(1, 1)
    monitor.warn(WarningCode.ROOT_MOVED, "late")

    assert warnings == [(WarningCode.ROOM_MADE, "early"), (WarningCode.ROOT_MOVED, "late")]
    assert monitor.is_visible


def test_close_takes_the_bar_away_and_may_be_called_again(monitor, clock):
    clock.now = 1.0
    monitor.advance(1, 1)

    monitor.close()
    monitor.close()

    assert not monitor.is_visible


def test_monitor_without_a_bar_only_passes_remarks_on(warnings):
    monitor = WarningMonitor(lambda *warning: warnings.append(warning))
    monitor.begin(Phase.SCAN, 1, 1)
    monitor.advance(1, 1)
    monitor.warn(WarningCode.ROOM_MADE, "said")
    monitor.close()

    assert warnings == [(WarningCode.ROOM_MADE, "said")]


def test_importing_progress_does_not_import_rich():
    program = "import sys, treesnap.cli.progress; print('rich' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert result.stdout == b"False\n"


@pytest.mark.parametrize("words", [["create", "--json"], ["create", "-q"]])
def test_quiet_command_on_a_terminal_draws_no_bar(words, root, environment):
    leader, follower = pty.openpty()
    result = subprocess.run(
        [sys.executable, "-m", "treesnap", *words],
        cwd=root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        check=True,
    )
    os.write(follower, b"end")
    received = os.read(leader, 65536)
    os.close(leader)
    os.close(follower)

    assert result.returncode == 0
    assert b"\x1b" not in received


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_size_is_text(size, text):
    assert text == size_text(size)


def test_time_that_no_calendar_reaches_is_a_number_of_seconds():
    assert time_text(10**30) == f"@{10**21}"
