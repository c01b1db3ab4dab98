"""Small files of a store that another process removes while it is verified or mended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import treesnap
from interfering import Interfering
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.journal import Journal, encode_journal
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.ids import root_id
from treesnap.plans import Planner, Step
from world import World, damage


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def state(world: World) -> Path:
    return world.store / "states" / world.handle().pin("second").id


def plan(world: World) -> Path:
    made = Planner(world.handle()).run("plan", [Step(name="a", run="true")])
    return world.only(f"roots/*/plan-{made.id}")


def history(world: World) -> Path:
    return world.only("roots/*/history")


def snapshot(world: World) -> Path:
    return world.only(f"snapshots/*/*-{world.handle().resolve('second').id}")


def journal(world: World) -> Path:
    path = history(world).with_name("journal")
    content = Journal(
        root_id=path.parent.name,
        stage_name=b".treesnap-restore-0123456789abcdef",
        root_before=None,
        file_system=0,
        device=0,
        inode=None,
        started_at_ns=0,
    )
    path.write_bytes(seal(FileKind.JOURNAL, encode_journal(content)))
    return path


def mended(world: World, fs: Interfering) -> tuple[treesnap.VerifyResult, list[str]]:
    """Returns what a repair on a file system did, and what it remarked."""
    monitor = CollectingMonitor()
    result = world.handle(fs=fs, monitor=monitor).verify(repair=True)
    assert fs.left <= 0
    return result, list(monitor.warnings)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("make", "number"), [(state, 1), (state, 2), (plan, 1), (history, 1)])
@pytest.mark.needs("exit codes")
def test_what_goes_before_it_is_read_is_no_damage(world, make, number):
    """A state is read with its snapshot too, each time that is looked at."""
    path = make(world)
    damage(path, "30")
    fs = Interfering("open", number, path.unlink, where=lambda call: call.path == str(path))

    assert world.handle(fs=fs).verify().ok
    assert fs.left <= 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("make", [state, plan, history, snapshot, journal])
def test_what_goes_before_it_is_mended_needs_no_mending(world, make):
    path = make(world)
    damage(path, "empty")
    lock = str(world.store / "collector/lock")
    fs = Interfering("lock", 1, path.unlink, where=lambda call: call.path == lock)

    result, warnings = mended(world, fs)

    assert len(result.problems) == 1
    assert (result.repaired, result.left, warnings) == ((), (), [])
    assert world.handle().create().snapshot.complete


def test_a_journal_that_goes_while_it_is_given_up_is_not_missed(world):
    path = journal(world)
    damage(path, "empty")
    fs = Interfering("rename", 1, path.unlink, where=lambda call: call.path == str(path))

    result, warnings = mended(world, fs)

    assert [item.code for item in result.problems] == ["bad-journal"]
    assert (result.repaired, result.left, warnings) == ((), (), [])


def test_all_that_is_known_of_a_root_but_its_snapshots_may_be_gone(world):
    directory = world.only("roots/*/root").parent
    whole = (directory / "root").read_bytes()
    shutil.rmtree(directory)

    result = world.handle().verify(repair=True)

    assert [item.code for item in result.problems] == ["bad-root"]
    assert (directory / "root").read_bytes() == whole
    assert world.restores("second")


def test_the_record_of_a_root_is_found_in_any_of_its_snapshots(world, tmp_path):
    record = world.only("roots/*/root")
    whole = record.read_bytes()
    record.unlink()
    newest = max(world.store.glob("snapshots/*/*"), key=lambda path: path.name)
    damage(newest, "empty")
    (tmp_path / "other").mkdir()

    result = treesnap.open(tmp_path / "other", world.store).verify(repair=True)

    assert [item.code for item in result.left] == []
    assert record.read_bytes() == whole
    assert world.restores("second")


def test_the_damaged_record_of_a_root_of_which_nothing_is_there_is_removed(world):
    record = world.store / "roots" / ("ab" * 16) / "root"
    record.parent.mkdir()
    record.write_bytes(os.urandom(100))

    result = world.handle().verify(repair=True)

    assert [item.where for item in result.problems] == [f"roots/{'ab' * 16}/root"]
    assert result.repaired == (
        f"Removed the record of root {'ab' * 16}, of which the store has nothing",
    )
    assert not record.exists()
    assert world.handle().verify().ok


def test_the_record_of_a_root_is_not_missed_that_is_captured_for_the_first_time(world, tmp_path):
    """A command that was killed in between has left its directory without the record."""
    (tmp_path / "new").mkdir()
    new = treesnap.open(tmp_path / "new", world.store)
    roots = world.store / "roots"
    (roots / root_id(os.fsencode(new.root))).mkdir()
    # First the names of all roots are listed, then, as there is no record, those of its copies.
    fs = Interfering("list_names", 2, new.create, where=lambda call: call.path == str(roots))

    assert world.handle(fs=fs).verify().problems == ()
    assert fs.left <= 0
    assert (roots / root_id(os.fsencode(new.root)) / "root").exists()


def after_the_first_look(world: World, action) -> Interfering:
    """Returns a file system that acts when a repair has what it judges by, and no root's lock."""
    lock = str(world.store / "collector/lock")
    return Interfering("lock", 1, action, where=lambda call: call.path == lock)


@pytest.mark.parametrize("make", [plan, history])
@pytest.mark.needs("exit codes")
def test_a_file_that_is_good_again_stays(world, make):
    path = make(world)
    whole = path.read_bytes()
    damage(path, "30")

    result, warnings = mended(world, after_the_first_look(world, lambda: path.write_bytes(whole)))

    assert (result.repaired, result.left, warnings) == ((), (), [])
    assert path.read_bytes() == whole


def test_a_snapshot_that_is_deleted_meanwhile_does_not_come_back(world):
    path = snapshot(world)
    damage(path, "0")

    result, warnings = mended(world, after_the_first_look(world, path.unlink))

    assert (result.repaired, result.left, warnings) == ((), (), [])
    assert not path.exists()


@pytest.mark.parametrize("method", ["list_names", "open"])
def test_a_root_that_is_being_forgotten_has_lost_no_snapshot(world, method):
    """Before its states are listed, and before each is read: the process has not removed them."""
    path = state(world)
    snapshots = world.only("snapshots/*")

    def forget() -> None:
        snapshots.rename(world.store / "temporary" / ("forgotten-" + "0" * 16))

    place = str(path if method == "open" else path.parent)
    fs = Interfering(method, 1, forget, where=lambda call: call.path == place)

    assert [item.code for item in world.handle(fs=fs).verify().problems] == []
    assert fs.left <= 0


def test_a_repair_leaves_the_state_of_a_root_that_is_being_forgotten_alone(world):
    path = state(world)
    snapshots = world.only("snapshots/*")
    kept = snapshots.rename(world.store / "kept")
    lock = str(world.store / "roots/lock")
    forgotten = world.store / "temporary" / ("forgotten-" + "0" * 16)
    fs = Interfering("lock", 1, lambda: kept.rename(forgotten), lambda call: call.path == lock)

    result = world.handle(fs=fs).verify(repair=True)

    assert [item.code for item in result.problems] == ["lost-snapshot"]
    assert fs.left <= 0
    assert path.exists()
