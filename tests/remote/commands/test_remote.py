"""``snap remote``, ``snap push`` and ``snap clone``, as people type them."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial

import pytest

from command_line import PROGRAM
from oracle import difference, record
from terminal import shown_on_a_terminal
from treesnap.remote import remotes
from treesnap.remote.commands import transfer
from treesnap.remote.records import REMOTE

pytestmark = pytest.mark.sampled(10)

PASSPHRASE = {"TREESNAP_REMOTE_PASSPHRASE": "correct horse"}
KEY = {"TREESNAP_REMOTE_KEY": "5a" * 32}


@pytest.fixture
def disk(tmp_path):
    return tmp_path / "disk"


@pytest.fixture
def pushed(snap, root, disk):
    """A root with one snapshot, which is on a remote in a directory."""
    (root / "plants").write_text("roses")
    snap("create", "-q")
    snap("remote", "add", "disk", disk)
    return snap("push")


def test_a_push_and_a_clone(snap, run_snap, root, pushed, disk, tmp_path):
    assert (pushed.code, pushed.out.startswith("Stored 1 snapshot on disk: ")) == (0, True)
    assert snap("push").out == "disk lacks nothing that you asked for\n"
    assert f"disk  {disk}  (not encrypted)\n" == snap("remote", "list").out
    assert snap("remote", "show").out.split()[3:] == ["1", f"root@{os.uname().nodename}"]
    other = {"SNAP_STORE": str(tmp_path / "other")}

    outcome = run_snap("clone", disk, "again", cwd=tmp_path, env=other)

    assert (outcome.code, f"into {tmp_path / 'again'}: 1 snapshot" in outcome.out) == (0, True)
    assert difference(record(root), record(tmp_path / "again")) == []


def test_a_clone_that_fetches_nothing_more_counts_what_it_cloned(
    snap, run_snap, pushed, disk, tmp_path
):
    other = {"SNAP_STORE": str(tmp_path / "other")}
    run_snap("clone", disk, "again", cwd=tmp_path, env=other)
    shutil.rmtree(tmp_path / "again")

    outcome = run_snap("clone", disk, "again", "--json", cwd=tmp_path, env=other)

    assert (outcome.json["snapshots"], outcome.json["objects"]) == (1, 0)
    assert outcome.json["conflicts"] == []


def test_a_remote_of_a_strangers_store_is_named_first(snap, pushed, disk, store):
    (store / "made-here").unlink()

    refused = snap("push", "--json")

    assert (refused.code, refused.json["code"]) == (3, "store-not-own")
    assert "'snap config safe-remote.URL true'" in refused.json["hint"]
    assert snap("remote", "add", "disk", disk).code == 0
    assert snap("config", f"safe-remote.{disk}").out == "true\n"
    assert snap("push").code == 0


def test_a_clone_by_an_address_says_how_to_push_from_there(snap, run_snap, pushed, disk, tmp_path):
    other = {"SNAP_STORE": str(tmp_path / "other")}

    by_address = run_snap("clone", disk, "again", cwd=tmp_path, env=other)

    command = f"snap remote add NAME {disk}"
    assert f"To push from there, add the remote first: {command}\n" in by_address.err
    added = run_snap(*command.replace("NAME", "mine").split()[1:], cwd=tmp_path, env=other)
    assert added.code == 0
    assert run_snap("push", cwd=tmp_path / "again", env=other).code == 0
    for named in ("mine", disk):
        to = f"by-{len(str(named))}"
        outcome = run_snap("clone", f"{named}#root", to, cwd=tmp_path, env=other)
        assert (outcome.code, "To push" in outcome.err) == (0, False)


def test_the_history_of_a_machine_that_is_gone_is_deleted(snap, root, pushed):
    (history,) = snap("remote", "show", "--json").json["histories"]

    missing = snap("remote", "delete", "disk", "kitchen", "--json")
    deleted = snap("remote", "delete", "disk", history["id"][:8], "--json")

    assert (missing.code, missing.json["code"]) == (5, "history-not-found")
    assert {key: deleted.json[key] for key in history} == history
    assert snap("remote", "show", "--json").json["histories"] == []
    collected = snap("remote", "gc", "--json").json
    assert (collected["packs"], collected["freed_bytes"] > 0) == (1, True)
    assert len(snap("push", "--json").json["snapshots"]) == 1  # this machine is still there
    assert snap("remote", "delete", "disk", "root").out.startswith("Deleted 1 snapshot of root@")


def test_what_is_printed_for_programs(snap, run_snap, root, disk, tmp_path):
    (root / "plants").write_text("roses")
    identity = snap("create", "-q").id

    added = snap("remote", "add", "disk", disk, "--json").json
    would = snap("push", "--dry-run", "--json").json
    pushed = snap("push", "--json").json
    again = run_snap("clone", f"disk#root@{identity[:8]}", "again", "--json", cwd=tmp_path).json

    assert (added["name"], added["url"], added["is_encrypted"]) == ("disk", str(disk), False)
    assert (would["snapshots"], would["dry_run"], would["requests"]) == ([identity], True, 3)
    assert would["objects"] == pushed["objects"]
    assert 0 < would["size_bytes"] < pushed["size_bytes"] < would["size_bytes"] + 200
    assert (pushed["snapshots"], pushed["objects"] > 0) == ([identity], True)
    assert (again["snapshot_id"], again["snapshots"]) == (identity, 1)
    (history,) = snap("remote", "show", "disk", "--json").json["histories"]
    assert (history["id"], history["newest_id"]) == (pushed["history_id"], identity)
    assert snap("remote", "list", "--json").json["remotes"] == [
        {key: value for key, value in added.items() if key not in {"schema", "warnings"}}
    ]
    assert snap("remote", "gc", "--json").json["packs"] == 0
    assert snap("remote", "remove", "disk", "--json").json["name"] == "disk"
    assert "No remotes" in snap("remote", "list").err


def test_secrets_come_from_a_command_a_file_or_the_environment(snap, root, disk, tmp_path):
    file = tmp_path / "passphrase"
    file.write_text("correct horse\n")
    snap("create", "-q")
    command = f"{sys.executable} -c 'print(\"correct horse\")'"

    added = snap("remote", "add", "one", disk, "--encrypt", "--passphrase-command", command)

    assert (added.code, added.out) == (0, f"Added the remote one: {disk}, encrypted\n")
    assert snap("push", "one").code == 0
    assert snap("remote", "add", "two", disk, "--encrypt", "--passphrase-file", file).code == 0
    assert snap("push", "two").out == "two lacks nothing that you asked for\n"
    assert snap("config").out.count("passphrase-") == 1  # the file has taken its place
    snap("config", "--unset", f"passphrase-file.{disk}")
    assert snap("remote", "add", "three", disk, "--encrypt", env=PASSPHRASE).code == 0
    assert snap("push", "three", env=PASSPHRASE).code == 0
    wrong = snap("push", "three", env={"TREESNAP_REMOTE_PASSPHRASE": "wrong", "X": ""})
    assert (wrong.code, "opens no key slot" in wrong.err) == (3, True)
    other_kind = snap("push", "three", env=KEY, process=True)
    assert other_kind.code == 3


@pytest.mark.parametrize("field", ["secret_command", "secret_file"])
def test_what_a_store_says_about_a_passphrase_is_shown_and_not_used(
    snap, root, store, disk, tmp_path, field
):
    marker = tmp_path / "marker"
    snap("create", "-q")
    snap("remote", "add", "disk", disk, "--encrypt", env=PASSPHRASE)
    path = store / "remotes" / "disk"
    (tmp_path / "file").write_text("correct horse\n")
    said = f"touch {marker}" if field == "secret_command" else str(tmp_path / "file")
    known = REMOTE.unseal(path.read_bytes(), "remote")._replace(**{field: said})
    path.write_bytes(REMOTE.seal(known))

    refused = snap("push", process=True)
    pushed = snap("push", env=PASSPHRASE)

    assert (refused.code, pushed.code, marker.exists()) == (3, 0, False)
    assert said in refused.err
    setting = f"passphrase-{field.removeprefix('secret_')}.{disk}"
    assert f"'snap config {setting} " in refused.err
    assert said in pushed.err
    snap("config", setting, said)
    assert said not in snap("push", process=True).err
    assert marker.exists() == (field == "secret_command")


def test_without_a_secret_and_a_terminal_nothing_waits(snap, root, disk):
    snap("create", "-q")

    refused = snap("remote", "add", "disk", disk, "--encrypt", process=True)

    assert (refused.code, "no terminal can be asked" in refused.err) == (3, True)
    assert "$TREESNAP_REMOTE_PASSPHRASE is not set" in refused.err
    assert "hint: " in refused.err


def test_a_new_passphrase_that_is_not_there_is_named_by_its_variable(snap, root, disk):
    snap("create", "-q")
    snap("remote", "add", "disk", disk, "--encrypt", env=PASSPHRASE)

    refused = snap("remote", "key", "add", env=PASSPHRASE, process=True)
    wrong = snap("push", env={"TREESNAP_REMOTE_PASSPHRASE": "wrong"})

    assert (refused.code, "$TREESNAP_REMOTE_NEW_PASSPHRASE is not set" in refused.err) == (3, True)
    assert "(1 slot, 1 with a passphrase)" in wrong.err


def test_a_secret_that_is_set_means_that_the_remote_is_encrypted(
    snap, run_snap, pushed, disk, tmp_path
):
    """Whether it is named for this address, or for all remotes."""
    (tmp_path / "secret").write_text("correct horse\n")
    other = {"SNAP_STORE": str(tmp_path / "other")}

    named = run_snap(
        "remote", "add", "d", disk, "--passphrase-file", "../secret", cwd=disk, env=other
    )
    cloned = run_snap("clone", disk, "again", "--json", cwd=tmp_path, env={**other, **KEY})

    assert (named.code, cloned.code, cloned.json["code"]) == (3, 3, "encryption-expected")
    assert "--no-encrypt takes it as it is" in named.err
    assert not (tmp_path / "again").exists()
    clone = ("clone", disk, "again", "--no-encrypt")
    assert run_snap(*clone, cwd=tmp_path, env={**other, **KEY}).code == 0
    assert snap("remote", "add", "new", tmp_path / "new", env=PASSPHRASE).out.endswith(
        f"{tmp_path / 'new'}, encrypted\n"
    )


def test_a_clone_and_a_fetch_say_what_they_lack(snap, run_snap, root, pushed, disk, tmp_path):
    """What is older and damaged is left out; what cannot be read may be newer."""
    for number in range(2):
        (root / "plants").unlink(missing_ok=True)
        (root / f"bed {number}").write_text(f"tulips {number}")
        snap("create", "-q")
        snap("push")
    first = snap("list", "--json").json["snapshots"][-1]["id"]
    commits = sorted((disk / "commits").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    packs = sorted((disk / "packs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    packs[0].chmod(0o600)
    packs[0].write_bytes(b"weeds")
    env = {"SNAP_STORE": str(tmp_path / "other")}

    whole = run_snap("clone", disk, "again", "--json", cwd=tmp_path, env=env)
    commits[-1].unlink()
    commits[-1].write_bytes(b"weeds")
    packs[-1].unlink()
    older = run_snap("clone", disk, "older", cwd=tmp_path, env=env)
    named = run_snap("clone", f"{disk}#root@latest", "named", "--json", cwd=tmp_path, env=env)

    assert (whole.code, whole.json["snapshots"], whole.json["unreadable"]) == (0, 2, [])
    assert [item["snapshot_id"] for item in whole.json["damaged"]] == [first]
    assert difference(record(root), record(tmp_path / "again")) == []
    assert older.code == 7
    assert f"cannot be read: commits/{commits[-1].name}\nThis is " in older.err
    assert (tmp_path / "older" / "bed 0").exists()
    assert (named.code, named.json["unreadable"]) == (0, [])


def test_no_new_secret_is_asked_for_where_nothing_is_encrypted(snap, pushed):
    refused = snap("remote", "key", "add", process=True)

    assert (refused.code, "is not encrypted" in refused.err) == (3, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["push"], 5, "knows no remote"),
        (["push", "none"], 5, "There is no remote 'none'"),
        (["remote", "show", "none"], 5, "There is no remote"),
        (["remote", "remove", "none"], 5, "There is no remote"),
        (["remote", "gc"], 5, "knows no remote"),
        (["remote", "add", "a/b", "x"], 2, "cannot name a remote"),
        (["remote", "add", "x", "http://y"], 2, "is neither a directory nor begins with"),
        (["remote", "add", "x", "s3://"], 2, "is not the name of a bucket"),
        (["remote", "add", "x", "../missing/below"], 1, "No such file"),
        (["clone", "missing", "there"], 5, "neither a remote nor a directory 'missing'"),
        (["clone", "./missing", "there"], 1, "No such file"),
        (["clone", "#x", "there"], 2, "cannot be empty"),
        (["clone", "x"], 2, "DIR"),
        (["clone", "s3://b/me#garden?endpoint=http://127.0.0.1:9", "y"], 2, "come before the '#'"),
        (["clone", "./missing#what?", "there"], 1, "No such file"),
    ],
)
def test_wrong_calls_say_what_is_wrong(snap, root, words, code, said):
    snap("create", "-q")

    outcome = snap(*words)

    assert (outcome.code, said in outcome.err) == (code, True), outcome.err
    assert sorted(os.listdir(root)) == []


def test_a_disk_that_is_not_mounted_is_not_written_to(snap, root, pushed, disk):
    disk.rename(disk.with_name("elsewhere"))
    disk.mkdir()
    (root / "plants").write_text("tulips")
    snap("create", "-q")

    outcome = snap("push")

    assert (outcome.code, "not mounted" in outcome.err) == (1, True)
    assert os.listdir(disk) == []


def test_a_clone_of_a_damaged_address_says_how_to_name_it_first(run_snap, pushed, disk, tmp_path):
    for pack in (disk / "packs").iterdir():
        pack.chmod(0o600)
        pack.write_bytes(b"weeds")
    env = {"SNAP_STORE": str(tmp_path / "other")}
    result = run_snap("clone", str(disk), "copy", cwd=tmp_path, env=env)

    assert result.code == 7
    assert f"hint: 'snap remote add NAME {disk}' gives it a name; then 'snap" in result.err


def test_a_clone_refuses_a_directory_that_holds_something(snap, run_snap, pushed, disk, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")

    outcome = run_snap("clone", "disk", "full", cwd=tmp_path)

    assert (outcome.code, "is not empty" in outcome.err) == (3, True)
    assert (tmp_path / "full" / "mine").read_text() == "mine"


def test_a_remote_is_pruned(snap, root, pushed):
    (root / "plants").write_text("tulips")
    newest = snap("create", "-q").id
    snap("push")

    by_default = snap("remote", "prune", "disk")
    shown = snap("remote", "prune", "--keep-last", "1", "--dry-run")
    outcome = snap("remote", "prune", "disk", "--keep-last", "1", "--json")
    again = snap("remote", "prune", "disk", "--keep-last", "1")

    assert (shown.code, "1 snapshot would be removed, 1 kept" in shown.out) == (0, True)
    assert (outcome.json["schema"], outcome.json["remote"]) == ("treesnap.remote.prune/1", "disk")
    assert [item["id"] for item in outcome.json["kept"]] == [newest]
    advice = "Rules of your own can remove what was made by hand too"
    assert by_default.err.splitlines()[1:] == [
        "No snapshot was removed: 2 are made by hand (the rules leave these alone)",
        f"{advice}: snap remote prune disk --keep-last 10 --dry-run",
    ]
    assert again.err == "No snapshot was removed: 1 is kept by the rules\n"
    assert len(snap("list").out.splitlines()) == 2
    assert snap("remote", "show").out.split()[3] == "1"
    assert snap("push").out == "disk lacks nothing that you asked for\n"


def test_a_passphrase_is_changed(snap, root, disk):
    snap("create", "-q")
    snap("remote", "add", "disk", disk, "--encrypt", env=PASSPHRASE)
    new = {"TREESNAP_REMOTE_NEW_PASSPHRASE": "battery staple"}
    (old,) = snap("remote", "key", "list", "--json", env=PASSPHRASE).json["keys"]

    added = snap("remote", "key", "add", env={**PASSPHRASE, **new})

    assert (added.code, added.out.startswith("Added the key slot ")) == (0, True)
    after = {"TREESNAP_REMOTE_PASSPHRASE": "battery staple"}
    assert snap("remote", "key", "remove", "disk", old["id"][:12], env=after).code == 0
    assert snap("push", env=PASSPHRASE).code == 3
    assert snap("push", env=after).code == 0
    raw = snap("remote", "key", "add", "--raw-key", "--json", env=after).json["raw_key"]
    assert (
        snap("push", env={"TREESNAP_REMOTE_KEY": raw}).out
        == "disk lacks nothing that you asked for\n"
    )
    last = snap("remote", "key", "list", env=after).out.splitlines()
    assert [line.endswith("  (in use)") for line in sorted(last, key=len)] == [False, True]


def test_a_paper_opens_a_remote_as_a_person_types_it(snap, root, disk, environment):
    snap("create", "-q")
    snap("remote", "add", "disk", disk, "--encrypt", env=PASSPHRASE)
    paper = snap("remote", "key", "paper", env=PASSPHRASE).out
    lines = snap("remote", "key", "paper", "disk", "--json", env=PASSPHRASE).json["lines"]

    assert [line[:3] for line in paper.splitlines() if line[:1].isdigit()] == [
        line[:3] for line in lines
    ]
    for typed in (paper, "\n".join(lines).lower()):
        assert snap("push", env={"TREESNAP_REMOTE_KEY": typed}).code == 0
        checked = snap("remote", "key", "paper", "--check", given=typed.encode(), process=True)
        assert (checked.code, checked.out.startswith("This paper opens the remote")) == (0, True)
    other = paper.replace(paper.splitlines()[5], lines[1])
    refused = snap("remote", "key", "paper", "--check", given=other.encode(), process=True)
    assert (refused.code, "opens no key slot" in refused.err) == (3, True)
    mistyped = paper.replace(paper.splitlines()[5], f"{lines[1]}0")
    refused = snap("push", env={"TREESNAP_REMOTE_KEY": mistyped})
    assert (refused.code, "Line 2 of the paper key is mistyped" in refused.err) == (2, True)
    shown = shown_on_a_terminal(
        [*PROGRAM, "remote", "key", "paper", "--check"],
        cwd=root,
        env=environment,
        answers=[lines[0][1:], f"{lines[1]}0", lines[1], *lines[2:]],
        prompt=b": ",
    )
    assert shown.count(b"mistyped") == 1
    assert b"This paper opens the remote" in shown
    kinds = [
        item["kind"]
        for item in snap("remote", "key", "list", "--json", env=PASSPHRASE).json["keys"]
    ]
    assert sorted(kinds) == ["paper key", "paper key", "passphrase"]


def test_a_rate_is_kept(snap, root, disk):
    """What is sent first may go at once; a rate that is no size is refused."""
    snap("create", "-q")
    snap("remote", "add", "disk", disk)

    assert snap("push", "--limit-rate", "5M").code == 0
    assert snap("push", "--limit-rate", "fast").code == 2


def test_a_remote_is_verified(snap, root, pushed, disk):
    whole = snap("remote", "verify", "disk", "--read-data")
    (pack,) = (disk / "packs").iterdir()
    pack.unlink()

    damaged = snap("remote", "verify", "disk")

    assert (whole.code, whole.out.startswith("No problems in 1 snapshot, ")) == (0, True)
    assert (damaged.code, "is missing on the remote" in damaged.out) == (7, True)
    assert damaged.err.endswith(": snap remote verify disk --read-data --repair\n")
    assert snap("remote", "verify", "--json").json["schema"] == "treesnap.remote.verify/1"


def test_what_a_remote_lost_is_stored_again(snap, root, pushed, disk, tmp_path):
    (pack,) = (disk / "packs").iterdir()
    pack.unlink()

    repaired = snap("remote", "verify", "disk", "--repair")
    again = snap("remote", "verify", "disk", "--read-data")

    lines = [line for line in repaired.out.splitlines() if line.startswith("repaired: ")]
    assert repaired.code == 7
    assert [line.split(" lost object")[0][:-1].rstrip("0123456789") for line in lines[:1]] == [
        "repaired: Stored "
    ]
    assert lines[1:] == ["repaired: Let go of 1 missing pack"]
    assert repaired.out.splitlines()[-1].startswith("1 problem found, 0 left in 1 snapshot, ")
    assert again.code == 0
    assert snap("clone", str(disk), str(tmp_path / "again")).code == 0


def damaged_files(disk):
    """Yields files of a remote, each while it is damaged in one way."""
    for folder in ("state", "packs", "commits", "catalog", "index"):
        for path in sorted((disk / folder).glob("*")):
            content = path.read_bytes()
            flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
            for kind, damaged in (("lost", None), ("empty", b""), ("flipped", flipped)):
                if damaged is None:
                    path.unlink()
                else:
                    path.chmod(0o600)
                    path.write_bytes(damaged)
                yield f"{folder} {kind}"
                path.unlink(missing_ok=True)
                path.write_bytes(content)


def test_damage_on_a_remote_leads_to_the_commands_of_remotes(snap, root, pushed, disk, tmp_path):
    """Those of the local store would find nothing."""
    collected = snap("remote", "gc", "disk")  # which writes catalog and index
    assert collected.code == 0
    assert "At least half of each pack is needed" in collected.err
    assert "which ones could go: snap remote prune disk --dry-run" in collected.err
    (root / "plants").write_text("tulips")
    snap("create", "-q")
    assert snap("push").code == 0
    seen = set()
    for number, damage in enumerate(damaged_files(disk)):
        store = tmp_path / f"store-{number}"
        outcome = snap("--store", store, "clone", disk, tmp_path / f"again-{number}", "--json")
        assert outcome.code == 0 or damage.split()[0] not in {"state", "index"}
        if outcome.code == 0 or outcome.json.get("unreadable"):
            continue
        shown = (outcome.code, outcome.json["code"])
        if shown != (5, "history-not-found"):
            assert shown == (7, "remote-damaged"), (damage, outcome.json)
            assert "'snap remote verify NAME --repair'" in outcome.json["hint"]
            seen.add(damage)
    assert "packs lost" in seen


def test_a_remote_that_cannot_be_checked_says_what_to_do(snap, pushed, disk):
    for state in (disk / "state").iterdir():
        state.unlink()

    found = snap("remote", "verify", "disk")
    outcome = snap("remote", "verify", "disk", "--repair")

    assert (found.code, "The remote has no state" in found.out) == (7, True)
    assert outcome.code == 7
    assert "'snap remote verify" not in outcome.err
    assert "'snap remote add' another place" in outcome.err


@pytest.fixture
def other(run_snap, pushed, disk, tmp_path):
    """Runs commands on another machine, which knows the remote and has a root of its own."""
    directory = tmp_path / "other"
    directory.mkdir()
    (directory / "own").write_text("mine")
    environment = {"SNAP_STORE": str(tmp_path / "other-store")}

    def run(*words):
        return run_snap(*words, cwd=directory, env=environment)

    run("create", "-q")
    run("remote", "add", "disk", disk)
    return run


def test_a_history_of_another_machine_is_fetched_listed_and_restored(other, disk, tmp_path):
    there = other("remote", "snapshots", "disk/root").out
    fetched = other("fetch")
    again = other("fetch", "disk", "root", "--json").json

    assert there.count("\n") == 1
    assert fetched.out.startswith(f"Fetched 1 snapshot of disk/root@{os.uname().nodename}: ")
    assert (again["snapshots"], again["remote"]) == (0, "disk")
    assert other("cat", "disk/root", "plants").out == "roses"
    assert other("show", again["ref"], "--json").json["id"] == again["snapshot_id"]
    os.rename(disk, f"{disk}-away")
    restored = other("restore", "disk/root", "--to", "copy")
    assert restored.code == 0
    assert "what was fetched before is used" in restored.err
    assert (tmp_path / "other" / "copy" / "plants").read_text() == "roses"
    assert "No such snapshots on disk" not in other("list").err


def test_a_fetched_snapshot_is_found_beside_a_clone_of_it(other, disk, tmp_path):
    """Both have the same ids, in one store."""
    assert other("fetch", "disk", "root").code == 0
    assert other("clone", disk, tmp_path / "clone").code == 0

    assert other("ls", "disk/root").out == "plants\n"
    assert other("cat", "disk/root", "plants").out == "roses"
    assert other("restore", "disk/root", "plants").code == 0


def test_a_fetched_snapshot_is_restored_where_nothing_was_captured_yet(
    run_snap, pushed, disk, tmp_path
):
    env, new = {"SNAP_STORE": str(tmp_path / "other-store")}, tmp_path / "new"
    new.mkdir()
    (new / "own").write_text("mine")
    run_snap("remote", "add", "disk", disk, cwd=new, env=env)

    restored = run_snap("restore", "disk/root", "plants", cwd=new, env=env)

    assert (restored.code, (new / "plants").read_text()) == (0, "roses"), restored.err
    assert run_snap("restore", "nothing", cwd=tmp_path, env=env).code == 5
    assert run_snap("undo", cwd=new, env=env).code == 0
    assert [path.name for path in new.iterdir()] == ["own"]


def test_the_roots_that_are_listed_say_which_histories_were_fetched(other):
    other("fetch")
    name = f"disk/root@{os.uname().nodename}"

    lines = other("root", "list").out.splitlines()
    items = other("root", "list", "--json").json["roots"]

    assert [line.endswith(f"  {name}  (fetched)") for line in lines].count(True) == 1
    assert not any("no directory there" in line for line in lines)
    assert sorted(item["fetched"] or "" for item in items) == ["", name]
    (fetched,) = (item for item in items if item["fetched"] is not None)
    assert other("show", fetched["fetched"]).code == 0
    forgotten = other("root", "forget", fetched["id"][:8], "--force")
    assert forgotten.out == f"Forgot {name}: 1 snapshot\n"
    assert len(other("root", "list").out.splitlines()) == 1


def test_a_restore_names_a_snapshot_on_a_remote(other, snap, root, tmp_path):
    identity = snap("list", "--json").json["snapshots"][0]["id"]
    (root / "plants").write_text("tulips")
    snap("create", "-q")
    snap("push")

    older = other("restore", f"disk/root@{identity[:8]}", "plants")
    assert (older.code, (tmp_path / "other" / "plants").read_text()) == (0, "roses")
    newest = other("restore", "disk/root", "plants")

    assert (newest.code, (tmp_path / "other" / "plants").read_text()) == (0, "tulips")
    assert (tmp_path / "other" / "own").read_text() == "mine"
    assert other("undo").code == 0
    assert (tmp_path / "other" / "plants").read_text() == "roses"
    assert other("restore", "disk/nothing").code == 5
    assert other("restore", "nowhere/root").code == 5


def test_a_name_of_a_snapshot_comes_before_a_history(other, tmp_path):
    assert other("create", "-q", "--name", "disk/root").code == 0

    restored = other("restore", "disk/root", "--to", "copy")

    assert restored.code == 0
    assert os.listdir(tmp_path / "other" / "copy") == ["own"]


def test_a_pull_says_what_both_sides_changed(snap, run_snap, root, pushed, disk, tmp_path):
    environment = {"SNAP_STORE": str(tmp_path / "other-store")}
    directory = tmp_path / "again"
    run_snap("clone", disk, directory, cwd=tmp_path, env=environment)

    def other(*words):
        return run_snap(*words, cwd=directory, env=environment)

    other("remote", "add", "disk", disk)
    (directory / "plants").write_text("mine")
    (root / "plants").write_text("theirs")
    (root / "new").write_text("seeds")
    snap("create", "-q")
    history = snap("push", "--json").json["history_id"]

    kept = other("pull")

    assert kept.code == 0
    assert "1 path changed on both sides, and kept as it is here:\n  plants\n" in kept.err
    assert "To take one from there: snap restore disk/" in kept.err
    assert (directory / "plants").read_text() == "mine"
    assert (directory / "new").read_text() == "seeds"
    assert other("pull").out.endswith("has nothing new\n")
    assert [line for line in kept.err.splitlines() if "snap pull" in line] == [
        f"To take all from there: snap undo && snap pull disk {history[:12]} --theirs"
    ]
    other("undo")
    taken = other("pull", "disk", history[:12], "--theirs", "--json").json
    assert taken["conflicts"] == [{"path": "plants"}]
    assert (directory / "plants").read_text() == "theirs"
    assert (directory / "new").read_text() == "seeds"


def test_a_pull_that_changed_nothing_is_not_undone_to_take_the_other_side(
    snap, run_snap, root, pushed, disk, tmp_path
):
    environment = {"SNAP_STORE": str(tmp_path / "other-store")}
    directory = tmp_path / "again"
    run_snap("clone", disk, directory, cwd=tmp_path, env=environment)

    def other(*words):
        return run_snap(*words, cwd=directory, env=environment)

    other("remote", "add", "disk", disk)
    (directory / "plants").write_text("mine")
    (root / "plants").write_text("theirs")
    snap("create", "-q")
    history = snap("push", "--json").json["history_id"]

    kept = other("pull")

    assert f"To take all from there: snap pull disk {history[:12]} --theirs\n" in kept.err
    assert "undo" not in kept.err
    assert other("pull", "disk", history[:12], "--theirs").code == 0
    assert (directory / "plants").read_text() == "theirs"


def test_a_dry_run_says_that_nothing_is_lacking(snap, pushed):
    dry, for_programs = snap("push", "--dry-run"), snap("push", "--dry-run", "--json").json

    assert dry.out == "disk lacks nothing that you asked for\n"
    assert (for_programs["requests"], for_programs["snapshots"]) == (0, [])


def test_snapshots_on_a_remote_are_listed_as_those_of_the_root(snap, root, pushed):
    own = snap("list").out
    (root / "plants").write_text("tulips")
    newest = snap("create", "-q", "--tag", "flower=tulip").id
    snap("push")
    (snapshot, _) = snap("list", "--json").json["snapshots"]

    everything = snap("remote", "snapshots", "disk").out
    (tagged,) = snap("remote", "snapshots", "--tag", "flower=tulip", "--json").json["snapshots"]

    assert everything.splitlines()[1:] == own.splitlines()
    assert everything.count("\n") == 2
    assert tagged == {**snapshot, "id": newest}
    assert snap("remote", "snapshots", "disk/root", "-n", "1").out == everything.splitlines(True)[0]
    none = snap("remote", "snapshots", "disk", "--phase", "build")
    assert (none.code, none.out, none.err) == (0, "", "No such snapshots on disk\n")
    assert snap("remote", "snapshots", "disk/nosuch").code == 5


def test_a_clone_of_a_history_that_is_written_as_a_ref_says_how_it_is_written(snap, pushed):
    for place in ("disk/root", "disk@latest"):
        outcome = snap("clone", place, "../there", "--json")

        assert (outcome.code, outcome.json["code"]) == (5, "remote-not-found")
        assert outcome.json["message"].endswith("; a history of disk is disk#HISTORY")


def test_a_snapshot_that_is_not_on_a_remote_is_looked_for_there(snap, run_snap, pushed, tmp_path):
    (history,) = snap("remote", "show", "--json").json["histories"]
    listed = f"hint: 'snap remote snapshots disk/{history['id'][:12]}' shows the snapshots of this"
    for words in (
        ["restore", "disk/root@nosuch"],
        ["fetch", "disk", "root@latest~9"],
        ["clone", "disk#root@nosuch", "again"],
    ):
        outcome = snap(*words)
        assert (outcome.code, listed in outcome.err) == (5, True), outcome.err
    assert snap("remote", "snapshots", f"disk/{history['id'][:12]}").code == 0

    unnamed = run_snap("clone", f"{tmp_path / 'disk'}#root@nosuch", "again", cwd=tmp_path)

    assert (unnamed.code, "hint: 'snap remote add NAME URL'" in unnamed.err) == (5, True)


def test_a_history_that_is_not_there_is_told_beside_those_that_are(snap, pushed):
    (history,) = snap("remote", "show", "--json").json["histories"]

    for words in (["restore", "disk/rot"], ["fetch", "disk", "rot"], ["clone", "disk#rot", "x"]):
        outcome = snap(*words)

        there = f"no history 'rot'; it has root@{os.uname().nodename} ({history['id'][:12]})\n"
        assert (outcome.code, there in outcome.err) == (5, True), outcome.err


def test_several_remotes_are_told_apart(snap, pushed, disk):
    snap("remote", "add", "second", disk)

    outcome = snap("push")

    assert (outcome.code, "several remotes, name one: disk, second" in outcome.err) == (2, True)


def test_a_pull_says_what_became_of_the_root(snap, run_snap, root, pushed, disk, tmp_path):
    environment = {"SNAP_STORE": str(tmp_path / "other-store")}
    directory = tmp_path / "again"
    run_snap("clone", disk, directory, cwd=tmp_path, env=environment)

    def other(*words):
        return run_snap(*words, cwd=directory, env=environment)

    other("remote", "add", "disk", disk)
    same = other("pull").out.splitlines()
    (root / "new").write_text("seeds")
    snap("create", "-q")
    snap("push")
    other("fetch")
    changed = other("pull").out.splitlines()

    assert same[0].startswith("Fetched 1 snapshot of disk/root@")
    assert same[1:] == ["Nothing to merge: the root has what these snapshots changed"]
    assert [line.split()[0] for line in changed] == ["Restored"]


def test_a_pull_lists_what_it_leaves_out(snap, run_snap, root, pushed, disk, tmp_path):
    environment = {"SNAP_STORE": str(tmp_path / "other-store")}
    directory = tmp_path / "again"
    run_snap("clone", disk, directory, cwd=tmp_path, env=environment)
    run_snap("remote", "add", "disk", disk, cwd=directory, env=environment)
    (directory / ".snapignore").write_text("plants\n")
    (root / "plants").write_text("theirs")
    snap("create", "-q")
    snap("push")

    told = run_snap("pull", cwd=directory, env=environment)
    (root / "plants").write_text("theirs again")
    snap("create", "-q")
    snap("push")
    answer = run_snap("pull", "--json", cwd=directory, env=environment).json

    assert "1 path left out:\n  plants (excluded)\n" in told.err
    assert answer["left_out"] == [{"path": "plants", "reason": "excluded"}]
    assert (directory / "plants").read_text() != "theirs"


def test_some_paths_are_cloned(run_snap, root, snap, disk, tmp_path):
    (root / "beds").mkdir()
    (root / "beds" / "one").write_text("1")
    (root / "plants").write_text("roses")
    snap("create", "-q")
    snap("remote", "add", "disk", disk)
    snap("push")

    outcome = run_snap("clone", f"{disk}#root@latest", "again", "beds/", cwd=tmp_path)

    assert outcome.code == 0
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["beds"]


def test_keys_are_rotated(snap, root, disk):
    snap("create", "-q")
    snap("remote", "add", "disk", disk, "--encrypt", env=KEY)
    added = snap("remote", "key", "add", "disk", "--raw-key", env=KEY).out.splitlines()

    outcome = snap("remote", "key", "rotate", env=KEY)

    assert outcome.out == "Rotated the keys: new files are of generation 2\n"
    assert "1 key slot opens only what was stored before" in outcome.err
    assert snap("push", env=KEY).code == 0
    refused = snap("remote", "show", "disk", env={"TREESNAP_REMOTE_KEY": added[1]})
    assert (refused.code, "before the keys of the remote were rotated" in refused.err) == (3, True)
    assert (
        "hint: give a newer secret; or on a machine that has one, 'snap remote key" in refused.err
    )
    again = snap("remote", "key", "rotate", "--json", env=KEY).json
    assert (again["generation"], len(again["older"])) == (3, 1)


def test_a_machine_that_only_appends_says_so(snap, root, disk):
    snap("create", "-q")

    assert snap("remote", "add", "disk", disk, "--append-only", "--json").json["appends_only"]
    assert snap("push").code == 0
    assert snap("remote", "list", "--json").json["remotes"][0]["appends_only"]


def test_a_remote_without_keys_needs_no_secret_to_say_so(snap, pushed):
    refused = snap("remote", "key", "rotate")

    assert (refused.code, "is not encrypted" in refused.err) == (3, True)


def test_packs_are_sent_and_received_at_the_same_time(snap, run_snap, root, disk, tmp_path):
    for number in range(3):
        (root / f"film-{number}").write_bytes(os.urandom(33 << 20))
    snap("create", "-q")
    snap("remote", "add", "disk", disk)

    assert snap("push", "--jobs", "3", "--json").json["objects"] > 3
    outcome = run_snap("clone", disk, "again", "--jobs", "3", cwd=tmp_path)

    assert outcome.code == 0
    assert difference(record(root), record(tmp_path / "again")) == []
    assert snap("push", "--jobs", "0").code == 2
    assert transfer.JOBS == remotes.JOBS


def test_what_came_after_a_snapshot_is_pushed(snap, root, disk):
    made = []
    for text in ("roses", "tulips", "lilies"):
        (root / "plants").write_text(text)
        made.append(snap("create", "-q").id)
    snap("remote", "add", "disk", disk)

    assert snap("push", "--since", "latest~1", "--json").json["snapshots"] == made[2:]
    assert snap("push", "--since", made[0], "--json").json["snapshots"] == made[1:2]
    assert snap("push", "--since", "unknown").code == 5
    assert snap("push", "--json").json["snapshots"] == made[:1]
    assert snap("remote", "show", "--json").json["histories"][0]["newest_id"] == made[2]


def test_a_writer_is_invited_delivers_and_is_removed(snap, run_snap, root, disk, tmp_path):
    snap("remote", "add", "disk", disk, "--encrypt", env=PASSPHRASE)
    text = snap("remote", "invite", "--writer", env=PASSPHRASE).out.strip()
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "result").write_text("work")
    env = {"TREESNAP_REMOTE_INVITATION": text, "SNAP_STORE": str(tmp_path / "other")}
    sandbox = partial(run_snap, cwd=tmp_path / "sandbox", env=env)
    sandbox("create", "-q")

    done = sandbox("remote", "deliver", disk, "latest", "--json").json

    assert (len(done["snapshots"]), done["objects"] > 0) == (1, True)
    assert sandbox("remote", "deliver", disk).out == "Everything that you asked for was delivered\n"
    refused = sandbox("remote", "deliver", disk, env={**env, "TREESNAP_REMOTE_INVITATION": ""})
    assert (refused.code, "An invitation is needed" in refused.err) == (3, True)
    (disk / "inbox" / f"{'0' * 16}-{'0' * 8}-{'0' * 8}-{'0' * 32}").write_text("junk")
    checked = snap("remote", "check", env=PASSPHRASE)
    assert "1 writer may deliver; 2 deliveries wait in the inbox: 'snap remote rec" in checked.out
    received = snap("remote", "receive", "--json", env=PASSPHRASE)
    assert (received.code, len(received.json["left"]), received.json["incomplete"]) == (7, 1, 0)
    (item,) = received.json["received"]
    assert item["history_id"].startswith(done["history"])
    assert item["snapshots"] == done["snapshots"]
    listed = snap("remote", "members", "list", "--json", env=PASSPHRASE).json["members"]
    assert [item["role"] for item in listed] == ["owner", "writer"]
    writer = done["writer"]
    assert listed[1]["id"] == writer
    revoke = partial(snap, "remote", "members", "revoke", "disk", env=PASSPHRASE)
    assert revoke(writer[:6]).out.startswith(f"Revoked the writer {writer}\nWhat it delivers")
    assert revoke(writer[:6]).code == 5
    assert snap("remote", "invite", "--writer", "--role", "member", env=PASSPHRASE).code == 2


def test_a_machine_is_invited_pushes_is_demoted_and_revoked(snap, run_snap, root, disk, tmp_path):
    snap("create", "-q")
    snap("remote", "add", "disk", disk, "--encrypt", env=PASSPHRASE)
    invited = snap("remote", "invite", "--role", "collector", "--json", env=PASSPHRASE).json
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "plants").write_text("roses")
    env = {"TREESNAP_REMOTE_INVITATION": "", "SNAP_STORE": str(tmp_path / "other")}
    laptop = partial(run_snap, cwd=tmp_path / "laptop", env=env)
    laptop("create", "-q")

    refused = laptop("remote", "add", "disk", disk, "--invited")
    assert (refused.code, "An invitation is needed" in refused.err) == (3, True)
    env["TREESNAP_REMOTE_INVITATION"] = invited["invitation"]
    added = laptop("remote", "add", "disk", disk, "--invited", env=env)
    assert added.code == 0
    env["TREESNAP_REMOTE_INVITATION"] = ""
    assert len(laptop("push", "--json", env=env).json["snapshots"]) == 1
    assert laptop("remote", "gc", env=env).code == 0
    listed = laptop("remote", "members", "list", env=env).out
    assert f"{invited['id']}  collector  laptop@" in listed
    assert "(this machine)" in listed
    demoted = snap("remote", "members", "demote", "disk", invited["id"][:8], env=PASSPHRASE)
    assert demoted.out == f"The machine {invited['id']} is a member now\n"
    refused = laptop("remote", "gc", env=env)
    assert (refused.code, "does not allow that" in refused.err) == (3, True)
    (tmp_path / "new").write_text("another\n")
    revoke = partial(snap, "remote", "members", "revoke", "disk", invited["id"], env=PASSPHRASE)
    refused = revoke("--passphrase-file", tmp_path / "new")
    assert (refused.code, "which knows no secret" in refused.err) == (2, True)
    revoked = revoke()
    assert "has keys of generation 2" in revoked.out
    refused = laptop("push", env=env)
    assert (refused.code, "it was revoked" in refused.err) == (3, True)
