"""Merges of texts, against what they mean and against the merge of diffutils."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.diff.three_way import Labels, are_texts, merge_texts

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=12)
TEXTS = st.builds(lambda lines, rest: b"".join(lines) + rest, LINES, st.sampled_from([b"", b"e"]))
LABELS = Labels("here", "there")


@given(TEXTS, TEXTS)
def test_what_one_side_changed_is_taken(base, changed):
    assert merge_texts(base, base, changed) == (changed, False)
    assert merge_texts(base, changed, base) == (changed, False)
    assert merge_texts(base, changed, changed) == (changed, False)


@given(TEXTS, TEXTS, TEXTS)
def test_a_merge_is_symmetric(base, one, other):
    merged, is_conflict = merge_texts(base, one, other)
    other_way, is_other_conflict = merge_texts(base, other, one)

    assert is_conflict == is_other_conflict
    if not is_conflict:
        assert merged == other_way


@given(st.lists(st.tuples(st.sampled_from(["both", "mine", "theirs", "same"]), st.booleans())))
def test_changes_apart_from_each_other_are_both_made(parts):
    """A line that stays is between any two that change."""
    base, mine, theirs, merged = [], [], [], []
    for number, (which, is_kept) in enumerate(parts):
        old, new = b"old %d\n" % number, b"new %d\n" % number if is_kept else b""
        base += [old, b"between %d\n" % number]
        for side, changes in ((mine, {"mine", "both"}), (theirs, {"theirs", "both"})):
            side += [new if which in changes else old, b"between %d\n" % number]
        merged += [old if which == "same" else new, b"between %d\n" % number]

    assert merge_texts(b"".join(base), b"".join(mine), b"".join(theirs)) == (
        b"".join(merged),
        False,
    )


@pytest.mark.skipif(shutil.which("diff3") is None, reason="diff3 is not installed")
@given(
    base=st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=12),
    edits=st.lists(
        st.tuples(st.booleans(), st.integers(0, 11), st.sampled_from(["put", "drop", "add"])),
        max_size=5,
    ),
)
def test_a_merge_without_a_conflict_is_that_of_diff3(tmp_path_factory, base, edits):
    sides = [[b"%d\n" % number for number in base] for _ in range(2)]
    for number, (is_mine, place, what) in enumerate(edits):
        side = sides[is_mine]
        at = min(place, len(side))
        if what == "add":
            side.insert(at, b"added %d\n" % number)
        elif at < len(side):
            side[at : at + 1] = [b"put %d\n" % number] if what == "put" else []
    directory = tmp_path_factory.mktemp("texts")
    old = b"".join(b"%d\n" % number for number in base)
    mine, theirs = (b"".join(side) for side in sides)
    names = {"mine": mine, "old": old, "theirs": theirs}
    for name, content in names.items():
        (directory / name).write_bytes(content)

    done = subprocess.run(["diff3", "-m", *names], cwd=directory, capture_output=True, check=False)

    merged, is_conflict = merge_texts(old, mine, theirs)
    if done.returncode == 0 and not is_conflict:
        assert merged == done.stdout
    if is_conflict:  # touching changes are conflicts here and there
        assert done.returncode == 1


def test_a_conflict_is_written_with_both_sides():
    merged, is_conflict = merge_texts(
        b"1\n2\n3\n4\n", b"0\n1\nmine\n3\n4", b"1\ntheirs\n3\n4\n", LABELS
    )

    assert is_conflict
    assert merged == (b"0\n1\n<<<<<<< here\nmine\n=======\ntheirs\n>>>>>>> there\n3\n4")


def test_lines_that_both_sides_of_a_conflict_share_stand_outside_of_it():
    merged, _ = merge_texts(b"old\n", b"same\nmine\nend\n", b"same\ntheirs\nend\n", LABELS)

    assert merged == (b"same\n<<<<<<< here\nmine\n=======\ntheirs\n>>>>>>> there\nend\n")


def test_a_line_without_its_end_does_not_swallow_a_mark():
    merged, _ = merge_texts(b"", b"mine", b"theirs", LABELS)

    assert merged == b"<<<<<<< here\nmine\n=======\ntheirs\n>>>>>>> there\n"


def test_bytes_and_very_long_texts_are_no_texts():
    assert are_texts(b"a\n", b"")
    assert not are_texts(b"a\n", b"\0")
    assert not are_texts(b"a" * ((4 << 20) + 1))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_marks_end_as_the_lines_around_them(end):
    base, mine, theirs = (
        end.join([b"first", word, b"last", b""]) for word in (b"old", b"one", b"two")
    )

    merged, is_conflict = merge_texts(base, mine, theirs, LABELS)

    assert is_conflict
    assert merged == end.join(
        [b"first", b"<<<<<<< here", b"one", b"=======", b"two", b">>>>>>> there", b"last", b""]
    )


def test_a_mark_after_a_last_line_without_an_ending_ends_as_the_others():
    merged, _ = merge_texts(b"old", b"one\r\nmore", b"two", LABELS)

    assert merged == b"<<<<<<< here\r\none\r\nmore\r\n=======\r\ntwo\r\n>>>>>>> there\r\n"
