"""Commands that a fork server runs: that nothing but their cost tells them from others.

A client that finds no server would do its command itself; here it exits with ``FELL_BACK``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import pytest

import serving as serving_module
import treesnap
from calling import forked
from command_line import wait_until
from oracle import difference, record
from serving import (
    CLIENT,
    FELL_BACK,
    LIAR,
    become_client,
    children_of,
    client,
    serving,
    status_of,
)
from treesnap import __version__
from treesnap.cli import fork_server
from treesnap.cli.fork_client import READY, identity
from treesnap.cli.start import store_for_server
from treesnap.core.fs.native import PURE_VARIABLE
from treesnap.core.fs.peers import HELLO, encode_call, send
from treesnap.core.model.errors import OperationFailed
from treesnap.core.ops.context import MARKS_VARIABLE, default_store_path

pytestmark = [pytest.mark.needs("companions"), pytest.mark.sampled(10)]

TIMEOUT_S = 60
SOON = "import treesnap.cli.fork_client; treesnap.cli.fork_client.END_PATIENCE_S = 0.05; "
COMMANDS = [
    ("create",),
    ("create", "-q"),
    ("create", "-m", "label", "--tag", "a=b", "--json"),
    ("create", "sub/deep", "--skip-unchanged"),
    ("create", "no-such-path"),
    ("create", "--step", "x"),
    ("-C", "sub", "create", "."),
    ("status",),
    ("--json", "status"),
    ("status", "--no-such-option"),
    ("diff",),
    ("diff", "one", "two", "--patch"),
    ("diff", "one", "two", "--json"),
    ("diff", "no-such-ref"),
    ("restore", "one"),
    ("restore", "one", "sub", "--json"),
    ("restore", "one", "--dry-run"),
    ("restore", "one", "--to", "../there"),
    ("restore", "one", "--to", "."),
    ("restore", "no-such-ref", "--json"),
    ("undo",),
    ("undo", "--json"),
    ("redo",),
    ("list",),
    ("list", "--json"),
    ("list", "--tag", "x", "-q"),
    ("status", "--help"),
]


def plain(text: bytes) -> bytes:
    """Returns output without ids, times and numbers of bytes, which differ from run to run."""
    text = re.sub(rb"\b[0-9a-f]{12}(?:[0-9a-f]{20})?(?:[0-9a-f]{32})?\b", b"ID", text)
    text = re.sub(rb"\d{4}-\d\d-\d\d.\d\d:\d\d:\d\d(\.\d+)?", b"TIME", text)
    text = re.sub(rb'("\w+_ns"): \d+', rb"\1: 0", text)
    return re.sub(rb'("\w+_bytes"): \d+|[+-]?\d+(\.\d+)? (B|K)\b', rb"\1 SIZE", text)


class Scene:
    """A root and a store with a history, as often as needed, and a server that runs all along."""

    def __init__(self, directory: Path) -> None:
        self.template = directory / "template"
        self.place = directory / "place"
        self.root = self.place / "root"
        self.store = self.place / "store"
        self.served = directory / "served"
        home = directory / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SNAP_")}
        self.variables = {
            **kept,
            "HOME": str(home),
            "SNAP_STORE": str(self.store),
            "COLUMNS": "100",
            "PYTHONIOENCODING": "utf-8:strict",
        }
        self._make_history()

    def _make_history(self) -> None:
        (self.root / "sub" / "deep").mkdir(parents=True)
        for name in ("one", "two", "three"):
            (self.root / "file").write_text(name)
            (self.root / "sub" / "deep" / name).write_text(name)
            assert self.ordinary("create", "--name", name)[0] == 0
        assert self.ordinary("restore", "two")[0] == 0
        assert self.ordinary("restore", "one")[0] == 0
        assert self.ordinary("undo")[0] == 0
        (self.root / "new").write_text("new")
        self.place.rename(self.template)

    def reset(self) -> None:
        """Makes root and store anew, with the socket of the server."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.template, self.place, symlinks=True)
        self.be_served_at(self.served)

    def be_served_at(self, place: Path) -> None:
        """Puts the socket of a server that listens elsewhere into the store, by another name."""
        directory = self.store / "fork-server"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(place / "fork-server", directory, copy_function=os.link)

    def ordinary(
        self, *words: str, cwd: Path | None = None, **more: str
    ) -> tuple[int, bytes, bytes]:
        return forked(words, cwd=cwd or self.root, variables={**self.variables, **more})

    def by_server(
        self, *words: str, cwd: Path | None = None, **more: str
    ) -> tuple[int, bytes, bytes]:
        variables = {**self.variables, **more}
        return forked(words, cwd=cwd or self.root, variables=variables, program=become_client)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def server(scene: Scene):
    with serving(scene.served, scene.variables) as server:
        yield server


