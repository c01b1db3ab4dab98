"""``verify --repair`` mends the small files of a store, one kind after the other."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import treesnap
from state import tree_state
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.journal import Commit, Journal, encode_journal
from treesnap.core.codec.message import pack
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import Busy, Corrupt, TreesnapError, UnsupportedFormat
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.ids import root_id
from treesnap.core.store.collector import LEAP, read_state
from treesnap.core.store.layout import DIRECTORIES, Layout
from treesnap.core.store.store import Store
from treesnap.core.store.writer import EpochChanged, Writer
from treesnap.core.store.writer_slot import slot_states
from treesnap.plans import Planner, Step
from world import FORMATS, World, damage

pytestmark = pytest.mark.sampled(2)

HOWS = ["empty", "zeros", "30"]


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def repaired(world: World, code: str, where: str) -> treesnap.VerifyResult:
    """Returns what a repair did about the one problem that there is."""
    (problem,) = world.handle().verify(read_data=True).problems
    assert (problem.code, problem.where) == (code, where)
    result = world.handle().verify(read_data=True, repair=True)
    assert result.problems == (problem,)
    assert result.left == ()
    assert world.handle().verify(read_data=True).ok
    return result


class TestCollectorState:
    def path(self, world: World) -> Path:
        return world.store / "collector" / "state"

    def put(self, world: World, epoch: int) -> None:
        payload = pack({"epoch": epoch, "condemned": ()})
        self.path(world).write_bytes(seal(FileKind.COLLECTION, payload))

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("how", HOWS)
    def test_a_damaged_one_is_written_anew_beyond_all_epochs(self, world, how):
        self.put(world, 4)
        world.handle().create()
        damage(self.path(world), how)

        repaired(world, "bad-collector", "collector/state")

        layout = Layout(str(world.store))
        epoch = read_state(LocalFileSystem(), layout).epoch
        assert epoch == 4 + LEAP
        assert max(state.epoch for state in slot_states(LocalFileSystem(), layout)) == epoch
        assert world.handle().create().snapshot.complete
        world.handle().gc()
        assert world.restores("second")

    def test_a_writer_that_began_before_has_to_begin_again(self, world):
        """A collection may have taken what it relies on, without anybody knowing by now."""
        self.put(world, 4)
        record = world.handle().resolve("second").record
        root = Path(world.only("roots/*/root")).parent.name
        with Store.open(LocalFileSystem(), str(world.store)) as store, Writer(store) as writer:
            damage(self.path(world), "30")
            world.handle().verify(repair=True)
            with pytest.raises(EpochChanged):
                writer.publish(record, root, 99)

    def test_it_waits_for_a_writer_whose_beginning_is_unknown(self, world):
        self.put(world, 4)
        with Store.open(LocalFileSystem(), str(world.store)) as store, Writer(store):
            for slot in world.store.glob("slots/*"):
                damage(slot, "zeros")
            damage(self.path(world), "30")
            warnings = CollectingMonitor()
            handle = world.handle(monitor=warnings)
            assert [item.code for item in handle.verify(repair=True).left] == ["bad-collector"]
        assert "writer is at work" in warnings.warnings[0]
        repaired(world, "bad-collector", "collector/state")

    def test_one_from_an_older_time_is_found_while_it_matters(self, world):
        self.put(world, 40)
        with Store.open(LocalFileSystem(), str(world.store)) as store, Writer(store):
            self.put(world, 4)
            repaired(world, "bad-collector", "collector/state")


class TestJournal:
    JOURNAL = Journal(
        root_id="0" * 32,
        stage_name=b".treesnap-restore-0123456789abcdef",
        root_before=None,
        file_system=0,
        device=0,
        inode=None,
        started_at_ns=0,
    )

    def put(self, world: World, **fields) -> str:
        path = world.only("roots/*/root").with_name("journal")
        journal = self.JOURNAL._replace(root_id=path.parent.name, **fields)
        path.write_bytes(seal(FileKind.JOURNAL, encode_journal(journal)))
        stage = world.root / os.fsdecode(journal.stage_name)
        stage.mkdir()
        (stage / "n0").write_bytes(b"kept aside")
        return str(path.relative_to(world.store))

    @pytest.mark.parametrize("how", HOWS)
    def test_a_damaged_one_goes_to_quarantine_and_says_what_that_means(self, world, how):
        where = self.put(world)
        damage(world.store / where, how)
        before = tree_state(world.root)
        (safety,) = [item for item in world.handle().list() if item.record.kind.value == "safety"]

        result = repaired(world, "bad-journal", where)

        assert tree_state(world.root) == before
        (said,) = result.repaired
        assert safety.id[:12] in said
        assert "stays in the directory" in said
        assert world.handle().resolve(safety.id).pinned
        assert world.handle().create().snapshot.complete
        assert (world.root / ".treesnap-restore-0123456789abcdef" / "n0").exists()

    def test_one_whose_snapshots_are_gone_does_not_block_the_root_for_ever(self, world):
        commit = Commit(
            target_id="01" * 32,
            safety_id="02" * 32,
            paths=(b"text",),
            directories=(),
            history=b"",
            touch=False,
        )
        where = self.put(world, commit=commit)
        with pytest.raises(TreesnapError):
            world.handle().create()

        repaired(world, "bad-journal", where)

        assert world.handle().create().snapshot.complete


class TestOthers:
    @pytest.mark.parametrize("how", HOWS)
    def test_the_record_of_a_root_is_written_anew(self, world, how):
        path = world.only("roots/*/root")
        whole = path.read_bytes()
        damage(path, how)

        repaired(world, "bad-root", str(path.relative_to(world.store)))

        assert path.read_bytes() == whole

    def test_a_missing_record_of_a_root_is_written_anew(self, world):
        path = world.only("roots/*/root")
        whole = path.read_bytes()
        path.unlink()

        repaired(world, "bad-root", str(path.relative_to(world.store)))

        assert path.read_bytes() == whole

    def test_records_that_changed_places_are_written_anew(self, world, tmp_path):
        (tmp_path / "other").mkdir()
        treesnap.open(tmp_path / "other", world.store).create()
        one, two = world.store.glob("roots/*/root")
        contents = one.read_bytes(), two.read_bytes()
        one.write_bytes(contents[1])
        two.write_bytes(contents[0])

        result = world.handle().verify(repair=True)

        assert [item.code for item in result.problems] == ["bad-root", "bad-root"]
        assert (one.read_bytes(), two.read_bytes()) == contents
        assert world.handle().verify().ok

    def test_what_a_killed_first_create_leaves_is_no_damage(self, world, tmp_path):
        other = tmp_path / "other"
        other.mkdir()
        handle = treesnap.open(other, world.store)
        (world.store / "roots" / root_id(os.fsencode(handle.root))).mkdir()

        assert handle.verify().ok

    @pytest.mark.parametrize("how", HOWS)
    def test_a_damaged_state_is_a_pin(self, world, how):
        identity = world.handle().pin("second").id
        damage(world.store / "states" / identity, how)

        repaired(world, "bad-state", f"states/{identity}")

        assert world.handle().resolve("second").pinned

    def test_states_that_changed_places_are_pins(self, world):
        """Otherwise the one that was pinned could be deleted."""
        first, second = (world.handle().pin(name).id for name in ("first", "second"))
        world.handle().unpin("first")
        one, two = (world.store / "states" / identity for identity in (first, second))
        contents = one.read_bytes(), two.read_bytes()
        one.write_bytes(contents[1])
        two.write_bytes(contents[0])

        assert world.handle().resolve("second").pinned
        result = world.handle().verify(repair=True)

        assert [item.code for item in result.problems] == ["bad-state", "bad-state"]
        assert world.handle().verify().ok
        assert world.handle().resolve("second").pinned

    def test_a_pinned_snapshot_that_is_gone_is_missed(self, world):
        identity = world.handle().pin("second").id
        world.only(f"snapshots/*/*-{identity}").unlink()

        result = repaired(world, "lost-snapshot", f"states/{identity}")

        assert result.problems[0].snapshot_ids == (identity,)

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("how", HOWS)
    def test_a_damaged_history_goes_to_quarantine(self, world, how):
        path = world.only("roots/*/history")
        damage(path, how)

        repaired(world, "bad-history", str(path.relative_to(world.store)))

        assert world.restores("second")
        world.handle().undo()

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("how", HOWS)
    @pytest.mark.needs("exit codes")
    def test_a_damaged_plan_goes_to_quarantine_and_the_others_stay(self, world, how):
        planner = Planner(world.handle())
        kept, lost = (planner.run(name, [Step(name="a", run="true")]) for name in ("one", "two"))
        path = world.only(f"roots/*/plan-{lost.id}")
        damage(path, how)

        repaired(world, "bad-plan", str(path.relative_to(world.store)))

        assert [plan.id for plan in planner.list()] == [kept.id]

    @pytest.mark.needs("exit codes")
    def test_a_plan_whose_file_is_whole_and_says_nothing_goes_there_too(self, world):
        planner = Planner(world.handle())
        kept, lost = (planner.run(name, [Step(name="a", run="true")]) for name in ("one", "two"))
        path = world.only(f"roots/*/plan-{lost.id}")
        path.write_bytes(seal(FileKind.PLAN, pack({"version": 1})))

        repaired(world, "bad-plan", str(path.relative_to(world.store)))

        assert [plan.id for plan in planner.list()] == [kept.id]

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("how", ["0", "8", "version", "20", "-1", "-33", "longer"])
    def test_a_snapshot_whose_record_can_be_told_is_written_anew(self, world, how):
        """Its name has its hash, by which one changed byte of it (-33 is the last) is found too."""
        identity = world.handle().resolve("second").id
        path = world.only(f"snapshots/*/*-{identity}")
        whole = path.read_bytes()
        damage(path, how)

        world.handle().verify(repair=True)

        assert path.read_bytes() == whole
        assert world.restores("second")
        assert world.handle().verify().ok

    def test_snapshots_that_changed_places_are_written_anew(self, world):
        paths = [
            world.only(f"snapshots/*/*-{world.handle().resolve(name).id}")
            for name in ("first", "second")
        ]
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, reversed(contents), strict=True):
            path.write_bytes(content)

        world.handle().verify(repair=True)

        assert [path.read_bytes() for path in paths] == contents
        assert world.handle().verify().ok


class TestFormat:
    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("content", FORMATS)
    def test_a_damaged_one_is_written_anew(self, world, content):
        (world.store / "format").write_bytes(FORMATS[content])

        repaired(world, "bad-format", "format")

        assert world.restores("second")
        assert (world.store / "quarantine" / "format").read_bytes() == FORMATS[content]

    def test_a_missing_one_is_no_missing_store(self, world):
        (world.store / "format").unlink()

        for action in (treesnap.Handle.list, treesnap.Handle.create):
            with pytest.raises(Corrupt, match="no format file"):
                action(world.handle())
        repaired(world, "bad-format", "format")

        assert world.restores("second")

    def test_one_with_another_hash_is_written_anew(self, world):
        path = world.store / "format"
        path.write_text(path.read_text().replace("blake3-256", "blake2-256"))

        repaired(world, "bad-format", "format")

    def test_that_of_a_store_that_cannot_be_read_here_is_left_alone(self, world):
        for path in world.store.glob("snapshots/*/*"):
            damage(path, "version")
        (world.store / "format").write_bytes(b"{")

        with pytest.raises(UnsupportedFormat):
            world.handle().verify(repair=True)

        assert (world.store / "format").read_bytes() == b"{"


def test_a_repair_waits_for_a_collection(world):
    damage(world.only("roots/*/root"), "30")
    fs = LocalFileSystem()
    fd = fs.open(str(world.store / "collector" / "lock"), os.O_RDWR | os.O_CREAT)
    assert fs.lock(fd, exclusive=True)
    try:
        with pytest.raises(Busy):
            world.handle(wait_s=0.0).verify(repair=True)
    finally:
        fs.close(fd)


def error_of(command: Callable[[], object]) -> str:
    """Returns what a command says is damaged, or nothing."""
    try:
        command()
    except Corrupt as error:
        return error.message
    return ""


class TestDirectories:
    @pytest.mark.parametrize("name", DIRECTORIES)
    def test_a_lost_one_is_named_and_made_anew(self, world, name):
        world.handle().create()
        shutil.rmtree(world.store / name)

        messages = [
            error_of(partial(command, world.handle()))
            for command in (treesnap.Handle.list, treesnap.Handle.create, treesnap.Handle.gc)
        ]
        found = world.handle().verify()
        repaired = world.handle().verify(read_data=True, repair=True)

        assert name == "states" or any(messages)
        assert {*messages} <= {"", f"The store at '{world.store}' has no directory '{name}'"}
        assert [(item.code, item.where) for item in found.left] == [("lost-directory", name)]
        assert repaired.repaired[0] == f"Made the missing directory {name}"
        made = world.handle().create().id
        assert world.handle().list()[0].id == made
        assert made not in {
            item.snapshot_id for item in world.handle().verify(read_data=True).partial
        }

    def test_without_snapshots_there_is_a_history_that_is_lost(self, world):
        world.handle().create()
        shutil.rmtree(world.store / "snapshots")

        with pytest.raises(treesnap.Corrupt):
            world.handle().list()

    def test_none_is_made_in_a_store_of_a_newer_format(self, world):
        world.handle().create()
        format_ = world.store / "format"
        fields = json.loads(format_.read_text())
        format_.write_text(json.dumps(fields | {"format": 3, "min_reader": 3, "min_writer": 3}))
        shutil.rmtree(world.store / "temporary")

        with pytest.raises(UnsupportedFormat):
            world.handle().verify(repair=True)

        assert not (world.store / "temporary").exists()

    @pytest.mark.parametrize("name", ["index", "temporary"])
    @pytest.mark.parametrize("spoil", [Path.unlink, partial(Path.write_text, data="damaged")])
    def test_one_that_is_lost_with_the_format_file_is_made_too(self, world, spoil, name):
        world.handle().create()
        spoil(world.store / "format")
        shutil.rmtree(world.store / name)

        result = world.handle().verify(read_data=True, repair=True)

        assert [item.code for item in result.problems] == ["lost-directory", "bad-format"]
        assert result.left == ()
        assert world.handle().verify(read_data=True).ok
