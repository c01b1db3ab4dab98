"""``snap store``: where the store is, copies of it, and moves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oracle import difference, record
from treesnap.core.store.layout import is_hex

pytestmark = pytest.mark.sampled(10)

WRITER = """
import sys, treesnap
handle = treesnap.open(sys.argv[1], sys.argv[2])
number = 0
while True:
    number += 1
    with open(f"{sys.argv[1]}/file{number % 7}", "wb") as file:
        file.write(number.to_bytes(4, "big") * 5000)
    handle.create()
    print(number, flush=True)
"""


@pytest.fixture
def history(snap, root):
    (root / "file").write_text("one")
    snap("create", "--name", "v1")
    (root / "file").write_text("two")
    snap("create", "--name", "v2")
    snap("config", "keep.monthly", "12")
    return root


def assert_holds(run_snap, root: Path, store: Path, tmp_path: Path) -> None:
    """Checks that a store gives back both versions, and knows its settings."""
    where = ["-C", root, "--store", store]
    for name, text in {"v1": "one", "v2": "two"}.items():
        assert run_snap(*where, "cat", name, "file", cwd=tmp_path).out == text
    settings = run_snap(*where, "config", "keep.monthly", cwd=tmp_path).out
    assert "12" in settings
    assert run_snap(*where, "verify", "--read-data", cwd=tmp_path).code == 0


class TestInfo:
    def test_in_text(self, snap, history, store):
        lines = snap("store", "info").out.splitlines()

        facts = dict(line.split(":", 1) for line in lines[:9])
        assert facts["path"].strip() == str(store)
        assert facts["configured by"].strip() == "$SNAP_STORE"
        assert (facts["snapshots"].strip(), facts["roots"].strip()) == ("2", "1")
        assert facts["your own"].strip() == "yes"
        assert lines[9:] == [f"  {history}"]

    def test_as_json(self, snap, history, store):
        document = snap("--store", store, "store", "info", "--json").json

        assert document["schema"] == "treesnap.store.info/1"
        assert document["configured_by"] == "--store"
        assert (document["path"], document["real_path"]) == (str(store), str(store))
        assert (len(document["id"]), document["snapshots"]) == (32, 2)
        assert document["size_bytes"] > 0

    def test_of_the_default_store(self, unsaid_snap, root, default_store):
        unsaid_snap("create")

        assert unsaid_snap("store", "info", "--json").json["configured_by"] == "default"

    def test_without_a_store(self, snap, root):
        assert snap("store", "info").code == 5

    @pytest.mark.parametrize("identity", ["\x1b[2J" + "0" * 29, "0" * 31, "F" * 32, 5, None])
    def test_shows_no_id_that_cannot_be_one(self, snap, store, identity):
        snap("create")
        path = store / "format"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"id": identity}))

        assert "id:             none" in snap("store", "info").out
        assert snap("store", "info", "--json").json["id"] == ""
        assert "The format file has a wrong id" in snap("verify").out
        snap("verify", "--repair")
        assert is_hex(snap("store", "info", "--json").json["id"], 32)


class TestCopy:
    def test_is_a_store_of_its_own(self, snap, run_snap, history, store, tmp_path):
        result = snap("store", "copy", tmp_path / "second")

        assert result.code == 0, result
        assert result.out.endswith(f", to {tmp_path}/second: 2 snapshots, checked\n")
        shutil.rmtree(store)
        assert_holds(run_snap, history, tmp_path / "second", tmp_path)
        assert not (tmp_path / "second.partial").exists()
        (history / "file").write_text("three")
        assert run_snap("--store", tmp_path / "second", "create", cwd=history).code == 0

    def test_of_a_store_in_use_holds_what_was_there(self, snap, run_snap, root, store, tmp_path):
        command = [sys.executable, "-c", WRITER, str(root), str(store)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            try:
                for number in range(3):
                    for _ in range(4):
                        assert writer.stdout.readline()
                    before = {item["id"] for item in snap("list", "--json").json["snapshots"]}
                    target = tmp_path / f"copy{number}"

                    result = snap("store", "copy", target, "--json").json

                    assert result["verified"]["ok"], result
                    listed = run_snap("-C", root, "--store", target, "list", "--json", cwd=root)
                    assert before <= {item["id"] for item in listed.json["snapshots"]}
            finally:
                writer.kill()

    def test_keeps_plans_and_undo_but_no_journal(self, snap, run_snap, history, store, tmp_path):
        assert snap("restore", "v1").code == 0
        (root_files,) = (path for path in (store / "roots").iterdir() if len(path.name) == 32)
        (root_files / "journal").write_bytes(b"as if a restore were under way")

        run_snap("store", "copy", tmp_path / "second", cwd=tmp_path)

        (copied,) = (p for p in (tmp_path / "second/roots").iterdir() if len(p.name) == 32)
        assert {"root", "history"} <= {path.name for path in copied.iterdir()}
        assert not {"journal", "lock", "cache"} & {path.name for path in copied.iterdir()}
        assert run_snap("--store", tmp_path / "second", "undo", cwd=history).code == 0
        assert (history / "file").read_text() == "two"

    def test_of_a_damaged_store_says_so(self, snap, history, store, tmp_path):
        for pack in (store / "packs").iterdir():
            pack.chmod(0o600)
            pack.write_bytes(pack.read_bytes()[:-30] + bytes(30))

        result = snap("store", "copy", tmp_path / "second")

        assert result.code == 7
        assert result.out.endswith("with damage\n")
        assert f"snap --store {tmp_path}/second verify --read-data" in result.err
        assert (tmp_path / "second" / "format").exists()

    @pytest.mark.parametrize("name", ["store/inner", "store", ".", "full", "begun"])
    def test_refuses_a_place_that_cannot_be(self, snap, history, store, tmp_path, name):
        (tmp_path / "full").mkdir()
        (tmp_path / "full/mine").write_text("mine")
        (tmp_path / "begun.partial").mkdir()
        (tmp_path / "begun.partial/packs").mkdir()
        before = record(tmp_path)

        assert snap("store", "copy", tmp_path / name).code in {2, 3}
        assert difference(before, record(tmp_path)) == []


class TestMove:
    @pytest.mark.needs("exchange")
    def test_leaves_a_link(self, snap, run_snap, history, store, tmp_path):
        inode = store.stat().st_ino

        result = snap("store", "move", tmp_path / "far" / "store")

        new = tmp_path / "far" / "store"
        assert result.out == f"Moved the store to {new}; {store} is a link to it\n"
        assert (os.readlink(store), new.stat().st_ino) == (str(new), inode)
        for place in (store, new):
            assert_holds(run_snap, history, place, tmp_path)
        (history / "file").write_text("three")
        assert snap("create").code == 0
        assert snap("store", "info", "--json").json["real_path"] == str(new)

    @pytest.mark.needs("exchange")
    def test_into_an_empty_directory_and_again(self, snap, run_snap, history, store, tmp_path):
        (tmp_path / "one").mkdir()
        assert snap("store", "move", tmp_path / "one").code == 0
        assert snap("store", "move", tmp_path / "two").code == 0

        assert store.resolve() == tmp_path / "two"
        assert_holds(run_snap, history, store, tmp_path)

    @pytest.mark.needs("exchange")
    def test_that_was_killed_goes_on(self, snap, run_snap, history, store, tmp_path):
        (tmp_path / "new").symlink_to(tmp_path / "new")  # as a kill before the exchange leaves it

        assert snap("store", "move", tmp_path / "new").code == 0
        assert_holds(run_snap, history, tmp_path / "new", tmp_path)

    @pytest.mark.parametrize("command", ["move", "copy"])
    def test_through_a_link_to_nothing_makes_nothing(self, snap, history, tmp_path, command):
        (tmp_path / "disk").symlink_to(tmp_path / "unplugged")

        assert snap("store", command, tmp_path / "disk" / "store").code == 2
        assert not (tmp_path / "unplugged").exists()

    def test_waits_for_work_in_a_root(self, snap, history, tmp_path):
        result = snap(
            "--wait",
            "0",
            "run",
            "--",
            "sh",
            "-c",
            f"cd / && exec {sys.executable} -c "
            f'\'import treesnap; treesnap.open("{history}", wait_s=0)'
            f'.store_move("{tmp_path}/new")\'',
            process=True,
        )

        assert result.code != 0
        assert "treesnap.core.model.errors.Busy" in result.err
        assert not (tmp_path / "new").exists()

    @pytest.mark.needs("exchange")
    @pytest.mark.skipif(
        not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/var/tmp").st_dev,
        reason="there is one file system only",
    )
    def test_to_another_file_system_keeps_the_old(self, run_snap, history, store, tmp_path):
        other = Path("/var/tmp" if str(tmp_path).startswith("/dev/shm") else "/dev/shm")
        if other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("both places are on one file system")
        new = other / f"treesnap-test-{os.getpid()}"
        try:
            result = run_snap("-C", history, "store", "move", new, cwd=tmp_path)

            assert result.code == 0, result
            assert f"rm -r {store}.moved" in result.err
            assert store.resolve() == new
            assert_holds(run_snap, history, store, tmp_path)
            assert_holds(run_snap, history, Path(f"{store}.moved"), tmp_path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
