"""``snap timeline``: the page that it writes, and when it refuses."""

import fcntl
import os
import sys

import pytest

PIPE_BYTES = 1 << 20
"""What a pipe holds until it is read, more than a page has."""


@pytest.fixture
def captured(snap, root):
    """A root with two snapshots."""
    (root / "file").write_text("one\n")
    snap("create")
    (root / "file").write_text("two\n")
    return snap("create", "-m", "second").id


def test_it_writes_a_page(snap, root, captured, tmp_path):
    result = snap("timeline", "--html", tmp_path / "page.html")

    assert result.code == 0
    assert result.out.startswith("Wrote ")
    assert ": 2 snapshots, 2 differences, " in result.out
    text = (tmp_path / "page.html").read_text()
    assert "second" in text
    assert "<ins>+two</ins>" in text
    assert not list(root.glob("*.html"))


def test_the_page_can_go_to_standard_output(snap, root, captured):
    result = snap("timeline", "--html", "-")

    assert result.code == 0
    assert result.out.startswith("<!doctype html>")
    assert result.out.endswith("</html>\n")
    assert "<ins>+two</ins>" in result.out
    assert sorted(path.name for path in root.iterdir()) == ["file"]
    assert "--max-size SIZE" in snap("timeline", "--html", "-", "--max-size", "1").err
    assert snap("timeline", "--html", "-", "--json").code == 2


def test_it_says_as_json_what_it_wrote(snap, captured, tmp_path):
    document = snap("timeline", "--html", tmp_path / "page.html", "--json").json

    assert document == {
        "schema": "treesnap.timeline/1",
        "file": str(tmp_path / "page.html"),
        "size_bytes": (tmp_path / "page.html").stat().st_size,
        "snapshots": 2,
        "differences": 2,
        "differences_without": 0,
        "snapshots_without": 0,
    }


def test_what_does_not_fit_is_said(snap, captured, tmp_path):
    result = snap("timeline", "--html", tmp_path / "page.html", "--max-size", "1")

    assert result.code == 0
    assert "--max-size SIZE allows more" in result.err


def test_a_file_that_cannot_be_written_is_an_error(snap, captured, tmp_path):
    result = snap("timeline", "--html", tmp_path / "absent" / "page.html", "--json")

    assert (result.code, result.json["code"]) == (5, "path-not-found")
    assert result.json["hint"] == "make the directory first, or name another FILE"


def test_without_a_terminal_it_says_what_to_do(snap, captured):
    result = snap("timeline")

    assert result.code == 2
    assert "--html FILE" in result.err


def test_without_the_extra_it_says_how_to_install_it(snap, captured, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("textual", "treesnap.timeline"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)

    result = snap("timeline")

    assert result.code == 1
    assert "type: pip install 'treesnap[ui]'\n" in result.err


@pytest.mark.needs("linux")
def test_what_is_no_file_is_written_to_and_stays(snap, captured, tmp_path):
    """A rename by root would make an ordinary file of /dev/null, for every program."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

        result = snap("timeline", "--html", pipe)

        assert result.code == 0
        assert pipe.is_fifo()
        assert b"<html" in reader.read()
