"""``snap status`` and ``snap diff``."""

import os
import shutil
import subprocess
import sys

import pytest

from terminal import shown_on_a_terminal
from treesnap.testing.children import in_child

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def damaged(snap, root):
    """A captured root, then one change of every kind; what it was is in ``v1``."""
    for name in ("edited", "removed", "replaced", "mode only"):
        (root / name).write_text(f"one\n{name}\nthree\n")
    (root / "binary").write_bytes(b"\0" * 10)
    (root / "link").symlink_to("old")
    snap("create", "--name", "v1")
    (root / "edited").write_text("one\ntwo\nthree\nfour")
    (root / "removed").unlink()
    (root / "replaced").unlink()
    (root / "replaced").mkdir()
    (root / "mode only").chmod(0o600)
    (root / "binary").write_bytes(b"\0" * 2000)
    (root / "link").unlink()
    (root / "link").symlink_to("new")
    (root / "added").write_text("new\n")
    return root


LETTERS = {
    "added": "A",
    "removed": "D",
    "edited": "M",
    "binary": "M",
    "link": "M",
    "replaced": "T",
    "mode only": "P",
}


def letters(text):
    """Returns the letter of each path, without that of the root itself."""
    rows = dict(line.split("  ", 1)[::-1] for line in text.splitlines())
    rows.pop(".", None)
    return rows


@pytest.mark.parametrize("words", [["status"], ["diff", "--name-status"]])
def test_changes_are_a_letter_and_a_path(snap, damaged, words):
    result = snap(*words)

    assert result.code == 0
    assert letters(result.out) == LETTERS


def test_status_as_json(snap, damaged):
    identity = snap("show", "latest", "--json").json["id"]

    document = snap("status", "--json").json

    assert set(document) == {"schema", "id", "changes", "skipped", "recovered", "privileges"}
    assert (document["schema"], document["id"]) == ("treesnap.status/1", identity)
    changes = {item["path"]: item for item in document["changes"]}
    assert changes["mode only"]["change"] == "metadata"
    assert changes["mode only"]["new"]["mode"] == "0600"
    assert changes["added"]["old"] is None
    assert changes["replaced"]["change"] == "type"


def test_status_without_changes_says_so(snap, root):
    (root / "a").write_text("a")
    identity = snap("create").id

    result = snap("status")

    assert (result.code, result.out) == (0, "")
    assert result.err == f"Nothing changed since {identity[:12]}\n"


def test_status_of_an_older_snapshot(snap, damaged):
    snap("create")

    assert letters(snap("status").out) == {}
    assert letters(snap("status", "v1").out) == LETTERS
    assert snap("status", "v1", "--json").json["id"] == snap("show", "v1", "--json").json["id"]


def test_status_of_a_snapshot_of_paths_compares_these_alone(snap, damaged):
    paths = snap("create", "edited", "--json").json["id"]
    (damaged / "added").write_text("again\n")

    same = snap("status", paths)
    (damaged / "edited").write_text("once more\n")
    other = snap("status", paths)

    assert (same.out, other.out) == ("", "M  edited\n")
    assert f"Nothing changed since {paths[:12]}" in same.err
    assert "This snapshot holds only edited, and nothing else was compared" in same.err


def test_status_of_a_step(snap, root):
    (root / "file").write_text("one")
    snap("create", "--session", "s", "--step", "1")
    (root / "file").write_text("two")
    snap("create", "--session", "s", "--step", "2")

    assert snap("status", "step:1", "--session", "s").out == "M  file\n"
    assert snap("status", "step:2", "--session", "s").out == ""


def test_status_of_an_unknown_snapshot_fails(snap, damaged):
    outcome = snap("status", "v2", "--exit-code", "--json")

    assert (outcome.code, outcome.json["code"]) == (5, "snapshot-not-found")


