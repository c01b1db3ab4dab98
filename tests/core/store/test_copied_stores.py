"""Copies of one store that are written to by themselves and merged again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import treesnap


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