@pytest.fixture
def place(scene: Scene, server) -> Scene:
    scene.reset()
    return scene


@pytest.fixture
def held_root(place: Scene):
    """The lock of the root, for which a command waits."""
    (path,) = place.store.glob("roots/*/lock")
    with path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def started(place: Scene, *words: str, **options) -> subprocess.Popen[bytes]:
    """Starts a client, and returns it when its command has begun."""
    options = {"cwd": place.root, "env": place.variables} | options
    process = client(words, **options)
    wait_until(lambda: process.poll() is not None or passes_on(process.pid, signal.SIGTSTP))
    assert process.poll() is None, process.communicate()
    return process


def waits_for_root(process_id: int) -> bool:
    """Returns whether a process has opened the lock of a root."""
    for link in Path(f"/proc/{process_id}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if fnmatch(os.readlink(link), "*/roots/*/lock"):
                return True
    return False


def passes_on(process_id: int, number: int) -> bool:
    return bool(int(status_of(process_id)["SigCgt"], 16) >> (number - 1) & 1)


def state_of(process_id: int) -> str:
    return status_of(process_id)["State"][0]


def assert_same(place: Scene, *words: str, **options) -> tuple[int, bytes, bytes]:
    """Runs a command in both ways; everything that it leaves must be the same."""
    before = place.ordinary(*words, **options)
    tree = record(place.root)
    files = {path.relative_to(place.place) for path in place.place.rglob("*")}
    place.reset()
    code, out, err = place.by_server(*words, **options)

    assert code == before[0]
    assert plain(out) == plain(before[1])
    assert plain(err) == plain(before[2])
    assert difference(tree, record(place.root)) == []
    found = {path.relative_to(place.place) for path in place.place.rglob("*")}
    assert sorted(map(nameless, found)) == sorted(map(nameless, files))
    return code, out, err


def nameless(path: Path) -> str:
    return re.sub(r"[0-9a-f]{16,64}|inode-.*", "ID", str(path))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_does_and_prints_what_it_does_without_a_server(place, words):
    assert_same(place, *words)


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("list",), {"TZ": "Asia/Tokyo"}),
        (("status",), {"SNAP_DEBUG": "1", "SNAP_STORE": "../store"}),
        (("status", "--store", "../store"), {"SNAP_STORE": "/nowhere"}),
    ],
)
def test_variables_of_the_client_count(place, words, variables):
    assert assert_same(place, *words, **variables)[0] == 0


def test_times_are_shown_in_the_time_zone_of_the_client(place):
    texts = {place.by_server("list", TZ=zone)[1] for zone in ("UTC", "Asia/Tokyo")}

    assert len(texts) == 2


def test_the_directory_of_the_client_counts(place):
    code, *_ = assert_same(place, "-C", "root", "create", "sub", cwd=place.place)

    assert code == 0


def test_a_client_that_was_spawned_is_served(place):
    """Unlike a forked one, it ignores the signals that the C library keeps for itself."""
    words = [sys.executable, "-c", CLIENT, "-C", str(place.root), "status"]
    process_id = os.posix_spawn(sys.executable, words, place.variables)

    assert os.waitpid(process_id, 0)[1] == 0


def test_a_removed_directory_is_reported(place):
    gone = place.root / "gone"
    gone.mkdir()
    program = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); {CLIENT}"
    words = [sys.executable, "-c", program]

    done = subprocess.run([*words, "status"], env=place.variables, capture_output=True, check=False)

    assert done.returncode == 5
    assert b"current directory does not exist" in done.stderr


def test_output_goes_on_until_its_reader_leaves(place):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with open(write_fd, "wb") as broken:
        process = client(["list"], cwd=place.root, env=place.variables, stdout=broken)
        process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 141


def test_a_closed_stream_is_left_to_the_client(place):
    words = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", CLIENT, "list"]

    done = subprocess.run(words, cwd=place.root, env=place.variables, check=False)

    assert done.returncode == FELL_BACK


def test_a_child_has_what_its_client_has(place, server, held_root):
    def prepare() -> None:
        os.umask(0o027)
        os.nice(3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    process = started(place, "create", "-q", preexec_fn=prepare)
    (child,) = children_of(server.pid)
    found = [facts_of(process_id) for process_id in (process.pid, child)]
    fcntl.flock(held_root, fcntl.LOCK_UN)
    process.communicate(timeout=TIMEOUT_S)

    assert found[0] == found[1]
    assert process.returncode == 0


def facts_of(process_id: int) -> dict[str, object]:
    status = status_of(process_id)
    directory = Path(f"/proc/{process_id}")
    return {
        **{name: status[name] for name in ("Umask", "SigIgn", "SigBlk", "Cpus_allowed")},
        "limits": (directory / "limits").read_text(),
        "directory": (directory / "cwd").readlink(),
        "priority": os.getpriority(os.PRIO_PROCESS, process_id),
        "scheduler": os.sched_getscheduler(process_id),
        "streams": [(directory / "fd" / name).readlink() for name in "012"],
    }


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, b"Interrupted"),
        (signal.SIGTERM, -signal.SIGTERM, b""),
        (signal.SIGHUP, -signal.SIGHUP, b""),
        (signal.SIGQUIT, -signal.SIGQUIT, b""),
        (signal.SIGUSR1, -signal.SIGUSR1, b""),
    ],
)
def test_a_signal_ends_both(place, server, held_root, number, code, message):
    process = started(place, "create", "-q")
    (child,) = children_of(server.pid)
    wait_until(lambda: waits_for_root(child))  # an earlier interrupt ends it without a word
    process.send_signal(number)
    _, err = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == code
    assert message in err
    assert children_of(server.pid) == []


@pytest.mark.parametrize(
    ("limit", "most"), [("RLIMIT_DATA", 1 << 26), ("RLIMIT_AS", 1 << 30), ("RLIMIT_NOFILE", 20)]
)
def test_limits_that_a_child_may_reach_sooner_are_left_to_the_client(place, server, limit, most):
    process = client(
        ["status"],
        cwd=place.root,
        env=place.variables,
        preexec_fn=lambda: resource.setrlimit(getattr(resource, limit), (most, most)),
    )
    process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == FELL_BACK
    assert server.is_running()


def test_an_ignored_signal_ends_neither(place, held_root):
    process = started(
        place, "create", "-q", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    process.send_signal(signal.SIGHUP)
    fcntl.flock(held_root, fcntl.LOCK_UN)
    process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0


def test_both_are_suspended_and_continued(place, server, held_root):
    process = started(place, "create", "-q", process_group=0)
    (child,) = children_of(server.pid)
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(process.pid) == state_of(child) == "T")
    process.send_signal(signal.SIGCONT)
    fcntl.flock(held_root, fcntl.LOCK_UN)
    process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0


def test_the_command_of_a_killed_client_is_killed(place, server, held_root):
    process = started(place, "create", "-q")
    process.kill()
    process.communicate()

    wait_until(lambda: children_of(server.pid) == [])
    assert len(list(place.store.glob("snapshots/*/*"))) == len(
        list(place.template.glob("store/snapshots/*/*"))
    )


