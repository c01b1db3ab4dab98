"""Every place for blobs behind the seam behaves alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from blob_doubles import FaultyBlobs, LateListBlobs, MemoryBlobs
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote.blobs.base import NEAR_BYTES, BlobMissing
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.blobs.wrappers import Throttled, WholeReads
from treesnap.testing.doubles import UnsyncedFileSystem

NOT_NAMES = [
    "",
    "packs",
    "packs/",
    "/packs/00",
    "packs/00/11",
    "../packs/00",
    "packs/..",
    "packs/.unfinished-0123456789abcdef",
    "packs/0g",
    "packs/00\n",
    "PACKS/00",
    "packs/AB",
    "packs\\00",
    "formats",
    "packs/" + "0" * 129,
]
WRITERS = 4


class RestingClock:
    """A clock whose waits take no time."""

    def now_s(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        pass


@pytest.fixture
def directory(tmp_path):
    DirectoryBlobs(UnsyncedFileSystem(), str(tmp_path / "remote"), make=True).close()
    return lambda: DirectoryBlobs(UnsyncedFileSystem(), str(tmp_path / "remote"), make=True)


@pytest.fixture
def memory():
    shared = MemoryBlobs()
    return lambda: shared


@pytest.fixture
def throttled(memory):
    return lambda: Throttled(memory(), 1.0, RestingClock())


@pytest.fixture
def read_whole(memory):
    return lambda: WholeReads(memory())


@pytest.fixture
def faultless(memory):
    return lambda: FaultyBlobs(memory())


@pytest.fixture
def listing_in_time(memory):
    return lambda: LateListBlobs(memory(), 0, [])


@pytest.fixture(
    params=[
        "directory",
        "memory",
        "throttled",
        "read_whole",
        "faultless",
        "listing_in_time",
        "new_bucket",
        "new_sftp",
        "new_rclone",
    ]
)
def connect(request):
    """Opens one place several times."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def blobs(connect):
    opened = connect()
    yield opened
    opened.close()


def names_of(found) -> list[str]:
    return [item.name for item in found]


def test_a_blob_is_read_as_it_was_written(blobs):
    blobs.put("packs/00-ab", b"content")

    assert blobs.get("packs/00-ab") == b"content"
    assert blobs.size_bytes("packs/00-ab") == 7
    assert type(blobs.get("packs/00-ab")) is bytes


@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview])
def test_any_bytes_are_written(blobs, convert):
    blobs.put("packs/00", convert(b"content"))

    assert blobs.create("packs/01", convert(b"created"))

    assert (blobs.get("packs/00"), blobs.get("packs/01")) == (b"content", b"created")


def test_a_blob_may_be_empty(blobs):
    blobs.put("packs/00", b"")

    assert not blobs.create("packs/00", b"")
    assert blobs.create("packs/01", b"")

    assert (blobs.get("packs/00"), blobs.size_bytes("packs/01")) == (b"", 0)
    assert list(blobs.get_ranges("packs/00", [(0, 5), (3, 0)])) == [b"", b""]


def test_put_replaces(blobs):
    blobs.put("packs/00", b"a long first content")
    blobs.put("packs/00", b"second")

    assert blobs.get("packs/00") == b"second"


def test_create_writes_once(blobs):
    assert blobs.create("state/00", b"first")
    assert not blobs.create("state/00", b"second")

    assert blobs.get("state/00") == b"first"


def test_a_name_is_free_again_after_its_removal(blobs):
    blobs.create("state/00", b"first")
    blobs.delete(["state/00"])

    assert blobs.create("state/00", b"second")

    assert blobs.get("state/00") == b"second"


def test_large_blobs_are_whole(blobs):
    content = bytes(range(256)) * (5 << 12)

    blobs.put("packs/00", content)
    assert blobs.create("packs/01", content)

    assert blobs.get("packs/00") == blobs.get("packs/01") == content


def test_of_writers_that_meet_one_wins(connect, request):
    if "new_rclone" in request.fixturenames:
        pytest.skip("rclone lets several win, and one machine alone collects there")
    writers = [connect() for _ in range(WRITERS)]
    start = Barrier(WRITERS)

    def write(number: int) -> bool:
        start.wait()
        return writers[number].create("state/00", b"%d" % number)

    with ThreadPoolExecutor(WRITERS) as threads:
        won = list(threads.map(write, range(WRITERS)))

    assert won.count(True) == 1
    assert writers[0].get("state/00") == b"%d" % won.index(True)
    for writer in writers:
        writer.close()


def test_one_connection_serves_threads(blobs):
    def work(number: int) -> bytes:
        name = f"packs/{number:02x}"
        blobs.put(name, name.encode())
        return blobs.get(name)

    with ThreadPoolExecutor(WRITERS) as threads:
        found = list(threads.map(work, range(3 * WRITERS)))

    assert found == [f"packs/{number:02x}".encode() for number in range(3 * WRITERS)]


@pytest.mark.parametrize(
    "read",
    [
        lambda blobs: blobs.get("packs/00"),
        lambda blobs: blobs.get("format"),
        lambda blobs: blobs.size_bytes("packs/00"),
        lambda blobs: blobs.get_ranges("packs/00", [(0, 1)]),
        lambda blobs: blobs.get_ranges("packs/00", [(0, 0)]),
        lambda blobs: blobs.get_ranges("packs/00", []),
    ],
)
def test_an_absent_blob_is_missing(blobs, read):
    blobs.put("packs/01", b"another")

    with pytest.raises(BlobMissing, match="no blob"):
        read(blobs)


