"""``snap create``."""

import os
import socket
import sys

import pytest

import treesnap
from treesnap import CreateOptions, Refused

SNAPSHOT_FIELDS = {
    "id",
    "scope",
    "label",
    "name",
    "created_at",
    "created_at_ns",
    "root_hash",
    "complete",
    "pinned",
    "kind",
    "session",
    "step",
    "step_name",
    "phase",
    "type",
    "reason",
    "source_tool",
    "counters",
    "rollback_count",
    "rollback_used",
    "rollback_reason",
    "retired",
    "tags",
    "files",
    "size_bytes",
    "added_bytes",
    "root",
}


@pytest.fixture
def tree(root):
    """A root with something in it."""
    (root / "sub").mkdir()
    (root / "a.txt").write_text("alpha\n")
    (root / "sub" / "b.log").write_text("beta\n")
    return root


def test_create_counts_what_is_neither_file_nor_directory(snap, tree):
    (tree / "link").symlink_to("a.txt")
    one = snap("create").err
    os.mkfifo(tree / "pipe")
    two = snap("create").err

    assert "Captured 2 files and 1 link or special file in 1 directory, 11 B; " in one
    assert two.startswith("Captured 2 files and 2 links and special files in 1 directory, ")
    assert "1 directory, 2 links and special files, 11 B" in snap("show", "latest").out


def test_create_prints_the_id_alone(snap, tree):
    result = snap("create")

    assert result.code == 0
    assert result.id == snap("show", "latest", "--json").json["id"]
    assert "Captured 2 files" in result.err


def test_create_as_json(snap, tree):
    result = snap("create", "--json")

    document = result.json
    assert (result.code, result.err) == (0, "")
    assert document["schema"] == "treesnap.create/1"
    assert document["complete"] is True
    assert document["unchanged"] is False
    assert document["skipped"] == []
    assert len(document["id"]) == len(document["root_hash"]) == 64
    assert document["stats"]["files"] == 2
    assert document["stats"]["size_bytes"] == 11
    assert set(document["stats"]) == {
        "files",
        "directories",
        "others",
        "size_bytes",
        "files_read",
        "read_bytes",
        "objects_added",
        "added_bytes",
    }
    assert set(document["snapshot"]) == SNAPSHOT_FIELDS


def test_create_keeps_what_its_caller_says(snap, tree):
    snap(
        *("create", "-m", "a remark", "--name", "v1", "--tag", "k=v", "--tag", "empty="),
        *("--session", "s", "--step", "3"),
    )

    (listed,) = snap("list", "--json").json["snapshots"]
    assert (listed["label"], listed["name"]) == ("a remark", "v1")
    assert (listed["session"], listed["step"]) == ("s", 3)
    assert listed["tags"] == {"k": "v", "empty": ""}
    assert listed["kind"] == "manual"


@pytest.mark.parametrize("tag", ["nothing", "=value"])
def test_tag_is_a_key_and_a_value(snap, tree, tag):
    assert snap("create", "--tag", tag).code == 2


def test_step_is_a_number_from_zero(snap, tree):
    assert snap("create", "--step", "-1").code == 2


def test_name_that_is_taken_is_refused(snap, tree):
    snap("create", "--name", "v1")

    result = snap("create", "--name", "v1", "--json")

    assert (result.code, result.json["code"]) == (3, "name-taken")


def test_skip_unchanged_makes_none_and_says_so(snap, tree):
    first = snap("create").id

    second = snap("create", "--skip-unchanged")
    third = snap("create", "--skip-unchanged", "--json")

    assert first == second.id
    assert "Nothing changed" in second.err
    assert third.json["unchanged"] is True
    assert len(snap("list", "--json").json["snapshots"]) == 1


def test_skip_unchanged_makes_one_when_something_changed(snap, tree):
    first = snap("create").id
    (tree / "a.txt").write_text("changed")

    assert first != snap("create", "--skip-unchanged").id


def test_excluded_paths_are_not_captured_and_listed(snap, tree):
    result = snap("create", "--exclude", "*.log", "--exclude", "nosuch")
    document = snap("create", "--exclude", "*.log", "--json").json

    assert result.code == 0
    assert "1 path not captured:\n  sub/b.log (excluded)\n" in result.err
    assert document["skipped"] == [{"path": "sub/b.log", "reason": "excluded"}]
    assert document["complete"] is True
    assert snap("ls", "latest", "sub").out == ""


def test_paths_make_a_scoped_snapshot(snap, tree):
    snap("create", "a.txt", "gone", "--allow-absent")

    document = snap("show", "newest", "--json").json
    assert sorted(item["path"] for item in document["scope"]) == ["a.txt", "gone"]
    assert snap("ls", "-R", "newest").out == "a.txt\n"


