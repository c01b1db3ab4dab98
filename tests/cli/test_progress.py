"""Progress: when a bar appears, what it shows, and that nothing pays for it before."""

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.console import Console

from treesnap.cli.output.progress import ProgressMonitor, WarningMonitor
from treesnap.cli.output.streams import Output
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import Phase
from treesnap.core.model.quantities import size_text, time_text


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Ticks:
    """Ticks when it is told to, between start and stop."""

    def __init__(self, tick):
        self._tick = tick
        self.is_running = False

    def start(self):
        self.is_running = True

    def stop(self):
        self.is_running = False

    def __call__(self):
        if self.is_running:
            self._tick()


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
def made_ticks():
    return []


@pytest.fixture
def tick(monitor, made_ticks):
    return made_ticks[0]


@pytest.fixture
def monitor(clock, screen, warnings, made_ticks):
    console = Console(file=screen, force_terminal=True, width=120)

    def make_ticks(tick):
        made_ticks.append(Ticks(tick))
        return made_ticks[0]

    monitor = ProgressMonitor(
        lambda *warning: warnings.append(warning),
        clock=clock,
        make_console=lambda: console,
        make_ticks=make_ticks,
    )
    yield monitor
    monitor.close()


def test_short_operation_shows_nothing(monitor, clock, screen, tick):
    monitor.begin(Phase.SCAN, 10, 1000)
    clock.now = 0.49
    monitor.advance(10, 1000)
    tick()

    assert (monitor.is_visible, screen.getvalue()) == (False, "")


def test_long_operation_shows_files_and_bytes(monitor, clock, screen, tick):
    monitor.begin(Phase.SCAN, 1234, 10_000_000)
    clock.now = 0.5
    monitor.advance(217, 2_000_000)
    tick()
    clock.now = 1.5
    monitor.advance(400, 3_000_000)
    tick()
    clock.now = 2.5
    tick()
    monitor.close()

    assert "Reading" in screen.getvalue()
    assert "617 of 1,234 files  4.8 MiB of 9.5 MiB  1.9 MiB/s" in screen.getvalue()
    assert "0:00:" in screen.getvalue()


def test_unknown_totals_show_what_is_done(monitor, clock, screen, tick):
    monitor.begin(Phase.MARK, None, None)
    clock.now = 1.0
    monitor.advance(5, 100)
    tick()
    monitor.close()

    assert "Marking" in screen.getvalue()
    assert "5 objects  100 B  100 B/s" in screen.getvalue()


def test_next_phase_begins_from_nothing(monitor, clock, screen, tick):
    monitor.begin(Phase.SCAN, 5, 100)
    clock.now = 1.0
    monitor.advance(5, 100)
    tick()
    monitor.begin(Phase.APPLY, 3, 50)
    tick()
    monitor.close()

    assert "Replacing" in screen.getvalue()
    assert "0 of 3 files  0 B of 50 B" in screen.getvalue()


def test_one_long_call_is_shown_from_half_a_second_on_and_moves(monitor, clock, screen, tick):
    monitor.begin(Phase.SYNC, None, None)
    drawn = []
    for now in (0.4, 0.6, 1.6, 62.6):
        screen.seek(0)
        screen.truncate()
        clock.now = now
        tick()
        drawn.append(screen.getvalue())

    assert drawn[0] == ""
    assert all("Saving to disk" in each and "files" not in each for each in drawn[1:])
    assert len(set(drawn)) == 4
    assert "0:01:02" in drawn[-1]


def test_only_ticks_draw(monitor, clock, screen, tick):
    monitor.begin(Phase.SCAN, None, None)
    clock.now = 9.0
    for _ in range(1000):
        monitor.advance(1, 1)
    assert screen.getvalue() == ""

    tick()

    assert "1,000 files" in screen.getvalue()


def test_what_has_no_bytes_yet_shows_none_and_one_file_is_one(monitor, clock, screen, tick):
    monitor.begin(Phase.MARK, None, None)
    monitor.advance(256, 0)
    clock.now = 9.0
    tick()
    assert "256 objects" in screen.getvalue()
    assert "0 B" not in screen.getvalue()

    monitor.begin(Phase.SCAN, None, None)
    monitor.advance(1, 5)
    tick()
    assert "1 file  5 B" in screen.getvalue()


def test_a_bar_of_objects_has_a_total_without_bytes(monitor, clock, screen, tick):
    monitor.begin(Phase.PUSH, 8, None)
    clock.now = 1.0
    monitor.advance(4, 100)
    tick()
    monitor.close()

    assert "Sending" in screen.getvalue()
    assert "4 of 8 objects  100 B" in screen.getvalue()
    assert "0:00:01" in screen.getvalue()


