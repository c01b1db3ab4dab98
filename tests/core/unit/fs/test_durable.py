"""Publishing files: complete or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from random import Random

import pytest

from cuts import cuts
from power import PoweredFileSystem
from treesnap.core.fs.durable import (
    Prepared,
    Temporary,
    create_locked,
    ensure_directories,
    read_file,
    replace_file,
    sweep_temporary,
    unlink_if_present,
    write_all,
    write_all_at,
)
from treesnap.core.fs.local import LocalFileSystem
from treesnap.testing.doubles import (
    MUTATING,
    Call,
    Fault,
    FaultMoment,
    FaultyFileSystem,
    Killed,
    Kind,
    RecordingFileSystem,
    WrappedFileSystem,
)


@pytest.fixture
def fs():
    return RecordingFileSystem()


@pytest.fixture
def temporary(tmp_path):
    path = tmp_path / "temporary"
    path.mkdir()
    return str(path)


class Short(WrappedFileSystem):
    """Takes at most three bytes at a time."""

    def around(self, call: Call):
        if call.method in {"write", "write_at"}:
            fd, data, *rest = call.arguments
            return getattr(self._inner, call.method)(fd, bytes(data)[:3], *rest)
        return call.proceed()


def test_short_writes_are_continued(tmp_path):
    fs = Short()
    fd = fs.open(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)

    write_all(fs, fd, b"0123456789")
    write_all_at(fs, fd, b"abcdefgh", 5)

    fs.close(fd)
    assert (tmp_path / "file").read_bytes() == b"01234abcdefgh"


def test_replacing_makes_or_replaces(fs, tmp_path, temporary):
    path = tmp_path / "file"

    replace_file(fs, str(path), b"one", temporary=temporary)
    first = path.read_bytes()
    replace_file(fs, str(path), b"two", temporary=temporary)

    assert (first, path.read_bytes()) == (b"one", b"two")
    assert os.listdir(temporary) == []


@pytest.mark.parametrize(
    ("options", "syncs"),
    [
        ({}, ["sync_data", "sync"]),
        ({"durable_name": False}, ["sync_data"]),
        ({"durable": False}, []),
    ],
)
def test_replacing_syncs_content_then_name(fs, tmp_path, temporary, options, syncs):
    replace_file(fs, str(tmp_path / "file"), b"one", temporary=temporary, **options)

    order = [
        item.method for item in fs.log if item.method in {"write", "sync_data", "rename", "sync"}
    ]
    assert [method for method in order if "sync" in method] == syncs
    if "sync_data" in syncs:
        assert order.index("write") < order.index("sync_data") < order.index("rename")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moment", list(FaultMoment))
def test_a_kill_leaves_the_old_content_or_the_new(tmp_path, temporary, number, moment):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    fs = FaultyFileSystem(Fault(number=number, kinds=MUTATING, moment=moment))

    with pytest.raises(Killed):
        replace_file(fs, str(path), b"new content", temporary=temporary)

    assert path.read_bytes() in {b"old", b"new content"}


@pytest.mark.parametrize("method", ["open", "write", "sync_data", "rename"])
def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path, temporary, method):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    fs = FaultyFileSystem(Fault(methods=frozenset({method}), errno=errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        replace_file(fs, str(path), b"new", temporary=temporary)

    assert path.read_bytes() == b"old"
    assert os.listdir(temporary) == []


def test_a_file_that_is_swept_every_time_is_given_up(tmp_path, temporary):
    fault = Fault(methods=frozenset({"rename"}), errno=errno.ENOENT, lasting=True)
    fs = FaultyFileSystem(fault)

    with pytest.raises(FileNotFoundError):
        replace_file(fs, str(tmp_path / "file"), b"new", temporary=temporary)

    assert fs.hits_of(fault) == 3


def test_prepared_content_that_is_swept_is_written_again(fs, tmp_path, temporary):
    prepared = Prepared(fs, str(tmp_path / "file"), b"content", temporary=temporary)
    (name,) = os.listdir(temporary)
    os.unlink(os.path.join(temporary, name))

    prepared.publish()

    assert (tmp_path / "file").read_bytes() == b"content"
    assert [item.path for item in fs.syncs][-1] == str(tmp_path)
    assert os.listdir(temporary) == []


class Sweeping(WrappedFileSystem):
    """A sweep of others finds new files before they are locked, the first so many times.

    It holds the lock when the writer wants it, or has already removed the file.
    """

    def __init__(self, count: int, *, holds: bool) -> None:
        super().__init__()
        self.count = count
        self.holds = holds

    def around(self, call: Call):
        if call.method != "lock" or not self.count:
            return call.proceed()
        self.count -= 1
        fd = os.open(call.path, os.O_RDWR)
        try:
            if self.holds:
                fcntl.flock(fd, fcntl.LOCK_EX)
            else:
                os.unlink(call.path)
            return call.proceed()
        finally:
            os.close(fd)


class TestALockedFile:
    @pytest.mark.parametrize("holds", [True, False])
    def test_that_is_swept_twice_is_there_and_locked(self, tmp_path, temporary, holds):
        path = tmp_path / "file"

        fd = create_locked(Sweeping(2, holds=holds), str(path), b"content", temporary=temporary)

        assert path.read_bytes() == b"content"
        with path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.listdir(temporary) == []
        os.close(fd)

    @pytest.mark.parametrize(
        ("holds", "error"), [(True, BlockingIOError), (False, FileNotFoundError)]
    )
    def test_that_is_swept_every_time_is_given_up(self, tmp_path, temporary, holds, error):
        fs = Sweeping(3, holds=holds)

        with pytest.raises(error):
            create_locked(fs, str(tmp_path / "file"), b"content", temporary=temporary)

        assert fs.count == 0
        assert os.listdir(tmp_path) == ["temporary"]
        assert os.listdir(temporary) == []


def test_a_lock_that_fails_leaves_no_file(temporary):
    fs = FaultyFileSystem(Fault(methods=frozenset({"lock"}), errno=errno.ENOLCK))

    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        Temporary(fs, temporary)

    assert os.listdir(temporary) == []


def test_a_file_that_cannot_be_removed_is_left_to_a_sweep(temporary):
    fs = FaultyFileSystem(Fault(methods=frozenset({"unlink"}), errno=errno.EIO))
    file = Temporary(fs, temporary)

    file.discard()
    left = os.listdir(temporary)
    sweep_temporary(fs, temporary)

    assert len(left) == 1
    assert os.listdir(temporary) == []


def test_sweeping_skips_what_is_gone(temporary):
    class Vanishing(WrappedFileSystem):
        def around(self, call: Call):
            result = call.proceed()
            if call.method == "list_names":
                os.unlink(os.path.join(temporary, result[0]))
            return result

    with open(os.path.join(temporary, "file"), "wb"):
        pass

    sweep_temporary(Vanishing(), temporary)

    assert os.listdir(temporary) == []


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_sweeping_opens_nothing_but_files(temporary, kind):
    path = os.path.join(temporary, "0" * 16)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    else:
        os.symlink("elsewhere", path)
    fs = RecordingFileSystem()

    sweep_temporary(fs, temporary)

    assert fs.calls("open") == []
    assert os.path.lexists(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser changes owners")
def test_sweeping_opens_no_file_of_a_third_user(temporary):
    for number, owner_id in enumerate((0, 1234, 1235)):
        path = os.path.join(temporary, f"{number:016x}")
        with open(path, "wb"):
            os.chown(path, owner_id, owner_id)
    os.chown(temporary, 1234, 1234)
    fs = RecordingFileSystem()

    sweep_temporary(fs, temporary)

    assert os.listdir(temporary) == [f"{2:016x}"]
    assert [item.path for item in fs.calls("open") if item.path.endswith("2")] == []


def test_sweeping_waits_for_no_holder_of_a_lease(temporary):
    """Else the kernel lets it wait, and then takes the lease away: the file would be gone."""
    path = os.path.join(temporary, "0" * 16)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with open(path, "wb") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            sweep_temporary(LocalFileSystem(), temporary)
            left = os.listdir(temporary)
    finally:
        signal.signal(signal.SIGIO, before)

    assert left == ["0" * 16]


def test_directories_are_made_with_their_parents_and_each_is_synced(fs, tmp_path):
    ensure_directories(fs, str(tmp_path / "a/b/c"))

    assert (tmp_path / "a/b/c").is_dir()
    assert [item.path for item in fs.syncs] == [
        str(tmp_path.parent),
        str(tmp_path),
        str(tmp_path / "a"),
        str(tmp_path / "a/b"),
    ]


@pytest.mark.parametrize("number", range(1, 5))
def test_directories_are_durable_after_any_process_was_killed(tmp_path, number):
    path = "top/a/b/c"
    (tmp_path / "top").mkdir()
    powered = PoweredFileSystem(str(tmp_path))
    dying = FaultyFileSystem(Fault(number=number, kinds=frozenset({Kind.SYNC})), inner=powered)
    with pytest.raises(Killed):
        ensure_directories(dying, str(tmp_path / path))

    ensure_directories(powered, str(tmp_path / path))

    powered.note_return()
    found = [*cuts(powered.recording(), random=Random(0), first=-1)]
    assert found
    assert all(path.encode() in cut.disk.contents() for cut in found)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_a_directory_of_others_above_need_not_be_synced(tmp_path, number):
    fault = Fault(methods=frozenset({"sync"}), errno=number)

    ensure_directories(FaultyFileSystem(fault), str(tmp_path / "a"))

    assert (tmp_path / "a").is_dir()


def test_a_directory_that_cannot_be_synced_is_not_called_durable(tmp_path):
    for number, code in [(1, errno.EIO), (2, errno.EINVAL)]:
        fault = Fault(methods=frozenset({"sync"}), number=number, errno=code)

        with pytest.raises(OSError, match=os.strerror(code)):
            ensure_directories(FaultyFileSystem(fault), str(tmp_path / f"a{number}"))


def test_reading_stops_one_byte_behind_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")

    contents = [
        read_file(LocalFileSystem(), str(tmp_path / "file"), limit) for limit in (4, 10, 99)
    ]

    assert contents == [b"01234", b"0123456789", b"0123456789"]


def test_unlinking_says_whether_there_was_something(fs, tmp_path):
    (tmp_path / "file").touch()

    said = [unlink_if_present(fs, str(tmp_path / "file")) for _ in range(2)]

    assert said == [True, False]


def test_a_large_file_is_read_as_far_as_it_takes_room(tmp_path):
    fs = LocalFileSystem()
    dense, holes = tmp_path / "dense", tmp_path / "holes"
    dense.write_bytes(b"x" * (17 << 20))
    holes.write_bytes(b"x" * 5000)
    os.truncate(holes, 256 << 20)

    assert len(read_file(fs, str(dense), 256 << 20)) == 17 << 20
    assert len(read_file(fs, str(dense), 16 << 20)) == (16 << 20) + 1
    assert len(read_file(fs, str(dense), 17 << 20)) == 17 << 20
    assert len(read_file(fs, str(dense), (17 << 20) - 1)) == 17 << 20
    assert len(read_file(fs, str(holes), 256 << 20)) < 17 << 20


@pytest.mark.parametrize("content", [b"x", b""])
def test_a_file_system_may_say_of_no_file_how_much_room_it_takes(tmp_path, content):
    class Silent(WrappedFileSystem):
        def around(self, call):
            found = call.proceed()
            return os.stat_result(found, {"st_blocks": 0}) if call.method == "fstat" else found

    path = tmp_path / "file"
    path.write_bytes(content)
    os.truncate(path, 20 << 20)

    read = read_file(Silent(LocalFileSystem()), str(path), 256 << 20)

    assert (len(read) == 20 << 20) == bool(content)
