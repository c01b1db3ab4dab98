"""What a file holds, as chunks and holes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from treesnap.core.codec.chunklist import INLINE_SIZE_MAX
from treesnap.core.codec.reader import read_content as read_pieces
from treesnap.core.codec.statcache import Observation
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.ids import object_id
from treesnap.core.worktree.scan.file_reader import (
    ATTEMPTS,
    FileContent,
    blames_file,
    capture,
    read_content,
    store_bytes,
)
from treesnap.testing.doubles import Call, RecordingFileSystem, WrappedFileSystem

BLOCK = 64 << 10
PAGE_OF_DATA = bytes(range(256)) * 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


class Chunks(dict[ObjectId, bytes]):
    """Keeps what is stored."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        identity = object_id(kind, data)
        self[identity] = bytes(data)
        return identity

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        return self[identity]


def read(fs, path: Path) -> tuple[FileContent, list[bytes | int]]:
    """Returns what was read, and it again as chunks (bytes) and holes (sizes)."""
    chunks = Chunks()
    fd = os.open(path, os.O_RDONLY)
    try:
        found = read_content(fs, fd, chunks.put, os.fstat(fd))
    finally:
        os.close(fd)
    level, *fields = found.content
    if type(level) is bytes:
        return found, [level]
    assert level == 0
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return found, [chunks[identity] if identity else size for identity, size in pairs]


def add_attribute(path: Path) -> None:
    """Sets an attribute too large for the inode: ext4 gives it a block of its own."""
    with suppress(OSError):  # not every file system has attributes
        os.setxattr(path, "user.note", os.urandom(700))


class TestHoles:
    @pytest.mark.parametrize("addition", [lambda _: None, add_attribute])
    def test_a_hole_is_one_whatever_other_blocks_the_file_takes(
        self, fs, path: Path, addition: Callable[[Path], None]
    ):
        path.touch()
        os.truncate(path, BLOCK)
        addition(path)

        found, parts = read(fs, path)

        assert parts == [BLOCK]
        assert found.read_bytes == 0

    def test_data_between_holes(self, fs, path: Path):
        with path.open("wb") as file:
            file.truncate(10 * BLOCK)
            file.seek(3 * BLOCK)
            file.write(PAGE_OF_DATA)
        add_attribute(path)

        found, parts = read(fs, path)

        assert parts == [3 * BLOCK, PAGE_OF_DATA.ljust(BLOCK, b"\0"), 6 * BLOCK]
        assert (found.size, found.read_bytes) == (10 * BLOCK, BLOCK)

    def test_a_block_of_written_zeros_is_a_hole_too(self, fs, path: Path):
        path.write_bytes(bytes(BLOCK))

        assert read(fs, path)[1] == [BLOCK]

    def test_blocks_reserved_for_later_are_no_content(self, fs, path: Path):
        path.write_bytes(b"short")
        fd = os.open(path, os.O_RDWR)
        fs.allocate(fd, 20 * BLOCK)
        os.ftruncate(fd, 5)
        os.close(fd)

        assert read(fs, path)[1] == [b"short"]

    @pytest.mark.parametrize("size", [1, INLINE_SIZE_MAX, INLINE_SIZE_MAX + 1])
    def test_a_file_that_is_shorter_than_a_block_has_none(self, fs, path: Path, size: int):
        path.touch()
        os.truncate(path, size)

        found, parts = read(fs, path)

        assert parts == [bytes(size)]
        assert found.content.data == (bytes(size) if size <= INLINE_SIZE_MAX else None)

    def test_an_empty_file_has_no_parts(self, fs, path: Path):
        path.touch()

        found, parts = read(fs, path)

        assert parts == []
        assert found.is_stable


class Meddling(WrappedFileSystem):
    """Changes the file under the reader before each of the first calls of a method."""

    def __init__(self, inner, method: str, changes: list[Callable[[], object]]) -> None:
        super().__init__(inner)
        self._method = method
        self._changes = changes

    def around(self, call: Call) -> object:
        if call.method == self._method and self._changes:
            self._changes.pop(0)()
        return super().around(call)


class TestAFileThatChangesWhileItIsRead:
    @pytest.mark.parametrize("method", ["next_hole", "read_at"])
    def test_is_read_again(self, fs, path: Path, method: str):
        path.write_bytes(b"long content")
        fs = Meddling(fs, method, [lambda: path.write_bytes(b"new")])

        found, parts = read(fs, path)

        assert parts == [b"new"]
        assert found.is_stable

    @pytest.mark.parametrize("method", ["next_hole", "next_data"])
    def test_may_lose_all_content(self, fs, path: Path, method: str):
        """SEEK_HOLE and SEEK_DATA behind the end fail with ENXIO."""
        path.write_bytes(b"begin")
        os.truncate(path, 100 * BLOCK)
        fs = Meddling(fs, method, [lambda: os.truncate(path, 0)])

        found, parts = read(fs, path)

        assert parts == []
        assert found.is_stable

    def test_is_unstable_when_it_never_rests(self, fs, path: Path):
        path.write_bytes(b"0")
        grow = [lambda: path.write_bytes(path.read_bytes() + b"0")] * ATTEMPTS
        fs = Meddling(fs, "read_at", [*grow])

        found, parts = read(fs, path)

        assert not found.is_stable
        assert parts == [b"0" * (ATTEMPTS + 1)]
        assert found.read_bytes == sum(range(2, ATTEMPTS + 2))

    def test_has_every_byte_that_was_read_when_it_is_cut_at_the_last_attempt(
        self, fs, path: Path, monkeypatch
    ):
        """Bytes that wait for the next window are not lost when there is none."""
        window = 512 << 10
        monkeypatch.setattr("treesnap.core.worktree.scan.file_reader.WINDOW_SIZE", window)
        data = os.urandom(2 * window + 1)
        path.write_bytes(data)
        attempt = [path.touch, lambda: None, lambda: None]
        cut = [lambda: None, lambda: os.truncate(path, window)]
        fs = Meddling(fs, "read_at", [*attempt * (ATTEMPTS - 1), *cut])

        found, parts = read(fs, path)

        assert not found.is_stable
        assert b"".join(parts) == data[:window]
        assert (found.size, found.stat.st_size) == (window, window)


