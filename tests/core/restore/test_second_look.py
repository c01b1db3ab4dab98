"""A conflict is looked at twice: what holds the bytes and metadata of the plan is no conflict.

Change times, inodes and devices also change when nothing of a file does, and then a watcher
reports it elsewhere or not at all.
"""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

import treesnap
from interfering import Interfering
from mounting import mounting
from state import differences, tree_state
from treesnap.core.fs.notifier import Notifier, Report
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Conflict
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)


def other_link(path: Path, outside: Path) -> None:
    os.link(path, outside)


def link_that_goes(path: Path, outside: Path) -> None:
    os.link(path, outside)
    outside.unlink()


def changed_attributes(path: Path, outside: Path) -> None:
    for flag in ("+d", "-d"):
        done = subprocess.run(["chattr", flag, str(path)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"chattr is not possible here: {done.stderr.decode()}")


@pytest.mark.needs("notices")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("change", [other_link, link_that_goes, changed_attributes])
@pytest.mark.parametrize("path", ["d1/other", "d2"])
def test_a_change_time_that_no_watcher_reports_is_no_conflict(world, change, path):
    """The file is put back by itself, or goes with its directory."""
    (world.root / "d2").rename(world.directory / "kept")
    world.watch()
    world.handle.create(name="before")
    (world.directory / "kept").rename(world.root / "d2")
    (world.root / "d1" / "other").write_text("changed")
    world.handle.create()
    changed = world.root / (path if path != "d2" else "d2/other")
    change(changed, world.directory / "outside")

    world.handle.restore("before")

    assert (world.root / "d1/other").read_text() == "other"
    assert not (world.root / "d2").exists()


class Deaf(Notifier):
    """A queue that loses all reports of one name."""

    def take(self) -> list[Report]:
        return [report for report in super().take() if report.name != b"other"]


@pytest.mark.needs("notices")
@pytest.mark.parametrize("force", [False, True])
def test_content_that_no_watcher_reports_is_captured_and_restored(world, force):
    """The look at everything that follows takes it into the safety snapshot."""
    target = world.root / "d1" / "other"
    world.watch(Deaf)
    world.handle.create(name="before")
    target.rename(target.with_name("another"))
    target.with_name("another").write_text("changed")
    target.with_name("another").rename(target)
    world.handle.context.watcher.__exit__(None, None, None)
    world.watch(Deaf)
    target.write_text("unseen")

    world.handle.restore("before", force=force)

    assert target.read_text() == "other"
    treesnap.open(world.root, world.store).undo()
    assert target.read_text() == "unseen"


def copied(root: Path, directory: Path) -> Path:
    copy = directory / "copy"
    subprocess.run(["cp", "-a", str(root), str(copy)], check=True)
    return copy


class TestOverlay:
    @pytest.fixture
    def root(self, tmp_path: Path):
        """A root on an overlay, the files of which all lie in the lower layer."""
        with mounting() as mounter:
            lower = tmp_path / "overlay" / "lower"
            (lower / "root" / "directory").mkdir(parents=True)
            (lower / "root" / "alone").write_text("alone")
            (lower / "root" / "a").write_text("content")
            for name in ("b", "directory/c"):
                os.link(lower / "root" / "a", lower / "root" / name)
            yield mounter.overlay(tmp_path / "overlay") / "root"

    @pytest.fixture
    def handle(self, root: Path, tmp_path: Path) -> Handle:
        return Handle(
            context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
        )

    @pytest.mark.needs("linux")
    @pytest.mark.parametrize("change", ["content", "mode", "removed"])
    def test_links_of_a_lower_layer_are_replaced(self, root, handle, tmp_path, change):
        """The snapshot is of a copy of the tree, so that nothing was copied up before."""
        copy = copied(root, tmp_path)
        if change == "content":
            (copy / "a").write_text("other content")
        elif change == "mode":
            (copy / "b").chmod(0o600)
        else:
            for name in ("a", "b", "directory/c"):
                (copy / name).unlink()
        wanted = adopt(handle, copy)
        before = tree_state(root)

        handle.restore(wanted)

        assert differences(tree_state(root), tree_state(copy)) == []
        handle.undo()
        assert differences(tree_state(root), before) == []

    def test_metadata_of_a_lower_file_changes_in_place(self, root, handle, tmp_path):
        copy = copied(root, tmp_path)
        (copy / "alone").chmod(0o600)
        wanted = adopt(handle, copy)

        handle.restore(wanted)

        assert differences(tree_state(root), tree_state(copy)) == []


def adopt(handle: Handle, copy: Path) -> str:
    """Makes a snapshot of a copy of the root, as if it was of the root itself."""
    root = Path(handle.root)
    with mounting() as mounter:
        mounter.bind(copy, root)
        return handle.create().id


def vanishing(methods: str, name: str, number: int, path: Path) -> Interfering:
    def goes() -> None:
        if path.is_dir():
            path.rename(path.with_name("moved"))
        elif path.exists():
            path.unlink()

    def concerns(call: Call) -> bool:
        return str(call.path).endswith(name)

    return Interfering(methods, number, goes, concerns)


VANISHING = [
    (method, name, number)
    for method, name in [
        ("lstat", "file"),
        ("lstat", "mode"),
        ("lstat", "added"),
        ("is_protected", "file"),
        ("is_protected", "added"),
        ("is_protected", "below"),
        ("open", "added"),
        ("open", "below"),
        ("open", "mode"),
        ("scan", "below"),
        ("exchange", "file"),
        ("rename_to_absent", "added"),
    ]
    for number in (1, 2, 3)
]


class TestVanishing:
    """A path that goes between two looks is a conflict, and --force goes on."""

    @pytest.fixture
    def place(self, tmp_path: Path):
        root = tmp_path / "root"
        (root / "directory/below").mkdir(parents=True)
        (root / "file").write_text("old")
        (root / "mode").write_text("mode")
        handle = Handle(
            context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
        )
        handle.create(name="before")
        (root / "file").write_text("new")
        (root / "mode").chmod(0o600)
        (root / "added/below").mkdir(parents=True)
        (root / "added/below/file").write_text("added")
        return root, str(tmp_path / "store"), tree_state(root)

    @pytest.mark.sampled(12)
    @pytest.mark.parametrize(("method", "name", "number"), VANISHING)
    @pytest.mark.parametrize("force", [True, False])
    def test_no_call_fails_because_of_it(self, place, method, name, number, force):
        root, store, _ = place
        target = {"file": "file", "mode": "mode", "added": "added", "below": "added/below"}[name]
        fs = vanishing(method, name, number, root / target)
        handle = Handle(context_at(root=root, store_path=store, fs=fs))

        try:
            handle.restore("before", force=force)
        except Conflict:
            assert not force
        else:
            assert (root / "file").read_text() == "old"
            assert not (root / "added").exists()
        assert treesnap.open(root, store).recover() is None
        assert not list(root.parent.rglob(".treesnap*"))


@pytest.mark.needs("mappings")
def test_what_is_written_through_a_mapping_meanwhile_is_a_conflict(tmp_path):
    """The second write into a page moves no time."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"before")
    plain = Handle(
        context_at(root=root, store_path=str(tmp_path / "store"), fs=UnsyncedFileSystem())
    )
    plain.create(name="before")
    (root / "file").write_bytes(b"0" * 4096)
    with (root / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 49

        def write() -> None:
            mapped[0] = 50

        fs = Interfering("exchange", 1, write)
        stat = (root / "file").stat()
        with pytest.raises(Conflict):
            Handle(context_at(root=root, store_path=plain.store_path, fs=fs)).restore("before")
        assert (root / "file").stat().st_mtime_ns == stat.st_mtime_ns
        mapped[1] = 50
    assert (root / "file").read_bytes()[:3] == b"220"


def test_a_second_edit_within_one_tick_of_the_clock_is_a_conflict(tmp_path):
    """Where times are whole seconds, it may come long after the first one was captured."""
    root, store = tmp_path / "root", str(tmp_path / "store")
    file = root / "file"
    root.mkdir()
    file.write_bytes(b"before")
    Handle(context_at(root, store, fs=UnsyncedFileSystem())).create(name="before")
    file.write_bytes(b"first edit")
    stat = file.stat()

    def edit_again() -> None:
        file.write_bytes(b"later edit")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    fs = Interfering("exchange", 1, edit_again)
    handle = Handle(context_at(root, store, fs=fs, clock_ns=lambda: stat.st_ctime_ns))
    with pytest.raises(Conflict):
        handle.restore("before")

    assert file.read_bytes() == b"later edit"


@pytest.mark.needs("notices")
class TestAnEditDuringAWatchedRestore:
    """It is a conflict, although the restore of a watched root may begin again."""

    @pytest.fixture
    def watched(self, world):
        world.watch()
        (world.root / "d2").rename(world.directory / "kept")
        world.handle.create(name="before")
        (world.directory / "kept").rename(world.root / "d2")
        (world.root / "d1/other").write_text("changed")
        world.handle.create()
        return world

    def restored(self, world, method: str, path: str) -> Interfering:
        """Restores, and edits a file just before the first call of a method in the root."""
        fs = Interfering(
            method,
            1,
            lambda: (world.root / path).write_text("edited"),
            lambda call: str(world.root) in call.path,
        )
        handle = Handle(
            context_at(root=world.root, store_path=str(world.store), fs=fs, watcher=world.watcher)
        )
        handle.restore("before")
        return fs

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("method", ["make_directory", "write_at", "exchange"])
    @pytest.mark.parametrize("path", ["d1/other", "d2/other", "d2/deep/file"])
    def test_is_a_conflict(self, watched, method, path):
        """In a file that is replaced, and in a directory that goes as a whole."""
        with pytest.raises(Conflict):
            self.restored(watched, method, path)

        assert (watched.root / path).read_text() == "edited"
        other = watched.root / ("d2/other" if path == "d1/other" else "d1/other")
        assert other.read_text() == ("other" if path == "d1/other" else "changed")
        assert not list(watched.root.glob(".treesnap*"))

    def test_before_it_is_planned_is_none(self, watched):
        """The safety snapshot has it."""
        self.restored(watched, "open", "d1/other")

        assert (watched.root / "d1/other").read_text() == "other"
        watched.handle.undo()
        assert (watched.root / "d1/other").read_text() == "edited"

    def test_costs_one_more_look_at_each_path_that_is_replaced(self, watched):
        looks: list[str] = []

        class Looking(WrappedFileSystem):
            def around(self, call: Call):
                if call.method == "lstat":
                    looks.append(call.path)
                return super().around(call)

        def count(**options) -> int:
            looks.clear()
            handle = Handle(
                context_at(
                    root=watched.root,
                    store_path=str(watched.store),
                    fs=Looking(UnsyncedFileSystem()),
                    **options,
                )
            )
            handle.restore("before")
            return looks.count(str(watched.root / "d1/other"))

        with_watcher = count(watcher=watched.watcher)
        watched.handle.undo()

        assert with_watcher <= count() + 1
