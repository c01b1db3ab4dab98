"""One attempt of a step, with real processes: how it ends, and what it leaves running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plan_bench import end, is_alive
from treesnap import Busy, ErrorCode, NotFound, OperationFailed
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.ops.context import MARKS_VARIABLE
from treesnap.core.ops.processes import end_leftovers
from treesnap.plans.process import StepWork, attempt, keep_output

pytestmark = pytest.mark.sampled(10)

MARK = f"plan/0/1/{os.getpid()}"
"""Another one in each process that runs tests, because a mark names processes to kill."""
UNTIL_IT_RUNS = " while ! test -s number; do :; done; exit 1"
WITHOUT_FILES = """
import os
open('number', 'w').write(str(os.getpid()))
os.write(1, b'now')
os.closerange(0, 99)
os.execvp('sleep', ['sleep', '600'])
"""
WITHOUT_ITS_FIRST_THREAD = """
import ctypes, os, threading, time

def when_the_first_has_ended():
    while open(f'/proc/{os.getpid()}/task/{os.getpid()}/stat').read().split()[2] != 'Z':
        pass
    open('number', 'w').write(str(os.getpid()))
    os.write(1, b'now')
    OUTPUT
    time.sleep(600)

threading.Thread(target=when_the_first_has_ended).start()
ctypes.CDLL(None).pthread_exit(None)
"""
NO_FILES = ">out 2>&1 " + " ".join(f"{number}>&-" for number in range(3, 10))
FS = LocalFileSystem()


class Place:
    """A directory to run commands in, and the file of their output."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.heard = b""

    def work(self, *command: str, timeout_s: int | None = None) -> StepWork:
        return StepWork(command, str(self.directory), str(self.log), MARK, timeout_s)

    def hear(self, data: bytes) -> None:
        self.heard += data

    def shell(self, script: str, timeout_s: int | None = None) -> int | None:
        work = self.work("/bin/sh", "-c", script, timeout_s=timeout_s)
        return attempt(FS, work, self.hear, wait_s=10).exit_code

    def number(self, name: str = "number") -> int:
        return int((self.directory / name).read_text())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("script", "exit_code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", -15), ("kill -9 $$", -9)],
)
def test_how_a_command_ends(place, script, exit_code):
    assert place.shell(script) == exit_code


def test_where_no_end_can_be_known_nothing_is_started(place, monkeypatch):
    """As on a Mac before Python 3.13: a command that is killed at once may have done something."""
    monkeypatch.delattr(os, "waitid")

    with pytest.raises(OSError, match=r"Python 3\.13"):
        place.shell("touch made")

    assert not (place.directory / "made").exists()


def test_output_of_both_streams_is_passed_on_and_kept(place):
    place.shell("echo one; echo two >&2; printf 'three\\377'")

    assert place.heard == b"one\ntwo\nthree\xff"
    assert place.log.read_bytes() == place.heard


def test_output_of_a_failed_command_is_kept(place):
    place.shell("echo why; exit 1")

    assert place.log.read_bytes() == b"why\n"


def test_much_output_is_passed_on_whole(place):
    place.shell("head -c 5000000 /dev/zero")

    assert len(place.heard) == 5_000_000


def test_there_is_no_input(place):
    assert place.shell("read line") == 1


def test_it_runs_in_the_directory_with_the_environment(place, monkeypatch):
    monkeypatch.setenv("PLACE", "here")

    place.shell("pwd; echo $PLACE")

    assert place.heard.decode() == f"{place.directory}\nhere\n"


def test_it_runs_without_a_path(place, monkeypatch):
    monkeypatch.delenv("PATH")

    assert place.shell("exit 4") == 4