def test_a_killed_command_ends_its_client_by_the_same_signal(place, server, held_root):
    process = started(place, "create", "-q")
    (child,) = children_of(server.pid)
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == -signal.SIGKILL


def test_two_clients_at_once_are_independent(place, server, held_root):
    first = started(place, "create", "-q")
    second = client(["create", "--wait", "0"], cwd=place.root, env=place.variables)
    second.communicate(timeout=TIMEOUT_S)
    fcntl.flock(held_root, fcntl.LOCK_UN)
    out, _ = first.communicate(timeout=TIMEOUT_S)

    assert (second.returncode, first.returncode, len(out)) == (6, 0, 65)


def other_rights() -> list[list[str]]:
    return [
        ["unshare", "--mount"],
        ["unshare", "--net"],
        ["setpriv", "--no-new-privs"],
        ["setpriv", "--bounding-set=-sys_ptrace"],
        ["setpriv", "--groups=12345"],
        ["setpriv", "--reuid=12345", "--clear-groups"],
        ["setpriv", "--regid=12345", "--clear-groups"],
    ]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("by", other_rights(), ids=" ".join)
@pytest.mark.parametrize("program", [CLIENT, LIAR], ids=["client", "child"])
def test_a_client_with_other_rights_does_its_command_itself(place, server, by, program):
    if os.geteuid() != 0 or shutil.which(by[0]) is None:
        pytest.skip("the rights of a process cannot be changed here")
    if subprocess.run([*by, sys.executable, "-c", "import treesnap"], check=False).returncode:
        pytest.skip("what is installed here cannot be read with such rights")

    words = [*by, sys.executable, "-c", program, "status"]
    done = subprocess.run(words, cwd=place.root, env=place.variables, check=False)

    assert done.returncode == FELL_BACK
    assert server.is_running()
    assert place.by_server("status")[0] == 0


