"""Names that people type and lists show are short and stay on one line."""

from __future__ import annotations

import os
import uuid

import pytest

import treesnap

UNFIT = [
    "two\nlines",
    "-x",
    "--all",
    "bell\a",
    "tab\there",
    "\x1b[31mred",
    "nul\0",
    "turned\u202etxt",
    "x" * 256,
]
FIT = ["x" * 255, "é" * 127, "für später", "日本", "a b"]


@pytest.fixture
def handle(root, tmp_path):
    """A handle on a small root."""
    (root / "file").write_text("content")
    return treesnap.open(root, tmp_path / "store")


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("what", ["name", "session"])
def test_an_unfit_name_is_refused(handle, name, what):
    with pytest.raises(treesnap.InvalidArgument) as caught:
        handle.create(**{what: name})

    assert f"The {what} " in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)
    assert not os.path.exists(handle.store_path)


@pytest.mark.parametrize("name", FIT)
def test_a_fit_name_is_found_again(handle, name):
    made = handle.create(name=name, session=str(uuid.UUID(int=7)))

    assert handle.resolve(name).id == made.id


@pytest.mark.parametrize("option", ["--name", "--session"])
def test_the_command_says_what_is_wrong(snap, option):
    refused = snap("create", option, "two\nlines")

    assert refused.code == 2
    assert "line break" in refused.err


def test_a_time_beyond_calendars_is_seconds_as_date_takes_them(root, snap):
    seconds = 1 << 56
    (root / "file").write_text("content")
    os.utime(root / "file", (seconds, seconds))
    if os.stat(root / "file").st_mtime != seconds:
        pytest.skip("the file system cannot hold such times")
    snap("create")

    assert f" @{seconds} " in snap("ls", "-l", "latest").out