def test_unreadable_file_makes_an_incomplete_snapshot(snap, ordinary_snap, tree):
    (tree / "secret").write_text("x")
    (tree / "secret").chmod(0)

    result = ordinary_snap("create")
    document = ordinary_snap("create", "--json")

    assert (result.code, document.code) == (4, 4)
    assert result.id
    assert "secret (unreadable)" in result.err
    assert document.json["complete"] is False
    assert document.json["skipped"] == [{"path": "secret", "reason": "unreadable"}]
    assert "-!" in snap("list").out


def test_status_names_what_it_could_not_compare(snap, ordinary_snap, tree):
    (tree / "secret").write_text("x")
    (tree / "secret").chmod(0)
    ordinary_snap("create")

    result = ordinary_snap("status")

    assert (result.code, result.out) == (0, "")
    assert "Nothing changed since" in result.err
    assert "1 path could not be read, so it is not compared:" in result.err
    assert "secret (unreadable)" in result.err
    assert "secret" not in ordinary_snap("status", "-q").err


def test_session_that_is_empty_is_refused(snap):
    result = snap("create", "--session", "")

    assert (result.code, "The session is empty" in result.err) == (2, True)


def test_sockets_are_listed_and_do_not_make_it_incomplete(snap, root, monkeypatch):
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        document = snap("create", "--json")

    assert document.code == 0
    assert document.json["skipped"] == [{"path": "s", "reason": "socket"}]


def test_many_skipped_paths_are_counted_not_all_named(snap, root):
    for number in range(15):
        (root / f"{number:02}.log").touch()

    result = snap("create", "--exclude", "*.log")

    assert "15 paths not captured:" in result.err
    assert "  and 5 more\n" in result.err


def test_dangerous_root_is_refused_without_force(run_snap, environment, tmp_path):
    home = tmp_path / "home"

    refused = run_snap("-C", home, "create", "--json", cwd=tmp_path)
    forced = run_snap("-C", home, "create", "--force", cwd=tmp_path)

    assert (refused.code, refused.json["code"]) == (3, "dangerous-root")
    assert "--force" in refused.json["hint"]
    assert forced.code == 0


def test_root_that_does_not_exist_is_not_found(run_snap, tmp_path):
    result = run_snap("-C", "nosuch", "create", "--json", cwd=tmp_path)

    assert (result.code, result.json["code"]) == (5, "root-not-found")


def test_name_that_is_not_utf8_is_shown_and_given_as_bytes(snap, root):
    name = os.fsdecode(b"caf\xe9.log")
    (root / name).touch()

    text = snap("create", "--exclude", "*.log")
    document = snap("create", "--exclude", "*.log", "--json").json

    assert "caf\\xe9.log (excluded)" in text.err
    assert document["skipped"] == [
        {"path": "caf\\xe9.log", "path_bytes": "Y2Fm6S5sb2c=", "reason": "excluded"}
    ]


def test_a_command_that_succeeds_comes_before_the_snapshot(snap, root):
    made = snap("create", "--validate", "echo seen > validated", "--json")

    assert (made.code, made.json["schema"]) == (0, "treesnap.create/1")
    assert snap("cat", "latest", "validated").out == "seen\n"


def test_nothing_is_captured_if_the_command_fails(snap, root, store):
    failed = snap("create", "--validate", "echo one; echo two is missing >&2; exit 7", "--json")

    error = failed.json
    assert (failed.code, error["code"]) == (3, "validation-failed")
    assert "exit code 7: two is missing; nothing was captured" in error["message"]
    assert not store.exists()
    assert snap("create", "--validate", "no-such-command").code == 3
    assert snap("list", "--json").code == 5


def test_a_command_that_validates_nothing_is_refused(snap, store):
    assert snap("create", "--validate", " ").code == 2
    assert not store.exists()


def test_a_command_that_validates_can_look_at_the_history(snap):
    first = snap("create").id

    assert snap("create", "--validate", f"{sys.executable} -m treesnap show {first}").code == 0


def test_the_library_validates_too(root, store):
    handle = treesnap.open(root, store)

    with pytest.raises(Refused) as caught:
        handle.create(options=CreateOptions(validate="false"))

    assert caught.value.code == "validation-failed"
    assert not store.exists()


def test_a_limit_refuses_what_it_has_no_room_for_and_not_what_adds_nothing(snap, root):
    (root / "file").write_text("one")
    first = snap("create").id
    snap("config", "max-size", "1")

    again = snap("create")
    ran = snap("run", "--", "true")
    (root / "file").write_text("two")
    changed = snap("create")

    assert (again.code, ran.code, changed.code) == (0, 0, 8)
    assert snap("list", "--json").json["snapshots"][-1]["id"] == first
