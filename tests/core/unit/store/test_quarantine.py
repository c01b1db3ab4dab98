"""Damaged files that were put aside."""

from __future__ import annotations

import os

import pytest

from treesnap.core.store.quarantine import Quarantine


@pytest.mark.parametrize("verb", ["take", "keep_copy"])
def test_files_of_one_name_do_not_replace_each_other(fs, store, verb):
    path = os.path.join(store.layout.packs, "name")
    kept = []
    for content in (b"1", b"2", b"3"):
        with open(path, "wb") as file:
            file.write(content)
        kept.append(getattr(Quarantine(fs, store.layout), verb)(path))

    assert kept == [f"quarantine/packs.name{end}" for end in ("", ".2", ".3")]
    for name, content in zip(kept, (b"1", b"2", b"3"), strict=True):
        with open(os.path.join(store.path, name), "rb") as file:
            assert file.read() == content
    assert os.path.exists(path) == (verb == "keep_copy")


def test_of_a_file_that_is_not_there_no_copy_is_kept(fs, store):
    assert Quarantine(fs, store.layout).keep_copy(os.path.join(store.path, "absent")) is None
    assert not os.path.exists(store.layout.quarantine)
