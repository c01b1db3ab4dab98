"""The module in C beside what it stands for: the same bytes for the same directories.

Its promise has one side: what it does not report is as Python would find it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack_from

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strategies
from mounting import mounting
from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.statcache import Row, decode_observations, encode_observations
from treesnap.core.codec.tree import decode_tree
from treesnap.core.fs import native
from treesnap.core.fs.local import LocalFileSystem, OwnerFileSystem
from treesnap.core.model.entries import ObjectId, Totals
from treesnap.core.model.errors import Corrupt
from treesnap.core.worktree.scan import listing as listings
from treesnap.core.worktree.scan.ignore import IGNORE_FILE, Exclusions
from treesnap.core.worktree.scan.listing import list_directory
from treesnap.core.worktree.scan.row_differences import row_differences
from treesnap.core.worktree.scan.statcache import CacheFile, StatCacheBuilder, load

pytestmark = [
    pytest.mark.skipif(native.module is None, reason="the module in C is not built"),
    pytest.mark.sampled(10),
]

FS = LocalFileSystem()
DIFFERS, LOOK, LOOK_BELOW, WHOLE = range(4)
NO_ROWS = b"", 0, 0
SIZES = [0, 1, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, 1 << 40]
TIMES_NS = [
    0,
    -1,
    -32,
    -33,
    -129,
    -(1 << 31) - 1,
    127,
    1 << 8,
    1 << 16,
    1 << 32,
    1_700_000_000_123_456_789,
    -86_400_000_000_000,
    7_900_000_000_000_000_001,
]


def observed(directory: Path) -> bytes | None:
    """Returns what the module makes of a directory."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        assert native.module is not None
        return native.module.observe(fd, IGNORE_FILE, STAGE_PREFIX)
    finally:
        os.close(fd)


def expected(directory: Path) -> bytes:
    """Returns what a naive look makes of it."""
    found = []
    for name in sorted(os.listdir(os.fsencode(directory))):
        facts = os.lstat(os.path.join(os.fsencode(directory), name))
        times = facts.st_mtime_ns, facts.st_ctime_ns
        found.append((name, facts.st_mode, facts.st_size, *times, facts.st_ino, facts.st_dev))
    return encode_observations(found)


@pytest.fixture
def directory(tmp_path) -> Iterator[Path]:
    """A directory on tmpfs, where a file may have any size and time."""
    with mounting() as mounter:
        yield mounter.tmpfs(tmp_path / "memory", size="128m")


def test_every_size_and_time_has_the_same_bytes(directory):
    for number, size in enumerate(SIZES):
        with open(directory / f"size-{number}", "wb") as file:
            os.ftruncate(file.fileno(), size)
    for number, time_ns in enumerate(TIMES_NS):
        path = directory / f"time-{number}"
        path.touch()
        os.utime(path, ns=(0, time_ns))

    assert observed(directory) == expected(directory)


def test_every_type_and_mode_has_the_same_bytes(directory):
    for mode in (0, 0o644, 0o4755, 0o7777):
        (directory / f"mode-{mode}").touch()
        (directory / f"mode-{mode}").chmod(mode)
    os.mkfifo(directory / "fifo")
    os.mknod(directory / "device", 0o600 | stat.S_IFCHR, os.makedev(511, 70_000))
    (directory / "link").symlink_to("nowhere")
    (directory / "below").mkdir()

    assert observed(directory) == expected(directory)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300, 70_000])
def test_any_number_of_names_has_the_same_bytes(directory, count):
    for number in range(count):
        os.close(os.open(directory / f"{number}", os.O_CREAT))

    assert observed(directory) == expected(directory)


def is_plain(name: bytes) -> bool:
    return name != IGNORE_FILE and not name.startswith(STAGE_PREFIX)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.sets(strategies.names().filter(is_plain), max_size=12))
def test_any_name_has_the_same_bytes(tmp_path, names):
    with tempfile.TemporaryDirectory(dir=tmp_path) as place:
        for name in names:
            os.close(os.open(os.path.join(os.fsencode(place), name), os.O_CREAT))

        assert observed(Path(place)) == expected(Path(place))


def test_a_descriptor_is_listed_again_and_again(tmp_path):
    (tmp_path / "a").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(3):
            assert native.module.observe(fd, IGNORE_FILE, STAGE_PREFIX) == expected(tmp_path)
            assert os.listdir(fd) == ["a"]
    finally:
        os.close(fd)


def test_what_needs_a_closer_look_is_left_to_python(tmp_path):
    (tmp_path / "a").touch()
    for odd in (".snapignore", ".treesnap-restore-x", "other"):
        if odd == "other":
            os.link(tmp_path / "a", tmp_path / odd)
        else:
            (tmp_path / odd).touch()
        assert observed(tmp_path) is None
        (tmp_path / odd).unlink()

    assert observed(tmp_path) == expected(tmp_path)


