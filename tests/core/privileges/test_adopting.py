"""Forks and adoptions of a user who may not set owners, nor read everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import treesnap
from oracle import difference, record
from privileges import as_nobody, everything_is_loaded


def load_all(directory: Path) -> None:
    """Adopts once, so that what the children use is loaded already."""
    everything_is_loaded(directory)
    (directory / "first").mkdir()
    (directory / "first/file").write_text("1\n")
    handle = treesnap.open(directory / "first", directory / "first-store")
    handle.create()
    handle.fork("latest", [directory / "first-fork"])
    (directory / "first-fork/file").write_text("2\n")
    (directory / "first/file").write_text("3\n")
    with pytest.raises(treesnap.MergeConflict):
        handle.adopt(directory / "first-fork")
    handle.adopt(directory / "first-fork", conflicts="theirs")


def test_what_cannot_be_given_away_or_read_stays(open_directory):
    load_all(open_directory)
    root, fork = open_directory / "root", open_directory / "fork"

    def opened() -> treesnap.Handle:
        return treesnap.open(root, open_directory / "store")

    def begin() -> None:
        root.mkdir()
        for name in ("given", "secret", "plain"):
            (root / name).write_text(name)
        opened().create()
        opened().fork("latest", [fork])
        for name in ("given", "secret", "plain"):
            (fork / name).write_text("by the fork")

    def adopt_what_is_open() -> None:
        done = opened().adopt(fork)
        assert {item.path for item in done.changes} == {b"given", b"plain"}
        assert (root / "given").read_text() == (root / "plain").read_text() == "by the fork"
        assert (root / "given").stat().st_uid == os.geteuid()
        assert (root / "secret").read_text() == "secret"
        opened().undo()
        assert (root / "given").read_text() == "given"

    def adopt_what_is_closed() -> None:
        before = record(root)
        with pytest.raises(treesnap.TreesnapError):
            opened().adopt(fork)
        assert difference(before, record(root)) == []

    if os.geteuid() != 0:
        pytest.skip("Only the superuser can give files away")
    as_nobody(begin)
    os.chown(fork / "given", 1234, 1234)
    os.chown(fork / "secret", 0, 0)
    (fork / "secret").chmod(0)
    as_nobody(adopt_what_is_open)
    os.chown(fork, 0, 0)
    fork.chmod(0)
    as_nobody(adopt_what_is_closed)