class TestTimeLimit:
    def test_fails_what_takes_longer_and_kills_the_whole_group(self, place):
        script = "sleep 600 & echo $! > number; sleep 600"

        limits = iter((1, 10, 60))  # on a busy machine nothing may have begun after a second
        while not (place.directory / "number").exists():
            assert place.shell(script, timeout_s=next(limits)) is None
        assert not is_alive(place.number())

    def test_holds_for_output_without_end(self, place):
        assert place.shell("exec yes", timeout_s=1) is None

    def test_holds_for_what_ignores_every_signal(self, place):
        assert place.shell("trap '' TERM INT HUP; sleep 600; sleep 600", timeout_s=1) is None


class TestWhatIsLeftRunning:
    def test_of_a_success_lives_on_and_is_not_waited_for(self, place):
        assert place.shell("sleep 600 & echo $! > number") == 0

        assert is_alive(place.number())
        end(place.number())

    def test_of_a_success_may_write_without_end(self, place):
        assert place.shell("yes & echo $! > number") == 0

        assert is_alive(place.number())
        end(place.number())

    @pytest.mark.needs("processes")
    @pytest.mark.parametrize(
        "script",
        [
            "sleep 600 & echo $! > number; exit 1",
            "setsid sh -c 'echo $$ > number; exec sleep 600' &" + UNTIL_IT_RUNS,
            "setsid env -i sh -c 'echo $$ > number; exec sleep 600 > out 2>&1' &" + UNTIL_IT_RUNS,
        ],
    )
    def test_of_a_failure_dies(self, place, script):
        assert place.shell(script) == 1

        assert not is_alive(place.number())

    def test_of_an_earlier_attempt_does_not_matter(self, place):
        place.shell("(while :; do echo x; sleep 0.01; done) & echo $! > number")

        assert place.shell("echo again") == 0

        assert place.heard.endswith(b"again\n")
        assert place.log.read_bytes() == b"again\n"
        assert is_alive(place.number())
        end(place.number())


class TestWhatCannotBeStarted:
    def test_is_not_found(self, place):
        with pytest.raises(NotFound) as caught:
            attempt(FS, place.work("no-such-command"), place.hear, wait_s=1)

        assert caught.value.code == ErrorCode.COMMAND_NOT_FOUND

    def test_for_its_length_is_said_so(self, place):
        with pytest.raises(OperationFailed, match="Argument list too long"):
            attempt(FS, place.work("echo", "x" * (1 << 20)), place.hear, wait_s=1)

    def test_for_want_of_the_directory_is_no_missing_command(self, place):
        work = place.work("true")._replace(directory=str(place.directory / "gone"))

        with pytest.raises(OperationFailed, match="gone"):
            attempt(FS, work, place.hear, wait_s=1)


@pytest.mark.needs("processes")
@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, SystemExit])
def test_an_interruption_kills_everything_and_goes_on(place, error):
    def hear(data: bytes) -> None:
        raise error

    place.hear = hear
    with pytest.raises(error):
        place.shell("setsid sleep 600 & echo $! > number; echo now; sleep 600")

    assert not is_alive(place.number())


def test_a_lost_exit_code_is_no_success(place):
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(OperationFailed, match="exit code of the command is lost"):
            place.shell("exit 1")
    finally:
        signal.signal(signal.SIGCHLD, old)


RUNNER = """
import os, sys
from treesnap.core.fs.local import LocalFileSystem
from treesnap.plans.process import StepWork, attempt
directory, script, mark = sys.argv[1:]
work = StepWork(["/bin/sh", "-c", script], directory, directory + "/log", mark, None)
attempt(LocalFileSystem(), work, lambda data: os.kill(os.getpid(), 9), 1)
"""