class TestExitCode:
    def test_is_that_of_git(self, snap, root):
        (root / "file").write_text("one")
        snap("create", "--name", "golden")

        assert snap("status", "--exit-code").code == 0
        (root / "file").write_text("two")

        assert snap("status").code == 0
        assert snap("status", "--exit-code").code == 1
        silent = snap("status", "golden", "--exit-code", "-q")
        assert (silent.code, silent.out, silent.err) == (1, "", "")
        snap("create")
        assert snap("status", "--exit-code").code == 0
        assert snap("status", "golden", "--exit-code").code == 1

    def test_is_no_success_without_a_snapshot(self, unsaid_snap, root):
        assert unsaid_snap("status", "--exit-code").code == 5

    def test_is_no_success_where_something_cannot_be_read(self, ordinary_snap, snap, root):
        (root / "secret").mkdir()
        (root / "file").write_text("one")
        (root / "secret").chmod(0)
        assert ordinary_snap("create").code == 4

        assert ordinary_snap("status").code == 0
        assert ordinary_snap("status", "--exit-code").code == 4
        (root / "file").write_text("two")
        assert ordinary_snap("status", "--exit-code").code == 1

    def test_is_the_same_for_programs(self, snap, damaged):
        outcome = snap("status", "--exit-code", "--json")

        assert outcome.code == 1
        assert outcome.json["schema"] == "treesnap.status/1"
        assert outcome.json["changes"]


def test_status_before_the_first_snapshot_says_so(unsaid_snap, root, default_store):
    result = unsaid_snap("status")

    assert (result.code, result.err) == (
        0,
        f"No snapshot of the whole of {root} in {default_store}\n",
    )
    assert unsaid_snap("status", "--json").json["id"] is None


def test_diff_is_a_patch_of_text(snap, damaged):
    result = snap("diff", "edited")

    assert result.code == 0
    assert result.out == (
        "diff a/edited b/edited\n"
        "--- a/edited\n"
        "+++ b/edited\n"
        "@@ -1,3 +1,4 @@\n"
        " one\n"
        "-edited\n"
        "+two\n"
        " three\n"
        "+four\n"
        "\\ No newline at end of file\n"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("added", "new file mode 0644\n--- /dev/null\n+++ b/added\n@@ -0,0 +1 @@\n+new\n"),
        ("removed", "--- a/removed\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-removed\n-three\n"),
        ("binary", "Binary file: 10 B -> 2.0 KiB\n"),
        ("replaced", "old type file\nnew type directory\n"),
        ("mode only", "old mode 0644\nnew mode 0600\n"),
        ("link", "-old\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n"),
    ],
)
def test_diff_describes(snap, damaged, path, text):
    assert text in snap("diff", path).out


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
def test_diff_describes_owners(snap, root):
    (root / "a").write_text("a")
    snap("create")
    os.chown(root / "a", 1234, 5678)

    assert "old owner 0:0\nnew owner 1234:5678\n" in snap("diff", "a").out


@pytest.mark.needs("attributes")
def test_diff_describes_extended_attributes(snap, root):
    (root / "a").write_text("a")
    snap("create")
    try:
        os.setxattr(root / "a", "user.note", b"x")
    except OSError:
        pytest.skip("no extended attributes on this file system")

    assert "extended attributes changed\n" in snap("diff", "a").out


def test_diff_of_a_file_that_goes_while_it_is_compared(snap, root):
    from treesnap import open as open_handle
    from treesnap.cli.output.patches import DiffOutput

    (root / "a").write_text("one\n")
    identity = snap("create").id
    (root / "a").write_text("two\n")
    handle = open_handle(root, root.parent / "store")
    changes = handle.diff(paths=["a"])
    (root / "a").unlink()

    patches = DiffOutput(handle, identity, None).patches(changes)

    pieces = b"".join(patches)
    assert pieces.endswith(b"Changed again while it was compared\n")


def test_diff_of_times_alone_shows_both(snap, root):
    (root / "a").write_text("a")
    os.utime(root / "a", ns=(0, 0))
    snap("create")
    os.utime(root / "a", ns=(0, 10**18))

    assert "old time 19" in snap("diff", "a").out
    assert "new time 2001" in snap("diff", "a").out


