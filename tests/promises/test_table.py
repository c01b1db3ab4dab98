"""The table of mutations names what the promises name, and still fits the sources."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from fence_protocol import RULES
from promises.fence_mutations import BROKEN
from promises.mutations import MUTATIONS, Mutation
from promises.run_promises import PROJECT, SOURCES

PAGE = PROJECT / "docs" / "reference" / "promises.md"


def test_each_test_of_a_promise_has_a_mutation_that_it_must_notice():
    rows = re.findall(
        r"^\| (P\d+) \|.*\| ([^|]*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    mutated = defaultdict(set)
    for mutation in MUTATIONS:
        for promise, tests in mutation.tests.items():
            mutated[promise] |= {f"tests/{test.partition('::')[0]}" for test in tests}

    assert {promise: set(re.findall(r"`([^`]+)`", tests)) for promise, tests in rows} == mutated


def test_each_rule_of_the_fence_is_broken_and_found_beside_the_model():
    assert [broken.rule for broken in BROKEN] == list(RULES)
    assert [
        broken.rule for broken in BROKEN if not (broken.matrix or broken.orders or broken.is_soaked)
    ] == []


@pytest.mark.parametrize(
    "mutation",
    [*MUTATIONS, *(broken.mutation for broken in BROKEN if broken.mutation not in MUTATIONS)],
    ids=lambda mutation: mutation.what,
)
def test_a_mutation_fits_its_module(mutation: Mutation):
    path = SOURCES / "treesnap" / mutation.source
    text = path.read_text(encoding="utf-8")

    assert [text.count(old) for old, _ in mutation.edits] == [1] * len(mutation.edits)
    for old, new in mutation.edits:
        text = text.replace(old, new)
    compile(text, str(path), "exec")
