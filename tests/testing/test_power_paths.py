"""The model of power cuts: which files its calls are about, however they are named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk import Node, load
from power import PoweredFileSystem, PowerStep, Recording, Sync

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A directory with a file and a directory; beside it lies another one."""
    path = tmp_path / "top"
    (path / "below").mkdir(parents=True)
    (path / "old").write_bytes(b"old")
    (tmp_path / "beside").mkdir()
    return path


@pytest.fixture
def fs(top: Path) -> Iterator[PoweredFileSystem]:
    """Also asserts that the model of the disk is exact afterwards."""
    powered = PoweredFileSystem(str(top))
    yield powered
    assert powered.disk.contents() == load(str(top)).contents()


def labels(recording: Recording) -> list[str]:
    return [event.effect.label for event in recording.events if isinstance(event, PowerStep)]


@pytest.mark.needs("attributes")
def test_attributes_are_those_of_a_descriptor_or_of_a_name_in_it(fs, top):
    """The latter may be one that cannot be opened."""
    fd = fs.open(str(top), os.O_RDONLY)
    fs.set_xattr((fd, b"old"), "user.one", b"1")
    fs.set_xattr(fd, "user.two", b"2")

    contents = fs.disk.contents()

    fs.close(fd)
    assert contents[b"old"][0].facts.xattrs == (("user.one", b"1"),)
    assert contents[b""][0].facts.xattrs == (("user.two", b"2"),)


def test_a_directory_may_be_named_with_a_slash_at_its_end(fs, top):
    fd = fs.open(f"{top}/below/", os.O_RDONLY)
    fs.close(fs.open("new", NEW, dir_fd=fd))
    fs.sync(fd)
    fs.close(fd)

    assert b"below/new" in fs.disk.contents()
    (sync,) = (event for event in fs.recording().events if isinstance(event, Sync))
    assert sync.node == dict(fs.disk.walk())[b"below"]


def test_a_file_that_is_open_and_has_no_name_is_written_to_all_the_same(fs, top):
    facts = fs.disk.contents()[b"old"][0].facts
    fd = fs.open(str(top / "old"), os.O_RDWR)
    fs.unlink(str(top / "old"))
    fs.write_at(fd, b"new", 0)
    fs.close(fd)

    assert [label.split()[0] for label in labels(fs.recording())] == ["unlink", "write_at"]
    assert Node(facts=facts, content=b"new") in fs.disk.nodes.values()


def test_opening_may_empty_a_file(fs, top):
    fs.close(fs.open(str(top / "old"), os.O_WRONLY | os.O_TRUNC))

    assert fs.disk.contents()[b"old"][0].content == b""
    assert labels(fs.recording()) == ["open 'old'"]


@pytest.mark.needs("exchange")
def test_what_happens_beside_the_directory_is_not_recorded(fs, tmp_path):
    beside = tmp_path / "beside"
    fd = fs.open(str(beside), os.O_RDONLY)
    for name in ("a", "b"):
        file_fd = fs.open(str(beside / name), NEW)
        fs.write(file_fd, name.encode())
        fs.sync(file_fd)
        fs.close(file_fd)
    fs.link(str(beside / "a"), str(beside / "c"))
    fs.rename(str(beside / "c"), str(beside / "d"))
    fs.exchange("a", "b", source_dir_fd=fd, target_dir_fd=fd)
    fs.unlink(str(beside / "d"))
    fs.close(fd)

    assert fs.recording().events == ()
    assert [(beside / name).read_bytes() for name in ("a", "b")] == [b"b", b"a"]


@pytest.mark.parametrize(
    "method",
    ["rename_to_absent", pytest.param("exchange", marks=pytest.mark.needs("exchange"))],
)
def test_a_move_across_the_border_of_what_is_recorded_is_refused(top, tmp_path, method):
    """The model would not know any more what it holds: more has to be recorded."""
    beside = tmp_path / "beside"
    name = "old" if method == "exchange" else "new"
    (beside / "other").touch()
    fs = PoweredFileSystem(str(top))
    inside, outside = (fs.open(str(path), os.O_RDONLY) for path in (top, beside))

    with pytest.raises(AssertionError, match="across the border"):
        getattr(fs, method)("other", name, source_dir_fd=outside, target_dir_fd=inside)

    fs.close(inside)
    fs.close(outside)