def test_diff_can_be_applied(snap, root, tmp_path):
    (root / "sub dir").mkdir()
    (root / "sub dir" / "a").write_text("".join(f"{n}\n" for n in range(100)))
    (root / "old").write_text("old\n")
    snap("create")
    before = tmp_path / "before"
    subprocess.run(["cp", "-a", root, before], check=True)
    (root / "sub dir" / "a").write_text("".join(f"{n * (n % 17 != 3)}\n" for n in range(100)))
    (root / "old").unlink()
    (root / "new").write_text("new")

    patch = snap("diff").raw
    subprocess.run(["patch", "-p1", "-s"], input=patch, cwd=before, check=True)

    assert subprocess.run(["diff", "-r", root, before], check=False).returncode == 0


def test_diff_of_large_files_is_a_summary_that_says_how_to_see_them(snap, root):
    (root / "a").write_text("x\n" * 600_000)
    snap("create")
    (root / "a").write_text("y\n" * 600_001)

    summary = "Large file: 1.1 MiB -> 1.1 MiB (--max-size 2M shows it)"
    assert summary + "\n" in snap("diff", "a", "--max-size", "1M").out
    assert summary in snap("diff", "--stat", "--max-size", "1M").out
    assert "+y\n" in snap("diff", "a", "--max-size", "2M").out
    assert "1200001 +" in snap("diff", "a", "--stat").out


@pytest.mark.parametrize("states", [1, 2])
def test_of_a_large_file_without_text_no_option_is_advised(snap, root, states):
    (root / "changed").write_bytes(b"x" * (300 << 10) + b"\0old")
    (root / "deleted").write_bytes(bytes(100 << 10))
    ids = [snap("create", "--json").json["id"]]
    (root / "changed").write_bytes(b"x" * (300 << 10) + b"\0new")
    (root / "deleted").unlink()
    (root / "new").write_bytes(bytes(100 << 10))
    ids.append(snap("create", "--json").json["id"])

    said = snap("diff", *ids[:states], "--max-size", "64K").out

    assert said.count("Binary file: ") == 3
    assert "--max-size" not in said


def test_diff_shows_what_differs_of_a_large_text(snap, root, tmp_path):
    rows = [f"{number},{number * 7919 % 100_003},row\n" for number in range(100_000)]
    (root / "a.csv").write_text("".join(rows))
    (root / "b.bin").write_bytes(bytes(1 << 20) + b"old")
    first = snap("create", "--json").json["id"]
    del rows[70_000]
    rows[20] = "changed\n"
    (root / "a.csv").write_text("".join(rows))
    (root / "b.bin").write_bytes(bytes(1 << 20) + b"new")
    second = snap("create", "--json").json["id"]

    for states in ([first], [first, second]):
        whole, part = (snap("diff", *states, "a.csv", "--max-size", size) for size in ("9M", "64K"))
        assert "@@ -69998,7 +69998,6 @@\n" in part.out
        assert part.out == whole.out
        stat = snap("diff", *states, "--stat", "--max-size", "64K").out
        assert "1 line added, 2 lines removed" in stat
        assert "b.bin | Binary file" in " ".join(stat.split(" ")).replace("  ", " ")


def test_the_largest_file_has_a_size_that_can_be_typed(snap, root):
    with open(root / "a", "w") as file:
        file.write("x\n" * (4 << 20))
        file.flush()
        try:
            file.truncate(1 << 52)
        except OSError:
            pytest.skip("the file system has no files of 4 PiB")
    snap("create")
    os.truncate(root / "a", (1 << 52) + 1)

    assert "(--max-size 4097T shows it)" in snap("diff", "a").out


def test_diff_of_a_large_table_is_exact(snap, root):
    rows = [f"{number % 7},{number % 3},same\n" for number in range(300_000)]
    (root / "a.csv").write_text("".join(rows))
    snap("create")
    for number in range(10):
        rows[number * 29_999] = "changed,row\n"
    (root / "a.csv").write_text("".join(rows))

    assert "10 lines added, 10 lines removed" in snap("diff", "--stat").out


def test_diff_marks_changed_words_in_colour(snap, root):
    (root / "a").write_text("keep\nthe old word\n")
    snap("create")
    (root / "a").write_text("keep\nthe new word")

    screen = snap("diff", "a", "--color", "always").out

    assert "\x1b[1m+++ b/a\x1b[0m\n\x1b[36m@@ -1,2 +1,2 @@\x1b[0m\n keep\n" in screen
    assert "\x1b[31m-the \x1b[0m\x1b[31;7mold\x1b[0m\x1b[31m word\x1b[0m\n" in screen
    assert screen.endswith(
        "\x1b[32m+the \x1b[0m\x1b[32;7mnew\x1b[0m\x1b[32m word\x1b[0m\n"
        "\\ No newline at end of file\n"
    )


