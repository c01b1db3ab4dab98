"""The fence of a store as a model: every order of steps with few switches loses nothing.

The rules are written down a second time, in ``fence_protocol``; nothing here is the product's
code. A model that cannot fail proves nothing, so what was lost once is found in it, and each rule
is broken on purpose.
"""

from __future__ import annotations

import pytest

from fence_protocol import (
    LOSSES,
    RULES,
    SCENES,
    by_copy,
    by_left,
    explore,
    gc,
    healer,
    hold,
    let_go_a,
    let_go_c,
    look,
    move,
    new_root,
    prune,
    repair,
    repair_file,
    resumed,
    say_a,
    say_c,
)
from sampling import IS_FULL

pytestmark = pytest.mark.sampled(10)

SHOWN_BY = {
    "one way": (repair, resumed, gc),
    "pending first": (gc, resumed),
    "judge": (repair_file, healer),
    "own hold": (hold, hold, prune),
    "enter": (move, new_root),
    "close": (move, new_root),
    "same": (move, new_root, move),
    "alive": (hold, move, prune),
    "order": (gc, move),
    "shared": (say_a, say_c),
    "last": (let_go_a, say_c, let_go_c),
    "state first": (say_c, let_go_a, let_go_c, look),
    "note copy": (move, by_copy),
    "note left": (move, by_left),
    "heed": (move, by_left),
    "unnote": (move, look, by_left),
}
"""A scene in which it shows that a rule is broken; for the others, a collection and a writer."""


@pytest.mark.parametrize("title", LOSSES)
def test_what_was_lost_once_is_found(title):
    broken, scene = LOSSES[title]
    _, problem = explore(scene, broken, 3)

    assert problem is not None


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_found(rule):
    _, problem = explore(SHOWN_BY.get(rule, (gc, resumed)), {rule}, 3)

    assert problem is not None


@pytest.mark.parametrize("number", range(len(SCENES)))
@pytest.mark.sampled(8)
def test_no_order_of_steps_loses_anything(number):
    scene, switches = SCENES[number]
    is_long = switches == 3 and not IS_FULL  # tens of thousands of orders
    runs, problem = explore(scene, set(), 2 if is_long else switches)

    assert problem is None
    assert runs > 1
