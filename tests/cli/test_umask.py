"""A umask that takes permissions from the owner of new files spoils neither store nor tree."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from treesnap.core.fs.local import LocalFileSystem


@pytest.fixture(params=["0277", "0777"])
def masked(ordinary_snap, request):
    """Runs ``snap`` under such a umask."""
    words = ["sh", "-c", f'umask {request.param}; "$@"', "sh"]
    return partial(ordinary_snap, prefix=[*ordinary_snap.keywords.get("prefix", ()), *words])


def test_what_was_made_under_it_can_be_opened_again(masked, root, store):
    (root / "sub").mkdir()
    (root / "sub" / "file").write_text("before")

    assert masked("create").code == 0
    (root / "sub" / "file").write_text("after")
    assert masked("run", "--", "sh", "-c", "rm -r sub; exit 3").code == 3
    assert (root / "sub" / "file").read_text() == "after"
    assert masked("restore", "latest~1").code == 0
    assert (root / "sub" / "file").read_text() == "before"
    assert masked("verify", "--read-data").code == 0

    modes = {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in store.rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}


@pytest.fixture
def mask(request):
    before = os.umask(0o777)
    yield 0o777
    os.umask(before)


@pytest.mark.usefixtures("mask")
def test_what_is_made_gets_what_its_owner_was_to_have_and_nothing_else(tmp_path):
    fs = LocalFileSystem()

    fs.make_directory(str(tmp_path / "directory"), 0o755)
    fs.close(fs.open(str(tmp_path / "file"), os.O_CREAT | os.O_WRONLY, 0o644))

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(tmp_path).iterdir()}
    assert modes == {"directory": 0o700, "file": 0o600}
