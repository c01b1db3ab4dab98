"""``snap run`` that is told to end: its processes end, the tree is rolled back, and it says so."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oracle import difference, record
from plan_bench import is_alive
from treesnap.core.ending_signals import ENDING, signal_name

pytestmark = pytest.mark.sampled(10)

WAIT_S = 60.0
"""How long a command may take for one step, on a machine that is busy."""
IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}
"""What a Python program ignores from its start."""


class Tree:
    """A root, its store, and a fifo through which commands say how far they are."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.store = directory / "store"
        self.root.mkdir()
        (self.root / "file").write_text("before")
        self.fifo = directory / "fifo"
        os.mkfifo(self.fifo)
        self.fifo_fd = os.open(self.fifo, os.O_RDWR)  # nothing waits for the other end then

    def words(self, script: str, *options: str) -> list[str]:
        place = ["-C", str(self.root), "--store", str(self.store)]
        command = ["sh", "-c", script, "sh", str(self.fifo)]
        return [sys.executable, "-m", "treesnap", "run", *place, *options, "--", *command]

    def start(self, script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.words(script), stderr=subprocess.PIPE, text=True)

    def program(self, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of ours on the tree and its store."""
        return subprocess.run(
            [sys.executable, "-c", text, str(self.root), str(self.store), *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def told(self) -> str:
        """The line that a command writes into the fifo; waits for that, but not for ever."""
        fd = self.fifo_fd
        told = b""
        while not told.endswith(b"\n"):
            assert select.select([fd], [], [], WAIT_S)[0], f"nothing was told but {told!r}"
            told += os.read(fd, 1)
        return told.decode()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    yield made
    os.close(made.fifo_fd)


BACKGROUND = {
    "a child": "(while :; do echo x > written; done) &",
    "a session of its own": "setsid sh -c 'while :; do echo x > written; done' &",
    "a daemon without a parent": "(setsid sh -c 'while :; do echo x > written; done' &) &",
    "without files": "setsid sh -c 'exec 3>&- 4>&-; while :; do echo x > written; done' >&- 2>&- &",
    "without its environment": "env -i sh -c 'while :; do echo x > written; done' &",
}


@pytest.mark.needs("processes")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("script", BACKGROUND.values(), ids=BACKGROUND)
def test_what_a_failed_command_left_writing_is_ended_before_the_roll_back(tree, script):
    before = record(tree.root)

    process = tree.start(f"{script} while ! test -e written; do :; done; exit 7")

    said = process.communicate(timeout=WAIT_S)[1].splitlines()
    assert "sh failed with exit code 7; rolled back" in said
    assert process.returncode == 7
    assert difference(before, record(tree.root)) == []


def test_what_a_successful_command_leaves_goes_on(tree):
    process = tree.start("sleep 600 2>&- & echo $! > $1; exit 0")
    number = int(tree.told())

    assert process.wait(WAIT_S) == 0
    assert process.stderr is not None
    process.stderr.close()
    assert is_alive(number)
    os.kill(number, signal.SIGKILL)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", [number for number in ENDING if number not in IGNORED])
def test_signal_ends_the_command_and_rolls_back(tree, number):
    before = record(tree.root)
    process = tree.start("echo after > file; echo $$ > $1; exec sleep 600")
    command = int(tree.told())

    process.send_signal(number)

    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 128 + number
    by = "snap: Interrupted" if number == signal.SIGINT else f"Stopped by {signal_name(number)}"
    assert f"{by}; what the command did to 1 path was rolled back, to " in said
    assert not is_alive(command)
    assert difference(before, record(tree.root)) == []


def test_command_that_ignores_signals_is_killed_at_the_second_one(tree):
    before = record(tree.root)
    process = tree.start(
        "trap 'echo asked > $1' TERM; echo after > file; echo $$ > $1; while :; do sleep 0.1; done"
    )
    command = int(tree.told())

    process.send_signal(signal.SIGTERM)
    assert tree.told() == "asked\n"
    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=WAIT_S)
    assert process.returncode == 143
    assert not is_alive(command)
    assert difference(before, record(tree.root)) == []


STARTING = """
import os, signal, sys, treesnap
root, store, fifo, asked = sys.argv[1:]
script = f"trap 'echo asked > {asked}; exit 1' TERM; echo > {fifo}; while :; do sleep 0.1; done"

def profile(frame, event, argument):
    if event == "return" and frame.f_code.co_name == "_execute_child":
        sys.setprofile(None)
        open(fifo).readline()
        os.kill(os.getpid(), signal.SIGTERM)

handle = treesnap.open(root, store=store)
sys.setprofile(profile)
handle.run(["sh", "-c", script])
"""
"""Gets a signal when its command runs already, and the call that starts it has not returned."""


def test_command_that_is_just_started_is_asked_to_end(tree):
    before = record(tree.root)
    asked = tree.root.parent / "asked"

    result = tree.program(STARTING, str(tree.fifo), str(asked))

    assert result.returncode == 143, result.stderr
    assert asked.read_text() == "asked\n"
    assert difference(before, record(tree.root)) == []


SECOND = """
import os, signal, sys, treesnap
from treesnap.testing.doubles import WrappedFileSystem
from treesnap.core.ops.context import context_at

class Interrupting(WrappedFileSystem):
    '''Sends a signal at every call of the way back that changes a name.'''
    is_on = False
    def around(self, call):
        if self.is_on and call.method in ("rename", "exchange", "unlink", "make_directory"):
            os.kill(os.getpid(), signal.SIGINT)
        return call.proceed()

fs = Interrupting()
handle = treesnap.Handle(context_at(root=sys.argv[1], store_path=sys.argv[2], fs=fs))
try:
    if sys.argv[3] == "run":
        fs.is_on = True
        handle.create()
except KeyboardInterrupt:
    pass
fs.is_on = False
try:
    with handle.rollback_on_error():
        open(sys.argv[1] + "/file", "w").write("half")
        fs.is_on = True
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted")
"""


def test_second_interrupt_does_not_break_the_way_back(tree):
    before = record(tree.root)

    result = tree.program(SECOND, "block")

    assert (result.stdout, result.returncode) == ("interrupted\n", 0), result.stderr
    assert difference(before, record(tree.root)) == []


ALARM = """
import os, signal, sys, treesnap
from treesnap.testing.doubles import WrappedFileSystem
from treesnap.core.ops.context import context_at

class Late(Exception):
    pass

class Alarming(WrappedFileSystem):
    '''Sends a signal that the program handles itself, at every call that changes a name.'''
    is_on = False
    def around(self, call):
        if self.is_on and call.method in ("rename", "exchange", "unlink", "make_directory"):
            os.kill(os.getpid(), signal.SIGALRM)
        return call.proceed()

def raising(number, frame):
    raise Late

signal.signal(signal.SIGALRM, raising)
fs = Alarming()
handle = treesnap.Handle(context_at(root=sys.argv[1], store_path=sys.argv[2], fs=fs))
try:
    with handle.rollback_on_error():
        open(sys.argv[1] + "/file", "w").write("half")
        fs.is_on = True
        raise ValueError
except Late:
    print("late", signal.getsignal(signal.SIGALRM) is raising)
"""


def test_a_handler_of_the_program_that_raises_does_not_break_the_way_back(tree):
    before = record(tree.root)

    result = tree.program(ALARM)

    assert (result.stdout, result.returncode) == ("late True\n", 0), result.stderr
    assert difference(before, record(tree.root)) == []


LIMITED = """
import resource, sys, treesnap
handle = treesnap.open(sys.argv[1], sys.argv[2])
try:
    with handle.rollback_on_error():
        open(sys.argv[1] + "/large", "wb").write(bytes(range(256)) * 1024)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        raise ValueError
except ValueError:
    print("back")
"""


ANOTHER_THREAD_IS_TOLD = """
import os, signal, sys, threading, treesnap

def tell():
    with open(sys.argv[3]) as fifo:
        fifo.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=tell, daemon=True).start()
