"""Patches, against their definition and against the tool that applies them."""

import difflib
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.diff import texts

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n"]), max_size=30)
TEXTS = st.builds(lambda lines, rest: b"".join(lines) + rest, LINES, st.sampled_from([b"", b"e"]))


@given(TEXTS, TEXTS)
def test_edits_turn_the_old_lines_into_the_new_ones(old, new):
    old_lines, new_lines = texts.split_lines(old), texts.split_lines(new)

    result: list[bytes] = []
    position = 0
    for edit in texts.find_edits(old_lines, new_lines):
        assert old_lines[position : edit.old_start] == new_lines[len(result) : edit.new_start]
        result += old_lines[position : edit.old_start]
        result += new_lines[edit.new_start : edit.new_end]
        position = edit.old_end
    result += old_lines[position:]

    assert result == new_lines


@given(TEXTS, TEXTS)
def test_hunks_are_what_the_headers_say(old, new):
    body = b"".join(texts.hunks(old, new))

    removed = b"".join(patch_lines(body, b" -"))
    added = b"".join(patch_lines(body, b" +"))
    assert all(line in old for line in [removed.partition(b"\n")[0]])
    assert (old == new) == (body == b"")
    assert texts.count_lines(old, new).insertions - texts.count_lines(old, new).deletions == len(
        texts.split_lines(new)
    ) - len(texts.split_lines(old))
    assert len(added) <= len(new) * 4 + 4


def patch_lines(body, marks):
    """Returns the lines of a patch that begin with one of the marks."""
    return [line[1:] + b"\n" for line in body.split(b"\n") if line[:1] and line[:1] in marks]


@pytest.mark.parametrize("seed", range(8))
def test_patch_applies(tmp_path, seed):
    import random

    chance = random.Random(seed)
    old = [b"line %d\n" % chance.randrange(60) for _ in range(200)]
    new = [line for line in old if chance.random() > 0.1]
    for _ in range(10):
        new.insert(chance.randrange(len(new)), b"new %d\n" % chance.randrange(5))
    (tmp_path / "f").write_bytes(b"".join(old)[: -(seed % 2)] if seed % 2 else b"".join(old))
    before = (tmp_path / "f").read_bytes()
    after = b"".join(new)[:-1] if seed % 3 else b"".join(new)

    body = b"--- a/f\n+++ b/f\n" + b"".join(texts.hunks(before, after))
    subprocess.run(["patch", "-p1", "-s", "-F0"], input=body, cwd=tmp_path, check=True)

    assert (tmp_path / "f").read_bytes() == after


def test_small_patches_are_those_of_difflib():
    old = "".join(f"{number}\n" for number in range(40))
    new = old.replace("7\n8\n", "7\nseven and a half\n8\n", 1).replace("30\n", "")

    expected = difflib.unified_diff(old.splitlines(True), new.splitlines(True))

    assert "".join(list(expected)[2:]).encode() == b"".join(texts.hunks(old.encode(), new.encode()))


def test_large_texts_without_common_lines_are_replaced_as_a_whole():
    old = [b"a%d\n" % number for number in range(5000)]
    new = [b"b%d\n" % number for number in range(5000)]

    assert texts.find_edits(old, new) == [texts.Edit(0, 5000, 0, 5000)]


@given(LINES, LINES)
def test_edits_are_as_few_as_possible_where_no_line_occurs_once(old, new):
    old, new = [line for line in old for _ in range(2)], [line for line in new for _ in range(2)]
    kept = [0] * (len(new) + 1)
    for line in old:
        row = [0]
        for number, other in enumerate(new):
            longest = max(kept[number + 1], row[number])
            row.append(kept[number] + 1 if line == other else longest)
        kept = row

    edits = texts.find_edits(old, new)

    assert sum(edit.old_end - edit.old_start for edit in edits) == len(old) - kept[-1]
    assert sum(edit.new_end - edit.new_start for edit in edits) == len(new) - kept[-1]


@given(TEXTS, TEXTS, st.integers(0, 60))
def test_edits_are_right_where_the_search_is_given_up(old, new, steps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(texts, "STEPS_MAX", steps)
        test_edits_turn_the_old_lines_into_the_new_ones.hypothesis.inner_test(old, new)


def test_few_changes_among_many_equal_lines_are_found_one_by_one():
    old = [b"%d\n" % (number * number % 7) for number in range(50_000)]
    new = old.copy()
    for number in range(10):
        new[number * 4999] = b"changed\n"

    edits = texts.find_edits(old, new)

    assert sum(edit.new_end - edit.new_start for edit in edits) == 10


def test_every_other_line_changed_is_found_line_by_line():
    old = [b"line %d\n" % number for number in range(20_000)]
    new = [b"new\n" if number % 2 else line for number, line in enumerate(old)]

    edits = texts.find_edits(old, new)

    assert len(edits) == 10_000
    assert all(edit.old_end - edit.old_start == 1 for edit in edits)


def test_content_with_a_nul_is_binary():
    assert texts.is_binary(b"a\0b")
    assert not texts.is_binary("naïve\r\n".encode("latin-1"))
