"""The page about forks shows the numbers of its run, and says what they say."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

from benchmarks.forks import PROJECT_WAYS, WAYS, project_tables, tables

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "benchmarks" / "forks.md"
NUMBERS = json.loads((PROJECT / "benchmarks" / "forks.json").read_text(encoding="utf-8"))


def test_the_page_shows_the_numbers_of_the_run():
    page = PAGE.read_text(encoding="utf-8")

    assert tables(NUMBERS).strip() in page
    assert f"{NUMBERS['tree']['files']:,} files" in page
    assert f"{NUMBERS['forks']} copies, {NUMBERS['rounds']} round" in page


def test_the_page_shows_what_copies_of_projects_have():
    numbers = NUMBERS["projects"]
    page = PAGE.read_text(encoding="utf-8")

    assert project_tables(numbers).strip() in page
    assert f"The shortest of {numbers['rounds']} rounds" in page
    assert all(f"{count:,}" in page for count in numbers["files"].values())
    for by_kind in numbers["results"].values():
        found = [by_kind[kind][name] for kind in by_kind for name in PROJECT_WAYS]
        costs = {"seconds", "bytes"}
        had = [{key: row[key] for key in row.keys() - costs} for row in found]
        assert all(row == had[at % len(PROJECT_WAYS)] for at, row in enumerate(had))


def test_a_missed_promise_is_said():
    numbers = deepcopy(NUMBERS)
    ways = numbers["results"]["btrfs"]["ways"]
    others = [ways[name]["seconds"] for name, way in WAYS.items() if way.is_independent]
    ways["fork"]["seconds"] = 2 * min(others)

    assert "**missed**" in tables(numbers)
    assert "**missed**" not in tables(numbers | {"results": {"ext4": numbers["results"]["ext4"]}})