@pytest.fixture
def captured(path: Path):
    """Captures a file as it was listed; returns what became of it and what it held."""

    def observe_and_capture(fs):
        stat = path.lstat()
        times = stat.st_mtime_ns, stat.st_ctime_ns
        seen = Observation(b"file", stat.st_mode, stat.st_size, *times, stat.st_ino, stat.st_dev)
        chunks = Chunks()
        fd = os.open(path.parent, os.O_RDONLY)
        try:
            found = capture(fs, chunks, fd, seen)
        finally:
            os.close(fd)
        assert found is not None
        return found, b"".join(read_pieces(found.entry.file_content, chunks.get))

    return observe_and_capture


class TestAFileThatChangedSinceItWasListed:
    @pytest.fixture
    def other(self, path: Path) -> Path:
        """Another file, which only its inode tells from the listed one, and its times of change."""
        path.write_bytes(b"content")
        other = path.with_name("other")
        other.write_bytes(b"CONTENT")
        os.utime(other, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
        return other

    @pytest.mark.needs("attributes")
    def test_is_captured_as_what_has_its_name_now(self, fs, path: Path, other: Path, captured):
        os.setxattr(other, "user.note", b"of the other")
        other.chmod(0o640)
        fs = Meddling(fs, "open", [lambda: other.rename(path)])

        found, data = captured(fs)

        assert (data, found.entry.mode, found.is_stable) == (b"CONTENT", 0o640, True)
        assert found.entry.xattrs == ((b"user.note", b"of the other"),)

    def test_is_read_again_before_it_counts_as_read(self, fs, path: Path, other: Path, captured):
        fs = RecordingFileSystem(Meddling(fs, "open", [lambda: other.rename(path)]))

        found, _ = captured(fs)

        assert fs.count("fstat", "read_at") == {"fstat": 2, "read_at": 2}
        assert found.read_bytes == 2 * len(b"CONTENT")

    @pytest.mark.needs("attributes")
    def test_has_the_attributes_and_the_content_of_one_moment(self, fs, path: Path, captured):
        path.write_bytes(b"content")

        def change() -> None:
            os.setxattr(path, "user.note", b"new")
            path.write_bytes(b"new")

        found, data = captured(Meddling(fs, "next_hole", [change]))

        assert (data, found.entry.xattrs) == (b"new", ((b"user.note", b"new"),))
        assert found.is_stable

    def test_has_as_many_attempts_as_one_that_changes_later(self, fs, path: Path, captured):
        path.write_bytes(b"0")
        grow = [lambda: path.write_bytes(path.read_bytes() + b"0")] * ATTEMPTS

        found, data = captured(Meddling(fs, "read_at", [*grow]))

        assert (data, found.is_stable) == (b"0" * (ATTEMPTS + 1), True)

    @pytest.mark.parametrize("content", [b"", b"content"])
    def test_is_unreadable_when_a_pipe_has_its_name(self, fs, path: Path, captured, content):
        path.write_bytes(content)

        def replace() -> None:
            path.unlink()
            os.mkfifo(path)

        with pytest.raises(OSError) as raised:  # noqa: PT011  # which one does not matter
            captured(Meddling(fs, "open", [replace]))

        assert blames_file(raised.value)


def test_a_file_that_stays_as_listed_is_looked_at_once(fs, path: Path, captured):
    path.write_bytes(b"content")
    fs = RecordingFileSystem(fs)

    found, data = captured(fs)

    assert (data, found.is_stable) == (b"content", True)
    assert fs.count("lstat", "fstat") == {"fstat": 1}


def test_a_large_file_that_changed_since_it_was_listed_is_read_once(fs, path: Path, captured):
    path.write_bytes(b"old" * 100_000)
    fs = RecordingFileSystem(Meddling(fs, "open", [lambda: path.write_bytes(b"new" * 100_000)]))

    found, data = captured(fs)

    assert (data, found.is_stable) == (b"new" * 100_000, True)
    assert fs.read_bytes() == len(data)


@pytest.mark.parametrize("size", [0, 1, INLINE_SIZE_MAX, INLINE_SIZE_MAX + 1, 300_000, 3_000_000])
def test_bytes_in_memory_are_stored_like_a_files(fs, path: Path, size: int):
    data = os.urandom(size)
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)

    from_memory = store_bytes(data, Chunks().put)

    assert from_memory == read_content(fs, fd, Chunks().put, os.fstat(fd)).content
    os.close(fd)