def test_a_client_that_asks_no_questions_is_served_with_the_same_rights(place):
    words = [sys.executable, "-c", LIAR, "status"]
    done = subprocess.run(words, cwd=place.root, env=place.variables, check=False)

    assert done.returncode == 0


@pytest.mark.parametrize("words", [["gc"], ["run", "--", "true"], ["-q"], ["--no", "create"], []])
def test_other_commands_are_left_to_the_client(place, words):
    assert place.by_server(*words)[0] == FELL_BACK


@pytest.mark.parametrize("variable", [MARKS_VARIABLE, "LD_PRELOAD", "LD_AUDIT"])
def test_commands_of_steps_and_those_with_libraries_of_others_take_no_part(place, variable):
    assert place.by_server("status", **{variable: "mark"})[0] == FELL_BACK


def test_a_store_that_the_client_alone_finds_there_is_left_to_it(place):
    assert place.by_server("status", SNAP_STORE="/proc/self/cwd/../store")[0] == FELL_BACK


@pytest.mark.parametrize("variable", ["PYTHONOPTIMIZE", PURE_VARIABLE])
def test_a_client_of_another_start_ends_the_server(place, tmp_path, variable):
    store = tmp_path / "store"
    variables = {**place.variables, "SNAP_STORE": str(store)}
    with serving(store, variables) as server:
        other = "" if variables.get(variable) else "1"
        code, _, _ = place.by_server("status", **{"SNAP_STORE": str(store), variable: other})
        server.wait()

    assert code == FELL_BACK
    assert not (store / "fork-server" / "socket").exists()


def test_a_server_without_commands_ends(place, tmp_path):
    with serving(tmp_path, place.variables, idle_s=0.0) as server:
        server.wait()

    assert not (tmp_path / "fork-server" / "socket").exists()


def test_a_server_whose_socket_was_replaced_ends_and_leaves_the_new_one(place, tmp_path):
    path = tmp_path / "fork-server" / "socket"
    with serving(tmp_path, place.variables) as server:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        path.unlink()
        path.touch()
        connection.close()
        server.wait()

    assert path.exists()


def test_a_server_runs_a_bounded_number_of_commands(place, tmp_path, held_root):
    with serving(tmp_path, place.variables, children_max=1) as server:
        place.be_served_at(tmp_path)
        process = started(place, "create", "-q")
        assert place.by_server("status")[0] == FELL_BACK
        fcntl.flock(held_root, fcntl.LOCK_UN)
        process.communicate(timeout=TIMEOUT_S)
        assert place.by_server("status")[0] == 0
        assert server.is_running()