@pytest.mark.parametrize("words", [["diff", "a"], ["diff", "--stat"]], ids=" ".join)
def test_colour_is_for_terminals_without_no_color(snap, root, environment, words):
    (root / "a").write_text("one\n")
    snap("create")
    (root / "a").write_text("two\n")
    plain = {**environment, "NO_COLOR": "1"}

    assert b"\x1b" not in snap(*words).raw
    assert b"\x1b[32m" in snap(*words, "--color", "always", env={"NO_COLOR": "1"}).raw
    assert b"\x1b[32m" in on_a_terminal(words, root, {**environment, "TERM": "xterm"})
    assert b"\x1b" not in on_a_terminal(words, root, plain)
    assert b"\x1b" not in on_a_terminal(words, root, {**environment, "TERM": "dumb"})
    assert b"\x1b" not in on_a_terminal([*words, "--color", "never"], root, environment)


@pytest.mark.parametrize(
    "words", [["status"], ["diff", "--name-status"], ["restore", "latest", "--dry-run"]]
)
def test_letters_and_paths_have_the_colour_of_what_happened(snap, root, words):
    (root / "kept").write_text("one")
    (root / "one").write_text("one")
    snap("create")
    (root / "kept").write_text("two")
    (root / "one").rename(root / "other")
    gone, new = ("other", "one") if "restore" in words else ("one", "other")

    screen = snap(*words, "--color", "always").out

    assert "\x1b[33mM  kept\x1b[0m\n" in screen
    assert f"\x1b[31mD  {gone}\x1b[0m\n" in screen
    assert f"\x1b[32mA  {new}\x1b[0m\n" in screen


def test_a_terminal_is_told_of_a_missing_newline(snap, root, environment):
    (root / "a").write_text("one\n")
    snap("create")
    (root / "a").write_text("two")

    screen = on_a_terminal(["diff", "a", "--color", "never"], root, environment)

    assert screen.endswith(b"+two\r\n\\ No newline at end of file\r\n")


def test_diff_stat_counts_lines(snap, damaged):
    lines = snap("diff", "--stat").out.splitlines()

    rows = dict(line.split(" | ") for line in lines[:-1])
    rows = {name.strip(): " ".join(text.split()) for name, text in rows.items()}
    assert rows["edited"] == "3 ++-"
    assert rows["removed"] == "3 ---"
    assert rows["binary"] == "Binary file: 10 B -> 2.0 KiB"
    assert rows["mode only"] == "old mode 0644, new mode 0600"
    assert lines[-1].endswith("paths changed, 4 lines added, 5 lines removed")


def test_diff_stat_as_json(snap, damaged):
    document = snap("diff", "--stat", "--json").json

    counts = {item["path"]: (item["insertions"], item["deletions"]) for item in document["changes"]}
    assert (counts["edited"], counts["binary"]) == ((2, 1), (None, None))


@pytest.mark.parametrize("words", [[], ["--name-status"]])
def test_diff_as_json(snap, damaged, words):
    identity = snap("show", "v1", "--json").json["id"]

    document = snap("diff", "--json", *words).json

    assert set(document) == {"schema", "old_id", "new_id", "directory", "changes"}
    assert (document["schema"], document["old_id"]) == ("treesnap.diff/1", identity)
    assert document["new_id"] is None
    assert {"path", "change"} <= set(document["changes"][0])
    words = {"added", "removed", "modified", "type", "metadata"}
    assert {item["change"] for item in document["changes"]} == words


def test_stat_and_name_status_exclude_each_other(snap):
    assert snap("diff", "--stat", "--name-status").code == 2


def test_diff_between_two_snapshots(snap, damaged):
    snap("create", "--name", "v2")
    (damaged / "added").write_text("changed again\n")

    forth, back = snap("diff", "v1", "v2", "added"), snap("diff", "v2", "v1", "added")

    assert "+new\n" in forth.out
    assert "-new\n" in back.out


