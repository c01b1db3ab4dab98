"""``snap remote policy``, as people type it."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial

import pytest

from command_line import ORDINARY
from oracle import difference, record
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.store.layout import Layout
from treesnap.remote.records import KnownRemote
from treesnap.remote.registry import Registry

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def ordinary_prefix() -> list[str]:
    """What a command is started with, so that it has no right to write everywhere."""
    if os.geteuid() != 0:
        return ["env"]
    if shutil.which(ORDINARY[0]) is None:
        pytest.skip("setpriv is not installed")
    return ORDINARY


@pytest.fixture
def disk(snap, tmp_path):
    """A remote in a directory."""
    disk = tmp_path / "disk"
    snap("create", "-q")
    snap("remote", "add", "disk", disk)
    return disk


def test_rules_of_a_directory_are_told_in_words(snap, disk):
    every = snap("remote", "policy").out

    assert [line.partition(":")[0] for line in every.splitlines() if ": " in line] == [
        "writer",
        "reader",
        "member",
        "collector",
    ]
    assert "write in packs and commits alone\n" in snap("remote", "policy", "--role", "member").out
    assert snap("remote", "policy", "--role", "owner").code == 2
    assert snap("remote", "policy", "none").code == 5


def test_what_is_printed_for_programs(snap, disk):
    found = snap("remote", "policy", "disk", "--role", "reader", "--json").json

    (role,) = found["roles"]
    assert (found["name"], found["url"]) == ("disk", str(disk))
    assert (role["role"], role["policy"], len(role["advice"])) == ("reader", None, 1)


def test_a_document_is_printed_alone(snap, disk):
    """No server is asked, so the store may as well know a bucket that is not there."""
    (store,) = (path for path in disk.parent.rglob("remotes") if path.is_dir())
    registry = Registry(LocalFileSystem(), Layout(str(store.parent)))
    registry.add("bucket", KnownRemote("s3://bucket/me", bytes(15) + b"1", is_encrypted=True))

    outcome = snap("remote", "policy", "bucket", "--role", "member")

    assert json.loads(outcome.out)["Statement"][-1]["Action"] == "s3:PutObject"
    assert "versioning" in outcome.err
    every = snap("remote", "policy", "bucket")
    assert every.out.count('"Version"') == 4
    assert "member: also pushes; removes nothing\n" in every.out


def test_a_directory_that_only_others_write_is_cloned_and_added(
    snap, run_snap, root, disk, tmp_path, ordinary_prefix
):
    (root / "plants").write_text("roses")
    snap("create", "-q")
    snap("push")
    for path in [*disk.rglob("*"), disk]:
        path.chmod(path.stat().st_mode & ~0o222)
    reader = partial(
        run_snap, cwd=tmp_path, env={"SNAP_STORE": str(tmp_path / "other")}, prefix=ordinary_prefix
    )

    cloned = reader("clone", disk, "again")
    added = reader("remote", "add", "disk", disk)

    assert (cloned.code, added.code, added.err) == (0, 0, "")
    assert difference(record(root), record(tmp_path / "again")) == []
    refused = reader("remote", "check")
    assert (refused.code, "ask the owner of the remote" in refused.err) == (1, True)
    assert reader("-C", "again", "push").code == 1
