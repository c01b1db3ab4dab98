"""The page about forks shows the numbers of its run, and says what they say."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

from benchmarks.forks import WAYS, tables

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "benchmarks" / "forks.md"
NUMBERS = json.loads((PROJECT / "benchmarks" / "forks.json").read_text(encoding="utf-8"))


def test_the_page_shows_the_numbers_of_the_run():
    page = PAGE.read_text(encoding="utf-8")

    assert tables(NUMBERS).strip() in page
    assert f"{NUMBERS['tree']['files']:,} files" in page
    assert f"{NUMBERS['forks']} copies, {NUMBERS['rounds']} round" in page


def test_a_missed_promise_is_said():
    numbers = deepcopy(NUMBERS)
    ways = numbers["results"]["btrfs"]["ways"]
    others = [ways[name]["seconds"] for name, way in WAYS.items() if way.is_independent]
    ways["fork"]["seconds"] = 2 * min(others)

    assert "**missed**" in tables(numbers)
    assert "**missed**" not in tables(numbers | {"results": {"ext4": numbers["results"]["ext4"]}})