def test_a_blob_that_is_too_large_is_not_read(blobs):
    blobs.put("packs/00", b"content")

    assert blobs.get("packs/00", 7) == b"content"
    with pytest.raises(RemoteFailed, match="has 7 bytes, and 6 are read at most") as caught:
        blobs.get("packs/00", 6)

    assert caught.value.code == ErrorCode.REMOTE_FAILED


def test_ranges_come_in_the_order_of_the_request(blobs):
    content = bytes(range(256)) * (3 * NEAR_BYTES // 256)
    blobs.put("packs/00", content)
    end = len(content)
    ranges = [
        (end - 5, 10),  # past the end
        (10, 5),
        (0, 3),
        (12, 100),  # overlapping
        (2 * NEAR_BYTES, 7),  # far away
        (end + 5, 3),  # beyond the end
        (4, 0),
    ]

    found = blobs.get_ranges("packs/00", ranges)

    assert [type(part) for part in found] == [bytes] * len(ranges)
    assert list(found) == [content[start : start + size] for start, size in ranges]


def test_ranges_beyond_the_end_alone_are_empty(blobs):
    blobs.put("packs/00", b"content")

    assert list(blobs.get_ranges("packs/00", [(7, 1), (100, 5)])) == [b"", b""]


@pytest.mark.parametrize("ranges", [[(-1, 5)], [(0, 5), (3, -1)]])
def test_ranges_that_no_blob_has_are_refused(blobs, ranges):
    with pytest.raises(ValueError, match="There are no"):
        blobs.get_ranges("packs/00", ranges)


def test_a_listing_is_sorted_and_tells_sizes(blobs):
    for name in ["packs/10", "packs/0f", "packs/0-1", "packs/0", "commits/00", "format"]:
        blobs.put(name, name.encode())

    found = list(blobs.list("packs/"))

    names = ["packs/0", "packs/0-1", "packs/0f", "packs/10"]
    assert [item[:2] for item in found] == [(name, len(name)) for name in names]
    assert names_of(blobs.list("commits/")) == ["commits/00"]
    assert names_of(blobs.list("index/")) == []


def test_a_listing_begins_where_it_is_told_to(blobs):
    names = [f"state/{number:04x}" for number in range(0, 40, 2)]
    for name in names:
        blobs.put(name, b"")

    assert names_of(blobs.list("state/", after="state/0010")) == names[9:]
    assert names_of(blobs.list("state/", after="state/0011")) == names[9:]
    assert names_of(blobs.list("state/001", after="state/0016")) == names[12:16]
    assert names_of(blobs.list("state/001")) == names[8:16]
    assert names_of(blobs.list("state/0010")) == ["state/0010"]
    assert names_of(blobs.list("state/", after="state/ffff")) == []
    assert names_of(blobs.list("state/", after="packs/00")) == names


def test_what_is_written_and_removed_is_listed_by_others_at_once(connect):
    writer, reader = connect(), connect()
    seen = []
    for step in range(3):
        writer.put(f"packs/0{step}", b"")
        seen.append(names_of(reader.list("packs/")))
    writer.delete(["packs/01"])
    seen.append(names_of(reader.list("packs/")))
    writer.close()
    reader.close()

    assert seen == [
        ["packs/00"],
        ["packs/00", "packs/01"],
        ["packs/00", "packs/01", "packs/02"],
        ["packs/00", "packs/02"],
    ]


def test_removing_takes_what_is_there(blobs):
    for number in range(4):
        blobs.put(f"packs/{number}", b"")
    blobs.put("format", b"")

    refused = blobs.delete(["packs/1", "packs/9", "keys/00", "format", "packs/2", "packs/1"])

    assert list(refused) == []
    assert names_of(blobs.list("packs/")) == ["packs/0", "packs/3"]
    with pytest.raises(BlobMissing):
        blobs.get("format")


def test_removing_nothing_is_allowed(blobs):
    assert list(blobs.delete([])) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda blobs, name: blobs.put(name, b""),
        lambda blobs, name: blobs.create(name, b""),
        lambda blobs, name: blobs.get(name),
        lambda blobs, name: blobs.get_ranges(name, [(0, 1)]),
        lambda blobs, name: blobs.size_bytes(name),
        lambda blobs, name: blobs.delete(["packs/00", name]),
    ],
    ids=["put", "create", "get", "get_ranges", "size_bytes", "delete"],
)
def test_what_is_no_name_is_refused(blobs, use):
    blobs.put("packs/00", b"kept")

    for name in NOT_NAMES:
        with pytest.raises(ValueError, match="is not the name of a blob"):
            use(blobs, name)

    assert blobs.get("packs/00") == b"kept"


@pytest.mark.parametrize(
    ("prefix", "after"),
    [("", ""), ("packs", ""), ("/", ""), ("../", ""), ("packs/x", ""), ("packs/", "x")],
)
def test_a_listing_of_what_are_no_names_is_refused_at_the_call(blobs, prefix, after):
    with pytest.raises(ValueError, match="blob"):
        blobs.list(prefix, after)


@pytest.mark.slow
def test_a_long_listing_is_complete_and_sorted(new_bucket):
    blobs = new_bucket()
    names = [f"packs/{number:04x}" for number in range(1100)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: blobs.put(name, b""), names))

    assert names_of(blobs.list("packs/")) == names
    assert list(blobs.delete(names)) == []
    assert names_of(blobs.list("packs/")) == []
