"""``snap remote check``, as people type it."""

from __future__ import annotations

import re
import time

import pytest

from oracle import record
from treesnap.core.model.quantities import time_text
from treesnap.remote.format import decode_format, encode_format
from treesnap.remote.records import Collection

pytestmark = pytest.mark.sampled(10)


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
    lines = outcome.out.splitlines()
    assert re.fullmatch(r"Answers after \S+ ms; takes .* and gives .* a second, .* free", lines[2])
    assert [*lines[:2], *lines[3:]] == [
        f"disk  {disk}",
        "A directory; what another machine sees late over a network cannot be found out here",
        "Not encrypted: a user who can read it can read the snapshots",
        (
            "State 0, after 0 collections; 1 machine, of which 0 have pushed; "
            "0 pushes since the last collection"
        ),
        "Creates a file once, also when several machines try at the same time",
        "Lists what was written just before",
        "Reads parts of files",
        "This machine may replace and remove files there",
        "Any machine may collect garbage",
    ]
    assert record(disk).keys() == before.keys()


def test_key_slots_are_counted(snap, disk, tmp_path):
    secret = {"TREESNAP_REMOTE_KEY": "5a" * 32}
    snap("remote", "add", "other", tmp_path / "other", "--encrypt", env=secret)
    snap("remote", "key", "add", "other", "--raw-key", env=secret)

    outcome = snap("remote", "check", "other", env=secret)

    assert "Encrypted, with 2 key slots\n" in outcome.out
    passphrase = {**secret, "TREESNAP_REMOTE_NEW_PASSPHRASE": "a long one"}
    assert snap("remote", "key", "add", "other", env=passphrase).code == 0
    found = snap("remote", "check", "other", env=secret).out
    assert "with 3 key slots; a passphrase takes 8.0 KiB of memory\n" in found
    assert snap("remote", "check", env=secret).code == 2


def test_what_is_printed_for_programs(snap, disk):
    found = snap("remote", "check", "disk", "--json").json

    measured = {
        "latency_ms",
        "upload_bytes_per_s",
        "download_bytes_per_s",
        "free_bytes",
    }
    assert all(found[key] > 0 for key in measured)
    left = found.keys() - {"schema", "warnings"} - measured
    assert {key: found[key] for key in sorted(left)} == {
        "clock_skew_s": None,
        "collected_at_ns": None,
        "collections": 0,
        "junk": {},
        "keeps_versions": None,
        "lacking": None,
        "machines": 0,
        "members": 1,
        "writers": 0,
        "deliveries": 0,
        "may_remove": True,
        "may_replace": True,
        "single_files": 0,
        "slot_memory_kib": [],
        "state": 0,
        "unfolded": 0,
        "unsigned_states": 0,
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


def test_what_is_there_is_counted(snap, disk):
    snap("push")
    (disk.parent / "new").touch()
    first = snap("remote", "check", "--json").json
    snap("remote", "gc")
    snap("create", "-q", "--force", "-m", "later")
    for name in (disk / "state").glob("*-c"):
        name.unlink()

    outcome = snap("remote", "check")
    found = snap("remote", "check", "--json").json

    keys = ("unfolded", "machines", "members", "collections", "lacking", "single_files")
    assert [first[key] for key in keys] == [1, 1, 1, 0, 0, 0]
    assert [found[key] for key in keys] == [0, 1, 1, 1, 1, 1]
    assert first["collected_at_ns"] is None
    assert abs(found["collected_at_ns"] - time.time_ns()) < 60 * 10**9
    assert f"since the last collection, at {time_text(found['collected_at_ns'])}" in outcome.out
    assert "Lacks 1 snapshot of this root: 'snap push' stores them" in outcome.out
    assert "1 small file without a copy: 'snap remote repair' makes it" in outcome.out


def test_commits_that_are_junk_are_counted_for_the_machine_in_their_names(snap, disk):
    snap("push")
    (commit,) = (disk / "commits").iterdir()
    epoch, _, sequence, _ = commit.name.split("-")
    for number in range(2):
        name = f"{epoch}-{'ab' * 8}-{sequence}-{number:032x}"
        (disk / "commits" / name).write_bytes(b"junk")

    outcome = snap("remote", "check")

    assert f"Found: 2 pushes of machine {'ab' * 8} that cannot be read" in outcome.out
    assert snap("remote", "check", "--json").json["junk"] == {"ab" * 8: 2}
