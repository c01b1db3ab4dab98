"""Snapshots of archives and of other directories, and archives that mean harm."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import many_members
import treesnap
from forge import Forge
from oracle import difference, record
from sampling import sized
from trees import build, write_sparse
from treesnap import InvalidArgument, NotFound, OperationFailed, Refused
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.reserved_tags import IMPORTED

pytestmark = pytest.mark.sampled(4)

Add = Callable[..., None]


@pytest.fixture
def handle(tmp_path):
    """A root with a file, and one snapshot."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mine").write_text("here\n")
    found = treesnap.open(tmp_path / "root", tmp_path / "store")
    found.create(label="before")
    return found


def info(name: str, type_: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    """Returns a header."""
    made = tarfile.TarInfo(name)
    made.type = type_
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Returns an archive, whatever its members say."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for header, content in members:
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("suffix", ["tar", "tar.zst", "tar.gz"])
def test_an_archive_comes_back_as_the_same_tree(tmp_path, seed, suffix):
    build(tmp_path / "root", seed, still=False)
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    taken = handle.create()
    handle.archive(taken.id, tmp_path / f"a.{suffix}")
    (tmp_path / "other").mkdir()
    other = treesnap.open(tmp_path / "other", tmp_path / "other-store")

    made = other.import_from(tmp_path / f"a.{suffix}")

    assert made.snapshot.record.root == taken.snapshot.record.root
    assert made.root_hash == taken.root_hash
    assert made.snapshot.record.totals == taken.snapshot.record.totals
    assert os.listdir(tmp_path / "other") == []
    assert other.verify(read_data=True).problems == ()


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar", "v7", "oldgnu"])
def test_archives_of_gnu_tar_are_read(tmp_path, handle, form):
    source = tmp_path / "source"
    (source / "deep" / ("d" * 80)).mkdir(parents=True)
    (source / "deep" / ("d" * 80) / "file").write_bytes(b"content")
    os.link(source / "deep" / ("d" * 80) / "file", source / "link")
    (source / "soft").symlink_to("link")
    write_sparse(os.fsencode(source / "sparse"), 1 << 20, (300_000, b"x" * 100))
    os.utime(source / "sparse", (5, 5))
    sparse = ["--sparse"] if form in {"gnu", "oldgnu", "pax"} else []
    command = ["tar", f"--format={form}", *sparse, "-cf", "-", "-C", source, "."]
    data = subprocess.run(command, check=True, capture_output=True).stdout

    made = handle.import_from(io.BytesIO(data))
    handle.restore(made.id, to=tmp_path / "restored")

    expected, actual = record(source), record(tmp_path / "restored")
    assert [
        (path, facts.digest, facts.target, facts.links, facts.mode)
        for path, facts in sorted(actual.items())
    ] == [
        (path, facts.digest, facts.target, facts.links, facts.mode)
        for path, facts in sorted(expected.items())
    ]


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0"])
def test_sparse_files_in_each_form_of_pax_are_read(tmp_path, handle, version):
    source = tmp_path / "source"
    source.mkdir()
    write_sparse(os.fsencode(source / "sparse"), 3 << 20, (1 << 20, b"x" * 70_000), (2 << 20, b"y"))
    command = ["tar", "--format=pax", f"--sparse-version={version}", "--sparse", "-cf", "-"]
    data = subprocess.run([*command, "sparse"], cwd=source, check=True, capture_output=True).stdout

    made = handle.import_from(io.BytesIO(data))

    assert b"".join(handle.cat(made.id, "sparse")) == (source / "sparse").read_bytes()


def test_archives_of_bsdtar_are_read(tmp_path):
    if shutil.which("bsdtar") is None:
        pytest.skip("bsdtar is not installed")
    build(tmp_path / "root", 5, still=False)
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    command = ["bsdtar", "--format=pax", "-cf", "-", "-C", tmp_path / "root", "names", "many"]
    done = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )

    made = handle.import_from(io.BytesIO(done.stdout))
    handle.restore(made.id, to=tmp_path / "restored")

    expected, actual = (
        {
            path: (facts.kind, facts.digest, facts.mode, facts.target)
            for path, facts in record(tmp_path / place).items()
            if path.startswith((b"names/", b"many/"))
        }
        for place in ("root", "restored")
    )
    assert actual == expected