def test_what_is_no_directory_is_an_error(tmp_path):
    (tmp_path / "a").touch()

    with pytest.raises(NotADirectoryError):
        observed(tmp_path / "a")
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        native.module.observe(-1, IGNORE_FILE, STAGE_PREFIX)
    assert caught.value.errno == errno.EBADF


def test_names_that_come_and_go_are_no_error(tmp_path):
    is_over = False

    def rename() -> None:
        while not is_over:
            for number in range(20):
                (tmp_path / f"{number}").touch()
            for number in range(20):
                (tmp_path / f"{number}").unlink()

    (tmp_path / "stays").touch()
    thread = threading.Thread(target=rename)
    thread.start()
    try:
        for _ in range(300):
            assert b"stays" in (observed(tmp_path) or b"")
    finally:
        is_over = True
        thread.join()


def test_the_listing_is_that_of_python(tmp_path, monkeypatch):
    """Excluded names, ignore files, reserved names, other links: all in one directory."""
    for name in ("a", "b.log", ".snapignore", STAGE_PREFIX.decode() + "x"):
        (tmp_path / name).write_text("*.log\n")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with_native = list_directory(FS, fd, b"", Exclusions())
        monkeypatch.setattr(native, "module", None)
        without = list_directory(FS, fd, b"", Exclusions())
    finally:
        os.close(fd)

    assert with_native.exclusions.fingerprint == without.exclusions.fingerprint
    for field in ("observations", "linked", "closed", "hidden", "rule", "warnings", "packed"):
        assert getattr(with_native, field) == getattr(without, field)


def by_path(reports: bytes) -> dict[bytes, int]:
    """Returns what is said of each directory; each has one report."""
    found: dict[bytes, int] = {}
    while reports:
        kind, path_size, packed_size = unpack_from("=BII", reports)
        path = reports[9 : 9 + path_size]
        assert path not in found
        found[path] = kind
        reports = reports[9 + path_size + packed_size :]
    return found


def row(path: bytes, seen: bytes, **others: object) -> Row:
    fields = {
        "path": path,
        "tree_id": ObjectId(bytes(32)),
        "totals": Totals(),
        "rules": b"",
        "racy": (),
        "linked": False,
        "skipped": (),
        "observations": seen,
    }
    return Row(**fields | others)


