"""Mistakes that were found once and must not come back, each with what it did."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from state import differences, tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    OperationFailed,
    StorageFull,
)
from treesnap.core.model.events import NullMonitor
from treesnap.core.model.ids import object_id
from treesnap.core.ops.context import context_at
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.testing.doubles import Fault, FaultMoment, FaultyFileSystem, Killed


class Remarks(NullMonitor):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, code, message: str) -> None:
        """Keeps one sentence."""
        self.said.append(message)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small tree."""
    path = tmp_path / "root"
    (path / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (path / name).write_text(name)
    return path


@pytest.fixture
def changed(root: Path) -> Path:
    """The same tree, captured and then changed."""
    handle_on(root).create()
    for name in ("a", "b", "sub/c"):
        (root / name).write_text("other")
    (root / "sub" / "new").write_text("new")
    return root


def handle_on(root: Path, *faults: Fault, monitor: NullMonitor | None = None) -> Handle:
    return Handle(
        context_at(
            root=root,
            store_path=str(root.parent / "store"),
            fs=FaultyFileSystem(*faults),
            monitor=monitor,
            wait_s=0,
        )
    )


def failing(number: int, method: str, is_meant: Callable[[str], bool]) -> Fault:
    """Makes all calls of a method fail whose last path is meant."""
    return Fault(
        errno=number,
        methods=frozenset({method}),
        where=lambda call: is_meant(call.paths[-1]),
        lasting=True,
    )


def litter(root: Path) -> list[str]:
    """Returns what only a restore that is under way may have in a root."""
    return [name for name in os.listdir(root) if name.startswith(".treesnap")]


def test_create_succeeds_when_only_the_stat_cache_cannot_be_written(changed: Path) -> None:
    """It exited 8, and the snapshot was there all the same."""
    handle = handle_on(changed, failing(errno.ENOSPC, "rename", lambda p: p.endswith("/cache")))
    result = handle.create()
    assert handle_on(changed).list()[0].id == result.id
    assert os.listdir(changed.parent / "store" / "temporary") == []
    assert handle_on(changed).verify(read_data=True).problems == ()


def test_create_that_fails_at_its_last_sync_leaves_no_snapshot(changed: Path) -> None:
    """It exited 8, and the snapshot was there all the same."""
    before = [item.id for item in handle_on(changed).list()]
    handle = handle_on(changed, failing(errno.ENOSPC, "sync", lambda path: "/snapshots/" in path))
    with pytest.raises(StorageFull):
        handle.create()
    assert [item.id for item in handle_on(changed).list()] == before


def test_restore_that_may_not_change_a_file_puts_everything_back(root: Path) -> None:
    """It left half of the permissions changed, and blocked the root for all commands."""
    handle_on(root).create()
    for name in ("a", "b", "sub/c"):
        (root / name).chmod(0o600)
    before = tree_state(root)
    handle = handle_on(root, failing(errno.EPERM, "change_mode", lambda p: p.endswith("root/b")))
    with pytest.raises(OperationFailed):
        handle.restore("latest")
    assert differences(tree_state(root), before) == []
    assert litter(root) == []
    assert handle_on(root).status().changes


def test_restore_in_directories_of_others(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did everything, exited 1, and blocked the root for all commands."""
    monkeypatch.setattr("treesnap.core.worktree.apply.applier.os.geteuid", lambda: os.getuid() + 1)
    monitor = Remarks()
    fault = failing(errno.EPERM, "change_times", lambda p: p.endswith(("/root", "/sub")))
    handle = handle_on(changed, fault, monitor=monitor)
    result = handle.restore("latest")
    assert result.restored == 3
    assert (changed / "sub" / "c").read_text() == "sub/c"
    assert litter(changed) == []
    assert [item for item in monitor.said if "'sub'" in item]
    assert handle.undo().restored == 3


def test_restore_that_cannot_be_cleaned_up_after_is_done(changed: Path) -> None:
    """It exited 1, which means that nothing changed, with everything restored."""
    monitor = Remarks()
    fault = failing(
        errno.EIO,
        "unlink",
        lambda path: "/.treesnap-restore-" in path and not path.endswith("/building"),
    )
    assert handle_on(changed, fault, monitor=monitor).restore("latest").restored == 3
    assert monitor.said
    assert handle_on(changed).recover() is not None
    assert litter(changed) == []
    assert handle_on(changed).status().changes == ()
    assert handle_on(changed).undo().restored == 3


def test_restore_that_cannot_note_its_end_is_undone(changed: Path) -> None:
    """It exited 8, which means that nothing changed, with everything restored."""
    before = tree_state(changed)
    fault = failing(errno.ENOSPC, "rename", lambda path: path.endswith("/history"))
    with pytest.raises(StorageFull):
        handle_on(changed, fault).restore("latest")
    assert differences(tree_state(changed), before) == []
    assert litter(changed) == []


@pytest.mark.parametrize(
    "words",
    [
        {"label": "\udcff"},
        {"session": "\udcff"},
        {"tags": {"k": "\udcff"}},
        {"tags": {"\udcff": "v"}},
        {"name": "\udcff"},
        {"name": ""},
        {"name": "latest"},
        {"name": "latest~1"},
        {"name": "step:3"},
        {"step": 10**18},
        {"step": -1},
    ],
)
def test_words_that_a_record_cannot_hold_or_no_ref_can_name(
    root: Path, words: dict[str, object]
) -> None:
    """They were internal errors, or names that led elsewhere."""
    with pytest.raises(InvalidArgument):
        handle_on(root).create(**words)  # type: ignore[arg-type]  # each is one parameter


def test_large_steps_can_be_referred_to(root: Path) -> None:
    """Nothing found a step of ten digits, such as a time."""
    created = handle_on(root).create(step=1_700_000_000, session="s")
    assert handle_on(root).resolve("step:1700000000", session="s").id == created.id


def test_commands_whose_words_are_not_utf8(root: Path) -> None:
    """It was an internal error, because the words become the checkpoint's label."""
    assert handle_on(root).run(["true", "\udcff"]).exit_code == 0


def test_undo_says_when_its_snapshot_was_deleted(changed: Path) -> None:
    """It said that the root had no snapshot of that id, which was not asked for."""
    handle = handle_on(changed)
    safety = handle.restore("latest").safety_id
    assert safety is not None
    handle.delete(safety)
    with pytest.raises(NotFound, match="was deleted") as caught:
        handle.undo()
    assert caught.value.code == ErrorCode.NOTHING_TO_UNDO


@pytest.mark.parametrize("method", ["restore", "delete", "pin"])
def test_roots_that_were_never_captured(changed: Path, method: str) -> None:
    """It was a system's error about a lock file, exit 1."""
    (changed.parent / "elsewhere").mkdir()
    handle = Handle(
        context_at(
            root=changed.parent / "elsewhere", store_path=str(changed.parent / "store"), wait_s=0
        )
    )
    with pytest.raises(NotFound):
        getattr(handle, method)("latest")
    with pytest.raises(NotFound):
        handle.undo()


def test_capture_that_runs_out_of_space_leaves_no_damage(changed: Path) -> None:
    """A collection took the half record at the end of the pack for damage, for ever."""
    full = Fault(
        errno=errno.ENOSPC,
        methods=frozenset({"write_at"}),
        where=lambda call: "/packs/" in call.path,
        moment=FaultMoment.HALFWAY,
        lasting=True,
    )
    size = [path.stat().st_size for path in (changed.parent / "store" / "packs").iterdir()]
    with pytest.raises(StorageFull):
        handle_on(changed, full).create()
    assert [path.stat().st_size for path in (changed.parent / "store" / "packs").iterdir()] == size


@pytest.mark.parametrize("moment", [FaultMoment.HALFWAY, FaultMoment.AFTER])
def test_tail_that_a_killed_capture_left_is_no_damage(changed: Path, moment: FaultMoment) -> None:
    """A collection took the half record at the end of the pack for damage, for ever."""
    handle = handle_on(changed)
    (changed / "large").write_bytes(os.urandom(200_000))
    handle.create()
    (changed / "a").write_text("once more")
    killed = Fault(
        methods=frozenset({"write_at"}), where=lambda call: "/packs/" in call.path, moment=moment
    )
    with pytest.raises(Killed):
        handle_on(changed, killed).create()
    for _ in range(2):
        (changed / "b").write_bytes(os.urandom(10))
        handle.delete(handle.create().id)
        handle.gc()
        assert handle.verify(read_data=True).problems == ()
    handle.create()
    assert handle.verify(read_data=True).problems == ()


def test_collection_on_a_full_disk_needs_no_room_for_its_lock(changed: Path) -> None:
    """It could not even begin, because it could not write down who held the lock."""
    fault = failing(errno.ENOSPC, "write_at", lambda path: path.endswith("/lock"))
    assert handle_on(changed, fault).gc().removed_objects == 0


def test_session_does_not_rely_on_a_pack_that_was_deleted_before_it_began(root: Path) -> None:
    """A create that two collections overtook began again, and relied on deleted packs."""
    content = os.urandom(1000)
    (root / "a").write_bytes(content)
    handle = handle_on(root)
    created = handle.create()
    chunk = object_id(ObjectKind.CHUNK, content)
    with Store.open(LocalFileSystem(), handle.store_path, writing=True) as store:
        assert store.get(ObjectKind.CHUNK, chunk) == content
        handle.delete(created.id)
        handle.gc()
        with Writer(store) as writer:
            assert writer.put(ObjectKind.CHUNK, content) == chunk
            writer.flush()
            assert writer.objects_added == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a place for no directories")
def test_store_where_no_directory_can_be_made(root: Path) -> None:
    """It was an internal error, after a thousand attempts."""
    with pytest.raises(OperationFailed):
        Handle(context_at(root=root, store_path="/proc/self/no/store", wait_s=0)).create()