def test_a_directory_is_imported_as_a_root_is_captured(tmp_path, handle):
    build(tmp_path / "source", 6)
    other = treesnap.open(tmp_path / "source", tmp_path / "other-store")
    taken = other.create()

    made = handle.import_from(tmp_path / "source", name="copy")

    assert made.root_hash == taken.root_hash
    assert {item.path for item in made.skipped} == {item.path for item in taken.skipped}
    assert (made.snapshot.name, made.snapshot.label) == ("copy", "Imported from source")
    assert os.listdir(tmp_path / "root") == ["mine"]


def test_the_label_says_where_it_came_from_and_the_root_does_not_stand_there(tmp_path, handle):
    (tmp_path / "a.tar").write_bytes(archive_of((info("file"), b"content")))

    made = handle.import_from(tmp_path / "a.tar", tags={"from": "a friend"})

    assert made.snapshot.label == "Imported from a.tar"
    assert made.snapshot.tags == {"from": "a friend", IMPORTED: "a.tar"}
    assert [item.is_position for item in handle.log()] == [False, True]
    handle.restore(made.id)
    assert sorted(os.listdir(tmp_path / "root")) == ["file"]
    handle.undo()
    assert (tmp_path / "root" / "mine").read_text() == "here\n"


def test_members_in_any_order_make_the_same_tree(tmp_path, handle):
    names = [f"d{n % 7}/e{n % 5}/f{n}" for n in range(200)]
    shuffled = list(names)
    Random(7).shuffle(shuffled)
    directories = [f"d{n}" for n in range(7)] + [f"d{n}/e{m}" for n in range(7) for m in range(5)]

    made = [
        handle.import_from(
            io.BytesIO(
                archive_of(
                    *((info(name, mtime=n), name.encode() * 99) for n, name in enumerate(order)),
                    *((info(name, tarfile.DIRTYPE, mode=0o750), b"") for name in directories),
                )
            )
        )
        for order in (names, shuffled)
    ]

    one, other = ({item.name: item.kind for item in handle.ls(m.id, recursive=True)} for m in made)
    assert one == other
    assert made[0].snapshot.record.totals == made[1].snapshot.record.totals
    assert made[0].stats.files == 200


def test_the_last_of_several_members_of_a_name_counts(handle):
    data = archive_of(
        (info("file"), b"old"),
        (info("link", tarfile.LNKTYPE, linkname="file"), b""),
        (info("./file"), b"new"),
        (info("dir/inside"), b""),
        (info("dir", tarfile.DIRTYPE, mode=0o700), b""),
    )

    made = handle.import_from(io.BytesIO(data))

    assert b"".join(handle.cat(made.id, "file")) == b"new"
    assert b"".join(handle.cat(made.id, "link")) == b"old"
    assert made.snapshot.record.links is None
    assert {item.name: item.mode for item in handle.ls(made.id)}[b"dir"] == 0o700


