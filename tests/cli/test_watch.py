"""``snap watch`` as people use it: real processes, real signals, a real kernel."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import (
    DEADLINE_S,
    PROGRAM,
    assert_exact,
    is_running,
    wait_until,
    watch_status,
)
from treesnap.core.codec.watch import Asked, Question, encode_question
from treesnap.core.ops.known_changes import ask

pytestmark = [
    pytest.mark.needs("companions"),
    pytest.mark.usefixtures("filled"),
    pytest.mark.sampled(10),
]


@pytest.fixture
def foreground(root: Path, environment) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts watchers in the foreground, and returns them when they watch."""
    started = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*PROGRAM, "-C", str(root), *words, "watch"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_runs_in_the_background_until_it_is_stopped(snap, root, detach, watch_path):
    process_id = detach()

    shown = snap("watch", "--status")
    known = watch_status(snap)
    stopped = snap("--json", "watch", "--stop")

    assert shown.out == f"Watching {root}: 3 directories, process {process_id}\n"
    assert known == {
        "schema": "treesnap.watch/1",
        "running": True,
        "stopped": False,
        "root": str(root),
        "process_id": process_id,
        "started_at_ns": known["started_at_ns"],
        "directories": 3,
        "every_s": None,
        "on_change": False,
        "snapshots": 0,
        "last_snapshot": None,
        "last_error": None,
        "why_lost": None,
        "then": None,
    }
    assert abs(time.time_ns() - known["started_at_ns"]) < DEADLINE_S * 1e9
    assert stopped.json == {**known, "running": False, "stopped": True}
    wait_until(lambda: not is_running(process_id))
    assert [path.name for path in watch_path("lock").parent.iterdir()] == ["lock"]
    assert watch_status(snap)["running"] is False


def test_is_no_other_users_business(snap, detach, watch_path):
    detach()

    assert stat.S_IMODE(os.stat(watch_path("socket")).st_mode) == 0o600
    assert stat.S_ISSOCK(os.stat(watch_path("socket")).st_mode)
    assert stat.S_IMODE(os.stat(watch_path("socket").parent).st_mode) == 0o700


def test_belongs_to_no_terminal_and_keeps_nothing_of_its_caller(snap, detach):
    process_id = detach()

    assert os.getsid(process_id) == process_id
    assert os.readlink(f"/proc/{process_id}/cwd") == "/"
    streams = {os.readlink(f"/proc/{process_id}/fd/{number}") for number in range(3)}
    assert streams == {"/dev/null"}


@pytest.mark.parametrize("asking", ["--status", "--stop"])
def test_without_a_watcher_nothing_is_wrong(unsaid_snap, root, default_store, asking):
    empty = {"running": False, "stopped": False, "process_id": None, "directories": None}

    before = unsaid_snap("--json", "watch", asking)
    assert not default_store.exists()
    unsaid_snap("create")
    after = unsaid_snap("watch", asking)

    assert before.code == 0
    assert empty.items() <= before.json.items()
    assert (after.code, after.out) == (0, f"Not watched: {root}\n")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", [(), ("--detach",)])
def test_a_root_has_one_watcher(snap, root, detach, words):
    process_id = detach()

    second = snap("watch", *words, process=True)

    assert (second.code, second.raw) == (6, b"")
    if not words:
        assert f"The watch of '{root}' is in use by process {process_id}: watch" in second.err
    assert watch_status(snap)["process_id"] == process_id