class Compared:
    """A small tree, and the cache of what it looked like."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.path = str(place / "cache")
        self._temporary = place / "temporary"
        self._temporary.mkdir()
        for number in range(6):
            (self.root / f"d{number}" / "below").mkdir(parents=True)
            (self.root / f"d{number}" / "below" / "file").touch()

    def rows(self) -> dict[bytes, Row]:
        """Returns the row of each directory as it is now."""
        paths = [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]
        named = {os.fsencode(str(path.relative_to(self.root))): path for path in paths}
        named[b""] = named.pop(b".")
        return {name: row(name, expected(path)) for name, path in named.items()}

    def write(self, rows: dict[bytes, Row]) -> None:
        """Makes these the rows of the cache."""
        builder = StatCacheBuilder(FS, str(self._temporary), None)
        for item in rows.values():
            builder.add(item)
        builder.publish(self.path, "a" * 64, ObjectId(bytes(32)))

    def reported(self, *, inodes: frozenset[int] = frozenset()) -> dict[bytes, int]:
        """Returns what the module says of each directory."""
        cache = load(FS, self.path)
        assert cache is not None
        assert native.module is not None
        packed = b"".join(pack("<Q", inode) for inode in sorted(inodes))
        names = IGNORE_FILE, STAGE_PREFIX
        fd = os.open(self.root, os.O_RDONLY)
        try:
            reports = native.module.compare(fd, *names, NO_ROWS, cache.base.table, packed, 2)
        finally:
            os.close(fd)
        return by_path(reports)


@pytest.fixture
def compared(tmp_path) -> Compared:
    made = Compared(tmp_path)
    made.write(made.rows())
    return made


def test_of_an_unchanged_tree_nothing_is_reported(compared):
    assert compared.reported() == {}


def test_each_change_is_reported_where_it_is(compared):
    (compared.root / "d1" / "below" / "file").write_text("changed")
    (compared.root / "d2" / "new").mkdir()

    assert compared.reported() == {
        b"d1/below": DIFFERS,
        b"": DIFFERS,  # the time of d2
        b"d2": DIFFERS,
        b"d2/new": WHOLE,
    }


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"racy": (b"file",)}, LOOK),
        ({"linked": True}, LOOK),
        ({"observations": b"\xc1"}, DIFFERS),
        ({"observations": b""}, DIFFERS),
    ],
)
def test_a_row_that_proves_nothing_is_reported(compared, change, kind):
    rows = compared.rows()
    rows[b"d3/below"] = rows[b"d3/below"]._replace(**change)
    compared.write(rows)

    assert compared.reported() == {b"d3/below": kind}


def test_a_hidden_name_hides_its_changes_as_long_as_it_has_its_type(compared):
    directory = compared.root / "d1" / "below"
    (directory / "build").mkdir()
    (directory / "log").touch()
    hidden = ((b"build", stat.S_IFDIR), (b"log", stat.S_IFREG))
    seen = [
        (name, *(0,) * 6) if name in dict(hidden) else item
        for name, item in decode_observations(expected(directory)).items()
        for item in [item]
    ]
    rows = compared.rows()
    del rows[b"d1/below/build"]
    rows[b"d1/below"] = row(b"d1/below", encode_observations(seen), hidden=hidden, rules=b"some")
    compared.write(rows)
    assert compared.reported() == {}

    (directory / "log").write_text("changed")
    (directory / "build" / "object").touch()
    assert compared.reported() == {}
    times = directory.stat()
    (directory / "log").unlink()
    (directory / "log").mkdir()
    os.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert compared.reported()[b"d1/below"] == DIFFERS


def test_below_an_ignore_file_nothing_is_known_if_its_directory_differs(compared):
    (compared.root / "d1" / ".snapignore").write_text("build\n")
    compared.write(compared.rows())
    assert compared.reported() == {b"d1": LOOK}

    (compared.root / "d1" / ".snapignore").write_text("other\n")
    assert compared.reported() == {b"d1": LOOK_BELOW}
    compared.write(compared.rows())
    (compared.root / "d1").chmod(0o1755)
    assert compared.reported()[b"d1"] == LOOK_BELOW


def test_a_directory_with_a_mapped_file_is_reported(compared):
    inode = (compared.root / "d1" / "below" / "file").stat().st_ino

    assert compared.reported(inodes=frozenset({inode})) == {b"d1/below": LOOK}


def test_of_what_is_absent_in_the_cache_all_is_reported(compared):
    rows = compared.rows()
    del rows[b"d4"]
    compared.write(rows)

    assert compared.reported() == {b"d4": WHOLE}


def test_no_damage_of_a_cache_is_taken_for_unchanged(compared):
    """Each byte of the file is changed once; what was seen of the row it is in must not count."""
    data = bytearray(Path(compared.path).read_bytes())
    rows = compared.rows()
    where = {path: data.index(item.observations) for path, item in rows.items()}
    table = CacheFile(memoryview(bytes(data)), "test").table[1:]
    fd = os.open(compared.root, os.O_RDONLY)
    try:
        for place in range(16, len(data)):
            data[place] ^= 0xFF
            reported = by_path(
                native.module.compare(
                    fd, IGNORE_FILE, STAGE_PREFIX, NO_ROWS, (bytes(data), *table), b"", 1
                )
            )
            for path, begin in where.items():
                if begin <= place < begin + len(rows[path].observations):
                    assert path in reported
            data[place] ^= 0xFF
    finally:
        os.close(fd)


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 30))
def test_no_bytes_crash_it(data, table, count):
    fd = os.open("/", os.O_RDONLY)
    try:
        reports = native.module.compare(
            fd, IGNORE_FILE, STAGE_PREFIX, NO_ROWS, (data, table, count), b"", 1
        )
        assert by_path(reports) == {b"": WHOLE}
    except ValueError:
        assert table > len(data) or count > (len(data) - table) // 16
    finally:
        os.close(fd)


def test_what_has_no_row_is_not_opened(compared):
    """It may be a mount point: opening one mounts what is to be there, or waits for a server."""
    rows = compared.rows()
    del rows[b"d1"]
    compared.write(rows)
    library, on_open = ctypes.CDLL(None), 0x20
    fd = library.inotify_init1(os.O_NONBLOCK)
    try:
        library.inotify_add_watch(fd, os.fsencode(compared.root / "d1"), on_open)
        assert compared.reported() == {b"d1": WHOLE}
        with pytest.raises(BlockingIOError):
            os.read(fd, 4096)
    finally:
        os.close(fd)


def test_below_what_is_too_deep_python_goes_on(tmp_path):
    made = Compared(tmp_path)
    made.root.joinpath(*["d"] * 60).mkdir(parents=True)
    made.write(made.rows())

    assert made.reported() == {b"/".join([b"d"] * 49): LOOK_BELOW}


def test_descriptors_are_closed_whatever_happens(compared):
    before = os.listdir("/proc/self/fd")
    compared.reported()
    with pytest.raises(ValueError, match="table"):
        native.module.compare(0, IGNORE_FILE, STAGE_PREFIX, NO_ROWS, (b"", 9, 9), b"", 1)

    assert os.listdir("/proc/self/fd") == before


def test_a_signal_ends_it(tmp_path):
    """While it walks, handlers run; one that raises ends the walk and leaves nothing open."""
    root = tmp_path / "root"
    for number in range(200):
        (root / f"{number}").mkdir(parents=True)
    made = Compared.__new__(Compared)
    made.root, made.path, made._temporary = root, str(tmp_path / "cache"), tmp_path / "temporary"
    made._temporary.mkdir()
    made.write(made.rows())
    cache = load(FS, made.path)
    before = len(os.listdir("/proc/self/fd"))

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def compare_until(deadline: float) -> None:
        while time.monotonic() < deadline:
            row_differences(FS, fd, cache, Exclusions(), frozenset())

    old = signal.signal(signal.SIGALRM, interrupt)
    fd = os.open(root, os.O_RDONLY)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            compare_until(time.monotonic() + 60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_comparisons_at_once_agree(compared):
    (compared.root / "d5" / "below" / "file").write_text("changed")
    found: list[dict[bytes, int]] = []
    threads = [threading.Thread(target=lambda: found.append(compared.reported())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [{b"d5/below": DIFFERS}] * 4


def test_a_file_system_that_is_not_the_kernels_own_is_not_gone_past():
    class Other(LocalFileSystem):
        """One that a test, or another product, puts in the place."""

    assert native.accelerator(Other()) is None
    assert native.accelerator(FS) is native.accelerator(OwnerFileSystem("/")) is native.module
    assert listings.accelerator is native.accelerator


ID = bytes(range(32))
ENTRIES = [
    (b"a", 1, 0o644, 0, 0, 0, 0, (0,), None),
    (b"b", 1, 0o7777, 1000, 1000, -5, 128, (bytes(128),), None),
    (b"c", 1, 0, (1 << 32) - 2, 0, (1 << 64) - 1, 9, (0, ID, 4, ID, 5), None),
    (b"d", 2, 0o755, 0, 0, 1, 0, ID, None),
]
OBSERVATIONS = [(b"a", 0o100644, 1, -1, 2, 3, 4), (b"b", 0, 0, 0, 0, 0, 0)]
FIELDS = [
    *(None, True, -1, 0, 1, 7, 9, 128, 129, 0o10000, (1 << 32) - 1, 1 << 32, 1 << 63),
    *(b"", b".", b"..", b"a", b"a/b", b"a\0b", b"z" * 255, b"z" * 256, b"z" * 4096, ID, "a"),
    *((), (0,), (1,), (b"",), (b"a",), (True,), (0, ID), (0, ID, 9), (0, ID, 0), (1, ID, 9)),
    *((0, None, 9), (0, ID[1:], 9), (0, ID, 1 << 63), (0, ID, -1, ID, 10)),
    *((0, *(ID, 1) * 9), (0, *(ID, 1) * 17), ((b"user.a", b""),), [], [0, ID, 9]),
]


def verdict(decode, packed: bytes):
    """Returns what a decoder makes of bytes."""
    try:
        return decode(packed)
    except Corrupt as error:
        return str(error)


@pytest.mark.parametrize("decode", [decode_tree, decode_observations])
def test_decoders_accept_the_same_with_the_module_and_without(decode, monkeypatch):
    rows = ENTRIES if decode is decode_tree else OBSERVATIONS
    odd = [rows, [], [None], [*rows, rows[0]], [*rows, ()], [*rows, rows[0][:-1]], rows[::-1]]
    for position, row in enumerate(rows):
        for at in range(len(row)):
            others = ((*row[:at], value, *row[at + 1 :]) for value in FIELDS)
            odd += [[*rows[:position], other, *rows[position + 1 :]] for other in others]
    totals = (0, 0, 0, 0, 0, 0)
    packed = [msgpack.packb([1, totals, 0, it] if decode is decode_tree else it) for it in odd]
    assert native.module is not None
    assert native.module.are_plain(tuple(rows), len(rows[0]))
    with_module = [verdict(decode, data) for data in packed]
    monkeypatch.setattr(native, "module", None)
    assert with_module == [verdict(decode, data) for data in packed]
    assert {type(it) is str for it in with_module} == {True, False}


def test_rows_of_a_width_that_is_unknown_are_not_plain():
    assert native.module is not None
    assert not native.module.are_plain(((b"a", 1, 2),), 3)
    assert not native.module.are_plain(tuple(ENTRIES), 7)
    with pytest.raises(TypeError):
        native.module.are_plain(ENTRIES, 9)