HOSTILE = {
    "a name that the root cannot take": (
        [(info(f"a/{'n' * 256}"), b"x")],
        "has a name of more than 255 bytes, which the file system of the root cannot take",
    ),
    "a directory that the root cannot take": (
        [(info(f"{'n' * 256}/a"), b"x")],
        "has a name of more than 255 bytes",
    ),
    "a link's target that no system can make": (
        [(info("a", tarfile.SYMTYPE, linkname="t" * 4096), b"")],
        "'a' is a symbolic link to a path of 4,096 bytes, which no system can make",
    ),
    "a name that restores use": (
        [(info("a/.treesnap-restore-0/b"), b"x")],
        "reserved for restores",
    ),
    "absolute": ([(info("/etc/passwd"), b"x")], "absolute path"),
    "upwards": ([(info("a/../../b"), b"x")], "no tree can hold"),
    "upwards by a link's target": (
        [(info("a", tarfile.LNKTYPE, linkname="../b"), b"")],
        "no tree can hold",
    ),
    "through a symbolic link": (
        [(info("a", tarfile.SYMTYPE, linkname="/etc"), b""), (info("a/passwd"), b"x")],
        "leads through something",
    ),
    "through a file": ([(info("a"), b"x"), (info("a/b"), b"x")], "leads through something"),
    "a file for a directory": (
        [(info("a/b"), b"x"), (info("a"), b"x")],
        "as a directory and as something else",
    ),
    "a directory for a file": (
        [(info("a"), b"x"), (info("a", tarfile.DIRTYPE), b"")],
        "leads through something",
    ),
    "a link to nothing": (
        [(info("a", tarfile.LNKTYPE, linkname="b"), b"")],
        "is not a file before",
    ),
    "a link to a directory": (
        [(info("b", tarfile.DIRTYPE), b""), (info("a", tarfile.LNKTYPE, linkname="b"), b"")],
        "is not a file before",
    ),
    "the root as a file": ([(info("."), b"x")], "other than a directory"),
    "an unknown type": ([(info("a", b"Q"), b"")], "unknown type"),
    "an owner out of range": (
        [(info("a", pax_headers={"uid": "99999999999"}), b"x")],
        "no snapshot can hold",
    ),
    "a number that is none": (
        [(info("a", pax_headers={"uid": "-7"}), b"x")],
        "impossible number",
    ),
    "a time that is none": ([(info("a", pax_headers={"mtime": "soon"}), b"x")], "impossible time"),
    "a time out of range": (
        [(info("a", pax_headers={"mtime": "9" * 19}), b"x")],
        "no snapshot can hold",
    ),
    "an attribute without a name": (
        [(info("a", pax_headers={"SCHILY.xattr." + "n" * 300: "v"}), b"x")],
        "no snapshot can hold",
    ),
    "a sparse map beyond the file": (
        [
            (
                info(
                    "a",
                    pax_headers={"GNU.sparse.map": "0,5,9223372036854775800,5"}
                    | {"GNU.sparse.size": "10"},
                ),
                b"0123456789",
            )
        ],
        "do not fit",
    ),
    "a sparse map that goes back": (
        [
            (
                info("a", pax_headers={"GNU.sparse.map": "5,5,0,5", "GNU.sparse.size": "10"}),
                b"0123456789",
            )
        ],
        "do not fit",
    ),
    "a sparse map of too many pieces": (
        [
            (
                info(
                    "a",
                    pax_headers={
                        "GNU.sparse.major": "1",
                        "GNU.sparse.minor": "0",
                        "GNU.sparse.realsize": "10",
                    },
                ),
                b"99999999999\n" + bytes(500),
            )
        ],
        "claims 99999999999 pieces",
    ),
}


