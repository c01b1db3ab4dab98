"""``snap ls``, ``cat`` and ``find``."""

import base64
import os

import pytest


@pytest.fixture
def tree(root):
    """A root with an entry of every kind that anybody may make."""
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("alpha\n")
    (root / "a.txt").chmod(0o640)
    os.utime(root / "a.txt", ns=(0, 1_000_000_000_000_000_005))
    (root / "sub" / "b.bin").write_bytes(b"\xff\x00")
    (root / "sub" / "deep" / "c.txt").write_text("gamma\n")
    (root / "link").symlink_to("a.txt")
    os.mkfifo(root / "pipe")
    return root


def test_ls_prints_a_name_a_line(snap, tree):
    snap("create")

    assert snap("ls", "latest").out.splitlines() == ["a.txt", "link", "pipe", "sub/"]
    assert snap("ls", "latest", "sub").out.splitlines() == ["b.bin", "deep/"]
    assert snap("ls", "latest", "a.txt").out.splitlines() == ["a.txt"]


def test_ls_recursive_prints_paths(snap, tree):
    snap("create")

    assert snap("ls", "-R", "latest", "sub").out.splitlines() == ["b.bin", "deep/", "deep/c.txt"]


def test_ls_long_prints_what_is_recorded(snap, tree):
    snap("create")

    lines = snap("ls", "-l", "latest").out.splitlines()
    assert lines[0].startswith("-rw-r-----")
    assert f"{os.getuid()}:{os.getgid()}" in lines[0]
    assert " 6  2001-09-0" in lines[0]
    assert lines[1].endswith("  link -> a.txt")
    assert lines[2].startswith("p")
    assert lines[3].startswith("d")
    assert lines[3].endswith("  sub/")


def test_ls_as_json(snap, tree):
    identity = snap("create").id

    document = snap("ls", "latest", "--json").json

    assert (document["schema"], document["id"]) == ("treesnap.ls/1", identity)
    file, link, pipe, directory = document["entries"]
    assert file == {
        "path": "a.txt",
        "kind": "file",
        "mode": "0640",
        "uid": os.getuid(),
        "gid": os.getgid(),
        "mtime_ns": 1_000_000_000_000_000_005,
        "size": 6,
    }
    assert (link["kind"], link["target"]) == ("symlink", "a.txt")
    assert (pipe["kind"], directory["kind"]) == ("fifo", "directory")


def test_ls_lists_what_is_not_held_in_the_long_form_only(snap, tree):
    snap("create", "--exclude", "link")

    assert "link" not in snap("ls", "latest").out
    assert "??????????" in snap("ls", "-l", "latest").out
    assert snap("ls", "-l", "latest").out.splitlines()[1].endswith("  link (excluded)")
    entries = snap("ls", "latest", "--json").json["entries"]
    assert {"path": "link", "kind": "skipped", "reason": "excluded"} in entries


def test_ls_of_a_path_that_is_not_there_is_not_found(snap, tree):
    snap("create")

    result = snap("ls", "latest", "nosuch", "--json")

    assert (result.code, result.json["code"]) == (5, "path-not-found")


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser makes devices")
def test_ls_shows_numbers_of_devices(snap, root):
    import stat

    try:
        os.mknod(root / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices are not permitted here")
    snap("create")

    assert "1, 3" in snap("ls", "-l", "latest").out
    assert snap("ls", "latest", "--json").json["entries"][0]["device"] == [1, 3]


def test_ls_of_names_that_are_not_utf8(snap, root):
    (root / os.fsdecode(b"caf\xe9")).touch()
    (root / "a\nb").touch()
    snap("create")

    assert snap("ls", "latest").out.splitlines() == ["a\\nb", "caf\\xe9"]
    first, second = snap("ls", "latest", "--json").json["entries"]
    assert first["path"] == "a\nb"
    assert "path_bytes" not in first
    assert second["path"] == "caf\\xe9"
    assert base64.b64decode(second["path_bytes"]) == b"caf\xe9"


def test_cat_prints_the_bytes(snap, tree):
    snap("create")
    (tree / "sub" / "b.bin").write_bytes(b"other")

    assert snap("cat", "latest", "sub/b.bin").raw == b"\xff\x00"
    assert snap("cat", "latest", "sub/b.bin", process=True).raw == b"\xff\x00"


def test_cat_as_json_is_text_or_base64(snap, tree):
    identity = snap("create").id

    assert snap("cat", "latest", "a.txt", "--json").json == {
        "schema": "treesnap.cat/1",
        "id": identity,
        "path": "a.txt",
        "size": 6,
        "content": "alpha\n",
    }
    assert snap("cat", "latest", "sub/b.bin", "--json").json["content_base64"] == "/wA="


@pytest.mark.parametrize("path", ["sub", "nosuch"])
def test_cat_of_what_is_no_file_fails(snap, tree, path):
    snap("create")

    result = snap("cat", "latest", path)

    assert result.code in {2, 3, 5}
    assert result.raw == b""


def test_find_prints_newest_snapshot_count_and_path(snap, tree):
    snap("create")
    (tree / "new.txt").touch()
    newest = snap("create").id

    rows = [line.split() for line in snap("find", "*.txt").out.splitlines()]
    assert sorted(rows, key=lambda row: row[2]) == [
        [newest[:12], "2", "a.txt"],
        [newest[:12], "1", "new.txt"],
        [newest[:12], "2", "sub/deep/c.txt"],
    ]


def test_find_in_one_snapshot_prints_paths_alone(snap, tree):
    snap("create", "--session", "s", "--step", "1")

    assert snap("find", "sub/*.bin", "--ref", "latest").out == "sub/b.bin\n"
    assert snap("find", "b.*", "--ref", "step:1", "--session", "s").out == "sub/b.bin\n"


def test_find_as_json(snap, tree):
    first = snap("create").id
    (tree / "a.txt").write_text("changed")
    second = snap("create").id

    document = snap("find", "a.txt", "--json").json

    assert document == {
        "schema": "treesnap.find/1",
        "paths": [{"path": "a.txt", "snapshot_ids": [second, first]}],
    }


def test_find_of_nothing_prints_nothing(snap, tree):
    snap("create")

    result = snap("find", "nosuch*")

    assert (result.code, result.out) == (0, "")


def test_find_names_every_snapshot_of_a_state_that_did_not_change(snap, tree):
    ids = [snap("create").id for _ in range(3)]

    (found,) = snap("find", "sub/b.bin", "--json").json["paths"]

    assert found == {"path": "sub/b.bin", "snapshot_ids": ids[::-1]}


def test_find_without_a_store_finds_nothing_and_makes_none(unsaid_snap, tree, default_store):
    result = unsaid_snap("find", "*")

    assert (result.code, result.out) == (0, "")
    assert not default_store.exists()