@pytest.mark.needs("processes")
class TestLeftoversOfAKilledRunner:
    """The runner is killed as soon as the step says something."""

    def leave(self, place: Place, script: str) -> int:
        """Returns the process that is left."""
        command = [sys.executable, "-c", RUNNER, str(place.directory), script, MARK]
        assert subprocess.run(command, check=False).returncode == -9
        assert is_alive(place.number())
        return place.number()

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        "script",
        [
            "echo $$ > number; echo now; sleep 600",
            "echo $$ > number; echo now; exec sleep 600 > elsewhere 2>&1",
            "setsid sh -c 'echo $$ > number; echo now; exec sleep 600 > out 2>&1'",
            "env -i sh -c 'echo $$ > number; echo now; exec sleep 600 > out 2>&1'",
            f'exec python3 -c "{WITHOUT_FILES}"',
        ],
        ids=["plain", "redirected", "in a session", "without environment", "without files"],
    )
    def test_are_found_and_killed(self, place, script):
        left = self.leave(place, script)

        end_leftovers(FS, str(place.log), MARK, wait_s=10)

        assert not is_alive(left)

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("number", range(10))
    def test_are_found_while_they_change_their_program(self, place, number):
        """In the middle of execve(2) a process shows neither its environment nor its files."""
        again = place.directory / "again"
        again.write_text('#!/bin/sh\nexec "$0"\n')
        again.chmod(0o755)
        left = self.leave(place, f"echo $$ > number; echo now; exec {again} {NO_FILES}")

        end_leftovers(FS, str(place.log), MARK, wait_s=10)

        assert not is_alive(left)

    @pytest.mark.parametrize(
        ("words", "output"),
        [("exec", "os.closerange(0, 99)"), ("exec env -i", "")],
        ids=["by its environment", "by its output"],
    )
    def test_are_found_when_their_first_thread_has_ended(self, place, words, output):
        """Then /proc/PID shows neither environment nor files, and its threads do."""
        script = place.directory / "script"
        script.write_text(WITHOUT_ITS_FIRST_THREAD.replace("OUTPUT", output))
        left = self.leave(place, f"{words} {sys.executable} {script}")

        end_leftovers(FS, str(place.log), MARK, wait_s=10)

        assert not is_alive(left)

    def test_of_another_attempt_live_on(self, place):
        left = self.leave(place, "echo $$ > number; echo now; exec sleep 600")
        other = place.directory / "other"
        other.touch()

        end_leftovers(FS, str(other), "plan/0/2/abcd", wait_s=1)

        assert is_alive(left)
        end(left)

    def test_who_reads_the_output_lives_on(self, place):
        left = self.leave(place, "echo $$ > number; echo now; exec sleep 600")
        with subprocess.Popen(["tail", "-f", place.log], stdout=subprocess.PIPE) as reader:
            assert reader.stdout.readline() == b"now\n"

            end_leftovers(FS, str(place.log), MARK, wait_s=10)

            assert reader.poll() is None
            assert not is_alive(left)
            reader.kill()

    def test_keep_the_output_locked(self, place):
        left = self.leave(place, "echo $$ > number; echo now; exec sleep 600 > elsewhere 2>&1")
        fd = os.open(place.log, os.O_RDONLY)

        assert not FS.lock(fd, exclusive=True)

        end(left)
        os.close(fd)

    def test_that_cannot_be_killed_are_waited_for_in_vain(self, place):
        place.log.touch()
        fd = os.open(place.log, os.O_RDONLY)  # our own: no process kills itself
        assert FS.lock(fd, exclusive=True)

        with pytest.raises(Busy):
            end_leftovers(FS, str(place.log), MARK, wait_s=0.1)

        os.close(fd)

    def test_that_never_began_are_none(self, place):
        end_leftovers(FS, str(place.log), MARK, wait_s=0)


def test_a_step_within_a_step_belongs_to_both(place, monkeypatch):
    monkeypatch.setenv(MARKS_VARIABLE, "outer/0/1/ef")

    place.shell(f"echo ${MARKS_VARIABLE}")

    assert place.heard.decode() == f"outer/0/1/ef {MARK}\n"


def test_what_is_no_process_says_is_kept(place):
    place.log.write_text("old, and longer")

    keep_output(FS, str(place.log), b"new")

    assert place.log.read_bytes() == b"new"
