"""Damage does not spread: what was lost is stored again from the live tree."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap


def handle_on(place: Path, store: Path | None = None) -> treesnap.Handle:
    """Returns a handle on a small tree."""
    (place / "root" / "sub").mkdir(parents=True)
    (place / "root" / "a").write_bytes(os.urandom(1000))
    (place / "root" / "sub" / "b").write_bytes(os.urandom(1000))
    return treesnap.open(place / "root", store or place / "store")


def restored(handle: treesnap.Handle, ref: str, target: Path) -> dict[str, bytes]:
    """Returns the files of a snapshot by path."""
    handle.restore(ref, to=target)
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    }


def test_capture_after_packs_were_lost_holds_everything(tmp_path):
    handle = handle_on(tmp_path)
    handle.create()
    for pack in (tmp_path / "store" / "packs").iterdir():
        pack.unlink()

    handle.create()

    live = {name: (tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b")}
    assert live == restored(handle, "latest", tmp_path / "out")


AFTERWARDS: dict[str, Callable[[treesnap.Handle, treesnap.Handle], object]] = {
    "nothing": lambda first, second: None,
    "other root": lambda first, second: second.create(),
    "collection": lambda first, second: first.gc(),
    "repair": lambda first, second: first.verify(repair=True),
    "other root by paths": lambda first, second: second.create(["sub/b"]),
}
"""What writes an index before the root is captured again."""


@pytest.mark.parametrize("left", ["no pack", "newest pack", "oldest pack"])
@pytest.mark.parametrize("then", AFTERWARDS)
def test_capture_after_packs_were_lost_with_the_index_holds_everything(tmp_path, then, left):
    """No file names what was lost, but the stat caches of both roots still do."""
    first, second = handle_on(tmp_path), handle_on(tmp_path / "second", tmp_path / "store")
    for handle in (first, second):
        handle.create()
    packs = tmp_path / "store" / "packs"
    for slot in (tmp_path / "store" / "slots").iterdir():
        slot.unlink()  # so that the next captures begin another pack
    for root in (tmp_path / "root", tmp_path / "second" / "root"):
        (root / "c").write_bytes(os.urandom(1000))
    for handle in (first, second):
        handle.create()
    by_age = sorted(packs.iterdir(), key=lambda pack: pack.stat().st_mtime_ns)
    spared = {"no pack": [], "newest pack": by_age[-1:], "oldest pack": by_age[:1]}[left]
    for path in ({*by_age} - {*spared}) | {*(tmp_path / "store" / "index").iterdir()}:
        path.unlink()
    AFTERWARDS[then](first, second)

    for number, handle in enumerate((first, second)):
        handle.create()

        root = Path(handle.root)
        live = {name: (root / name).read_bytes() for name in ("a", "sub/b", "c")}
        assert live == restored(handle, "latest", tmp_path / f"out-{number}")


def test_capture_after_the_newest_pack_was_lost_with_its_index_part_holds_everything(tmp_path):
    handle = handle_on(tmp_path)
    handle.create()
    for slot in (tmp_path / "store" / "slots").iterdir():
        slot.unlink()  # so that the next capture begins another pack
    earlier = {
        path for name in ("packs", "index") for path in (tmp_path / "store" / name).iterdir()
    }
    (tmp_path / "root" / "sub" / "c").write_bytes(os.urandom(1000))
    handle.create()
    for name in ("packs", "index"):
        for path in {*(tmp_path / "store" / name).iterdir()} - earlier:
            path.unlink()

    handle.create()

    live = {name: (tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b", "sub/c")}
    assert live == restored(handle, "latest", tmp_path / "out")


def test_a_restore_of_what_is_damaged_names_the_path_and_touches_nothing(tmp_path):
    handle = handle_on(tmp_path)
    handle.create()
    (pack,) = (tmp_path / "store" / "packs").iterdir()
    content = (tmp_path / "root" / "sub" / "b").read_bytes()
    data = bytearray(pack.read_bytes())
    data[data.index(content) + 500] ^= 1
    pack.write_bytes(data)
    (tmp_path / "root" / "a").write_text("newer")
    (tmp_path / "root" / "sub" / "b").unlink()

    with pytest.raises(treesnap.Corrupt, match=r"^'sub/b' cannot be restored: ") as caught:
        handle.restore("latest")

    assert caught.value.path == b"sub/b"
    assert (tmp_path / "root" / "a").read_text() == "newer"


@pytest.mark.parametrize("is_collected", [False, True])
@pytest.mark.parametrize("lost_size", [1, 900, 2500])
def test_capture_after_packs_were_cut_off_holds_everything(tmp_path, lost_size, is_collected):
    """Beginning in the last block, in the middle of one, and where a whole one is gone."""
    handle = handle_on(tmp_path)
    handle.create()
    (tmp_path / "root" / "c").write_bytes(os.urandom(1000))
    handle.create()
    for pack in (tmp_path / "store" / "packs").iterdir():
        os.truncate(pack, pack.stat().st_size - lost_size)
    if is_collected:
        handle.gc()

    handle.create()

    live = {name: (tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b", "c")}
    assert live == restored(handle, "latest", tmp_path / "out")


def test_capture_after_repair_heals_what_a_flipped_bit_took(tmp_path):
    handle = handle_on(tmp_path)
    first = handle.create()
    (pack,) = (tmp_path / "store" / "packs").iterdir()
    content = (tmp_path / "root" / "a").read_bytes()
    data = bytearray(pack.read_bytes())
    data[data.index(content) + 500] ^= 1
    pack.write_bytes(data)
    found = handle.verify(read_data=True, repair=True)

    handle.create()

    live = {name: (tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b")}
    assert not found.ok
    assert live == restored(handle, "latest", tmp_path / "new")
    assert live == restored(handle, first.id, tmp_path / "old")


def test_collection_keeps_what_healed_and_not_what_it_replaced(tmp_path):
    """The pack with the damaged content goes on as far as it is needed, or not at all."""
    handle = handle_on(tmp_path)
    first = handle.create()
    (pack,) = (tmp_path / "store" / "packs").iterdir()
    content = (tmp_path / "root" / "a").read_bytes()
    data = bytearray(pack.read_bytes())
    data[data.index(content) + 500] ^= 1
    pack.write_bytes(data)
    handle.verify(read_data=True, repair=True)
    for slot in (tmp_path / "store" / "slots").iterdir():
        slot.unlink()
    handle.create()

    handle.gc()

    live = {name: (tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b")}
    assert live == restored(handle, first.id, tmp_path / "old")


def test_staging_directory_of_a_root_below_is_left_alone(tmp_path):
    handle = handle_on(tmp_path)
    first = handle.create()
    inner = tmp_path / "root" / "sub" / ".treesnap-restore-0123456789abcdef"
    inner.mkdir()
    (inner / "n0").write_text("staged")

    second = handle.create()
    handle.restore(first.id)

    assert [b"sub/" + os.fsencode(inner.name)] == [item.path for item in second.skipped]
    assert (inner / "n0").read_text() == "staged"


def lose(store: Path, *contents: bytes) -> None:
    """Flips a bit in the stored form of some contents."""
    for path in (store / "packs").iterdir():
        data = bytearray(path.read_bytes())
        for content in contents:
            position = data.find(content)
            if position >= 0:
                data[position + len(content) // 2] ^= 1
        path.write_bytes(data)


class TestTakingBack:
    """``verify --repair`` looks for what was lost in the trees that are still there."""

    def test_a_lost_chunk_comes_back_from_the_path_that_had_it(self, tmp_path):
        handle = handle_on(tmp_path)
        first = handle.create()
        content = (tmp_path / "root" / "a").read_bytes()
        lose(tmp_path / "store", content)

        result = handle.verify(read_data=True, repair=True)

        assert [(item.root, item.path) for item in result.recovered] == [
            (os.fsencode(handle.root), b"a")
        ]
        assert (result.ok, result.left, result.partial) == (False, (), ())
        assert handle.verify(read_data=True).ok
        assert restored(handle, first.id, tmp_path / "out")["a"] == content

    def test_a_renamed_file_gives_it_back_too(self, tmp_path):
        handle = handle_on(tmp_path)
        first = handle.create()
        content = (tmp_path / "root" / "a").read_bytes()
        (tmp_path / "root" / "a").rename(tmp_path / "root" / "sub" / "other")
        lose(tmp_path / "store", content)

        result = handle.verify(read_data=True, repair=True)

        assert [item.path for item in result.recovered] == [b"sub/other"]
        assert restored(handle, first.id, tmp_path / "out")["a"] == content

    def test_another_root_gives_it_back_too(self, tmp_path):
        handle = handle_on(tmp_path)
        first = handle.create()
        content = (tmp_path / "root" / "a").read_bytes()
        twin = tmp_path / "twin"
        twin.mkdir()
        (twin / "same").write_bytes(content)
        treesnap.open(twin, tmp_path / "store").create()
        (tmp_path / "root" / "a").write_bytes(b"something else")
        lose(tmp_path / "store", content)

        result = handle.verify(read_data=True, repair=True)

        assert [(item.root, item.path) for item in result.recovered] == [
            (os.fsencode(twin), b"same")
        ]
        assert restored(handle, first.id, tmp_path / "out")["a"] == content

    @pytest.mark.needs("attributes")
    def test_everything_comes_back_when_all_packs_are_gone(self, tmp_path):
        """Trees, lists and attributes too; also with what was excluded then."""
        handle = handle_on(tmp_path)
        (tmp_path / "root" / "big").write_bytes(os.urandom(3 << 20))
        (tmp_path / "root" / "junk").write_bytes(b"left out")
        os.setxattr(tmp_path / "root" / "a", "user.a", os.urandom(60))
        os.setxattr(tmp_path / "root" / "a", "user.b", os.urandom(4040))
        handle.create(options=treesnap.CreateOptions(exclude=["junk"]))
        expected = {name: (tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b", "big")}
        for pack in (tmp_path / "store" / "packs").iterdir():
            pack.unlink()

        result = handle.verify(read_data=True, repair=True)

        assert {item.path for item in result.recovered} >= {b"", b"a", b"sub", b"sub/b", b"big"}
        assert result.left == ()
        assert restored(handle, "latest", tmp_path / "out") == expected
        assert os.getxattr(tmp_path / "out" / "a", "user.b")

    def test_what_is_nowhere_stays_lost_and_is_named(self, tmp_path):
        handle = handle_on(tmp_path)
        first = handle.create(name="first")
        content = (tmp_path / "root" / "a").read_bytes()
        (tmp_path / "root" / "a").write_bytes(content[:-1] + b"?")
        lose(tmp_path / "store", content)

        result = handle.verify(read_data=True, repair=True)

        assert result.recovered == ()
        (partial,) = result.partial
        assert (partial.snapshot_id, partial.name, partial.paths) == (first.id, "first", (b"a",))
        assert handle.verify(read_data=True).partial == result.partial

    def test_a_pipe_in_the_place_of_a_file_holds_no_command_up(self, tmp_path):
        handle = handle_on(tmp_path)
        handle.create()
        content = (tmp_path / "root" / "a").read_bytes()
        (tmp_path / "root" / "a").unlink()
        os.mkfifo(tmp_path / "root" / "a")
        lose(tmp_path / "store", content)

        assert handle.verify(read_data=True, repair=True).recovered == ()


def test_a_root_that_is_gone_holds_up_no_search_in_the_others(tmp_path):
    handle = handle_on(tmp_path)
    first = handle.create()
    contents = [(tmp_path / "root" / name).read_bytes() for name in ("a", "sub/b")]
    twin = tmp_path / "twin"
    twin.mkdir()
    (twin / "same").write_bytes(contents[0])
    beside = treesnap.open(twin, tmp_path / "store")
    beside.create()
    shutil.rmtree(tmp_path / "root")
    lose(tmp_path / "store", *contents)

    result = beside.verify(read_data=True, repair=True)

    assert [(item.root, item.path) for item in result.recovered] == [(os.fsencode(twin), b"same")]
    assert [item.paths for item in result.partial] == [(b"sub/b",)]
    assert handle.read(first.id, "a") == contents[0]
