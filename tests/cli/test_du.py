"""``snap du``."""

from __future__ import annotations

from random import Random

import pytest

import treesnap


@pytest.fixture
def history(root, store):
    """Two snapshots of two sessions; one file is in both, one in each."""
    random = Random(1)
    handle = treesnap.open(root, store)
    (root / "shared").mkdir()
    (root / "shared" / "both").write_bytes(random.randbytes(300_000))
    (root / "own").write_bytes(random.randbytes(100_000))
    handle.create(session="first")
    (root / "own").write_bytes(random.randbytes(200_000))
    (root / "copy").write_bytes((root / "own").read_bytes())
    handle.create(session="second")
    return handle


def test_paths_say_what_they_take_and_what_only_they_need(history):
    found = {item.path: item for item in history.du()}

    assert list(found) == [b"copy", b"own", b"shared", b""]
    assert found[b"shared"].size_bytes == 300_000
    assert found[b"shared"].stored_bytes >= 300_000
    assert found[b"shared"].unique_bytes == 0
    assert found[b"copy"].unique_bytes >= 200_000
    assert found[b"own"] == (b"own", False, 200_000, 0, 0)  # counted at the first path
    assert found[b""].size_bytes == 700_000


def test_the_whole_is_what_deleting_the_snapshot_frees(history):
    by_id = {item.snapshot.id: item.unique_bytes for item in history.stats().by_snapshot}

    for ref in ("latest", "latest~1"):
        whole = history.du(ref)[-1]
        assert whole.unique_bytes == by_id[history.resolve(ref).id]
    history.delete("latest")
    freed = history.gc(dry_run=True).freed_bytes
    assert abs(freed - max(by_id.values())) < 2048


def test_depth_and_path_choose_what_is_listed(history):
    assert [item.path for item in history.du(depth=0)] == [b""]
    assert [item.path for item in history.du(depth=2)] == [
        b"copy",
        b"own",
        b"shared/both",
        b"shared",
        b"",
    ]
    assert [item.path for item in history.du("latest", "shared")] == [b"shared/both", b"shared"]
    assert len({item.stored_bytes for item in (history.du(depth=n)[-1] for n in range(4))}) == 1


def test_sessions_say_what_they_need_alone(history):
    history.create()

    none, second, first = history.du_sessions()

    assert (none.name, none.snapshots, none.logical_bytes) == ("", 1, 700_000)
    assert (second.name, second.snapshots, second.logical_bytes) == ("second", 1, 700_000)
    assert second.unique_bytes == 0  # the last snapshot needs it all
    assert first.name == "first"
    assert 100_000 <= first.unique_bytes < 110_000


def test_the_command_prints_tables_and_json(snap, history):
    lines = snap("du").out.splitlines()
    sessions = snap("du", "--sessions").out.splitlines()
    fields = snap("du", "latest", "shared", "--json").json

    assert lines[0].split() == ["size", "stored", "only", "here", "path"]
    assert lines[-1].endswith("  .")
    assert [line.split()[-1] for line in lines[1:]] == ["copy", "own", "shared/", "."]
    assert [line.split()[-1] for line in sessions[1:]] == ["second", "first"]
    assert [item["path"] for item in fields["paths"]] == ["shared/both", "shared"]
    assert snap("du", "--sessions", "--json").json["sessions"][1]["session"] == "first"
    assert snap("du", "latest", "--sessions").code == 2
    assert snap("du", "latest", "absent").code == 5