@pytest.mark.parametrize(("members", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_published(tmp_path, handle, members, why):
    before = record(tmp_path / "root")

    with pytest.raises(InvalidArgument, match=why) as error:
        handle.import_from(io.BytesIO(archive_of((info("good"), b"good"), *members)))

    assert error.value.code == "invalid-archive"
    assert [item.label for item in handle.list()] == ["before"]
    assert difference(before, record(tmp_path / "root")) == []
    assert handle.verify(read_data=True).problems == ()


WHOLE = archive_of((info("first"), b"x" * 5000), (info("second"), b"y" * 700))
BROKEN = {
    "empty": b"",
    "zeros cut off": bytes(100),
    "text": b"this is no archive at all\n" * 40,
    "within a header": WHOLE[:300],
    "within a file": WHOLE[:3000],
    "before a header": WHOLE[:5632],
    "before the end": WHOLE[: 5632 + 512 + 1024],
    "a flipped bit": WHOLE[:20] + bytes([WHOLE[20] ^ 1]) + WHOLE[21:],
    "gzip cut off": gzip.compress(WHOLE)[:-20],
    "gzip damaged": gzip.compress(WHOLE)[:-6] + b"\0" * 6,
    "zstd damaged": b"\x28\xb5\x2f\xfd" + bytes(50),
    "xz": b"\xfd7zXZ\x00" + bytes(50),
    "a large extended header": (
        info("././@PaxHeader", tarfile.XHDTYPE, size=1 << 40).tobuf(tarfile.GNU_FORMAT)
        + bytes(5000)
    ),
    "an endless extended record": (
        info("././@PaxHeader", tarfile.XHDTYPE, size=512).tobuf() + b"999999999 path=a\n".ljust(512)
    ),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_archive_is_named(tmp_path, handle, data):
    (tmp_path / "a\n.tar").write_bytes(data)

    with pytest.raises(InvalidArgument, match=r"^Could not import '.*/a\\\\n\.tar': ") as error:
        handle.import_from(tmp_path / "a\n.tar")

    assert (error.value.code, error.value.path) == ("invalid-archive", str(tmp_path / "a\n.tar"))


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_an_archive_that_is_not_whole_is_refused(handle, data):
    with pytest.raises(InvalidArgument) as error:
        handle.import_from(io.BytesIO(data))

    assert error.value.code == "invalid-archive"
    assert [item.label for item in handle.list()] == ["before"]


def test_every_cut_and_every_flipped_byte_is_harmless(handle):
    random = Random(8)
    for _ in range(150):
        data = bytearray(WHOLE)
        if random.random() < 0.5:
            del data[random.randrange(len(data)) :]
        for _ in range(random.randrange(3)):
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
        with suppress(InvalidArgument):
            handle.delete(handle.import_from(io.BytesIO(bytes(data))).id)
    assert handle.verify(read_data=True).problems == ()


def test_a_huge_sparse_claim_costs_nothing(handle):
    size = (1 << 63) - 1
    header = info(
        "a",
        pax_headers={"GNU.sparse.map": f"0,1,{size},0", "GNU.sparse.size": str(size)},
    )

    made = handle.import_from(io.BytesIO(archive_of((header, b"x"))))

    assert made.stats.size_bytes == size
    assert made.stats.added_bytes < 4096


class EndlessFile:
    """An archive after which zeros come for ever, as a few bytes that are compressed can be."""

    def __init__(self, archive: bytes) -> None:
        self._archive = io.BytesIO(archive)
        self.zeros = 0

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes."""
        data = self._archive.read(size)
        if not data:
            self.zeros += size
            assert self.zeros < 1 << 30
        return data or bytes(size)


def test_an_archive_that_goes_on_after_its_end_is_refused(handle):
    before = len(handle.list())

    with pytest.raises(InvalidArgument, match="goes on for more than 64 MiB after its end"):
        handle.import_from(EndlessFile(archive_of((info("a"), b"x"))))

    assert len(handle.list()) == before


def test_devices_are_names_in_the_snapshot_alone(tmp_path, handle):
    device = info("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666)

    made = handle.import_from(io.BytesIO(archive_of((device, b""))))

    (entry,) = handle.ls(made.id)
    assert entry.device == (1, 3)
    assert os.listdir(tmp_path / "root") == ["mine"]


def test_memory_does_not_grow_with_a_file_or_an_extended_header(handle):
    header = info("large", size=120 << 20).tobuf()
    block = Random(9).randbytes(1 << 20)

    class Source:
        """Gives one large file away, piece by piece."""

        def __init__(self) -> None:
            self._left = [bytes(1024), *[block] * 120, header]

        def read(self, size: int, /) -> bytes:
            if not self._left:
                return b""
            piece = self._left.pop()
            if len(piece) > size:
                self._left.append(piece[size:])
            return piece[:size]

    handle.import_from(io.BytesIO(WHOLE))
    tracemalloc.start()
    try:
        handle.import_from(Source())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 72 << 20


def test_wrong_sources_are_refused_first(tmp_path, handle):
    with pytest.raises(NotFound, match="no file or directory"):
        handle.import_from(tmp_path / "absent.tar")
    with pytest.raises(InvalidArgument, match="is the root itself"):
        handle.import_from(tmp_path / "root")
    with pytest.raises(Refused, match="in the store"):
        handle.import_from(tmp_path / "store" / "packs")
    with pytest.raises(InvalidArgument, match="source must be"):
        handle.import_from(7)
    (tmp_path / "a.tar").write_bytes(WHOLE)
    handle.import_from(tmp_path / "a.tar", name="taken")
    with pytest.raises(Refused, match="named 'taken' already"):
        handle.import_from(tmp_path / "a.tar", name="taken")


def test_a_dangerous_directory_is_imported_only_if_forced(tmp_path, handle, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("mine\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    with pytest.raises(Refused, match=r"home' is your home directory") as error:
        handle.import_from(tmp_path / "home")
    forced = handle.import_from(tmp_path / "home", force=True)

    assert error.value.code == "dangerous-root"
    assert len(handle.list()) == 2
    assert forced.snapshot.record.totals.files == 1


def test_an_import_waits_for_no_restore_while_it_reads(handle):
    class Source(io.BytesIO):
        """Takes a snapshot of the root between two reads."""

        def read(self, size: int | None = -1, /) -> bytes:
            handle.create(label="meanwhile")
            return super().read(size)

    made = handle.import_from(Source(WHOLE))

    labels = [item.label for item in handle.list()]
    assert labels[0] == made.snapshot.label
    assert set(labels[1:-1]) == {"meanwhile"}


def test_zeros_and_data_of_any_length_come_back_as_they_were_captured(tmp_path):
    random = Random(10)
    root = tmp_path / "root"
    root.mkdir()
    lengths = [0, 1, 127, 129, 4096, 65_535, 65_536, 65_537, 131_072, 200_000, 300_000]
    for number in range(60):
        content = b"".join(
            random.choice([bytes, random.randbytes])(random.choice(lengths))
            for _ in range(random.randrange(6))
        )
        (root / f"{number}").write_bytes(content)
    handle = treesnap.open(root, tmp_path / "store")
    taken = handle.create()
    handle.archive(taken.id, tmp_path / "a.tar")

    assert handle.import_from(tmp_path / "a.tar").root_hash == taken.root_hash


@pytest.mark.parametrize("directories", [2, 50])
def test_members_that_alternate_between_directories_cost_as_much_as_others(tmp_path, directories):
    """A directory that is stored again for each of its names makes the cost quadratic."""
    added_bytes = []
    for count in (400, 1600):
        (tmp_path / f"{count}").mkdir()
        handle = treesnap.open(tmp_path / f"{count}", tmp_path / f"{count}.store")
        members = (info(f"{number % directories}/{number}") for number in range(count))

        made = handle.import_from(many_members.Generated(members))

        assert made.stats.files == count
        assert made.stats.objects_added <= directories + count // 30 + 2
        added_bytes.append(made.stats.added_bytes)
    assert added_bytes[1] < 5 * added_bytes[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("alternating", sized(10_000, 1_000_000)),
        ("links", sized(10_000, 300_000)),
        ("links-to-one", sized(10_000, 300_000)),
    ],
    ids=["alternating", "links", "links-to-one"],
)
def test_memory_does_not_grow_with_the_number_of_members(tmp_path, kind, count):
    command = [sys.executable, many_members.__file__, tmp_path / "root", kind, str(count)]

    done = subprocess.run(command, capture_output=True, check=True)

    assert int(done.stdout) < sized(6 << 20, 100 << 20)


def test_the_last_member_of_a_path_counts_whatever_came_between(tmp_path, handle):
    made = handle.import_from(
        io.BytesIO(
            archive_of(
                (info("a/first"), b"old"),
                (info("a/b", tarfile.DIRTYPE, mode=0o700), b""),
                (info("link", tarfile.LNKTYPE, linkname="a/first"), b""),
                (info("z"), b"z"),
                (info("a/b/c"), b"c"),
                (info("a/first"), b"new"),
                (info("a/b", tarfile.DIRTYPE, mode=0o711), b""),
                (info("other", tarfile.LNKTYPE, linkname="link"), b""),
            )
        )
    )
    handle.restore(made.id, to=tmp_path / "restored")

    found = record(tmp_path / "restored")
    assert (tmp_path / "restored" / "a" / "first").read_text() == "new"
    assert (tmp_path / "restored" / "link").read_text() == "old"
    assert (tmp_path / "restored" / "link").samefile(tmp_path / "restored" / "other")
    assert found[b"a/b"].mode & 0o7777 == 0o711
    assert (tmp_path / "restored" / "a" / "b" / "c").read_text() == "c"
    assert handle.verify(read_data=True).problems == ()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_extended_headers_that_follow_each_other_are_bounded_together(handle, kind):
    """Each alone is as large as allowed; what they hold would be kept until the member comes."""
    value = b"x" * (8 << 20)
    left = 6
    buffer = b""

    class Source:
        """Gives away one header after the other."""

        def read(self, size: int, /) -> bytes:
            nonlocal left, buffer
            if not buffer and left:
                left -= 1
                data = b"8388635 SCHILY.xattr.user.%d=" % left + value
                data = data[:8388634] + b"\n"
                buffer = info("h", kind, size=len(data)).tobuf() + data
                buffer += bytes(-len(data) % 512)
            piece, buffer = buffer[:size], buffer[size:]
            return piece

    with pytest.raises(InvalidArgument, match="header") as error:
        handle.import_from(Source())

    assert error.value.code == "invalid-archive"
    assert "not valid" not in error.value.message


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("record", [b"19 unknown%07d=\n", b"30 SCHILY.xattr.user.%07d=\n"])
def test_the_records_of_extended_headers_are_bounded_by_number(handle, kind, record):
    """A record of few bytes takes many times as many in memory."""
    count = 34_000
    data = b"".join(record % number for number in range(count))
    header = info("h", kind, size=len(data)).tobuf() + data + bytes(-len(data) % 512)
    archive = header + info("a").tobuf() + bytes(1024)
    handle.import_from(io.BytesIO(WHOLE))

    tracemalloc.start()
    try:
        with suppress(InvalidArgument):
            handle.import_from(io.BytesIO(archive))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 5 << 20


def test_an_access_control_list_is_bounded_by_its_entries(handle):
    """They are few bytes in an archive that is compressed, and a row of several objects each."""
    words = b" SCHILY.acl.access=" + b"other::," * (1 << 20) + b"\n"
    record = b"%d%s" % (len(words) + 7, words)
    header = info("h", tarfile.XHDTYPE, size=len(record)).tobuf() + record
    archive = header + bytes(-len(record) % 512) + info("a").tobuf() + bytes(1024)
    handle.import_from(io.BytesIO(WHOLE))

    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="'a' in the archive has an access control list"):
            handle.import_from(io.BytesIO(archive))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 6 * len(record)


def _with_lists(place: Path, *lists: str) -> Path:
    """Returns a directory with a file that has access control lists."""
    if shutil.which("setfacl") is None:
        pytest.skip("setfacl is not installed")
    place.mkdir()
    (place / "file").write_text("content")
    (place / "below").mkdir()
    done = subprocess.run(["setfacl", *lists, place / "file", place / "below"], check=False)
    if done.returncode:
        pytest.skip("the file system has no access control lists")
    return place


@pytest.mark.needs("attributes")
def test_access_control_lists_of_gnu_tar_come_with_names_and_numbers(tmp_path, handle):
    lists = "u:daemon:r,u:54321:rwx,u:bin:w,g:daemon:x,g:54321:rw"
    source = _with_lists(tmp_path / "source", "-m", lists)
    subprocess.run(["setfacl", "-d", "-m", lists, source / "below"], check=True)
    command = ["tar", "--acls", "--format=pax", "-cf", "-", "-C", source, "."]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    assert b"user:daemon:" in data
    assert b"user:54321:" in data

    made = handle.import_from(io.BytesIO(data))

    assert made.root_hash == handle.import_from(source).root_hash


def test_an_access_control_list_of_an_unknown_name_is_refused(handle):
    text = "user::rw-,user:no-user-has-this-name:r--,group::r--,mask::r--,other::r--"
    header = info("a", pax_headers={"SCHILY.acl.access": text})

    with pytest.raises(InvalidArgument, match="that this machine does not know") as error:
        handle.import_from(io.BytesIO(archive_of((header, b"x"))))

    assert error.value.code == "invalid-archive"


def test_no_archive_is_made_that_an_import_would_refuse(tmp_path):
    (tmp_path / "root").mkdir()
    forge = Forge(tmp_path / "store", tmp_path / "root")
    below = forge.tree(forge.file(b".treesnap-restore-0"))
    identity = forge.snapshot(forge.tree(forge.directory(b"a", below)))

    with pytest.raises(Refused, match=r"'a/\.treesnap-restore-0', which is reserved for restores"):
        forge.handle().archive(identity, tmp_path / "a.tar")

    assert not (tmp_path / "a.tar").exists()


def test_the_longest_names_and_targets_come_back(tmp_path, handle):
    longest = info("n" * 255, tarfile.SYMTYPE, linkname="t" * 4095)
    made = handle.import_from(io.BytesIO(archive_of((longest, b""))))

    handle.restore(made.id)

    assert os.readlink(tmp_path / "root" / ("n" * 255)) == "t" * 4095


@pytest.mark.parametrize("what", ["name", "target"])
def test_a_restore_names_the_path_that_no_file_system_can_take(tmp_path, what):
    """Such a snapshot may come from a remote, or from an earlier version."""
    (tmp_path / "root").mkdir()
    forge = Forge(tmp_path / "store", tmp_path / "root")
    entry = forge.file(b"n" * 256) if what == "name" else forge.symlink(b"link", b"t" * 5000)
    below = forge.directory(b"sub", forge.tree(entry))
    made = forge.snapshot(forge.tree(below))

    for target in (None, tmp_path / "elsewhere"):
        with pytest.raises(OperationFailed, match="File name too long") as error:
            forge.handle().restore(made, to=target)
        assert error.value.path == b"sub/" + entry.name

    assert os.listdir(tmp_path / "root") == []
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.needs("attributes")
@pytest.mark.parametrize(
    ("member", "name"),
    [
        (info("strange", tarfile.SYMTYPE, linkname="there"), "user.a"),
        (info("strange", tarfile.FIFOTYPE), "user.a"),
        (info("strange"), "user."),
    ],
    ids=["of a link", "of a pipe", "without a name"],
)
def test_attributes_that_this_system_never_has_there_stop_no_restore(
    tmp_path, handle, member, name
):
    member.pax_headers = {f"SCHILY.xattr.{name}": "value"}
    taken = handle.import_from(io.BytesIO(archive_of((member, b""), (info("file"), b"content"))))
    monitor = CollectingMonitor()
    there = treesnap.open(tmp_path / "root", tmp_path / "store", monitor=monitor)

    there.restore(taken.id, to=tmp_path / "target")

    assert sorted(os.listdir(tmp_path / "target")) == ["file", "strange"]
    assert (tmp_path / "target" / "file").read_bytes() == b"content"
    assert WarningCode.METADATA_NOT_RESTORED in monitor.codes