script = "echo after > file; echo begun > $1; exec sleep 600"
treesnap.open(sys.argv[1], sys.argv[2]).run(["sh", "-c", script, "sh", sys.argv[3]])
"""


def test_a_signal_that_does_not_end_the_wait_for_the_command_is_noticed(tree):
    """One that comes just before the call does neither, but no test can time that."""
    before = record(tree.root)

    result = tree.program(ANOTHER_THREAD_IS_TOLD, str(tree.fifo))

    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert difference(before, record(tree.root)) == []


def test_a_limit_on_the_size_of_files_does_not_break_the_way_back(tree):
    """What is there does not fit into a safety snapshot then, as on a full disk."""
    before = record(tree.root)

    result = tree.program(LIMITED)

    assert (result.stdout, result.returncode) == ("back\n", 0), result.stderr
    assert difference(before, record(tree.root)) == []


def test_command_reads_from_the_terminal_and_is_interrupted_there(tree):
    before = record(tree.root)
    words = tree.words("echo after > file; read line; echo $line > $1; while :; do sleep 1; done")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(words[0], words)
    os.write(terminal, b"typed\n")
    assert tree.told() == "typed\n"

    os.write(terminal, b"\x03")

    shown = b""
    while select.select([terminal], [], [], WAIT_S)[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # nothing has the terminal any more
            break
        shown += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130, shown
    assert difference(before, record(tree.root)) == []
