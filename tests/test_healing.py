"""Damage does not spread: what was lost is stored again from the live tree."""

from __future__ import annotations

import os
from pathlib import Path

import treesnap


def handle_on(place: Path) -> treesnap.Handle:
    """Returns a handle on a small tree."""
    (place / "root" / "sub").mkdir(parents=True)
    (place / "root" / "a").write_bytes(os.urandom(1000))
    (place / "root" / "sub" / "b").write_bytes(os.urandom(1000))
    return treesnap.open(place / "root", place / "store")


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
