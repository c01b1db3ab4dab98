"""The doubles themselves: what they record, fail and kill."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import pytest

from state import differences, tree_state
from treesnap.testing.children import in_child, killed
from treesnap.testing.doubles import (
    MUTATING,
    Fault,
    FaultMoment,
    FaultyFileSystem,
    Killed,
    Kind,
    RecordingFileSystem,
    error_at,
    kill_at,
)


def write(fs, path, content: bytes) -> None:
    fd = fs.open(str(path), os.O_WRONLY | os.O_CREAT)
    try:
        fs.write(fd, content)
    finally:
        fs.close(fd)


class TestRecording:
    def test_calls_are_told_by_kind_path_and_size(self, tmp_path):
        fs = RecordingFileSystem()

        write(fs, tmp_path / "file", b"content")

        assert [(item.method, item.kind) for item in fs.log] == [
            ("open", Kind.NAME),
            ("write", Kind.WRITE),
            ("close", Kind.HANDLE),
        ]
        assert {item.path for item in fs.log} == {str(tmp_path / "file")}
        assert fs.written_bytes(below=str(tmp_path)) == 7
        assert fs.written_bytes(below=str(tmp_path / "other")) == 0

    def test_paths_below_descriptors_are_known(self, tmp_path):
        fs = RecordingFileSystem()
        fd = fs.open(str(tmp_path), os.O_RDONLY)

        fs.make_directory(b"below", dir_fd=fd)
        fs.make_symlink(b"target", b"link", dir_fd=fd)

        fs.close(fd)
        assert [item.path for item in fs.mutations] == [
            str(tmp_path / "below"),
            str(tmp_path / "link"),
        ]

    def test_errors_are_written_down_and_raised(self, tmp_path):
        fs = RecordingFileSystem()

        with pytest.raises(FileNotFoundError):
            fs.unlink(str(tmp_path / "absent"))

        assert [item.errno for item in fs.log] == [errno.ENOENT]


class TestFaults:
    def test_the_nth_call_fails_once(self, tmp_path):
        fault = Fault(number=2, methods=frozenset({"unlink"}), errno=errno.EIO)
        fs = FaultyFileSystem(fault)
        for number in range(3):
            (tmp_path / str(number)).touch()

        fs.unlink(str(tmp_path / "0"))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            fs.unlink(str(tmp_path / "1"))
        fs.unlink(str(tmp_path / "2"))

        assert os.listdir(tmp_path) == ["1"]
        assert fs.hits_of(fault) == 1

    def test_a_lasting_fault_goes_on(self, tmp_path):
        fs = FaultyFileSystem(error_at(1, errno.EROFS, lasting=True))

        for _ in range(3):
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                fs.make_directory(str(tmp_path / "made"))

        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(
        ("moment", "content"),
        [
            (FaultMoment.BEFORE, b""),
            (FaultMoment.HALFWAY, b"0123"),
            (FaultMoment.AFTER, b"01234567"),
        ],
    )
    def test_a_write_fails_at_a_moment(self, tmp_path, moment, content):
        fault = Fault(kinds=frozenset({Kind.WRITE}), errno=errno.EIO, moment=moment)

        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            write(FaultyFileSystem(fault), tmp_path / "file", b"01234567")

        assert (tmp_path / "file").read_bytes() == content

    def test_only_calls_that_are_meant_are_counted(self, tmp_path):
        fault = Fault(where=lambda call: call.path.endswith("two"), errno=errno.EIO)
        fs = FaultyFileSystem(fault)

        fs.make_directory(str(tmp_path / "one"))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            fs.make_directory(str(tmp_path / "two"))

        assert os.listdir(tmp_path) == ["one"]


class TestKills:
    def test_the_dead_do_nothing_more(self, tmp_path):
        fs = FaultyFileSystem(kill_at(1))
        fd = fs.open(str(tmp_path), os.O_RDONLY)

        with pytest.raises(Killed):
            fs.make_directory(str(tmp_path / "one"))
        with pytest.raises(Killed):
            fs.make_directory(str(tmp_path / "two"))

        fs.close(fd)
        assert os.listdir(tmp_path) == []

    def test_a_call_without_effect_kills_too(self, tmp_path):
        fs = FaultyFileSystem(Fault(kinds=MUTATING, moment=FaultMoment.AFTER))

        with pytest.raises(Killed):
            fs.make_directory(str(tmp_path))

    def test_a_child_dies_alone(self, tmp_path):
        ended = killed(lambda fs: write(fs, tmp_path / "file", b"content"), kill_at(2))

        assert (ended.was_killed, ended.error) == (True, None)
        assert (tmp_path / "file").read_bytes() == b""

    def test_a_child_tells_its_error(self):
        ended = in_child(lambda: 1 // 0)

        assert not ended.was_killed
        assert ended.error is not None
        assert "ZeroDivisionError" in ended.error

    def test_a_child_that_ends_oddly_is_no_result(self):
        with pytest.raises(RuntimeError, match="ended with 3"):
            in_child(lambda: os._exit(3))


class TestState:
    def test_an_absent_root_has_no_state(self, tmp_path):
        assert tree_state(tmp_path / "absent") == {}

    def test_every_property_counts(self, tmp_path):
        (tmp_path / "file").write_bytes(b"one")
        (tmp_path / "link").symlink_to("file")
        before = tree_state(tmp_path)
        changes = [
            lambda: (tmp_path / "file").chmod(0o600),
            lambda: os.utime(tmp_path / "file", ns=(0, 1)),
            lambda: os.link(tmp_path / "file", tmp_path / "other"),
            (tmp_path / "other").unlink,
            lambda: (tmp_path / "file").write_bytes(b"two"),
        ]

        seen = [before]
        for change in changes:
            change()
            os.utime(tmp_path, ns=(0, before[b""].mtime_ns))
            seen.append(tree_state(tmp_path))

        assert all(old != new for old, new in pairwise(seen))
        assert len(differences(seen[-1], before)) == 1
