"""A file with names outside of what is restored: it is replaced, and that is said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import treesnap
from calling import Place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (root / "inside/file").write_text("old")
    (root / "inside/plain").write_text("old")
    os.link(root / "inside/file", root / "beside")
    return root


def change(root: Path, store: Path) -> treesnap.Handle:
    handle = treesnap.open(root, store)
    handle.create(name="before")
    for name in ("file", "plain"):
        (root / "inside" / name).write_text("changed")
    return handle


def test_a_name_outside_of_the_scope_is_listed(root, tmp_path):
    handle = change(root, tmp_path / "store")

    result = handle.restore("before", ["inside"])

    assert result.links_broken == (b"inside/file",)
    assert (root / "inside/file").read_text() == "old"
    assert (root / "beside").read_text() == "changed"


def test_a_name_outside_of_the_root_is_listed(root, tmp_path):
    os.link(root / "inside/plain", tmp_path / "outside")
    handle = change(root, tmp_path / "store")

    assert handle.restore("before").links_broken == (b"inside/plain",)
    assert (tmp_path / "outside").read_text() == "changed"


def test_names_that_are_all_restored_are_not(root, tmp_path):
    handle = change(root, tmp_path / "store")

    assert handle.restore("before").links_broken == ()
    assert (root / "inside/file").samefile(root / "beside")


def test_the_dry_run_the_text_and_the_json_say_it(root, tmp_path):
    handle = change(root, tmp_path / "store")
    assert handle.restore("before", ["inside"], dry_run=True).links_broken == (b"inside/file",)
    place = Place(root, tmp_path / "store")

    ended = place.snap("restore", "before", "inside", "--dry-run", "--json")
    assert [item["path"] for item in json.loads(ended.out)["links_broken"]] == ["inside/file"]

    assert "Link broken: 'inside/file'" in place.snap("restore", "before", "inside").err
