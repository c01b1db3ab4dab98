"""``snap blame``."""

from __future__ import annotations

import os
from random import Random

import pytest

import treesnap
from treesnap.core.ops.history.steps import EventPhase


@pytest.fixture
def history(snap, root):
    """A file of three versions; the mode changes between them."""
    (root / "other").touch()
    snap("create", "-m", "nothing yet")
    (root / "a").write_text("one\ntwo\nthree\n")
    snap("create", "-m", "first")
    (root / "a").write_text("zero\none\nthree\n")
    snap("create", "--session", "build", "--step", "7")
    (root / "a").chmod(0o600)
    snap("create", "-m", "mode")
    (root / "a").write_text("zero\none\ntwo\nthree\nfour")
    snap("create", "-m", "third")
    return root


def brought(handle, path="a", **words):
    """Returns each line with the label or step of its snapshot."""
    return [
        (os.fsdecode(line.text), line.snapshot.label or line.snapshot.step)
        for line in handle.blame(path, **words).lines
    ]


def test_each_line_has_the_snapshot_that_brought_it(snap, history, root, store):
    handle = treesnap.open(root, store)

    assert brought(handle) == [
        ("zero\n", 7),
        ("one\n", "first"),
        ("two\n", "third"),  # it was removed, and came back
        ("three\n", "first"),
        ("four", "third"),
    ]
    assert brought(handle, ref="latest~1") == [
        ("zero\n", 7),
        ("one\n", "first"),
        ("three\n", "first"),
    ]


def test_columns_are_id_time_title_number_and_text(snap, history):
    lines = snap("blame", "a").out.splitlines()

    assert [line.split()[-2:] for line in lines] == [
        ["1", "zero"],
        ["2", "one"],
        ["3", "two"],
        ["4", "three"],
        ["5", "four"],
    ]
    assert "before (build step 7)" in lines[0]
    assert "first " in lines[1]


def test_json_names_snapshots_once(snap, history):
    fields = snap("blame", "a", "--json").json

    ids = {item["label"]: item["id"] for item in fields["snapshots"]}
    assert fields["lines"][1] == {
        "number": 2,
        "text": "one",
        "id": ids["first"],
        "step_id": None,
    }
    assert set(ids) == {None, "first", "third"}
    assert fields["is_complete"]


def test_a_line_that_came_in_a_step_stands_behind_that_step(snap, root):
    (root / "a").write_text("one\n")
    snap("create", "-m", "first")
    for step, word in enumerate(["two", "three"], start=1):
        snap("create", "--session", "loop", "--step", step)
        with (root / "a").open("a") as file:
            file.write(f"{word}\n")
    snap("create", "-m", "done")
    with (root / "a").open("a") as file:
        file.write("mine\n")
    snap("create", "-m", "next", "--session", "loop", "--step", "9")

    titles = [line.split("  ")[2].strip() for line in snap("blame", "a").out.splitlines()]
    fields = snap("blame", "a", "--json").json

    assert titles == ["first", "(loop step 1)", "(loop step 2)", "before next (loop step …"]
    steps = {item["id"]: item["step"] for item in fields["snapshots"]}
    by_step = [steps.get(line["step_id"]) for line in fields["lines"]]
    assert by_step == [None, 1, 2, None]


def test_a_line_that_an_agent_wrote_stands_behind_the_tool_that_wrote_it(
    snap, root, store, agent_step
):
    handle = treesnap.open(root, store)
    agent_step(EventPhase.TURN, 1, prompt="plant")
    agent_step(EventPhase.PRE, 2, tool="Write", summary="bed")
    (root / "bed").write_text("beans\n")
    agent_step(EventPhase.PRE, 3, tool="Bash", summary="echo")
    (root / "bed").write_text("beans\npeas\n")
    agent_step(EventPhase.END, 4)
    (root / "bed").write_text("beans\npeas\nmine\n")
    snap("create", "-m", "by hand")

    lines = handle.blame("bed").lines

    assert [(line.step or line.snapshot).label for line in lines] == [
        "Write: bed",
        "Bash: echo",
        "by hand",
    ]


def test_a_file_that_was_gone_begins_anew(snap, root, store):
    (root / "a").write_text("same\n")
    snap("create", "-m", "old")
    (root / "a").unlink()
    snap("create", "-m", "gone")
    (root / "a").write_text("same\n")
    snap("create", "-m", "new")

    assert brought(treesnap.open(root, store)) == [("same\n", "new")]


def test_what_has_no_lines_is_refused(snap, history, root):
    (root / "binary").write_bytes(b"\0")
    (root / "directory").mkdir()
    (root / "large").write_bytes(b"x" * 2000)
    snap("create")

    assert snap("blame", "binary").code == 2
    assert snap("blame", "directory").code == 2
    assert "'.' is not a file" in snap("blame", ".").err
    assert snap("blame", "absent").code == 5
    told = snap("blame", "large", "--max-size", "1000")
    assert told.code == 3
    assert "more than 1000 B" in told.err


def test_an_older_version_that_is_too_large_is_said(snap, root):
    (root / "a").write_bytes(b"kept\n" + b"x" * 2000)
    snap("create", "-m", "large")
    (root / "a").write_bytes(b"kept\n")
    snap("create", "-m", "small")

    told = snap("blame", "a", "--max-size", "1000")

    assert "not looked at" in told.err
    assert "small" in told.out


def test_a_line_is_in_every_version_since_its_snapshot_and_not_in_the_one_before(tmp_path):
    random = Random(3)
    root = tmp_path / "root"
    root.mkdir()
    handle = treesnap.open(root, tmp_path / "store")
    lines = [f"line {number}\n" for number in range(30)]
    versions = []
    for number in range(25):
        for _ in range(random.randrange(4)):
            place = random.randrange(len(lines))
            if random.random() < 0.5:
                del lines[place]
            lines.insert(place, f"new {number} {random.random()}\n")
        (root / "a").write_text("".join(lines))
        versions.append((handle.create().snapshot.sequence, list(lines)))

    for line in handle.blame("a").lines:
        text = line.text.decode()
        holding = [sequence for sequence, content in versions if text in content]
        assert line.snapshot.sequence == min(holding)
