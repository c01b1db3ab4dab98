"""Where a store may be, and what is said of places where none can be."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_store_in_the_root_may_be_named_either_way(root, snap, how):
    (root / "file").write_text("content")
    store = root / ".store"
    options = ["--store", str(store)] if how == "option" else []
    env = {"SNAP_STORE": str(store) if how == "environment" else ""}

    made = snap("--json", *options, "create", env=env)

    assert made.code == 0
    assert {"path": ".store", "reason": "store"} in made.json["skipped"]
    (root / "file").unlink()
    assert snap(*options, "restore", "latest", env=env).code == 0
    assert (root / "file").read_text() == "content"


@pytest.mark.parametrize("target", ["loop", "nowhere", "loop/below"])
@pytest.mark.parametrize("command", ["create", "list", "status", "verify", "gc"])
def test_a_store_that_is_a_link_to_nothing_is_unavailable(root, tmp_path, snap, command, target):
    link = tmp_path / "loop"
    link.symlink_to(target)

    failed = snap("--json", "--store", str(link), command)
    error = failed.json

    is_missing = target == "nowhere" and command != "create"
    assert error["code"] == ("store-not-found" if is_missing else "store-unavailable")
    assert "--store DIR" in error["hint"]


@pytest.mark.needs("exchange")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("moved", ["out of the root", "within the root", "into the root"])
def test_a_store_in_the_root_is_left_alone_after_a_move(root, tmp_path, snap, moved):
    store = (tmp_path if moved == "into the root" else root) / "named"
    new = (tmp_path if moved == "out of the root" else root / "deep") / "store"
    where = ["--store", str(store)]
    (root / "file").write_text("one")
    before = snap(*where, "create", "-q").out.strip()
    assert snap(*where, "store", "move", new).code == 0

    made = snap(*where, "--json", "create").json

    in_root = {str(path.relative_to(root)) for path in (store, new) if root in path.parents}
    assert {item["path"] for item in made["skipped"] if item["reason"] == "store"} == in_root
    assert snap(*where, "ls", "latest").out.split() == (
        ["deep/", "file"] if new.is_relative_to(root) else ["file"]
    )
    (root / "file").write_text("two")
    for snapshot in ("latest", before):
        assert snap(*where, "restore", snapshot).code == 0
        assert (root / "file").read_text() == "one"
        assert store.resolve() == new
    assert snap(*where, "run", "--", "sh", "-c", "rm file; false").code != 0
    assert (root / "file").read_text() == "one"
    assert snap(*where, "verify").code == 0
