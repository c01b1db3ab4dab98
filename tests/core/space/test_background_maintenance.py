"""What the command leaves to a process of its own, and that the library does not."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from background import background_lock, wait_for_background
from calling import Place
from treesnap import SnapshotKind
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.space import EVERY, failure_in_background
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)

KEPT = 3
DUE_BYTES = 65 << 20
"""A store that has grown by so much is collected."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "root", tmp_path / "store")
    place.make("file")
    return place


@pytest.fixture
def handle(place: Place) -> Handle:
    """A handle that has taken automatic snapshots, so that the next one makes maintenance due."""
    handle = Handle(context_at(place.root, str(place.store), fs=UnsyncedFileSystem()))
    handle.config("keep.last", str(KEPT))
    for key in ("keep.hourly", "keep.daily", "keep.weekly"):
        handle.config(key, "0")
    for _ in range(EVERY - 1):
        handle.create(kind=SnapshotKind.RUN)
    return handle


@pytest.fixture
def count(handle: Handle) -> Callable[[], int]:
    return lambda: len(handle.list())


class TestCommand:
    def test_leaves_it_to_a_process_that_outlives_it(self, place, count):
        place.done("create", "--automatic")

        wait_for_background(place.store)

        assert count() == KEPT
        assert (place.store / "collector/background").read_bytes() == b""

    def test_does_nothing_itself_and_starts_no_second_one(self, place, count):
        with background_lock(place.store):
            place.done("create", "--automatic")
            assert count() == EVERY

        assert count() == EVERY

    def test_does_it_itself_where_the_settings_say_so(self, place, count):
        place.done("config", "background", "false")

        place.done("create", "--automatic")

        assert count() == KEPT
        assert not (place.store / "collector/background").exists()

    def test_tells_that_the_last_one_was_killed(self, place, handle):
        (place.store / "collector/background").write_text("it was interrupted")
        (work,) = handle.doctor().unfinished
        assert (work.work, work.blocked) == ("maintenance", False)
        assert "it was interrupted" in work.resolution

        ended = place.snap("create", "--automatic")
        wait_for_background(place.store)

        assert "in the background failed: it was interrupted" in ended.err
        assert handle.doctor().unfinished == ()

    def test_is_told_by_doctor_what_failed(self, place, handle, count):
        oldest = min(place.store.glob("snapshots/*/*"))
        oldest.write_bytes(oldest.read_bytes()[:-1])
        with (place.store / "packs" / ("0" * 32)).open("wb") as large:
            os.truncate(large.fileno(), DUE_BYTES)

        place.done("create", "--automatic")
        wait_for_background(place.store)

        (work,) = handle.doctor().unfinished
        assert "No garbage was collected, because snapshots are damaged" in work.resolution
        assert "automatic maintenance" in place.snap("doctor").out


def test_one_that_begins_during_a_look_has_not_failed(tmp_path):
    path = tmp_path / "store/collector/background"

    class Beginning(WrappedFileSystem):
        def around(self, call: Call):
            result = call.proceed()
            if call.method == "unlock" and call.path == str(path):
                path.write_text("it was interrupted")
            return result

    with Store.open(UnsyncedFileSystem(), str(tmp_path / "store"), create=True):
        path.touch()
    with Store.open(Beginning(UnsyncedFileSystem()), str(tmp_path / "store")) as store:
        assert failure_in_background(store) is None
        assert failure_in_background(store) == "it was interrupted"


def test_where_no_process_can_be_started_none_was_interrupted(handle, count, monkeypatch):
    def refuse(*_words, **_options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    handle.context = handle.context._replace(may_start_processes=True)

    handle.create(kind=SnapshotKind.RUN)

    assert count() == KEPT
    assert handle.doctor().unfinished == ()


def test_the_library_starts_no_process(place, handle, count):
    handle.create(kind=SnapshotKind.RUN)

    assert count() == KEPT
    assert not (place.store / "collector/background").exists()
