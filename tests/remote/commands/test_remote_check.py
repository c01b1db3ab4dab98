"""``snap remote check``, as people type it."""

from __future__ import annotations

import pytest

from oracle import record
from treesnap.remote.format import decode_format, encode_format
from treesnap.remote.records import Collection

pytestmark = pytest.mark.sampled(5)


@pytest.fixture
def disk(snap, tmp_path):
    """A remote in a directory."""
    disk = tmp_path / "disk"
    snap("create", "-q")
    snap("remote", "add", "disk", disk)
    return disk


def test_a_directory_can_be_relied_on(snap, disk):
    before = record(disk)

    outcome = snap("remote", "check")

    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        f"disk  {disk}",
        "A directory; what another machine sees late over a network cannot be found out here",
        "Not encrypted: a user who can read it can read the snapshots",
        "Creates a file once, also when several machines try at the same time",
        "Lists what was written just before",
        "Reads parts of files",
        "Any machine may collect garbage",
    ]
    assert record(disk).keys() == before.keys()


def test_key_slots_are_counted(snap, disk, tmp_path):
    secret = {"TREESNAP_REMOTE_KEY": "5a" * 32}
    snap("remote", "add", "other", tmp_path / "other", "--encrypt", env=secret)
    snap("remote", "key", "add", "other", "--raw-key", env=secret)

    outcome = snap("remote", "check", "other", env=secret)

    assert "Encrypted, with 2 key slots\n" in outcome.out
    assert snap("remote", "check", env=secret).code == 2


def test_what_is_printed_for_programs(snap, disk):
    found = snap("remote", "check", "disk", "--json").json

    assert {key: found[key] for key in sorted(found.keys() - {"schema", "warnings"})} == {
        "collection": "any",
        "creation": "atomic",
        "has_ranges": True,
        "is_encrypted": False,
        "is_known": False,
        "is_reliable": True,
        "key_slots": None,
        "lists_current": True,
        "may_collect": True,
        "name": "disk",
        "reasons": [],
        "remote_id": snap("remote", "list", "--json").json["remotes"][0]["remote_id"],
        "server": None,
        "url": str(disk),
    }


def test_a_remote_where_nothing_is_collected_exits_as_a_collection_does(snap, disk):
    said = decode_format((disk / "format").read_bytes(), "")
    (disk / "format").write_bytes(encode_format(said._replace(collection=Collection.NONE)))

    outcome = snap("remote", "check")

    assert (outcome.code, "No machine may collect garbage" in outcome.out) == (3, True)
    assert snap("remote", "gc").code == outcome.code


def test_a_disk_that_is_not_mounted_is_said(snap, disk):
    disk.rename(disk.with_name("elsewhere"))
    disk.mkdir()

    outcome = snap("remote", "check")

    assert (outcome.code, "not mounted" in outcome.err) == (1, True)
    assert list(disk.iterdir()) == []
