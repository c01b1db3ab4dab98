"""The comparison of ways back: what it says of given trees, and that its page shows its numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rewind import ALL_ELSE, ALL_TIMES, Damage, judge, merged, outcome, tables
from oracle import Facts, Record

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "benchmarks" / "rewind.md"
NUMBERS = PROJECT / "benchmarks" / "rewind.json"


def tree(**files: str) -> Record:
    """Returns a record of files, by what they hold."""
    facts = {"mode": 0o644, "uid": 0, "gid": 0, "mtime_ns": 1}
    return {
        name.replace("_", "/").encode(): Facts(kind="file", digest=text, **facts)
        for name, text in files.items()
    }


@pytest.mark.parametrize(
    ("before", "damaged", "after", "expected"),
    [
        (tree(d_a="1"), tree(), tree(d_a="1"), "yes"),
        (tree(d_a="1"), tree(), tree(), "no"),
        (tree(d_a="1", d_b="2"), tree(), tree(d_a="1"), "partly"),
        (tree(d_a="1"), tree(d_b="1"), tree(), "destroyed"),  # a move whose two ends are gone
        (tree(d_a="1"), tree(d_a="1"), tree(d_a="1"), "not done"),
        (tree(d_a="1", other="1"), tree(other="2"), tree(d_a="1", other="3"), "yes"),
    ],
)
def test_an_outcome_is_about_the_paths_of_a_damage(before, damaged, after, expected):
    assert outcome(Damage("", (b"d",)), before, damaged, after) == expected


def test_what_a_way_back_should_have_left_alone_is_compared_with_the_state_before_it():
    damaged = tree(**{"mine.txt": "by hand", "draft": "a", "cache_x": "b"})
    after = tree(draft="changed", cache_x="b")
    after[b"cache/x"] = replace(after[b"cache/x"], mtime_ns=2)

    found = judge({}, damaged, after)

    assert found["kept"] == {
        "what you wrote during the turn": "yes",
        "what another session of the host wrote during it": "yes",
        "your changes after the turn": "no",
        "`HEAD`, branches, staged changes, stashes": "yes",
        ALL_ELSE: "no",
        ALL_TIMES: "no",
    }
    assert (found["changed"], found["touched"]) == (["draft"], ["cache/x"])


def test_verdicts_in_several_hosts_are_one_unless_they_differ():
    results = [
        {"host": "a", "back": {"x": "yes", "y": "yes"}, "kept": {}},
        {"host": "b", "back": {"x": "yes", "y": "no"}, "kept": {}},
        {"host": "c", "back": {"x": "yes", "y": "yes"}, "kept": {}},
    ]

    assert merged(results)["back"] == {"x": "yes", "y": "yes; b: no"}


def test_the_page_shows_what_was_measured():
    results, absent = json.loads(NUMBERS.read_text(encoding="utf-8"))

    assert "\n".join(tables(results, absent)) in PAGE.read_text(encoding="utf-8")
