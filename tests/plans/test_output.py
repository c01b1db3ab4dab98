"""What steps write: passed on whole, kept within bounds, counted, and let go."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from plan_bench import NONE, Bench, end, is_alive, noted
from sampling import sized
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.processes import process_names
from treesnap.plans import PlanState, Step
from treesnap.plans.process import HEAD_BYTES, TAIL_BYTES, Log, StepWork, attempt
from treesnap.plans.runner import OUTPUT_BYTES_MAX

pytestmark = pytest.mark.sampled(10)

FS = LocalFileSystem()
MUCH_BYTES = sized(4, 20) << 20
ON_DISK_BYTES_MAX = HEAD_BYTES + 2 * TAIL_BYTES + 100
NUMBERS = f"seq -w 0 9999999 | head -c {MUCH_BYTES}"


def numbers(size_bytes: int) -> bytes:
    """The beginning of what :data:`NUMBERS` writes."""
    return b"".join(b"%07d\n" % number for number in range(-(-size_bytes // 8)))[:size_bytes]


def kept(bench: Bench) -> dict[str, int]:
    """The sizes of all outputs in the store, by name."""
    return {path.name: path.stat().st_size for path in bench.store.glob("roots/*/*.log")}


def test_much_output_keeps_its_beginning_and_its_end_and_says_how_much_is_left_out(bench):
    bench.run(Step(name="much", run=NUMBERS), milestones=NONE)

    said = b"".join(bench.planner().output("latest", 0))

    everything = numbers(MUCH_BYTES)
    left_out = MUCH_BYTES - HEAD_BYTES - TAIL_BYTES
    assert bench.seen.written == everything
    assert said == (
        everything[:HEAD_BYTES]
        + b"\n[... %d bytes left out ...]\n" % left_out
        + everything[-TAIL_BYTES:]
    )


def test_output_that_fits_is_kept_whole(bench):
    size_bytes = HEAD_BYTES + TAIL_BYTES
    bench.run(Step(name="some", run=f"{NUMBERS} | head -c {size_bytes}"), milestones=NONE)

    assert b"".join(bench.planner().output("latest", 0)) == numbers(size_bytes)


def test_the_file_stays_small_while_the_step_runs(tmp_path):
    log = tmp_path / "log"
    sizes = []
    work = StepWork(["/bin/sh", "-c", NUMBERS], str(tmp_path), str(log), "plan/0/1/abcd", None)

    attempt(FS, work, lambda data: sizes.append(log.stat().st_blocks * 512), wait_s=10)

    assert max(sizes) <= ON_DISK_BYTES_MAX + 4096
    assert log.stat().st_size <= HEAD_BYTES + TAIL_BYTES + 100


def test_pieces_of_any_size_give_the_same_file(tmp_path):
    everything = numbers(2_000_003)
    found = []
    for size in (1000, 65_536, 700_001, len(everything)):
        path = tmp_path / str(size)
        log = Log(FS, str(path))
        for start in range(0, len(everything), size):
            log.add(everything[start : start + size])
        log.close()
        found.append(path.read_bytes())

    assert len(set(found)) == 1


def test_what_cannot_be_written_down_fails_no_step(bench, tmp_path):
    """As on a full disk: the file is there and takes nothing."""

    class Full(LocalFileSystem):
        def write_at(self, fd: int, data: bytes | memoryview, offset: int, /) -> int:
            raise OSError(28, "no room")

    heard = []
    work = StepWork(["/bin/sh", "-c", "echo said"], str(tmp_path), str(tmp_path / "log"), "m", None)

    assert attempt(Full(), work, heard.append, wait_s=10).is_success
    assert heard == [b"said\n"]


def test_what_a_success_leaves_writing_goes_on_and_nothing_of_it_is_kept(bench):
    script = "sh -c 'echo $$ > ../number; exec yes' & until test -s ../number; do :; done"
    bench.run(Step(name="server", run=script), milestones=NONE)
    process_id = int((bench.directory / "number").read_text())

    sizes = [kept(bench)]
    before = written_bytes(process_id)
    while written_bytes(process_id) < before + (1 << 20):
        assert is_alive(process_id)
    sizes.append(kept(bench))

    end(process_id)
    assert sizes[0] == sizes[1]
    assert sum(sizes[1].values()) <= ON_DISK_BYTES_MAX


def written_bytes(process_id: int) -> int:
    """How many bytes a process has written so far."""
    lines = Path(f"/proc/{process_id}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


@pytest.mark.needs("processes")
def test_something_reads_only_for_a_step_that_leaves_something(bench, monkeypatch):
    monkeypatch.setenv("STARTED_BY", str(bench.directory))

    bench.run(Step(name="plain", run="echo said"), milestones=NONE)
    assert readers_of(bench) == []

    bench.run(Step(name="server", run="sleep 600 & echo $! > ../number"), milestones=NONE)
    process_id = int((bench.directory / "number").read_text())
    while not readers_of(bench):  # the shell that becomes it may not be so far
        assert is_alive(process_id)
    assert len(readers_of(bench)) == 1
    end(process_id)


def readers_of(bench: Bench) -> list[str]:
    """The processes that read into nothing what steps write; other tests have their own."""
    mark = b"STARTED_BY=" + os.fsencode(bench.directory)
    found = []
    for name in process_names():
        with suppress(OSError):
            is_reader = Path(f"/proc/{name}/comm").read_text() == "cat\n"
            if is_reader and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(name)
    return found


def outputs_of(bench: Bench, count: int, size_bytes: int) -> None:
    """Lets a plan of earlier have some outputs."""
    plan = bench.planner().show("latest")
    (path,) = bench.store.glob("roots/*/")
    for number in range(count):
        (path / f"plan-{plan.id}-0-{number + 2}.log").write_bytes(b"x" * size_bytes)


def test_the_output_of_all_plans_is_bounded_and_the_oldest_goes_first(bench):
    bench.run(Step(name="old", run="echo old"), milestones=NONE)
    outputs_of(bench, 10, OUTPUT_BYTES_MAX // 8)

    bench.run(Step(name="new", run="echo new"), milestones=NONE)

    found = kept(bench)
    newest = bench.planner().show("latest")
    assert sum(found.values()) <= OUTPUT_BYTES_MAX
    assert b"".join(bench.planner().output("latest", 0)) == b"new\n"
    old = sorted(int(name.split("-")[3].split(".")[0]) for name in found if newest.id not in name)
    assert old == list(range(12 - len(old), 12))


def test_many_attempts_are_bounded_too(bench, monkeypatch):
    monkeypatch.setattr("treesnap.plans.runner.OUTPUT_BYTES_MAX", 1 << 20)

    bench.run(
        Step(name="again", run=f"{NUMBERS} | head -c 600000; exit 1", retries=6), milestones=NONE
    )

    assert sum(kept(bench).values()) <= 1 << 20
    assert b"".join(bench.planner().output("latest", 0)).endswith(numbers(600_000)[-100:])


def test_goes_with_the_plan(bench):
    bench.run(noted("one", "echo said"))
    assert kept(bench)

    bench.planner().delete("latest")

    assert kept(bench) == {}


def test_counts_in_stats(bench):
    bench.run(noted("one", "echo said"))

    assert bench.handle().stats().output_bytes == len(b"said\n")


class TestTheLimitOfTheStore:
    def test_counts_it_and_lets_it_go_first(self, bench):
        bench.run(Step(name="old", run="echo old"), milestones=NONE)
        outputs_of(bench, 4, 1 << 20)
        before = [item.id for item in bench.handle().list()]
        bench.handle().config("max-size", "2MiB")
        (bench.root / "file").write_bytes(os.urandom(1000))

        made = bench.handle().create()

        assert sum(kept(bench).values()) <= 2 << 20
        assert [item.id for item in bench.handle().list()] == [made.id, *before]

    def test_leaves_what_a_running_step_writes(self, bench, snap_script):
        script = f"echo said; head -c 3000 /dev/urandom > new; {snap_script} create -q"
        bench.run(Step(name="old", run="echo old"), milestones=NONE)
        outputs_of(bench, 4, 1 << 20)
        bench.handle().config("max-size", "2MiB")

        plan = bench.run(Step(name="snapshot", run=script), milestones=NONE)

        assert plan.state == PlanState.COMPLETED
        assert b"".join(bench.planner().output("latest", 0)).startswith(b"said\n")
