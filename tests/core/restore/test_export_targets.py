"""Where a restore to another directory may write, and where not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exporting import records
from interfering import Interfering
from mounting import mounting
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import OperationFailed, Refused, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import MUTATING, Fault, FaultyFileSystem
from world import World

pytestmark = pytest.mark.sampled(12)

OLD_NS = 10**18


@pytest.mark.sampled(6)
@pytest.mark.parametrize("inside", ["", "packs", "new", "packs/new/er"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_target_inside_the_store_is_refused(tmp_path, inside, dry_run):
    world = World(tmp_path)
    (tmp_path / "link").symlink_to(world.store)
    before = sorted(path for path in world.store.rglob("*") if path.is_dir())

    for store in (world.store, tmp_path / "link"):
        with pytest.raises(Refused) as caught:
            world.handle().restore("first", to=store / inside, dry_run=dry_run)
        assert "inside the store" in str(caught.value)

    assert sorted(path for path in world.store.rglob("*") if path.is_dir()) == before


@pytest.fixture
def mounted(tmp_path: Path):
    """A world, and an empty file system that is mounted somewhere else."""
    with mounting() as mounter:
        place = mounter.tmpfs(tmp_path / "mounted")
        os.utime(place, ns=(OLD_NS, OLD_NS))
        (tmp_path / "world").mkdir()
        world = World(tmp_path / "world")
        (world.root / "closed/below").mkdir(parents=True)
        (world.root / "closed/below/file").write_text("file")
        os.link(world.root / "common", world.root / "closed/common")
        (world.root / "closed").chmod(0o555)
        (world.root / "link").symlink_to("text")
        os.utime(world.root / "closed", ns=(OLD_NS, OLD_NS))
        world.root.chmod(0o750)
        os.utime(world.root, ns=(OLD_NS + 1, OLD_NS + 1))
        world.handle().create(name="third")
        yield world, place


def state_of(place: Path) -> object:
    stat = place.stat()
    return os.listdir(place), stat.st_mode, stat.st_uid, stat.st_gid


class TestMountPoint:
    """Nothing can be renamed to a mount point: the files appear in it all the same, or do not."""

    def test_an_empty_one_is_filled(self, mounted):
        world, place = mounted

        result = world.handle().restore("third", to=place)

        assert differences(tree_state(world.root), tree_state(place)) == []
        assert place.is_mount()
        assert result.created == 8
        assert records(world) == []

    @pytest.mark.needs("mounts")
    def test_and_one_of_the_same_device(self, tmp_path):
        (tmp_path / "world").mkdir()
        world = World(tmp_path / "world")
        with mounting() as mounter:
            for name in ("source", "place"):
                (tmp_path / name).mkdir()
            mounter.bind(tmp_path / "source", tmp_path / "place")

            world.handle().restore("first", to=tmp_path / "place")

            assert differences(world.states["first"], tree_state(tmp_path / "place")) == []

    def test_a_dry_run_writes_nothing(self, mounted):
        world, place = mounted
        before = state_of(place)

        world.handle().restore("third", to=place, dry_run=True)

        assert state_of(place) == before

    def test_a_read_only_one_is_named(self, mounted):
        world, place = mounted
        with mounting() as mounter:
            mounter.read_only(place)

            with pytest.raises(OperationFailed, match=f"at '{place}': Read-only"):
                world.handle().restore("third", to=place)

        assert records(world) == []

    def test_one_that_holds_something_is_refused(self, mounted):
        world, place = mounted
        (place / "lost+found").mkdir()

        with pytest.raises(Refused):
            world.handle().restore("third", to=place)

        assert os.listdir(place) == ["lost+found"]

    @pytest.mark.sampled(8)
    @pytest.mark.parametrize("number", range(2, 60, 4))
    def test_a_kill_leaves_it_empty_or_full(self, mounted, number):
        """At every call that writes: the next command makes it empty, or only tidies up."""
        world, place = mounted
        before = state_of(place)
        wanted = tree_state(world.root)
        fault = Fault(methods=MUTATING, number=number, where=lambda call: "mounted" in call.path)

        ended = killed(
            lambda fs: Handle(
                context_at(root=world.root, store_path=str(world.store), fs=fs)
            ).restore("third", to=place),
            fault,
        )
        world.handle().status()

        if ended.was_killed and os.listdir(place) == []:
            assert state_of(place) == before
        else:
            assert differences(wanted, tree_state(place)) == []
        assert records(world) == []

    @pytest.mark.parametrize("method", ["rename_to_absent", "sync_file_system", "change_mode"])
    @pytest.mark.parametrize("number", [1, 2])
    def test_an_error_leaves_it_empty(self, mounted, method, number):
        world, place = mounted
        before = state_of(place)
        fault = Fault(
            methods=frozenset({method}),
            number=number,
            errno=errno.EIO,
            where=lambda call: "mounted" in call.path,
        )
        fs = FaultyFileSystem(fault)

        with pytest.raises(OperationFailed):
            Handle(context_at(root=world.root, store_path=str(world.store), fs=fs)).restore(
                "third", to=place
            )

        assert state_of(place) == before
        assert place.stat().st_mtime_ns == OLD_NS
        assert records(world) == []

    def test_what_others_put_there_meanwhile_stays(self, mounted):
        world, place = mounted
        made = []

        def act() -> None:
            (place / "text").write_text("precious")
            made.append(True)

        fs = Interfering("rename_to_absent", 1, act)
        with pytest.raises(TreesnapError):
            Handle(context_at(root=world.root, store_path=str(world.store), fs=fs)).restore(
                "third", to=place
            )

        assert made
        assert os.listdir(place) == ["text"]
        assert (place / "text").read_text() == "precious"
