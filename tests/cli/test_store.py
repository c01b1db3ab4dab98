"""``snap gc``, ``verify`` and ``stats``."""

import os
import re

import pytest


@pytest.fixture
def history(snap, root):
    """Two snapshots; only the older one needs a large file."""
    (root / "large").write_bytes(os.urandom(300_000))
    snap("create")
    (root / "large").unlink()
    (root / "small").write_text("small")
    snap("create")
    return root


def packs(store):
    """Returns the files of the store that hold objects, largest first."""
    files = [path for path in store.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return sorted(files, key=lambda path: -path.stat().st_size)


def damage(path):
    """Overwrites some bytes in the middle of a file."""
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 16] = b"damaged damaged!"
    path.write_bytes(content)


def test_gc_says_what_it_freed(snap, history):
    snap("delete", "latest~1")

    would = snap("gc", "--dry-run")
    did = snap("gc")

    assert (would.code, did.code) == (0, 0)
    assert would.out.startswith("Would free ")
    assert did.out.startswith("Freed ")
    assert snap("stats", "--json").json["disk_bytes"] < 300_000


def test_gc_as_json(snap, history):
    snap("delete", "latest~1")

    would = snap("gc", "--dry-run", "--json").json
    did = snap("gc", "--json").json
    again = snap("gc", "--json").json

    assert did["schema"] == "treesnap.gc/1"
    assert (would["dry_run"], did["dry_run"]) == (True, False)
    assert would["freed_bytes"] >= 300_000
    assert did["freed_bytes"] >= 300_000
    assert did["removed_objects"] >= 1
    assert again["removed_objects"] == 0
    assert {"removed_packs", "rewritten_packs", "kept_objects", "postponed"} <= set(did)


def test_gc_that_frees_nothing_says_what_keeps_it(snap, history, store):
    result = snap("--store", store, "gc")

    assert result.out.startswith("Freed 0 B: ")
    why, advice = result.err.splitlines()
    assert re.fullmatch(r"\d objects are needed by 2 snapshots of 1 root", why)
    assert advice.endswith(f": snap --store {store} prune --dry-run")
    assert snap("gc", "--dry-run").err.splitlines()[0] == why
    document = snap("gc", "--json").json
    assert (document["snapshots"], document["roots"], document["waste_bytes"]) == (2, 1, 0)


def test_gc_says_that_little_waste_stays(snap, history, root):
    (root / "tenth").write_bytes(os.urandom(30_000))
    snap("create", "--name", "tenth")
    snap("delete", "tenth")
    snap("gc")
    (root / "large").write_bytes(os.urandom(300_000))
    (root / "tenth").write_bytes(os.urandom(30_000))
    snap("create", "--name", "both")
    (root / "tenth").unlink()
    snap("create", "--name", "one")
    snap("delete", "both")

    result = snap("gc")

    assert result.out.startswith("Freed 0 B: ")
    assert "KiB in the store is not needed, and stays until it is a fifth of " in result.err
    assert snap("gc", "--json").json["waste_bytes"] >= 30_000


def test_gc_of_a_store_without_snapshots_says_so(snap, history):
    for _ in range(2):
        snap("delete", "latest")
    snap("gc")

    assert snap("gc").err == "The store has no snapshots, and nothing to free\n"


def test_verify_of_a_good_store(snap, history):
    result = snap("verify")

    assert result.code == 0
    assert result.out.startswith("No problems in 2 snapshots, ")
    assert result.out.endswith(", content not read\n")
    assert result.err.endswith(" was not looked for: snap verify --read-data\n")
    assert snap("verify", "--read-data").err == snap("verify", "-q").err == ""


def test_verify_says_what_to_type_next_as_it_was_called(snap, history, store):
    damage(packs(store)[0])

    found = snap("--store", store, "verify", "--read-data")

    said = f"To repair what can be repaired: snap --store {store} verify --read-data --repair\n"
    assert found.err == said


@pytest.mark.parametrize("words", [[], ["--read-data"], ["--repair"]])
def test_verify_as_json(snap, history, words):
    result = snap("verify", "--json", *words)

    document = result.json
    assert (result.code, document["schema"]) == (0, "treesnap.verify/1")
    assert (document["ok"], document["problems"], document["snapshots"]) == (True, [], 2)
    assert {"repaired", "objects", "read_bytes"} <= set(document)
    assert (document["read_bytes"] >= 300_000) == ("--read-data" in words)


