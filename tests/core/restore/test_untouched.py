"""What a way back leaves in place although the snapshot does not hold it is always listed."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import treesnap
from calling import Place
from mounting import mounting
from treesnap.core.handle import Handle
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.treepath import is_within
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

RULES = "*.o\n/cache/\nbuild/\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "root", tmp_path / "store")
    place.make("file", "old/file", "old/kept.o", "cache/entry", "was/inner")
    (place.root / ".snapignore").write_text(RULES)
    place.done("create", "--name", "before")
    return place


def add(root: Path) -> None:
    """Makes what no snapshot holds in directories that the snapshot lacks, and in others."""
    for name in ("new/a.o", "new/below/b.o", "new/below/c", "new/build/d", "old/e.o", "f.o"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "only/files").mkdir(parents=True)
    (root / "only/files/file").write_text("file")
    (root / "pipes").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.getcwd()
        os.chdir(root / "pipes")
        try:
            listener.bind("socket")
        finally:
            os.chdir(directory)


def present(root: Path) -> Iterator[bytes]:
    for directory, names, files in os.walk(os.fsencode(root)):
        for name in names + files:
            yield os.path.relpath(os.path.join(directory, name), os.fsencode(root))


def unlisted(handle: Handle, ref: str, listed: list[bytes], scope: bytes = b"") -> list[bytes]:
    """Returns what is there, not in a snapshot, and neither listed nor below something listed."""
    held = {item.name for item in handle.ls(ref, recursive=True)}
    return [
        path
        for path in present(Path(handle.root))
        if path not in held
        and is_within(scope, path)
        and not any(is_within(item, path) for item in (*listed, *(left_out(handle, ref))))
    ]


def left_out(handle: Handle, ref: str) -> list[bytes]:
    return paths(handle.skipped(ref))


def paths(skipped) -> list[bytes]:
    return [item.path for item in skipped]


@pytest.mark.parametrize("scope", [(), ("new",), ("new/below", "old")])
def test_by_a_restore_and_its_dry_run(place, scope):
    add(place.root)
    handle = treesnap.open(place.root, place.store)

    planned = handle.restore("before", scope or None, dry_run=True)
    done = handle.restore("before", scope or None)

    assert paths(planned.untouched) == paths(done.untouched)
    assert len(set(paths(done.untouched))) == len(done.untouched) > 0
    for path in scope or ("",):
        listed = paths(done.untouched)
        assert unlisted(handle, "before", listed, os.fsencode(path)) == []


def test_by_undo_and_redo(place):
    add(place.root)
    handle = treesnap.open(place.root, place.store)
    handle.restore("before")
    place.make("later/g.o", "later/h")

    undone = handle.undo()

    assert {b"later", b"later/g.o"} <= set(paths(undone.untouched))
    assert unlisted(handle, undone.snapshot.id, paths(undone.untouched)) == []
    place.make("last/i.o", "last/j")
    redone = handle.redo()
    assert unlisted(handle, redone.snapshot.id, paths(redone.untouched)) == []


def test_by_the_command_in_text_and_json(place):
    add(place.root)

    text = place.snap("restore", "before", "--dry-run")
    document = json.loads(place.snap("restore", "before", "--json").out)

    assert {item["path"] for item in document["untouched"]} >= {"new", "new/a.o", "pipes"}
    assert "new/a.o (excluded)" in text.err
    assert "pipes (socket)" in text.err


def test_by_a_restore_of_nothing_but_what_is_left_alone(place):
    (place.root / "old/file").unlink()
    (place.root / ".snapignore").write_text("/old/")

    ended = place.snap("restore", "before", "old")

    assert ended.out.startswith("Nothing to restore: everything else is as in ")
    assert "old (excluded)" in ended.err


def test_by_run(place):
    ended = place.snap("run", "--", "sh", "-c", "mkdir -p deep/er; mkfifo p; touch f.o; exit 9")

    assert ended.code == 9
    assert not (place.root / "p").exists()
    assert "f.o (excluded)" in ended.err


def fail_in(place: Place, *, removing: str | None = None) -> None:
    place.make("made/a.o")
    if removing is not None:
        shutil.rmtree(place.root / removing)
    raise ZeroDivisionError


def test_by_rollback_on_error(place):
    monitor = CollectingMonitor()
    handle = Handle(context_at(root=place.root, store_path=str(place.store), monitor=monitor))

    with pytest.raises(ZeroDivisionError), handle.rollback_on_error():
        fail_in(place)

    wanted = "'made' (excluded), 'made/a.o' (excluded)"
    assert [line for line in monitor.warnings if wanted in line]


@pytest.fixture
def unread(place) -> Place:
    """A place with two directories whose rules, and so they, cannot be read by any user."""
    for name in ("unread", "old/unread"):
        place.make(f"{name}/file")
        (place.root / name / ".snapignore").symlink_to("elsewhere")
    assert place.snap("create", "--name", "partial").code == 4
    return place


REMOVE = "rm -r unread old; exit 9"


def test_what_a_snapshot_could_not_read_and_is_gone_is_named_by_a_restore(unread):
    assert treesnap.open(unread.root, unread.store).restore("partial").missing == ()
    shutil.rmtree(unread.root / "unread")
    shutil.rmtree(unread.root / "old")

    ended = unread.snap("restore", "partial", "unread")
    document = json.loads(unread.snap("restore", "partial", "--json").out)

    assert ended.code == 4
    assert "everything else is as in" in ended.out
    assert "1 path not put back, unreadable when the snapshot was taken:\n  unread\n" in ended.err
    assert document["missing"] == [{"path": "old/unread"}, {"path": "unread"}]


def test_what_a_checkpoint_could_not_read_and_is_gone_is_named_by_run(unread):
    ended = unread.snap("run", "--", "sh", "-c", REMOVE)

    assert ended.code == 9
    assert "2 paths not put back, unreadable when the snapshot was taken:" in ended.err
    assert (unread.root / "old/file").exists()


def test_what_a_checkpoint_could_not_read_and_is_gone_is_named_by_rollback_on_error(unread):
    monitor = CollectingMonitor()
    handle = Handle(context_at(root=unread.root, store_path=str(unread.store), monitor=monitor))

    with pytest.raises(ZeroDivisionError), handle.rollback_on_error():
        fail_in(unread, removing="unread")

    wanted = "The checkpoint could not read what the roll-back lacks: 'unread'"
    assert [line for line in monitor.warnings if wanted in line]


@pytest.mark.parametrize("list_changes", [True, False])
def test_what_a_snapshot_could_not_read_is_named_by_a_restore_elsewhere(unread, list_changes):
    handle = treesnap.open(unread.root, unread.store)
    to = unread.root.parent / "elsewhere"

    result = handle.restore("partial", to=to, list_changes=list_changes)

    assert result.missing == (b"old/unread", b"unread")


def test_a_mount_point_that_came_later(place):
    with mounting() as mounter:
        mounter.tmpfs(place.root / "new/deep/mounted")
        (place.root / "new/deep/mounted/file").write_text("file")
        handle = treesnap.open(place.root, place.store)

        listed = paths(handle.restore("before").untouched)

        assert listed == [b"new", b"new/deep", b"new/deep/mounted"]
        assert unlisted(handle, "before", listed) == []


@pytest.mark.parametrize("as_json", [False, True])
def test_a_mount_that_a_failed_command_made(place, as_json):
    with mounting() as mounter:
        mounter.tmpfs(place.root.parent / "probe")
        mounted = place.root / "mounted"
        script = "mkdir mounted; mount -t tmpfs none mounted; rm file; exit 3"
        try:
            ended = place.snap(*(["--json"] if as_json else []), "run", "--", "sh", "-c", script)
        finally:
            if mounted.is_mount():
                mounter.take_on(mounted)

        assert ended.code == 3
        assert mounted.is_mount()
        assert (place.root / "file").read_text() == "file"
        if as_json:
            left = json.loads(ended.out)["restore"]["untouched"]
            assert {"path": "mounted", "reason": "mount"} in left
        else:
            assert "mounted (mount)" in ended.err


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(20))
def test_by_restores_of_random_trees(tmp_path, seed):
    random = Random(seed)
    root = tmp_path / "root"
    root.mkdir()
    handle = Handle(
        context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
    )
    (root / ".snapignore").write_text(RULES)

    def grow(count: int) -> None:
        for _ in range(count):
            names = random.choices(["a", "b", "c.o", "build", "cache"], k=random.randint(1, 4))
            path = root.joinpath(*names)
            if not any(item.is_file() for item in path.parents) and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(names))

    grow(4)
    handle.create(name="before")
    grow(12)

    listed = paths(handle.restore("before").untouched)

    assert unlisted(handle, "before", listed) == []
