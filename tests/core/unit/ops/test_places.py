"""Roots whose capture is most likely a mistake are refused, unless it is insisted on."""

from __future__ import annotations

import os

import pytest

import treesnap
from treesnap.core.model.errors import Refused


@pytest.mark.parametrize("name", ["srv", "home"])
def test_a_system_directory_is_refused(make_handle, store_path, name):
    with pytest.raises(Refused, match=f"'/{name}' is a system directory"):
        make_handle(root=f"/{name}").create()

    assert not store_path.exists()


def test_the_home_directory_is_refused_until_it_is_insisted_on(make_handle, root, monkeypatch):
    monkeypatch.setenv("HOME", str(root))
    handle = make_handle()

    with pytest.raises(Refused, match="is your home directory"):
        handle.create()
    assert handle.create(options=treesnap.CreateOptions(force=True)).snapshot.complete


@pytest.mark.parametrize("below", ["", "packs"])
def test_the_store_itself_is_refused(handle, make_handle, store_path, below):
    handle.create()
    before = sorted(os.listdir(store_path / "snapshots"))

    with pytest.raises(Refused, match="is the store or lies inside it"):
        make_handle(root=store_path / below).create()

    assert sorted(os.listdir(store_path / "snapshots")) == before


def test_the_directory_of_the_default_store_is_refused_and_that_of_another_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("SNAP_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    handle = treesnap.open(tmp_path / "data")
    with pytest.raises(Refused, match="holds the default store"):
        handle.create()

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))

    assert handle.create().snapshot.complete
