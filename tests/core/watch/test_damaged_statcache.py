"""Rows of the stat cache that say nothing, or nonsense, while a watcher says what changed.

Nothing is believed of them: everything is looked at, as a store of its own sees it, which
knows nothing of earlier captures. A program that can write a row can give it a right checksum.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from treesnap.core.codec.message import pack
from treesnap.core.codec.statcache import Row
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.ops.known_changes import WALK_EVERY_NS
from treesnap.core.worktree.scan import row_differences
from treesnap.core.worktree.scan.statcache import RECENT, StatCacheBuilder, load
from watching import WatchedWorld

pytestmark = pytest.mark.sampled(10)

MODE = 0o100644
NONSENSE = {
    "nothing": b"",
    "no message": b"\xc1",
    "no array": pack(7),
    "no observation": pack((7,)),
    "too few fields": pack(((b"other", MODE),)),
    "no name": pack(((7, MODE, 1, 1, 1, 1, 1),)),
    "a name above": pack(((b"..", 0o040755, 1, 1, 1, 1, 1),)),
    "a name of two": pack(((b"deep/file", MODE, 1, 1, 1, 1, 1),)),
    "a mode of bytes": pack(((b"other", b"mode", 1, 1, 1, 1, 1),)),
    "a mode below zero": pack(((b"other", -1, 1, 1, 1, 1, 1),)),
    "a mode that is too large": pack(((b"other", 1 << 40, 1, 1, 1, 1, 1),)),
    "a time that is none": pack(((b"other", MODE, 1, None, 1, 1, 1),)),
}


@pytest.fixture
def world(tmp_path: Path):
    """A watched root, of which everything is known: nothing that was captured is young."""
    made = WatchedWorld(tmp_path)
    (made.root / "d0" / "deep" / ".snapignore").write_text("hidden\n")
    (made.root / "d0" / "deep" / "hidden").write_text("left out")
    with made.stack:
        made.watch(reads_ahead=False)
        clock_ns = time.time_ns() + WALK_EVERY_NS
        made.handle.context = made.handle.context._replace(clock_ns=lambda: clock_ns)
        made.handle.create()
        made.looks.listed = 0
        made.handle.create()
        assert made.looks.listed == 0
        yield made


def forge(world: WatchedWorld, change: Callable[[Row], Row | None]) -> None:
    """Puts other rows in the place of those of the cache, or none."""
    (path,) = map(str, world.store.glob("roots/*/cache"))
    fs = LocalFileSystem()
    cache = load(fs, path)
    builder = StatCacheBuilder(fs, str(world.store / "temporary"), None)
    for directory in ["", *sorted(str(item.relative_to(world.root)) for item in dirs(world))]:
        found = cache.find(os.fsencode(directory))
        changed = change(found[0]) if found is not None else None
        if changed is not None:
            builder.add(changed)
    builder.publish(path, cache.snapshot_id, cache.tree_id, cache.watch)
    assert not os.path.exists(path + RECENT)


def dirs(world: WatchedWorld) -> list[Path]:
    return [path for path in world.root.rglob("*") if path.is_dir()]


def create_as_one_that_knows_nothing(world: WatchedWorld) -> None:
    made = world.handle.create()
    other = treesnap.open(world.root, world.directory / f"other-{made.id}").create()
    assert made.root_hash == other.root_hash
    assert made.skipped == other.skipped
    assert made.snapshot.record.totals == other.snapshot.record.totals
    assert made.snapshot.record.rules == other.snapshot.record.rules


@pytest.mark.sampled(8)
@pytest.mark.parametrize("path", [b"", b"d0", b"d0/deep", b"d1"])
def test_a_row_that_is_lost_is_looked_for_in_the_tree(world, path):
    forge(world, lambda row: None if row.path == path else row)
    (world.root / "d1" / "other").write_text("edited")

    create_as_one_that_knows_nothing(world)
    create_as_one_that_knows_nothing(world)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("nonsense", NONSENSE)
@pytest.mark.parametrize("path", [b"", b"d0"])
def test_a_row_that_says_nonsense_is_not_believed(world, path, nonsense):
    said = NONSENSE[nonsense]
    forge(world, lambda row: row._replace(observations=said) if row.path == path else row)
    (world.root / "d1" / "other").write_text("edited")
    create_as_one_that_knows_nothing(world)

    forge(world, lambda row: row._replace(observations=said) if row.path == path else row)
    (world.root / "d0" / "other").write_text("edited")
    create_as_one_that_knows_nothing(world)


def test_of_a_row_that_says_nonsense_none_below_it_come_back(world):
    """A directory is away while its tree is collected, and is there again as it was."""
    forge(world, lambda row: row._replace(observations=b"") if row.path == b"d0" else row)
    away = world.directory / "away"
    (world.root / "d0" / "deep").rename(away)
    world.handle.create(name="without")
    for item in world.handle.list():
        if item.name != "without":
            world.handle.delete(item.id)
    world.handle.gc()
    away.rename(world.root / "d0" / "deep")

    world.handle.create()

    assert world.handle.verify(read_data=True).ok


@pytest.mark.parametrize("path", [b"", b"d0"])
@pytest.mark.usefixtures("implementation")
def test_a_comparison_does_not_believe_it_either(world, path, monkeypatch):
    monkeypatch.setattr(row_differences, "ROWS_MIN", 1)
    forge(world, lambda row: row._replace(observations=b"") if row.path == path else row)
    (world.root / "d0" / "deep" / "file").write_text("edited")
    world.handle.context = world.handle.context._replace(watcher=None)

    create_as_one_that_knows_nothing(world)


def test_a_restore_reads_again_what_was_seen_by_such_a_row_alone(world):
    """The watcher vouches for the directory, and the row says nonsense about it."""
    shutil.rmtree(world.root / "d0")  # with other exclusions everything would be looked at
    world.handle.create(name="before")
    (world.root / "d1" / "other").write_text("precious")
    world.handle.create()
    forge(world, lambda row: row._replace(observations=b"\xc1") if row.path == b"d1" else row)

    world.handle.restore("before")

    assert (world.root / "d1" / "other").read_text() == "other"
    world.handle.undo()
    assert (world.root / "d1" / "other").read_text() == "precious"
