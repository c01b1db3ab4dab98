"""Other commands while a watcher runs, stands still, was killed, or sees something else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import (
    ORDINARY,
    PROGRAM,
    assert_exact,
    is_running,
    wait_until,
    watch_status,
)

pytestmark = [
    pytest.mark.needs("companions"),
    pytest.mark.usefixtures("filled"),
    pytest.mark.sampled(10),
]


def test_commands_beside_it_are_right(snap, root, tmp_path, detach):
    detach()
    first = snap("create").id
    (root / "b").write_text("changed")
    (root / "a" / "new").mkdir()
    (root / "a" / "new" / "file").write_text("new")
    shutil.rmtree(root / "a" / "deep")

    told = snap("status").out
    compared = snap("diff", "b").out
    second = snap("create").id
    assert_exact(snap, root, tmp_path, second)
    third = snap("create", "--skip-unchanged").id
    snap("restore", first)

    assert told.splitlines() == [
        "D  a/deep",
        "D  a/deep/file",
        "A  a/new",
        "A  a/new/file",
        "M  b",
    ]
    assert ("-two" in compared, "+changed" in compared) == (True, True)
    assert third == second
    assert_exact(snap, root, tmp_path, first)
    assert snap("diff", first).out == ""


def test_one_that_was_killed_is_in_no_ones_way(snap, root, tmp_path, detach, watch_path):
    process_id = detach()
    snap("create")
    os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: not is_running(process_id))
    assert watch_path("socket").exists()
    (root / "b").write_text("changed")

    assert watch_status(snap)["running"] is False
    assert snap("watch", "--stop").code == 0
    assert snap("status").out == "M  b\n"
    assert snap("create").code == 0
    assert_exact(snap, root, tmp_path, "latest")
    assert detach() != process_id
    assert len(list(watch_path("lock").parent.glob("cookie-*"))) == 1
    (root / "b").write_text("changed again")
    assert snap("status").out == "M  b\n"


def states_of_threads(process_id: int) -> set[str]:
    """Returns what state each thread of a process is in, as ``proc_pid_stat(5)`` names it."""
    stats = Path(f"/proc/{process_id}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


def test_one_that_is_suspended_is_in_no_ones_way(snap, root, tmp_path, detach):
    process_id = detach()
    snap("create")
    os.kill(process_id, signal.SIGSTOP)
    wait_until(lambda: states_of_threads(process_id) == {"T"})  # until then it may still answer
    (root / "b").write_text("changed")

    asked = snap("--wait", "0", "watch", "--stop")
    told = snap("status")
    made = snap("create")
    assert_exact(snap, root, tmp_path, made.id)
    os.kill(process_id, signal.SIGCONT)

    assert (asked.code, "does not answer" in asked.err) == (6, True)
    assert (told.code, told.out) == (0, "M  b\n")
    wait_until(lambda: not watch_status(snap)["running"])  # the question is still there


def test_who_sees_something_else_at_the_roots_place_is_not_told_of_it(
    snap, root, store, tmp_path, detach
):
    """In another mount namespace the root may be another directory, or hold another one."""
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    bound = [*private, 'mount --bind "$0" "$1" && shift && exec "$@"']
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("other")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*bound, other, root, "true"], check=False).returncode
    ):
        pytest.skip("no mounts of one's own here")
    detach()
    snap("create")

    elsewhere = snap("create", prefix=[*bound, str(other), str(root)])
    inside = snap("create", prefix=[*bound, str(other), str(root / "a")])
    (root / "b").write_text("changed")
    snap("create")

    assert snap("ls", "-R", elsewhere.id).out == "file\n"
    assert [item["reason"] for item in snap("--json", "show", inside.id).json["skipped"]] == [
        "mount"
    ]
    assert_exact(snap, root, tmp_path, "latest")


VIEW = """
import sys, treesnap
from treesnap.core.ops.known_changes import view_of
print(view_of(treesnap.open(sys.argv[1], sys.argv[2]).context).hex())
"""


def test_who_is_in_another_user_namespace_has_another_view(root, store, environment):
    """There it may have the same user and all capabilities, and may do less with them."""
    equal = ["setpriv", "--bounding-set=-all"]  # or else there it has more of them
    own = ["unshare", "--user", "--map-root-user", *equal]
    if shutil.which("unshare") is None or any(
        subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
        for prefix in (equal, own)
    ):
        pytest.skip("no user namespaces of one's own here")
    words = [sys.executable, "-c", VIEW, str(root), str(store)]

    here, again, elsewhere = (
        subprocess.run([*prefix, *words], env=environment, capture_output=True, check=True).stdout
        for prefix in (equal, equal, own)
    )

    assert here == again
    assert here != elsewhere


def test_who_may_read_more_is_not_told_what_it_may_not_see(snap, root, tmp_path, environment):
    """A watcher that is kept out of a directory hears of nothing in it."""
    if os.geteuid() != 0:
        pytest.skip("only root may read more")
    (root / "a" / "deep").chmod(0)
    words = [*ORDINARY, *PROGRAM, "-C", str(root), "watch"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        snap("create")
        (root / "a" / "deep" / "file").write_text("changed")
        told = snap("status").out
        made = snap("create").id
        process.terminate()

    assert told == "M  a/deep/file\n"
    assert_exact(snap, root, tmp_path, made)
