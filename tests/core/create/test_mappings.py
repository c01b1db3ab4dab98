"""What programs write through shared mappings, of which no time and no report tells.

Each snapshot is compared with what the file holds, through read(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from treesnap.core.fs import native
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.ops.known_changes import WALK_EVERY_NS
from treesnap.core.worktree.scan import row_differences
from treesnap.core.worktree.scan.mapped_files import mapped_now

pytestmark = [pytest.mark.needs("mappings"), pytest.mark.sampled(10)]

LATER_NS = 60 * 10**9
"""So long after now all times of today are trusted."""

WRITER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
mapped[0] = 48
print("written", flush=True)
for line in sys.stdin:
    mapped[0] += 1
    print("written", flush=True)
"""


@pytest.fixture(params=["disk", "memory", "overlay"])
def place(request, tmp_path: Path) -> Iterator[Path]:
    with mounting() as mounter:
        if request.param == "memory":
            yield mounter.tmpfs(tmp_path / "memory")
        elif request.param == "overlay":
            yield mounter.overlay(tmp_path / "overlay")
        else:
            yield tmp_path


@pytest.fixture(params=["compared in C", "compared in Python", "walked", "watched"])
def handle(request, place: Path, monkeypatch) -> Iterator[Handle]:
    """Makes snapshots of a root with one file in it, in all ways of looking for changes."""
    root = place / "root"
    (root / "directory").mkdir(parents=True)
    (root / "directory/file").write_bytes(b"content")
    now_ns = (root / "directory/file").stat().st_ctime_ns + LATER_NS
    made = Handle(
        context_at(
            root=root,
            store_path=str(place / "store"),
            fs=LocalFileSystem(),
            clock_ns=lambda: now_ns,
        )
    )
    if request.param != "compared in C":
        monkeypatch.setattr(native, "module", None)
    if request.param == "compared in Python":
        monkeypatch.setattr(row_differences, "ROWS_MIN", 1)
    with ExitStack() as stack:
        yield stack.enter_context(made.watch()) if request.param == "watched" else made


@pytest.fixture
def path(handle: Handle) -> Path:
    return Path(handle.root) / "directory/file"


def content(handle: Handle, name: str) -> bytes:
    return b"".join(handle.cat("latest", name))


def captured(handle: Handle, name: str = "directory/file") -> bytes:
    handle.create()
    return content(handle, name)


@pytest.mark.sampled(5)
def test_every_write_is_captured(handle, path):
    captured(handle)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 65
        assert captured(handle) == path.read_bytes() == b"Aontent"
        for value in b"BCD":
            mapped[0] = value
            assert captured(handle) == path.read_bytes()
        mapped[0] = 69
    assert captured(handle) == path.read_bytes() == b"Eontent"


@pytest.mark.sampled(5)
def test_a_file_that_is_mapped_no_more_is_read_once_more(handle, path):
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 65
        handle.create()
        assert handle.create().stats.files_read == 1
        mapped.flush()
    handle.create()

    assert handle.create().stats.files_read == 0


@pytest.mark.sampled(5)
def test_all_names_of_a_mapped_file_are_captured(handle, path):
    other = path.parent / "other"
    os.link(path, other)
    captured(handle)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for value in b"AB":
            mapped[0] = value
            assert captured(handle, "directory/other") == other.read_bytes()
            assert content(handle, "directory/file") == other.read_bytes()


@pytest.mark.sampled(5)
def test_what_is_left_of_the_names_of_a_mapped_file_is_captured(handle, path):
    other = Path(handle.root) / "elsewhere"
    os.link(path, other)
    captured(handle)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 65
        path.unlink()
        for value in b"BCD":
            mapped[0] = value
            assert captured(handle, "elsewhere") == other.read_bytes()
    assert captured(handle, "elsewhere") == b"Dontent"


@pytest.mark.sampled(5)
def test_mappings_of_other_processes_count(handle, path):
    captured(handle)
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        for number in range(3):
            assert writer.stdout.readline() == "written\n"
            assert captured(handle) == path.read_bytes() == b"%dontent" % number
            writer.stdin.write("again\n")
            writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        writer.stdin.close()
    assert captured(handle) == path.read_bytes() == b"3ontent"


def protect(mapped: mmap.mmap, access: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), access) == 0


@pytest.mark.sampled(6)
@pytest.mark.parametrize("access", [mmap.PROT_READ, 0])
def test_what_is_protected_between_two_writes_is_captured(handle, path, access):
    captured(handle)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for value in b"ABC":
            protect(mapped, mmap.PROT_READ | mmap.PROT_WRITE)
            mapped[0] = value
            protect(mapped, access)
            assert captured(handle) == path.read_bytes()
            handle.create()