def test_a_bar_on_a_lost_terminal_ends_no_work(monitor, clock, screen, tick):
    monitor.begin(Phase.SCAN, None, None)
    clock.now = 1.0
    screen.write = screen.flush = lambda *_: (_ for _ in ()).throw(OSError(5, "gone"))

    tick()
    monitor.warn(WarningCode.ROOM_MADE, "said")
    monitor.close()

    assert not monitor.is_visible


def test_remark_is_passed_on_while_a_bar_is_shown(monitor, clock, warnings, tick):
    monitor.begin(Phase.SCAN, 5, 100)
    monitor.warn(WarningCode.ROOM_MADE, "early")
    clock.now = 1.0
    monitor.advance(1, 1)
    tick()
    monitor.warn(WarningCode.ROOT_MOVED, "late")

    assert warnings == [(WarningCode.ROOM_MADE, "early"), (WarningCode.ROOT_MOVED, "late")]
    assert monitor.is_visible
    assert tick.is_running


def test_a_warning_alone_starts_no_ticks(monitor, tick):
    monitor.warn(WarningCode.STORE_MADE, "said")

    assert not tick.is_running


def test_close_takes_the_bar_away_and_may_be_called_again(monitor, clock, tick):
    monitor.begin(Phase.SCAN, None, None)
    clock.now = 1.0
    tick()

    monitor.close()
    monitor.close()

    assert not monitor.is_visible
    assert not tick.is_running


def test_what_is_printed_takes_the_bar_away(monitor, clock, tick, capsys):
    output = Output("snap")
    output.hide_progress = monitor.close
    monitor.begin(Phase.SCAN, None, None)
    clock.now = 1.0
    tick()

    output.result("list", dict, ["line"])

    assert not monitor.is_visible
    assert capsys.readouterr().out == "line\n"


def test_monitor_without_a_bar_only_passes_remarks_on(warnings):
    monitor = WarningMonitor(lambda *warning: warnings.append(warning))
    monitor.begin(Phase.SCAN, 1, 1)
    monitor.advance(1, 1)
    monitor.warn(WarningCode.ROOM_MADE, "said")
    monitor.close()

    assert warnings == [(WarningCode.ROOM_MADE, "said")]


def test_importing_progress_does_not_import_rich():
    program = "import sys, treesnap.cli.output.progress; print('rich' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert result.stdout == b"False\n"


class Screen(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self):
        return True


def test_a_command_that_is_killed_leaves_the_cursor_visible(clock, monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    made = []
    monitor = ProgressMonitor(
        lambda *_: None, clock=clock, make_ticks=lambda tick: made.append(Ticks(tick)) or made[0]
    )
    monitor.begin(Phase.SCAN, None, None)
    clock.now = 1.0
    made[0]()

    assert "Reading" in screen.getvalue()
    assert "\x1b[?25l" not in screen.getvalue()
    monitor.close()


@pytest.fixture
def large_root(snap, root):
    """The limit is passed by the first of its files already."""
    snap("config", "ask-above", "100K")
    for number in range(3):
        (root / f"{number}").write_bytes(os.urandom(200_000))


def create_on_a_terminal(root, environment, answer: bytes) -> tuple[int, bytes]:
    leader, follower = pty.openpty()
    os.write(leader, answer + b"\n")
    result = subprocess.run(
        [sys.executable, "-m", "treesnap", "create"],
        cwd=root,
        env=environment,
        stdin=follower,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        check=False,
    )
    os.write(follower, b"end")
    said = b""
    while not said.endswith(b"end"):
        said += os.read(leader, 65536)
    os.close(leader)
    os.close(follower)
    return result.returncode, said


@pytest.mark.usefixtures("large_root")
def test_a_first_snapshot_that_grows_large_asks_once_on_a_terminal(snap, root, environment):
    code, said = create_on_a_terminal(root, environment, b"n")
    assert (code, said.count(b"holds more than 100.0 KiB. Go on? [Y/n]")) == (130, 1)
    assert b"Nothing was captured; 'snap config ask-above SIZE' says from which" in said
    assert snap("list").out == ""

    code, said = create_on_a_terminal(root, environment, b"")
    assert (code, said.count(b"Go on?")) == (0, 1)
    (root / "more").write_bytes(os.urandom(200_000))
    code, said = create_on_a_terminal(root, environment, b"n")
    assert (code, said.count(b"Go on?")) == (0, 0)


@pytest.mark.usefixtures("large_root")
def test_a_first_snapshot_that_grows_large_warns_elsewhere(snap, root):
    made = snap("create")

    assert made.code == 0
    assert f"The first snapshot of '{root}' holds more than 100.0 KiB" in made.err
    assert "holds more" not in snap("create").err


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
