"""What the commands say of a name that cannot be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from mounting import Mounter, mounting
from treesnap.core.ops.context import find_root

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def mounter() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


def test_create_and_status_exit_4_and_list_it_and_diff_warns(snap, root):
    snap("create")
    with mounting() as mounter:
        mounter.dead(root / "mnt")

        made = snap("create")
        status = snap("status", "--exit-code")
        diff = snap("diff")
        ended = snap("run", "--", "sh", "-c", "exit 3")
        restored = snap("restore", "latest")
        undone = snap("undo")

    assert (made.code, status.code, diff.code) == (4, 4, 0)
    assert "  mnt (unreadable)\n" in made.err
    assert "  mnt (unreadable)\n" in status.err
    assert "What cannot be read is not compared: 'mnt'" in diff.err
    assert (ended.code, restored.code) == (3, 0)
    assert undone.code in {0, 5}  # 5: nothing had to be restored


def test_a_restore_into_what_is_mounted_over_the_root_exits_3(snap, root, tmp_path):
    (root / "file").write_text("before")
    snap("create")
    with mounting() as mounter:
        mounter.tmpfs(root)
        restored = snap("restore", "latest")
        undone = snap("undo")
        assert list(root.iterdir()) == []

    assert restored.code == 3
    assert restored.err.startswith("snap: Something else is mounted where ")
    assert "hint: unmount it; 'findmnt' lists what is mounted" in restored.err
    assert undone.code in {3, 5}


ROOT_COMMANDS = [["create"], ["run", "--", "true"], ["restore", "latest"]]
WHY = "cannot be looked at: Transport endpoint is not connected"


@pytest.fixture
def outside(snap, root):
    """Runs ``snap`` on the root, from the directory above it."""
    return partial(snap, "-C", root, cwd=root.parent)


@pytest.mark.parametrize(
    "words", [["create"], ["run", "--", "true"], ["restore", "latest"]], ids=str
)
def test_a_root_on_a_dead_mount_is_not_called_absent(words, outside, root, mounter):
    outside("create")
    mounter.dead(root)

    outcome = outside(*words)

    assert (outcome.code, outcome.err) == (1, f"snap: The root '{root}' {WHY}\n")


@pytest.mark.parametrize("word", ["status", "diff"])
def test_what_compares_with_such_a_root_says_why_it_cannot(word, outside, root, mounter):
    outside("create")
    mounter.dead(root)

    outcome = outside(word)

    assert outcome.code == 1
    assert f"'{root}': Transport endpoint is not connected" in outcome.err


def test_a_dead_mount_without_a_history_is_not_called_absent(snap, tmp_path, mounter):
    snap("create")
    place = mounter.dead(tmp_path / "elsewhere")

    for words in (["-C", place, "list"], ["root", "move", tmp_path, place], ["adopt", place]):
        outcome = snap(*words)

        assert (outcome.code, outcome.err) == (1, f"snap: The root '{place}' {WHY}\n")


@pytest.mark.parametrize("name", ["", "archive.tar"])
def test_a_dead_mount_from_which_is_imported_is_not_called_absent(snap, tmp_path, mounter, name):
    place = mounter.dead(tmp_path / "elsewhere") / name

    outcome = snap("import", place)

    assert outcome.code == 1
    assert outcome.err == (
        f"snap: Could not import at '{place}': Transport endpoint is not connected\n"
    )


def test_the_history_of_such_a_root_can_be_read(outside, root, tmp_path, mounter):
    (root / "file").write_text("before")
    made = outside("create")
    mounter.dead(root)

    listed = outside("list", "--json")
    written = outside("restore", "latest", "--to", tmp_path / "elsewhere")

    assert [item["id"] for item in listed.json["snapshots"]] == [made.id]
    assert written.code == 0, written.err
    assert (tmp_path / "elsewhere" / "file").read_text() == "before"


def test_the_root_of_a_current_directory_on_a_dead_mount_is_found(snap, root, store, mounter):
    snap("create")
    mounter.dead(root)

    assert find_root(str(root / "sub"), str(store)) == str(root)


def test_a_restore_of_a_path_below_a_dead_mount_says_that_it_was_not_read(snap, root, mounter):
    (root / "mnt").mkdir()
    (root / "mnt" / "below").write_text("before")
    snap("create")
    mounter.dead(root / "mnt")

    for path in ("mnt", "mnt/below", "mnt/never"):
        outcome = snap("restore", "latest", path)
        assert outcome.code == 4
        assert outcome.out.startswith("Nothing to restore: everything else is as in ")
        assert "1 path left alone:\n  mnt (unreadable)\n" in outcome.err

    compared = snap("diff", "latest", "--", "mnt/never")
    assert (compared.code, compared.err) == (0, "What cannot be read is not compared: 'mnt'\n")
    assert snap("restore", "latest", "never").code == 5