@pytest.mark.sampled(5)
def test_what_is_mapped_by_a_removed_name_is_captured_under_its_other_one(handle, path):
    captured(handle)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        os.link(path, path.parent / "other")
        path.unlink()
        for value in b"ABC":
            mapped[0] = value
            other = captured(handle, "directory/other")
            assert other == (path.parent / "other").read_bytes()


@pytest.mark.sampled(5)
def test_status_sees_what_is_written(handle, path):
    captured(handle)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 65
        captured(handle)
        mapped[0] = 66

        assert [change.path for change in handle.status().changes] == [b"directory/file"]


def test_what_was_mapped_through_another_mount_and_removed_there_is_found(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    handle = treesnap.open(root, tmp_path / "store")
    with mounting() as mounter:
        (tmp_path / "again").mkdir()
        mounter.bind(root, tmp_path / "again")
        os.link(tmp_path / "again/file", tmp_path / "again/name")
        with (tmp_path / "again/name").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        (root / "name").unlink()
        with mapped:
            assert (root / "file").stat().st_ino in mapped_now(handle.context.fs, str(root)).inodes
            for value in b"AB":
                mapped[0] = value
                assert captured(handle, "file") == (root / "file").read_bytes()


def test_mappings_for_reading_or_of_a_private_copy_do_not_count(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with (
        path.open("r+b") as file,
        path.open("rb") as other,
        mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ),
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY),
    ):
        assert path.stat().st_ino not in mapped_now(LocalFileSystem(), str(tmp_path)).inodes


def test_names_outside_of_the_root_are_known_in_a_subvolume(tmp_path):
    with mounting() as mounter:
        place = mounter.image(tmp_path / "btrfs", "btrfs", 128)
        subprocess.run(
            ["btrfs", "subvolume", "create", place / "volume"], check=True, capture_output=True
        )
        root = place / "volume/root"
        root.mkdir()
        (root / "file").write_bytes(b"content")
        os.link(root / "file", place / "volume/outside")
        with (place / "volume/outside").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        handle = treesnap.open(root, tmp_path / "store")
        with mapped:
            for value in b"AB":
                mapped[0] = value
                assert captured(handle, "file") == (root / "file").read_bytes()


def test_what_a_watcher_is_not_told_of_is_read_at_the_next_look_at_everything(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    times_ns = [(root / "file").stat().st_ctime_ns + LATER_NS]
    made = Handle(
        context_at(
            root=root,
            store_path=str(tmp_path / "store"),
            fs=LocalFileSystem(),
            clock_ns=lambda: times_ns[-1],
        )
    )
    with mounting() as mounter:
        (tmp_path / "again").mkdir()
        mounter.bind(root, tmp_path / "again")
        with made.watch() as handle, (tmp_path / "again/file").open("r+b") as file:
            with mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0] = 65
                assert captured(handle, "file") == b"Aontent"
                mapped[0] = 66
            (root / "new").write_bytes(b"")
            handle.create()
            times_ns.append(times_ns[-1] + WALK_EVERY_NS)

            assert captured(handle, "file") == (root / "file").read_bytes() == b"Bontent"


@pytest.mark.parametrize("handle", ["watched"], indirect=True)
class TestMappingsThatCameAndWent:
    """Between two snapshots a file is mapped, written, unmapped and closed."""

    def write(self, path: Path, value: int) -> None:
        """Writes through a mapping of which the page was read before."""
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            assert mapped[0]
            mapped[0] = value

    def test_are_captured(self, handle, path):
        captured(handle)
        for value in b"ABC":
            self.write(path, value)
            assert captured(handle) == path.read_bytes()
            assert path.read_bytes()[0] == value

    def test_are_seen_by_status(self, handle, path):
        handle.create()
        self.write(path, 65)

        assert [change.path for change in handle.status().changes] == [b"directory/file"]

    def test_are_captured_at_all_names_of_the_file(self, handle, path):
        other = Path(handle.root) / "elsewhere"
        os.link(path, other)
        captured(handle)
        captured(handle)
        for value in b"AB":
            self.write(path, value)
            assert captured(handle) == path.read_bytes()
            assert content(handle, "elsewhere") == path.read_bytes()

    def test_are_captured_when_everything_is_looked_at(self, handle, path):
        captured(handle)
        self.write(path, 65)
        now_ns = handle.context.clock_ns() + WALK_EVERY_NS
        handle.context = handle.context._replace(clock_ns=lambda: now_ns)

        assert captured(handle) == path.read_bytes()

    def test_are_captured_when_not_all_changes_are_known(self, handle, path):
        captured(handle)
        self.write(path, 65)
        nameless = path.parent / "nameless"
        with nameless.open("wb") as file:
            nameless.unlink()
            file.write(b"nothing")

        assert captured(handle) == path.read_bytes()

    def test_cost_one_look_at_the_file(self, handle, path):
        handle.create()
        with path.open("r+b"):
            pass

        assert handle.create().stats.files_read <= 1
        assert handle.create().stats.files_read == 0