def test_a_moved_store_keeps_its_server(place):
    place.store.rename(place.place / "moved")

    assert place.by_server("status", "--store", str(place.place / "moved"))[0] == 0
    assert place.by_server("status")[0] == FELL_BACK


def test_a_killed_server_leaves_its_commands_alone(place, tmp_path, held_root):
    with serving(tmp_path, place.variables) as server:
        place.be_served_at(tmp_path)
        process = started(place, "create", "-q")
        server.kill()
        assert place.by_server("status")[0] == FELL_BACK
        fcntl.flock(held_root, fcntl.LOCK_UN)
        out, _ = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, len(out)) == (0, 65)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_suspended_server_does_not_hold_up_the_end_of_a_command(
    place, tmp_path, held_root, monkeypatch, is_killed
):
    monkeypatch.setattr(serving_module, "CLIENT", f"{SOON}{CLIENT}")
    with serving(tmp_path, place.variables) as server:
        place.be_served_at(tmp_path)
        process = started(place, "create", "-q")
        (child,) = children_of(server.pid)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            if is_killed:
                os.kill(child, signal.SIGKILL)
            fcntl.flock(held_root, fcntl.LOCK_UN)
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            os.kill(server.pid, signal.SIGCONT)

    if is_killed:
        assert process.returncode == -signal.SIGKILL
        assert b"list" in err
    else:
        assert (process.returncode, len(out)) == (0, 65)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_command_that_is_killed_with_its_server_is_reported(place, tmp_path, held_root, form):
    with serving(tmp_path, place.variables) as server:
        place.be_served_at(tmp_path)
        process = started(place, "create", *form)
        (child,) = children_of(server.pid)
        server.kill()
        os.kill(child, signal.SIGKILL)
        out, err = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == -signal.SIGKILL
    message = json.loads(out)["message"] if form else err.decode()
    assert "was killed together with the fork server" in message


def ready(connection: socket.socket) -> None:
    process_fd = os.pidfd_open(os.getpid())
    send(connection, READY, [process_fd])
    os.close(process_fd)


def alone(connection: socket.socket) -> None:
    send(connection, READY)


def no_message(connection: socket.socket) -> None:
    send(connection, b"X")


def nothing_more_is_read(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RD)


def request_or_go(connection: socket.socket) -> None:
    connection.recv(1 << 20)


STEPS = {
    "accepted": (FELL_BACK, []),
    "greeted": (FELL_BACK, [HELLO]),
    "greeted wrongly": (FELL_BACK, [b"X"]),
    "read": (FELL_BACK, [HELLO, request_or_go]),
    "refused": (FELL_BACK, [HELLO, request_or_go, no_message]),
    "ready without a child": (FELL_BACK, [HELLO, request_or_go, alone]),
    "ready and gone": (FELL_BACK, [HELLO, request_or_go, nothing_more_is_read, ready]),
    "told to go": (-signal.SIGKILL, [HELLO, request_or_go, ready, request_or_go]),
}
"""What a server and its child have done when both end, and how the client ends then."""


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_done_twice_wherever_a_server_ends(place, tmp_path, step):
    code, actions = STEPS[step]
    directory = tmp_path / "fork-server"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "socket"))
        listening.listen()
        listening.settimeout(TIMEOUT_S)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for action in actions:
                    if isinstance(action, bytes):
                        connection.send(action)
                    else:
                        action(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        process = client(["create", "--store", str(tmp_path)], cwd=place.root, env=place.variables)
        process.communicate(timeout=TIMEOUT_S)
        thread.join()

    assert process.returncode == code


def test_a_socket_that_no_process_listens_to_changes_nothing(place, tmp_path):
    directory = tmp_path / "fork-server"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(directory / "socket"))

    assert place.by_server("status", "--store", str(tmp_path))[0] == FELL_BACK


