"""Copies of one store that are written to by themselves and merged again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import treesnap

pytestmark = pytest.mark.sampled(10)


@pytest.mark.parametrize("original_goes_on", [True, False])
def test_copies_that_are_merged_lose_nothing(tmp_path: Path, original_goes_on):
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    (root / "file").write_text("first")
    shutil.copytree(root, other)
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    copies = [store, tmp_path / "one", tmp_path / "two"]
    for copy in copies[1:]:
        subprocess.run(["cp", "-a", str(store), str(copy)], check=True)
    for number, copy in enumerate(copies):
        if number or original_goes_on:
            (other / "file").write_text(f"written to copy {number}" * 100)
            treesnap.open(other, copy).create(name=f"from-{number}")

    merged = tmp_path / "merged"
    for copy in copies:
        merged.mkdir(exist_ok=True)
        subprocess.run(["cp", "-au", f"{copy}/.", str(merged)], check=True)

    handle = treesnap.open(other, merged)
    assert handle.verify(read_data=True).ok
    for number in range(not original_goes_on, 3):
        (content,) = handle.cat(f"from-{number}", "file")
        assert content.startswith(f"written to copy {number}".encode())


def test_packs_of_a_copy_have_names_of_their_own(tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("first")
    store, copy = tmp_path / "store", tmp_path / "copy"
    treesnap.open(root, store).create()
    subprocess.run(["cp", "-a", str(store), str(copy)], check=True)
    packs = {path.name: path.stat().st_size for path in store.glob("packs/*")}
    (root / "file").write_text("second")

    treesnap.open(root, copy).create()
    found = {path.name: path.stat().st_size for path in copy.glob("packs/*")}
    treesnap.open(root, copy).create(label="another")
    (root / "file").write_text("third")
    treesnap.open(root, copy).create()

    assert {name: found.get(name) for name in packs} == packs
    assert len(found) == len(packs) + 1
    assert {path.name for path in copy.glob("packs/*")} == set(found)


@pytest.mark.parametrize("place", ["snapshots", "roots"])
def test_a_copy_takes_nothing_through_a_link_of_a_strangers_store(tmp_path: Path, place):
    root, store, copy = (tmp_path / name for name in ("root", "store", "copy"))
    root.mkdir()
    handle = treesnap.open(root, store)
    handle.create()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "config.toml").write_text("secret")
    name = "a" * 32
    (store / place / name).symlink_to(secret)

    made = handle.store_copy(copy)

    assert made.unreadable == (f"{place}/{name}",)
    assert not (copy / place / name).exists()
    assert treesnap.open(root, copy).verify(read_data=True).ok


@pytest.mark.parametrize("size_bytes", [1 << 20, 1 << 38])
def test_a_copy_has_the_holes_of_the_original(tmp_path: Path, size_bytes):
    root, store, copy = (tmp_path / name for name in ("root", "store", "copy"))
    root.mkdir()
    handle = treesnap.open(root, store)
    identity = handle.create().id
    handle.pin(identity)
    state = store / "states" / ("a" * 64)
    state.write_bytes(b"data")
    with state.open("r+b") as file:
        file.truncate(size_bytes)
        file.seek(size_bytes // 2)
        file.write(b"more data")

    handle.store_copy(copy)

    found = copy / "states" / state.name
    assert found.stat().st_size == size_bytes
    assert found.stat().st_blocks <= state.stat().st_blocks
    with found.open("rb") as file:
        assert file.read(4) == b"data"
        file.seek(size_bytes // 2)
        assert file.read(9) == b"more data"


def test_nothing_is_written_into_files_that_have_other_names(tmp_path: Path):
    root, store, copy = (tmp_path / name for name in ("root", "store", "copy"))
    root.mkdir()
    handle = treesnap.open(root, store)
    for number in range(3):
        (root / "file").write_bytes(os.urandom(50_000))
        (root / f"{number}").write_text("x")
        handle.create(name=f"{number}")
    (store / "collector/background").write_text("what a stranger linked here")
    subprocess.run(["cp", "-al", str(store), str(copy)], check=True)
    before = contents(copy)

    for number in range(3, 9):
        (root / "file").write_bytes(os.urandom(50_000))
        handle.create(name=f"{number}")
    handle.restore("1")
    handle.undo()
    handle.run(["sh", "-c", "exit 1"])
    handle.config("keep.last", "3")
    handle.pin("1")
    handle.delete("0")
    handle.prune()
    handle.gc()
    handle.verify(read_data=True, repair=True)
    (root / "file").write_text("last")
    command_line(root, store, "create", "--name", "last")
    command_line(root, store, "doctor")

    assert contents(copy) == before
    assert treesnap.open(root, copy).verify(read_data=True).ok
    assert handle.verify(read_data=True).ok


def contents(directory: Path) -> dict[str, bytes]:
    """Returns what is in the files below a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def command_line(root: Path, store: Path, *words: str) -> None:
    command = [sys.executable, "-m", "treesnap", "-C", str(root), "--store", str(store), *words]
    subprocess.run(command, check=True)
