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


EVIL = "\x1b]0;title\a\x9b31m\r"
NAMED = [
    ["list"],
    ["show", "latest"],
    ["ls", "-R", "-l", "latest"],
    ["find", "*"],
    ["status"],
    ["diff"],
    ["diff", "--stat"],
    ["diff", "--name-status"],
    ["diff", "latest", EVIL],
    ["log"],
    ["log", f"link{EVIL}"],
    ["log", "--grep", EVIL],
    ["blame", f"sub{EVIL}/file"],
    ["du"],
    ["grep", "x"],
    ["root", "list"],
    ["store", "info"],
    ["doctor"],
    ["config"],
    ["config", "exclude"],
    ["restore", "latest", "--dry-run"],
    ["revert", "latest", "--dry-run"],
    ["prune", "--keep-last", "1", "--dry-run"],
    ["create", "-m", EVIL],
    ["run", "--", f"sh{EVIL}"],
    ["restore", EVIL],
    ["show", EVIL],
    ["delete", EVIL],
    ["restore", "latest", f"--{EVIL}"],
    [EVIL],
    ["-C", EVIL, "list"],
    ["remote", "list"],
    ["restore", "latest"],
    ["undo"],
]


@pytest.mark.needs("attributes")
def test_no_name_can_act_on_a_terminal_whatever_prints_it(tmp_path, run_snap):
    """Names of paths, targets of links, attributes, labels, tags, settings, and words typed."""
    root = tmp_path / f"root{EVIL}"
    (root / f"sub{EVIL}").mkdir(parents=True)
    (root / f"sub{EVIL}" / "file").write_text("x\n")
    (root / f"link{EVIL}").symlink_to(f"target{EVIL}\nline")
    (root / f"was{EVIL}").write_text("x\n")
    run_snap("create", "-m", f"label{EVIL}", "--tag", f"key{EVIL}=value{EVIL}", cwd=root)
    run_snap("config", "exclude", f"left{EVIL}", cwd=root)
    run_snap("remote", "add", "copy", tmp_path / f"copy{EVIL}", cwd=root)
    (root / f"link{EVIL}").unlink()
    (root / f"link{EVIL}").symlink_to(f"elsewhere{EVIL}")
    (root / f"was{EVIL}").unlink()
    (root / f"was{EVIL}").symlink_to(EVIL)
    (root / f"left{EVIL}").mkdir()
    os.mkfifo(root / f"pipe{EVIL}")
    os.setxattr(root / f"sub{EVIL}" / "file", b"user.\x1b[31m", b"1")

    for words in NAMED:
        outcome = run_snap(*words, cwd=root)
        told = outcome.out + outcome.err
        assert not {"\x1b", "\a", "\x9b", "\r"} & {*told}, (words, told)


def test_the_target_of_a_link_stands_in_a_patch_as_a_path_does(root, snap):
    (root / "link").symlink_to("one\nline")
    snap("create")
    (root / "link").unlink()
    (root / "link").symlink_to("two\x1b[31m")

    assert snap("diff").out.splitlines()[-5:] == [
        "@@ -1 +1 @@",
        "-one\\nline",
        "\\ No newline at end of file",
        "+two\\x1b[31m",
        "\\ No newline at end of file",
    ]
