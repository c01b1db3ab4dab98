"""The oracle is not blind: it sees every kind of change that other tests rely on it to see."""

from __future__ import annotations

import os
from random import Random

import pytest

import trees
from mutations import MUTATIONS
from oracle import copy_tree, difference, record, without


@pytest.mark.parametrize("mutation", sorted({*MUTATIONS}, key=lambda item: item.__name__))
def test_the_oracle_sees_every_mutation(tmp_path, mutation):
    trees.build(tmp_path / "root", 0)
    before = record(tmp_path / "root")
    random = Random(0)

    for _ in range(5):
        try:
            mutation(os.fsencode(tmp_path / "root"), random)
        except PermissionError as error:
            pytest.skip(f"not permitted here: {error}")

    assert difference(before, record(tmp_path / "root")) != []


def test_a_copy_is_the_same_but_for_sockets(tmp_path):
    trees.build(tmp_path / "root", 0)
    copy_tree(tmp_path / "root", tmp_path / "copy")

    original = without(record(tmp_path / "root"), b"still/socket")

    assert difference(original, record(tmp_path / "copy")) == []


def test_a_seed_always_makes_the_same_tree(tmp_path):
    trees.build(tmp_path / "one", 7, still=False)
    trees.build(tmp_path / "two", 7, still=False)

    assert difference(record(tmp_path / "one"), record(tmp_path / "two")) == []