@pytest.mark.parametrize("damage", ["file", "pipe", "nothing", "file for a socket"])
def test_what_is_in_the_place_of_a_server_changes_nothing(place, tmp_path, damage):
    directory = tmp_path / "fork-server"
    if damage == "file":
        directory.touch()
    elif damage == "pipe":
        os.mkfifo(directory)
    elif damage == "file for a socket":
        directory.mkdir()
        (directory / "socket").touch()

    assert place.by_server("status", "--store", str(tmp_path))[0] == FELL_BACK


def test_the_first_command_starts_a_server_and_the_setting_ends_it(place):
    """Whatever signals that command ignores: the server must learn how its children end."""

    def prepare() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    shutil.rmtree(place.store / "fork-server")
    words = [sys.executable, "-m", "treesnap"]
    options = {"cwd": place.root, "env": place.variables, "timeout": TIMEOUT_S}
    subprocess.run(
        [*words, "config", "fork-server", "true"], check=True, preexec_fn=prepare, **options
    )
    wait_until((place.store / "fork-server" / "socket").exists)

    assert place.by_server("status")[0] == 0

    subprocess.run([*words, "config", "fork-server", "false"], check=True, **options)
    with (place.store / "fork-server" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # which it held to its end
    assert not (place.store / "fork-server" / "socket").exists()


def test_no_server_is_started_where_none_could_listen(place):
    shutil.rmtree(place.store / "fork-server")
    (place.store / "fork-server" / "socket").mkdir(parents=True)
    words = [sys.executable, "-m", "treesnap", "config", "fork-server", "true"]

    subprocess.run(words, check=True, cwd=place.root, env=place.variables, timeout=TIMEOUT_S)

    with (place.store / "fork-server" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which a server has from its start


def test_nothing_is_left_to_import_when_the_server_forks(place):
    program = (
        "import sys, threading; from treesnap.cli import fork_server; fork_server.preload(); "
        "from treesnap.cli.main import execute; before = set(sys.modules); "
        "[execute(words.split()) for words in ('create', 'status', 'list', 'diff one', "
        "'restore one', 'undo', 'redo', 'status --json', 'create --json', "
        "'restore one --to ../t')]; "
        "print(threading.active_count(), set(sys.modules) - before, file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=place.root,
        env=place.variables,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr.splitlines()[-1] == "1 set()"


def test_commands_that_it_does_not_run_are_not_imported():
    program = (
        "import sys; from treesnap.cli import fork_server; fork_server.preload(); "
        "print(*fork_server.unserved_modules() & sys.modules.keys())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []
    assert {"treesnap.cli.commands.maintenance", "treesnap.cli.commands.watch"} <= (
        fork_server.unserved_modules()
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"HOME": "/home/x"},
        {"HOME": "/home/x", "XDG_DATA_HOME": "/data"},
        {"HOME": "/home/x", "XDG_DATA_HOME": "data"},
        {"HOME": "/home/x", "XDG_DATA_HOME": " "},
        {"HOME": "home"},
        {"HOME": "/home/x", "SNAP_STORE": "/store"},
        {},
    ],
)
def test_the_store_is_where_commands_look_for_it(monkeypatch, variables):
    for name in ("HOME", "XDG_DATA_HOME", "SNAP_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    try:
        expected = default_store_path()
    except OperationFailed:
        expected = None

    assert store_for_server(["snap", "status"]) in {expected, None}
    if {"HOME", "SNAP_STORE"} & variables.keys() and variables.get("HOME") != "home":
        assert store_for_server(["snap", "status"]) is not None or "data" in variables.values()


def test_a_request_names_the_version(monkeypatch):
    assert __version__.encode() in identity()
    assert identity() in encode_call(identity(), [], {})


def test_a_command_that_a_block_starts_belongs_to_it(place, server):
    handle = treesnap.open(place.root, place.store)
    handle.create(name="before")
    with handle.rollback_on_error():
        (place.root / "made").write_text("in the block")
        process = started(place, "restore", "before", "--wait", "0")
        process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0
    assert not (place.root / "made").exists()
