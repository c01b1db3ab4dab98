"""Signed heads of machines as a model: what a server that lies can hide, and what it cannot.

Nothing of the product is tried here. As in ``test_remote_model.py``, each of the rules is also
broken on purpose, and has to be found out.
"""

from __future__ import annotations

import pytest

from heads_model import MODES, RULES, Wrong, run
from sampling import sized

RUNS = sized(25, 3_400)
RUNS_TO_FIND_MAX = 60
FOUND_BY = {
    "keeps marks": "rollback",
    "looks at what others saw": "hide",
    "looks at the state that others read": "rollback",
    "checks signatures": "forge",
    "a history is of one machine": "forge",
    "pins the state": "rollback",
    "looks for gaps": "hide",
    "compares ids at one sequence number": "copy",
}
"""The lies that need a rule. The other rules keep an honest server from being refused."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES)
def test_no_lie_is_taken_and_no_honest_server_is_refused(mode):
    outcomes = [run(seed, mode) for seed in range(RUNS)]

    assert sum(each.pushes for each in outcomes) > RUNS
    noticed = sum(each.noticed > 0 for each in outcomes)
    # A forged head is left out; any other lie is noticed where a machine can know better.
    assert (noticed > 0) == (mode not in {"honest", "forge"})


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_found(rule):
    def explore() -> None:
        for seed in range(RUNS_TO_FIND_MAX):
            run(seed, FOUND_BY.get(rule, "honest"), rule)

    with pytest.raises(Wrong):
        explore()
