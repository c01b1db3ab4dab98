"""``restore --to`` and a power cut: whichever part of what was built is kept, it goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exporting import STAGE_NAME, records, warnings, write_record
from treesnap.core.codec.root_files import EXPORT, ExportRecord
from world import World

WHOLE_NAME = STAGE_NAME + "-whole"
NOBODY_ID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A root with two snapshots."""
    (tmp_path / "world").mkdir()
    return World(tmp_path / "world")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory to restore into."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.mark.parametrize("names", [[STAGE_NAME], [WHOLE_NAME], [STAGE_NAME, WHOLE_NAME]])
def test_whatever_a_power_cut_has_kept_is_removed(world, place, names):
    for name in names:
        (place / name / "sub").mkdir(parents=True)
        (place / name / "sub" / "file").write_text("built")
        (place / name).chmod(0o500)
    write_record(world, EXPORT.encode(ExportRecord(os.fsencode(place / STAGE_NAME))))

    assert len(warnings(world, lambda handle: handle.create())) == 1
    assert os.listdir(place) == []
    assert records(world) == []


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_tree_beside_the_place_of_a_record_is_left_alone(world, place, tmp_path, kind):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("precious")
    path = place / WHOLE_NAME
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text("precious")
    write_record(world, EXPORT.encode(ExportRecord(os.fsencode(place / STAGE_NAME))))

    warnings(world, lambda handle: handle.create())

    assert os.listdir(place) == [WHOLE_NAME]
    assert (tmp_path / "elsewhere" / "file").exists()
    assert records(world) == []


@needs_root
@pytest.mark.parametrize("theirs", [[WHOLE_NAME], [STAGE_NAME]])
def test_a_tree_of_another_user_without_a_directory_of_ours_is_left_to_them(world, place, theirs):
    (place / WHOLE_NAME).mkdir(mode=0o500)
    for name in theirs:
        (place / name).mkdir(exist_ok=True)
        os.chown(place / name, NOBODY_ID, NOBODY_ID)
    write_record(world, EXPORT.encode(ExportRecord(os.fsencode(place / STAGE_NAME))))

    assert warnings(world, lambda handle: handle.create()) == []
    assert set(os.listdir(place)) == {WHOLE_NAME, *theirs}
    assert (place / WHOLE_NAME).stat().st_mode & 0o777 == 0o500
    assert len(records(world)) == 1
