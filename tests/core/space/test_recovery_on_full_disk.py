"""A recovery on a full disk, killed anywhere: the tree is whole, or named until there is room."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mounting import mounting
from sampling import sized
from state import tree_state
from treesnap import Policy
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, StorageFull, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import MUTATING, Fault, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

SIZE_BYTES = 64 << 10
NAMES = ("one", "two", "directory/three")


@pytest.fixture(params=["root", "store"])
def place(request, tmp_path: Path):
    """A handle, and what fills the file system that holds its root, or its store."""
    with mounting() as mounter:
        mounter.tmpfs(tmp_path / request.param, "24m")
        root, store = tmp_path / "root", tmp_path / "store"
        (root / "directory").mkdir(parents=True)
        for name in NAMES:
            (root / name).write_bytes(os.urandom(SIZE_BYTES))
        (root / ".snapignore").write_text("ballast\n")
        handle = Handle(
            context_at(
                root=root, store_path=str(store / "store"), fs=UnsyncedFileSystem(), wait_s=0
            )
        )
        handle.create(name="before")
        yield handle, tmp_path / request.param


def fill(path: Path) -> Path:
    """Fills a file system to the last page."""
    ballast = (path if path.name == "store" else path / "directory").joinpath("ballast")
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def test_a_recovery_on_a_full_disk_may_be_killed_anywhere(place):
    handle, full = place
    root = Path(handle.root)
    wanted = settled(root)
    for number in range(1, 400, sized(17, 1)):
        for name in NAMES:
            (root / name).write_bytes(os.urandom(SIZE_BYTES))
        (root / "added").write_text("added")
        old = settled(root)

        def restore(fs) -> None:
            Handle(context_at(root=root, store_path=handle.store_path, fs=fs)).restore("before")

        def recover(fs) -> None:
            with suppress(TreesnapError):
                Handle(context_at(root=root, store_path=handle.store_path, fs=fs)).recover()

        assert killed(restore, Fault(methods=frozenset({"exchange"}), number=2)).was_killed
        ballast = fill(full)
        ended = killed(recover, Fault(kinds=MUTATING, number=number))
        with suppress(TreesnapError):
            handle.recover()
        is_interrupted = bool(handle.doctor().unfinished)
        assert is_interrupted or settled(root) in (wanted, old)
        ballast.unlink()

        handle.recover()

        assert settled(root) in ((wanted, old) if full == root else (wanted,))
        assert not handle.doctor().unfinished
        assert not list(root.glob(".treesnap*"))
        if not ended.was_killed:
            break

    assert number > 5


def settled(root: Path):
    """Returns the state of a tree without the ballast, and the times of what that changes."""
    return {
        path: replace(found, mtime_ns=0) if path in (b"", b"directory") else found
        for path, found in tree_state(root).items()
        if not path.endswith(b"ballast")
    }


@pytest.mark.parametrize("place", ["root"], indirect=True)
@pytest.mark.parametrize("verb", ["delete", "prune", "pin", "unpin", "describe"])
def test_what_changes_the_history_alone_waits_for_no_restore(place, verb):
    """Deleting snapshots may be what makes the room that the restore waits for."""
    handle, _ = place
    root = Path(handle.root)
    wanted = settled(root)
    (root / "later").write_text("later")
    spare = handle.create(label="spare")
    (root / "later").unlink()
    if verb == "unpin":
        handle.pin(spare.id)
    filling = f"rm {' '.join(NAMES)}; cat /dev/zero > directory/ballast; exit 1"
    with pytest.raises(TreesnapError) as caught:
        handle.run(["sh", "-c", filling])
    assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
    with pytest.raises(StorageFull):
        handle.create()

    match verb:
        case "delete":
            handle.delete(spare.id)
        case "prune":
            assert handle.prune(Policy(keep_last=1)).removed
        case "describe":
            handle.describe(spare.id, "other")
        case _:
            getattr(handle, verb)(spare.id)

    assert handle.doctor().unfinished
    (root / "directory/ballast").unlink()
    handle.recover()
    assert settled(root) == wanted
