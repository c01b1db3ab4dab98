"""Archives of snapshots: what tar programs unpack, and how the file appears."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import treesnap
from oracle import Record, difference, record
from trees import build
from treesnap import InvalidArgument, NotFound, Refused
from treesnap.core.ops.history.archive import ArchiveCompression

pytestmark = pytest.mark.sampled(12)

PROGRAMS = {
    "tar": ["tar", "--acls", "--xattrs", "--xattrs-include=*", "--warning=none", "-xpf"],
    "bsdtar": ["bsdtar", "-xpf"],
}
BLOCK_SIZE = 64 << 10
"""Where a snapshot's holes begin and end."""
S_NS = 10**9


def unpacked(program: str, archive: Path, place: Path) -> Record:
    """Returns what a program makes of an archive."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    place.mkdir()
    done = subprocess.run(
        [*PROGRAMS[program], archive, "-C", place],
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
    return record(place)


def in_blocks(found: Record) -> Record:
    """Returns a record in which data begins and ends where a snapshot's holes can."""
    return {
        path: replace(
            facts,
            extents=tuple(
                (
                    start - start % BLOCK_SIZE,
                    min(facts.size, -(-end // BLOCK_SIZE) * BLOCK_SIZE),
                )
                for start, end in facts.extents
                if facts.size > BLOCK_SIZE
            ),
        )
        for path, facts in found.items()
    }


def without_what_bsdtar_cannot(found: Record) -> Record:
    """Returns a record without fractions of seconds before 1970, and the time of the target.

    libarchive adds such a fraction where it should subtract it, and leaves alone the time of the
    directory that it unpacks into.
    """
    return {
        path: replace(
            facts,
            mtime_ns=0
            if not path or (facts.mtime_ns < 0 and facts.mtime_ns % S_NS) or facts.mtime_ns == 1
            else facts.mtime_ns,
        )
        for path, facts in found.items()
        if not (facts.mtime_ns < 0 and facts.mtime_ns % S_NS)
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("program", list(PROGRAMS))
def test_tar_programs_unpack_the_same_tree(tmp_path, program, seed):
    build(tmp_path / "root", seed)
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    taken = handle.create().id
    handle.restore(taken, to=tmp_path / "restored")

    made = handle.archive(taken, tmp_path / "a.tar")

    expected = in_blocks(record(tmp_path / "restored"))
    actual = in_blocks(unpacked(program, tmp_path / "a.tar", tmp_path / "unpacked"))
    assert made.members == len(expected)
    if program == "bsdtar":
        expected = without_what_bsdtar_cannot(expected)
        actual = {
            path: facts
            for path, facts in without_what_bsdtar_cannot(actual).items()
            if path in expected
        }
    assert difference(expected, actual) == []


@pytest.mark.parametrize("suffix", ["tar", "tar.zst", "tar.gz", "tzst", "tgz"])
def test_equal_snapshots_make_equal_archives(tmp_path, suffix):
    build(tmp_path / "root", 4)
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    first, second = handle.create().id, handle.create(label="again").id

    for number, ref in enumerate([first, second]):
        handle.archive(ref, tmp_path / f"{number}.{suffix}")

    one, other = ((tmp_path / f"{number}.{suffix}").read_bytes() for number in (0, 1))
    assert one == other
    compression = {"tar": "none", "tar.zst": "zstd", "tzst": "zstd"}.get(suffix, "gzip")
    assert b"".join(handle.archive_pieces(first, compression=compression)) == one


@pytest.mark.parametrize("compression", [item.value for item in ArchiveCompression])
def test_memory_does_not_grow_with_the_files(tmp_path, compression):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "large").write_bytes(Random(1).randbytes(40 << 20))
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()
    pieces = handle.archive_pieces("latest", compression=compression)
    size = len(next(pieces))

    tracemalloc.start()
    try:
        size += sum(map(len, pieces))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size > 40 << 20
    assert peak < 24 << 20


def test_a_path_is_archived_alone_with_its_links(tmp_path):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "first").write_bytes(b"shared" * 100)
    os.link(root / "first", root / "sub" / "second")
    os.link(root / "first", root / "sub" / "third")
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()

    handle.archive("latest", tmp_path / "a.tar", "sub")

    with tarfile.open(tmp_path / "a.tar") as archive:
        assert [(item.name, item.type) for item in archive] == [
            ("./sub", tarfile.DIRTYPE),
            ("./sub/second", tarfile.REGTYPE),
            ("./sub/third", tarfile.LNKTYPE),
        ]


def test_an_existing_file_stays_unless_forced(tmp_path):
    (tmp_path / "root").mkdir()
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()
    target = tmp_path / "a.tar"
    target.write_bytes(b"mine")

    with pytest.raises(Refused, match="exists") as error:
        handle.archive("latest", target)

    assert error.value.code == "file-exists"
    assert target.read_bytes() == b"mine"
    handle.archive("latest", target, force=True)
    assert tarfile.is_tarfile(target)


def test_what_cannot_be_written_is_refused_first(tmp_path):
    (tmp_path / "root").mkdir()
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()
    (tmp_path / "d.tar").mkdir()

    with pytest.raises(InvalidArgument, match=r"must end in \.tar"):
        handle.archive("latest", tmp_path / "a.zip")
    with pytest.raises(NotFound, match="no directory"):
        handle.archive("latest", tmp_path / "absent" / "a.tar")
    with pytest.raises(Refused, match="inside the store"):
        handle.archive("latest", tmp_path / "store" / "a.tar")
    with pytest.raises(Refused, match="is a directory"):
        handle.archive("latest", tmp_path / "d.tar", force=True)
    with pytest.raises(NotFound, match="does not hold"):
        handle.archive("latest", tmp_path / "a.tar", "absent")
    assert sorted(os.listdir(tmp_path)) == ["d.tar", "root", "store"]


def test_a_killed_archive_leaves_nothing_that_the_next_one_does_not_remove(tmp_path):
    (tmp_path / "root").mkdir()
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()
    abandoned = tmp_path / ".treesnap-archive-0123456789abcdef"
    abandoned.write_bytes(b"half")
    other = tmp_path / ".treesnap-archive-mine"
    other.write_bytes(b"of the user")

    handle.archive("latest", tmp_path / "a.tar")

    assert sorted(os.listdir(tmp_path)) == [other.name, "a.tar", "root", "store"]


def test_damage_leaves_no_archive(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_bytes(Random(2).randbytes(1 << 20))
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()
    (pack,) = (tmp_path / "store" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)

    with pytest.raises(treesnap.Corrupt):
        handle.archive("latest", tmp_path / "a.tar")

    assert sorted(os.listdir(tmp_path)) == ["root", "store"]