@pytest.mark.parametrize(
    "words",
    [
        ("--detach", "--status"),
        ("--status", "--stop"),
        ("--status", "--on-change"),
        ("--stop", "--every", "5"),
        ("--every", "0"),
        ("--every", "soon"),
        ("--every", "nan"),
        ("--every", "inf"),
        ("--every", "1e300"),
        ("--detach", "--every", "1e10"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(snap, store, words):
    outcome = snap("watch", *words)

    assert (outcome.code, outcome.raw) == (2, b"")
    assert not store.exists()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seconds", ["1e10", "1e300", "inf"])
def test_any_wait_is_long_enough_to_ask_and_to_stop(snap, detach, seconds):
    process_id = detach()

    asked = snap("--wait", seconds, "--json", "watch", "--status")
    stopped = snap("--wait", seconds, "--json", "watch", "--stop")

    assert (asked.code, asked.json["process_id"]) == (0, process_id)
    assert (stopped.code, stopped.json["stopped"]) == (0, True)


@pytest.mark.sampled(5)
def test_a_suspended_one_does_not_use_up_the_wait_of_a_status(root, detach, environment):
    process_id = detach()
    os.kill(process_id, signal.SIGSTOP)
    words = ["-C", str(root), "--json", "--wait", "100000", "watch", "--status"]
    try:
        ended = subprocess.run(
            [*PROGRAM, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.kill(process_id, signal.SIGCONT)

    assert ended.returncode == 6
    assert "may be suspended" in json.loads(ended.stdout)["message"]


@pytest.mark.parametrize("words", [(), ("--detach",)])
@pytest.mark.parametrize(
    ("place", "code", "error"),
    [
        ("/proc/sys", 3, "not-watchable"),
        ("nowhere", 5, "root-not-found"),
        ("/usr", 3, "dangerous-root"),
    ],
)
def test_a_root_that_cannot_be_watched_is_refused_and_leaves_nothing(
    snap, store, words, place, code, error
):
    outcome = snap("--json", "-C", place, "watch", *words)

    assert (outcome.code, outcome.json["code"]) == (code, error)
    assert not store.exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ("max_inotify_watches", "fs.inotify.max_user_watches"),
        ("max_inotify_instances", "fs.inotify.max_user_instances"),
    ],
)
def test_a_limit_that_is_reached_is_named(snap, tmp_path, root, limit, named):
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    limited += [f'echo "$0" > /proc/sys/user/{limit} && exec "$@"']
    if (
        shutil.which("unshare") is None
        or subprocess.run([*limited, "1000", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("no limits of one's own here")

    outcome = snap("watch", prefix=[*limited, "0"])

    assert outcome.code == 3
    assert named in outcome.err
    assert snap("create", prefix=[*limited, "0"]).code == 0
    assert_exact(snap, root, tmp_path, "latest")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(foreground, root, store, watch_path, number):
    process = foreground()
    first = process.stdout.readline()

    process.send_signal(number)
    rest, said = process.communicate(timeout=DEADLINE_S)

    assert first == f"Watching {root}: 3 directories, process {process.pid}\n"
    assert (process.returncode, rest, said) == (0, "", f"Made the store {store}\n")
    assert [path.name for path in watch_path("lock").parent.iterdir()] == ["lock"]


def test_hears_again_after_it_had_too_many_files_open(snap, detach, watch_path):
    process_id = detach()
    limits = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
    question = encode_question(Question(Asked.STATUS))
    directory = str(watch_path("lock").parent)

    resource.prlimit(process_id, resource.RLIMIT_NOFILE, (3, limits[1]))
    with suppress(TimeoutError):  # the kernel may have a number for this one already
        ask(directory, question, patience_s=1)
    with pytest.raises(TimeoutError):
        ask(directory, question, patience_s=0.1)
    resource.prlimit(process_id, resource.RLIMIT_NOFILE, limits)

    assert watch_status(snap)["process_id"] == process_id


def test_a_signal_that_is_ignored_does_not_end_it(snap, root, environment):
    """As ``nohup`` and shells without job control do it."""
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *PROGRAM, "-C", str(root), "watch"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        still = watch_status(snap)

        assert snap("watch", "--stop").code == 0

    assert (still["running"], process.returncode) == (True, 0)


def test_prints_one_object_in_json_and_says_what_it_captures_in_text(foreground, snap):
    process = foreground("--json")
    told = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=DEADLINE_S)

    assert (told["running"], told["process_id"]) == (True, process.pid)
    assert (rest, said) == ("", "")


def test_makes_snapshots_by_itself(snap, root, tmp_path, detach):
    """The first at once, then what changed; and stops at the end of the one it makes."""
    detach("--every", "0.1")
    wait_until(lambda: watch_status(snap)["snapshots"] == 1)
    (root / "b").write_text("changed")
    wait_until(lambda: watch_status(snap)["snapshots"] == 2)
    known = watch_status(snap)
    shown = snap("watch", "--status").out.splitlines()
    snap("watch", "--stop")

    listed = snap("--json", "list").json["snapshots"]
    assert [item["kind"] for item in listed] == ["watch", "watch"]
    assert (known["every_s"], known["last_snapshot"]) == (0.1, listed[0]["id"])
    assert shown[1:] == [
        "  a snapshot every 0.1 s, if something changed",
        f"  2 snapshots made, the last one is {listed[0]['id'][:12]}",
    ]
    assert_exact(snap, root, tmp_path, "latest")


def test_says_why_a_snapshot_failed_and_goes_on(snap, root, detach):
    (root / "b").write_text("x" * 200_000)
    snap("create")
    snap("config", "max-size", "1000")
    (root / "b").write_bytes(os.urandom(200_000))
    detach("--every", "0.1")

    wait_until(lambda: watch_status(snap)["last_error"])
    failed = watch_status(snap)
    shown = snap("watch", "--status").out
    snap("config", "--unset", "max-size")
    wait_until(lambda: watch_status(snap)["snapshots"] == 1)

    assert failed["last_error"].startswith("The store may take 1000 and takes ")
    assert f"the last snapshot failed: {failed['last_error']}" in shown
    assert watch_status(snap)["last_error"] is None


def test_one_that_would_end_by_itself_ends_with_its_root(snap, root, detach):
    process_id = detach("--idle", "3600")

    shutil.rmtree(root)

    wait_until(lambda: not is_running(process_id))


def test_a_root_with_any_name_is_watched(run_snap, tmp_path, store):
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff oot"))
    root.mkdir()

    started = run_snap("--json", "watch", "--detach", cwd=root, process=True)
    try:
        assert (started.code, started.json["running"]) == (0, True)
        assert run_snap("watch", "--status", cwd=root).out.startswith("Watching ")
    finally:
        stopped = run_snap("watch", "--stop", cwd=root)
    assert (stopped.code, stopped.out.startswith("Stopped watching ")) == (0, True)


def test_gc_removes_the_socket_of_a_killed_watcher_and_no_other(snap, detach, root, store):
    process_id = detach()

    assert snap("gc").code == 0
    assert len(list(store.glob("roots/hook-*"))) == 1
    os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: not is_running(process_id))
    shutil.rmtree(root)
    assert snap("gc", "--dry-run", cwd=store.parent).code == 0
    assert len(list(store.glob("roots/hook-*"))) == 1

    def is_removed():  # the last of its threads may take a moment to let go of the socket
        assert snap("gc", cwd=store.parent).code == 0
        return list(store.glob("roots/hook-*")) == []

    wait_until(is_removed)


def test_a_forgotten_root_leaves_nothing_of_a_killed_watcher(snap, detach, root, store):
    process_id = detach()
    (socket_path,) = store.glob("roots/hook-*")

    def forget() -> int:
        return snap("root", "forget", str(root), "--force", cwd=store.parent).code

    assert forget() == 6
    assert socket_path.exists()

    os.kill(process_id, signal.SIGKILL)  # whose files are closed one after the other
    wait_until(lambda: is_refused(socket_path))
    wait_until(lambda: forget() == 0)

    left = [path.name for path in store.glob("roots/**/*") if not path.is_dir()]
    assert set(left) <= {"lock", "watch-lock"}
    assert list(store.glob("roots/hook-*")) == []


def is_refused(path: Path) -> bool:
    """Returns whether no process listens to a socket, whose path may be too long for an address."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(f"/proc/self/fd/{directory}/{path.name}") != 0
    finally:
        os.close(directory)


PUSH = shlex.join([*PROGRAM, "push", "disk", "--all"])


def test_pushes_what_it_captures(snap, root, detach, tmp_path):
    disk = tmp_path / "disk"
    snap("remote", "add", "disk", disk)
    detach("--on-change", "--then", PUSH)
    (root / "new").write_text("pushed by itself")

    def is_pushed() -> bool:
        listed = snap("remote", "snapshots", "disk", "--json").json
        newest = watch_status(snap)["last_snapshot"]
        ids = [item["id"] for item in listed["snapshots"]] if "snapshots" in listed else []
        return newest in ids and snap("cat", newest, "new").out == "pushed by itself"

    wait_until(is_pushed)
    wait_until(lambda: watch_status(snap)["then"]["succeeded_at_ns"] is not None)
    assert " after each snapshot: last success at 20" in snap("watch", "--status").out


def test_pushes_what_an_earlier_watcher_did_not(snap, detach, tmp_path):
    snap("remote", "add", "disk", tmp_path / "disk")
    made = snap("create").id
    detach("--on-change", "--then", PUSH)

    wait_until(lambda: watch_status(snap)["then"]["succeeded_at_ns"] is not None)

    assert watch_status(snap)["snapshots"] == 0
    (listed,) = snap("remote", "snapshots", "disk", "--json").json["snapshots"]
    assert listed["id"] == made


def test_the_status_says_whether_its_command_succeeds(snap, detach, tmp_path):
    disk = tmp_path / "disk"
    snap("remote", "add", "disk", disk)
    disk.rename(tmp_path / "elsewhere")
    detach("--on-change", "--then", PUSH)

    wait_until(lambda: watch_status(snap)["then"]["failure"] is not None)

    then = watch_status(snap)["then"]
    assert (then["command"], then["succeeded_at_ns"], then["failures"]) == (PUSH, None, 1)
    assert then["failure"]["exit_code"] == 1
    assert str(disk) in then["failure"]["message"]
    assert "failed with exit code 1" in snap("watch", "--status").out


ENDS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open(sys.argv[1], "w").close()
signal.sigwait([signal.SIGTERM])
open(sys.argv[2], "w").close()
"""


def test_stopping_a_watcher_ends_its_command(snap, detach, tmp_path):
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    os.mkfifo(ready)
    command = [sys.executable, "-c", ENDS, str(ready), str(ended)]
    detach("--on-change", "--then", shlex.join(command))
    ready.read_bytes()

    assert snap("watch", "--stop").code == 0

    assert ended.exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--then", "true"], "--then needs --every or --on-change"),
        (["--on-change", "--then", " "], "--then is empty"),
        (["--status", "--then", "true"], "--status and --stop take no other option"),
    ],
)
def test_a_command_is_run_only_after_snapshots(snap, words, problem):
    refused = snap("watch", *words)

    assert (refused.code, problem in refused.err) == (2, True)