def test_verify_of_a_damaged_store_exits_7_and_names_the_cost(snap, history, store):
    damage(packs(store)[0])

    text = snap("verify", "--read-data")
    result = snap("verify", "--read-data", "--json")

    document = result.json
    assert (text.code, result.code) == (7, 7)
    old = snap("show", "latest~1", "--json").json["id"][:12]
    lost = f"1 path of {history} cannot be restored from snapshot {old}\n  large\nproblem: "
    assert text.out.startswith(lost)
    assert document["ok"] is False
    fields = {"code", "message", "where", "snapshot_ids", "paths", "path_count"}
    assert set(document["problems"][0]) == fields
    assert document["left"] == document["problems"]
    assert [item["path_count"] for item in document["partial"]] == [1]
    partial = {identity for item in document["problems"] for identity in item["snapshot_ids"]}
    assert partial == {snap("show", "latest~1", "--json").json["id"]}


def test_stats_in_text(snap, history):
    facts = dict(line.split(":", 1) for line in snap("stats").out.splitlines() if ":" in line)

    assert facts["snapshots"].strip() == "2"
    assert facts["as full copies"].strip() == "293.0 KiB"


def test_stats_as_json(snap, history):
    document = snap("stats", "--json").json

    assert document["schema"] == "treesnap.stats/1"
    assert (document["roots"], document["snapshots"], document["root_snapshots"]) == (1, 2, 2)
    assert document["logical_bytes"] == 300_005
    assert document["disk_bytes"] >= document["stored_bytes"] > 0
    assert {"objects", "raw_bytes", "packs", "files"} <= set(document)
    assert (document["waste_bytes"], document["damaged_snapshots"]) == (0, 0)
    assert document["compression_ratio"] <= 1 < document["needed_bytes"]
    (of_root,) = document["by_root"]
    assert (of_root["root"], of_root["snapshots"]) == (str(history), 2)
    assert of_root["unique_bytes"] == document["needed_bytes"]
    newest, oldest = document["by_snapshot"]
    assert newest["id"] == snap("show", "latest", "--json").json["id"]
    assert newest["unique_bytes"] < 1000
    assert oldest["unique_bytes"] > 300_000
    assert oldest["added_bytes"] >= oldest["unique_bytes"]


def test_stats_without_a_store_have_no_ratios_and_no_tables(unsaid_snap, root):
    assert "deduplication:  -" in unsaid_snap("stats", "--snapshots").out.splitlines()
    document = unsaid_snap("stats", "--json").json
    assert (document["dedup_ratio"], document["by_root"], document["by_snapshot"]) == (None, [], [])


def test_stats_show_what_each_snapshot_alone_needs(snap, history):
    lines = snap("stats", "--snapshots").out.splitlines()

    head = next(number for number, line in enumerate(lines) if line.endswith("snapshot"))
    assert lines[head].split() == ["full", "copy", "added", "unique", "snapshot"]
    assert len(lines[head + 1 :]) == 2
    assert lines[head + 2].split()[2].startswith("+293.")


def test_stats_tell_of_snapshots_that_could_not_be_read(snap, history, store):
    damage(packs(store)[0])
    for pack in store.glob("packs/*"):
        pack.write_bytes(pack.read_bytes()[:20])

    result = snap("stats")

    assert result.code == 0
    assert result.err.startswith("2 snapshots could not be read whole")


def test_list_shows_what_each_snapshot_added(snap, history):
    _, oldest = snap("list").out.splitlines()
    assert oldest.split()[3].partition(".")[0] in {"+293", "+294"}  # the times compress as they may
    assert [item["added_bytes"] > 300_000 for item in snap("list", "--json").json["snapshots"]] == [
        False,
        True,
    ]


class TestSample:
    def test_all_parts_together_read_everything_once(self, snap, history):
        whole = snap("verify", "--read-data", "--json").json["read_bytes"]

        parts = [
            snap("verify", "--sample", f"{number}/5", "--json").json["read_bytes"]
            for number in range(1, 6)
        ]

        assert sum(parts) == whole
        assert max(parts) < whole

    def test_one_of_the_parts_finds_a_flipped_bit(self, snap, root, store):
        (root / "file").write_bytes(bytes(range(256)) * 4)
        snap("create")
        (pack,) = store.glob("packs/*")
        data = bytearray(pack.read_bytes())
        data[data.index(bytes(range(100, 200)))] ^= 1
        pack.write_bytes(data)

        codes = [snap("verify", "--sample", f"{number}/3").code for number in (1, 2, 3)]

        assert sorted(codes) == [0, 0, 7]

    @pytest.mark.parametrize("part", ["0/3", "4/3", "1", "1/0", "x"])
    def test_a_part_that_does_not_exist_is_refused(self, snap, part):
        assert snap("verify", "--sample", part).code == 2

    @pytest.mark.parametrize("part", ["8/7", "0/7"])
    def test_a_part_out_of_range_is_told_the_range(self, snap, part):
        said = f"the part in '{part}' must be from 1 to 7\n"
        assert said in snap("verify", "--sample", part).err
