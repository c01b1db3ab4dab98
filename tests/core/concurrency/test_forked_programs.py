"""Programs that fork: only the process that began something ends it or goes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treesnap
from plan_bench import Bench
from treesnap.plans import PlanState, Step

pytestmark = pytest.mark.sampled(10)

LEAVING_A_BLOCK = """
import os, sys, treesnap
root, store, ending = sys.argv[1:]
handle = treesnap.open(root, store)
with handle.rollback_on_error("step") as made:
    open(os.path.join(root, "work"), "w").write("of the parent")
    child = os.fork()
    if child == 0:
        if ending == "exit":
            sys.exit(3)
        if ending == "raise":
            raise ZeroDivisionError
    else:
        assert os.waitpid(child, 0)[0] == child
        try:  # what the child did has not let the checkpoint go
            handle.delete(made.id)
        except treesnap.Busy:
            print("held")
if child != 0:
    print("left")
"""


def run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("ending", ["exit", "raise", "return"])
def test_child_that_leaves_a_block_does_not_take_the_parents_work_back(tmp_path, ending):
    root = tmp_path / "root"
    root.mkdir()

    result = run_script(LEAVING_A_BLOCK, root, tmp_path / "store", ending)

    assert result.stdout == "held\nleft\n"
    assert (root / "work").read_text() == "of the parent"


def fork_and_leave(ending: str) -> None:
    Path("effect").write_text("done")
    child = os.fork()
    if child == 0:
        if ending == "exit":
            sys.exit(0)
        if ending == "raise":
            raise ZeroDivisionError
        return
    os.waitpid(child, 0)


@pytest.mark.parametrize("ending", ["exit", "raise", "return"])
@pytest.mark.needs("exit codes")
def test_child_that_leaves_a_called_step_does_not_go_on_with_the_plan(
    tmp_path, monkeypatch, ending
):
    bench = Bench(tmp_path)
    monkeypatch.chdir(bench.root)
    planner = bench.planner(calls={"fork": lambda: fork_and_leave(ending)})

    plan = planner.run(
        "plan", [Step(name="one", call="fork"), Step(name="two", run="echo x >> two")]
    )

    assert plan.state == PlanState.COMPLETED
    assert (bench.root / "effect").read_text() == "done"
    assert (bench.root / "two").read_text() == "x\n"
    assert planner.show("latest").state == PlanState.COMPLETED


FORKED_BY_ANOTHER_THREAD = """
import os, signal, sys, threading, treesnap
from treesnap.testing.doubles import WrappedFileSystem
from treesnap.core.ops.context import context_at
root, store, operation = sys.argv[1:]

begin, forked = threading.Event(), threading.Event()

def fork():
    begin.wait()
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        os.close(1)
        signal.pause()  # knows nothing of treesnap
    forked.set()

threading.Thread(target=fork, daemon=True).start()


class Forking(WrappedFileSystem):
    locks = 0

    def around(self, call):
        result = call.proceed()
        if call.method == "lock" and result:
            Forking.locks += 1
        if call.method in ("sync", "sync_data", "rename", "unlink") and Forking.locks > 0:
            if not begin.is_set():
                begin.set()
                forked.wait()
                sys.stdin.readline()  # until the child is where it stays
                os.kill(os.getpid(), signal.SIGKILL)
        return result

from treesnap.core.fs.local import LocalFileSystem
handle = treesnap.Handle(context_at(root=root, store_path=store, fs=Forking(LocalFileSystem())))
first = handle.resolve("latest")
open(root + "/file", "w").write("changed")
if operation == "create":
    handle.create()
elif operation == "restore":
    handle.restore(first.id)
elif operation == "gc":
    handle.gc()
elif operation == "block":
    with handle.rollback_on_error():
        pass
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", ["create", "restore", "gc", "block"])
def test_child_of_another_thread_keeps_no_lock_of_a_parent_that_was_killed(tmp_path, operation):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("before")
    handle = treesnap.open(root, tmp_path / "store", wait_s=0)
    handle.create()
    (root / "more").write_bytes(os.urandom(1000))
    handle.delete(handle.create().id)

    child = run_until_killed(operation, root, tmp_path / "store")
    try:
        os.kill(child, 0)  # it lives
        handle.create()
        handle.gc()
        with handle.rollback_on_error(overlap="refuse"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def run_until_killed(operation: str, *places: Path) -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKED_BY_ANOTHER_THREAD, *map(str, places), operation],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, process.stdin:
        line = process.stdout.readline()
        process.stdin.write("\n")
    assert process.wait() == -signal.SIGKILL, line
    return int(line)
