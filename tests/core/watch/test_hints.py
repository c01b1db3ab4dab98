"""Where there is no inotify: hints of changes, each followed by a look at everything."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import no_inotify
import treesnap
from oracle import difference, record
from treesnap import SnapshotKind
from treesnap.core.fs.notifier import change_hints, has_inotify

pytestmark = pytest.mark.sampled(10)

DEADLINE_S = 30.0


@pytest.fixture
def hinted_words(world) -> list[str]:
    """The program, where the kernel has no inotify."""
    if not no_inotify.is_possible():
        pytest.skip("the numbers of this machine's system calls are not known")
    words = ["-C", str(world.root), "--store", str(world.store)]
    return [sys.executable, no_inotify.__file__, *words]


@pytest.fixture
def hinted(hinted_words) -> Iterator[subprocess.Popen[str]]:
    """Makes snapshots on changes, where the kernel has no inotify."""
    process = subprocess.Popen(
        [*hinted_words, "watch", "--on-change"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.needs("linux")
def test_there_is_inotify_here():
    assert has_inotify()


def test_changes_are_hinted_at_and_looks_are_not(world):
    """Nor is the store, which each snapshot changes, although it is below the root."""
    hints: queue.SimpleQueue[str] = queue.SimpleQueue()
    store = world.root / "d0" / "store"
    treesnap.open(world.root, store).create()
    with change_hints(str(world.root), str(store), hints.put):
        for directory, _, names in os.walk(world.root):
            for name in names:
                Path(directory, name).read_bytes()
        (world.root / "d1" / "last").write_text("this is a change")
        treesnap.open(world.root, store).create()
        (world.root / "d1" / "last").rename(world.root / "d2" / "last")
        found = set()
        while str(world.root / "d2" / "last") not in found:
            found.add(hints.get(timeout=DEADLINE_S))

    assert {os.path.relpath(path, world.root) for path in found} <= {
        "d1",
        "d1/last",
        "d2",
        "d2/last",
    }


@pytest.mark.needs("companions")
def test_a_change_leads_to_a_snapshot_of_everything(world, hinted):
    assert hinted.stdout.readline().startswith(f"Watching {world.root}: 0 directories")
    assert hinted.stderr.readline() == f"Made the store {world.store}\n"
    assert "Captured 6 files" in hinted.stderr.readline()

    (world.root / "d0" / "other").write_text("edited")
    assert "Captured 6 files" in hinted.stderr.readline()
    hinted.send_signal(signal.SIGINT)
    hinted.communicate(timeout=DEADLINE_S)

    assert hinted.returncode == 0
    newest = treesnap.open(world.root, world.store).resolve("latest")
    treesnap.open(world.root, world.store).restore(newest.id, to=world.directory / "there")
    assert newest.record.kind is SnapshotKind.WATCH
    assert difference(record(world.root), record(world.directory / "there")) == []


@pytest.mark.needs("companions")
def test_without_a_wish_for_snapshots_on_changes_it_is_refused(world, hinted_words):
    done = subprocess.run(
        [*hinted_words, "watch", "--every", "5"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 3
    assert "the system has no inotify" in done.stderr