def test_diff_from_a_snapshot_to_the_live_tree(snap, damaged):
    snap("create")
    (damaged / "added").write_text("changed again\n")

    assert letters(snap("diff", "latest", "--name-status").out) == {"added": "M"}
    assert "added" in letters(snap("diff", "v1", "--name-status").out)


def test_diff_in_a_session(snap, root):
    (root / "a").write_text("one\n")
    snap("create", "--session", "s", "--step", "1")
    (root / "a").write_text("two\n")

    assert "+two\n" in snap("diff", "step:1", "--session", "s").out


def test_diff_of_paths_that_are_gone(snap, damaged):
    assert letters(snap("diff", "--name-status", "removed").out) == {"removed": "D"}
    assert letters(snap("diff", "v1", "removed", "added", "--name-status").out) == {
        "removed": "D",
        "added": "A",
    }


def test_diff_takes_everything_behind_the_dashes_as_paths(snap, damaged):
    (damaged / "v1").write_text("called like a snapshot\n")

    ambiguous = snap("diff", "v1", "--json")

    assert (ambiguous.code, ambiguous.json["code"]) == (2, "usage")
    assert letters(snap("diff", "--name-status", "--", "v1").out) == {"v1": "A"}
    assert letters(snap("diff", "--name-status", "v1", "--", "v1").out) == {"v1": "A"}
    assert snap("diff", "--name-status", "v1", "--").code == 0


def test_diff_of_a_word_that_is_nothing_is_not_found(snap, damaged):
    result = snap("diff", "nosuch", "--json")

    assert (result.code, result.json["code"]) == (5, "snapshot-not-found")
    assert "neither a snapshot nor a path" in result.json["message"]
    assert "'@yesterday'" in snap("diff", "yesterday").err


def test_diff_compares_at_most_two_snapshots(snap, damaged):
    assert snap("diff", "v1", "v1", "v1", "--").code == 2


def test_diff_before_the_first_snapshot_is_not_found(snap):
    assert snap("diff").code == 5


def test_control_characters_stay_in_a_patch_that_is_no_terminal(snap, root):
    (root / "a").write_text("one\n")
    snap("create")
    (root / "a").write_text("\x1b[31mred\tend\r\n")

    assert b"+\x1b[31mred\tend\r\n" in snap("diff", "a").raw


def test_control_characters_do_not_reach_a_terminal(snap, root, environment):
    (root / "a").write_text("one\n")
    snap("create")
    (root / "a").write_text("\x1b[31mred\tend\r\n")

    screen = on_a_terminal(["diff", "a"], root, environment)

    assert b"+\\x1b[31mred\tend\\r" in screen
    assert b"\x1b[31mred" not in screen


def on_a_terminal(words, root, environment):
    """Returns what a terminal receives from a command."""
    return shown_on_a_terminal(
        [sys.executable, "-m", "treesnap", *words],
        cwd=root,
        env={**environment, "SNAP_PAGER": ""},
        stderr=subprocess.DEVNULL,  # no progress
    )


def test_status_says_what_a_restore_left_out(snap, root, store, tmp_path):
    (root / "tool").write_text("x")
    (root / "tool").chmod(0o4755)
    in_child(lambda: snap("create"))  # what this process captured is its own, wherever it lies
    identity = snap("show", "latest", "--json").json["id"]
    copy = tmp_path / "copied by other means"
    shutil.copytree(store, copy)
    (root / "tool").unlink()
    snap("--store", copy, "restore", identity)

    result = snap("--store", copy, "status")

    restore = f"snap --store '{copy}' restore {identity[:12]} --privileged"
    assert result.err.splitlines() == [
        f"Nothing changed since {identity[:12]}",
        "Not compared, because the snapshot may come from elsewhere: 1 of",
        "  tool (set-user-id)",
        f"To restore these too: {restore}",
    ]
    assert snap("--store", copy, "status", "--json").json["privileges"]["left_out"] == 1
    assert "Some of its privileges or owners are not here: " in snap("--store", copy).out
    snap("--store", copy, "store", "trust")
    assert "tool" in snap("--store", copy, "status").out
