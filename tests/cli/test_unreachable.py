"""What the commands say of a name that cannot be looked at."""

from __future__ import annotations

from mounting import mounting


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
