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
