"""What restores displace: the command leaves its removal to a process, if it is much."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from background import as_command, background_lock, wait_for_background
from calling import Place
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.ops.restore import transaction
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)

pytestmark = pytest.mark.sampled(10)

FILES = [f"directory-{number % 3}/file-{number}" for number in range(12)]


class FullFileSystem(WrappedFileSystem):
    """Says that there is no room left."""

    def around(self, call: Call) -> object:
        return 0 if call.method == "free_bytes" else call.proceed()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A root whose files were changed and removed since its snapshot."""
    monkeypatch.setattr(transaction, "WAITING_FILES_MIN", len(FILES) - 1)
    place = Place(tmp_path / "root", tmp_path / "store")
    place.make(*FILES)
    handle_on(place).create(name="before")
    place.edit(*FILES[:-1])
    (place.root / FILES[-1]).unlink()
    return place


def handle_on(place: Place, fs: WrappedFileSystem | None = None) -> Handle:
    return Handle(context_at(place.root, str(place.store), fs=fs or UnsyncedFileSystem()))


def displaced(place: Place) -> list[str]:
    """Returns what lies in the store, or was left in the root."""
    names = [*os.listdir(place.store / "temporary"), *os.listdir(place.root)]
    return [name for name in names if name.startswith(("displaced-", "."))]


def restored(place: Place, handle: Handle) -> None:
    handle.restore("before")
    assert [(place.root / path).read_text() for path in FILES] == FILES


class TestCommand:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it outlives it
    def test_leaves_them_to_a_process_that_outlives_it(self, place):
        fs = RecordingFileSystem(UnsyncedFileSystem())

        restored(place, as_command(handle_on(place, fs)))

        assert [call.path for call in fs.calls("unlink") if "/n" in call.path] == []
        wait_for_background(place.store)
        assert displaced(place) == []
        assert (place.store / "collector/background").read_bytes() == b""

    def test_keeps_what_undo_needs(self, place):
        place.done("restore", "before")
        wait_for_background(place.store)

        place.done("undo")

        assert [(place.root / path).read_text() for path in FILES[:-1]] != FILES[:-1]
        assert not (place.root / FILES[-1]).exists()

    def test_removes_them_itself_while_a_process_is_at_work(self, place):
        with background_lock(place.store):
            restored(place, as_command(handle_on(place)))

            assert displaced(place) == []

    def test_removes_them_itself_where_the_settings_say_so(self, place):
        place.done("config", "background", "false")

        place.done("restore", "before")

        assert displaced(place) == []
        assert not (place.store / "collector/background").exists()

    def test_warns_if_the_process_could_not(self, place):
        place.done("restore", "before")
        wait_for_background(place.store)
        (place.store / "collector/background").write_text("it could not")
        place.edit(*FILES)

        ended = place.snap("restore", "before")
        wait_for_background(place.store)

        assert "in the background failed: it could not" in ended.err


@pytest.mark.needs("exchange")
class TestAreRemovedAtOnce:
    @pytest.fixture
    def assert_at_once(self, place):
        """Restores with a file system, and asserts that nothing is left to a process."""

        def check(fs: WrappedFileSystem | None = None) -> None:
            recording = RecordingFileSystem(fs)
            restored(place, as_command(handle_on(place, recording)))
            removed = [call for call in recording.calls("unlink") if "/n" in call.path]
            assert len(removed) == len(FILES) - 1
            assert displaced(place) == []
            assert not (place.store / "collector/background").exists()

        return check

    def test_if_they_are_few(self, place, assert_at_once, monkeypatch):
        monkeypatch.setattr(transaction, "WAITING_FILES_MIN", len(FILES))

        assert_at_once()

    def test_if_they_are_large(self, assert_at_once, monkeypatch):
        monkeypatch.setattr(transaction, "WAITING_BYTES_MAX", 1)

        assert_at_once()

    def test_on_a_full_disk(self, assert_at_once):
        assert_at_once(FullFileSystem())

    @pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSPC, errno.EACCES])
    def test_where_they_cannot_be_moved(self, assert_at_once, number):
        def is_move(call: Call) -> bool:
            return "displaced-" in call.paths[1]

        fault = Fault(methods=frozenset({"rename"}), errno=number, where=is_move)

        assert_at_once(FaultyFileSystem(fault, inner=UnsyncedFileSystem()))

    def test_by_the_library(self, place):
        fs = RecordingFileSystem(UnsyncedFileSystem())

        restored(place, handle_on(place, fs))

        assert len([call for call in fs.calls("unlink") if "/n" in call.path]) == len(FILES) - 1
        assert displaced(place) == []


class TestLeftover:
    """What a process leaves that is killed before it has removed everything."""

    @pytest.fixture
    def leftover(self, place):
        path = place.store / "temporary" / "displaced-0123456789abcdef"
        (path / "directory").mkdir(parents=True)
        (path / "directory/file").write_text("old")
        (path / "directory").chmod(0o500)
        return path

    def test_is_removed_by_the_next_writer(self, place, leftover):
        handle_on(place).create()

        assert not leftover.exists()

    def test_is_left_to_a_process_that_is_at_work(self, place, leftover):
        with background_lock(place.store):
            handle_on(place).create()

        assert leftover.exists()

    def test_counts_as_use_of_the_disk(self, place, leftover):
        with_it = handle_on(place).stats().disk_bytes
        (leftover / "directory").chmod(0o700)
        (leftover / "directory/file").write_text("old and longer")

        assert handle_on(place).stats().disk_bytes - with_it == len(" and longer")

    def test_is_not_followed_where_it_is_a_link(self, place, leftover, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/file").touch()
        (place.store / "temporary/displaced-fedcba9876543210").symlink_to(tmp_path / "elsewhere")

        handle_on(place).create()

        assert (tmp_path / "elsewhere/file").exists()
        assert not leftover.exists()
