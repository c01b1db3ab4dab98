"""Whose work a rewind undoes: the rules on random histories, and what was built after them."""

from __future__ import annotations

from collections import Counter

import pytest

from attribution_model import (
    RULES,
    Rates,
    Rules,
    World,
    check,
    fold,
    opened,
)
from sampling import SEED, sized
from treesnap.agents.attribution import (
    Attribution,
    OpenCall,
    Span,
    Verdict,
    Whose,
    calls_by_span,
    calls_in,
)
from treesnap.agents.marks import MarkPhase, ToldMark

SETTINGS = {
    "as told": Rates(),
    "the user writes while calls run": Rates(sneaks=0.3),
    "beginnings that are not captured": Rates(gaps=0.1),
    "beginnings that are lost": Rates(losses=0.1),
    "a host without ends": Rates(has_no_posts=True),
    "interrupted calls": Rates(interruptions=0.2),
    "interrupted calls, and commands as prompts": Rates(interruptions=0.4, commands=0.5),
    "late ends": Rates(late=0.5),
    "all of it": Rates(0.2, 0.1, 0.0, False, 0.1, 0.3, 0.2),
}
COUNT = sized(150, 12_500)
FIRST = (11 + SEED) * 10**6


def judged(world: World, session: str, target: int):
    """Returns what the product does in a history of the model, in the model's words."""
    marks = [
        ToldMark(
            told.at,
            told.session,
            MarkPhase(told.phase),
            told.key,
            None if told.paths is None else tuple(path.encode() for path in told.paths),
        )
        for told in world.told
    ]
    states = world.states[target:]
    spans = [Span({})]
    for place in range(target + 1, len(world.states)):
        old, new = world.states[place - 1], world.states[place]
        changes = {
            path.encode(): (old.get(path), new.get(path))
            for path in {*old, *new}
            if old.get(path) != new.get(path)
        }
        by = world.restores.get(place)
        restored = {path: {versions[1]: by == session} for path, versions in changes.items() if by}
        spans.append(Span(changes, lambda path, restored=restored: restored.get(path, {})))
    numbers = list(range(target, len(world.states)))
    calls = calls_by_span(calls_in(marks, numbers[-1]), numbers)
    found = {}
    for path, judgement in Attribution(session, spans, calls).judged().items():
        state = states[judgement.stop or 0]
        found[path.decode()] = (state.get(path.decode()), judgement.verdict.value)
    return found


def model(world: World, session: str, target: int, rules: Rules = RULES):
    spans = opened(world.told, len(world.states), rules)
    found = fold(world.states, spans, world.restores, session, target, rules)
    return {path: (verdict.value, verdict.what) for path, verdict in found.items()}


@pytest.mark.parametrize("rates", SETTINGS.values(), ids=SETTINGS)
def test_no_version_of_others_is_lost_and_the_product_does_as_the_model(rates):
    tally = Counter()

    def compare(world: World, target: int) -> None:
        has_calls = {mark.session for mark in world.told if mark.phase in ("pre", "gap")}
        if has_calls >= {mark.session for mark in world.told if mark.phase == "turn"}:
            expected = model(world, "a", target)
            assert {
                path: found
                for path, found in judged(world, "a", target).items()
                if path in expected
            } == expected
            tally["compared"] += 1

    for number in range(COUNT):
        check(FIRST + number, tally, rates, also=compare)

    assert tally["compared"] > COUNT // 3
    assert tally["undone"] > 0
    if rates == Rates():
        assert tally["lost"] == 0


BROKEN = {
    "what is shared is its own": Rules(shared_is_own=True),
    "what goes on in the background is its own": Rules(job_is_own=True),
    "what a restore brings is of others": Rules(restore_is_others=True),
    "a call without an end never ends": Rules(never_closes=True),
    "a tool may change other paths than it says": Rules(ignores_paths=True),
    "a restore goes on from the oldest version": Rules(oldest_version=True),
    "a prompt that was not captured ends calls where they began": Rules(
        gaps_end_nothing_later=True
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rules", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_found(rules):
    def differs(seed: int, rates: Rates) -> bool:
        found = []

        def compare(world: World, target: int) -> None:
            found.append(model(world, "a", target, rules) != model(world, "a", target))

        try:
            check(seed, Counter(), rates, rules, also=compare)
        except AssertionError:
            return True
        return any(found) and rules.oldest_version

    seeds = range(11 * 10**6, 11 * 10**6 + 400)
    assert any(differs(seed, rates) for seed in seeds for rates in SETTINGS.values())


def one_span(kind: Whose, *others: str, path: bytes = b"p", paths=None, shared=()):
    calls = [
        OpenCall("mine", kind, paths, 1, 2),
        *(OpenCall(name, Whose.OWN, None, 1, 2) for name in others),
    ]
    spans = [Span({}), Span({path: ("old", "new")}, shared=shared)]
    attribution = Attribution("mine", spans, calls_by_span(calls, [1, 2]))
    return attribution.judged()[path]


def test_directories_above_what_a_tool_names_are_its_own():
    assert one_span(Whose.OWN, path=b"d", paths=(b"d/f",)).verdict is Verdict.UNDONE
    assert one_span(Whose.OWN, path=b"d2", paths=(b"d/f",)).verdict is Verdict.KEPT


def test_other_sessions_are_named():
    judgement = one_span(Whose.OWN, "s2", "s1")

    assert (judgement.verdict, judgement.sessions) == (Verdict.SHARED, ("s1", "s2"))


def test_a_repository_that_other_directories_changed_is_shared():
    assert one_span(Whose.OWN, path=b".git", shared={b".git"}).verdict is Verdict.SHARED


def test_a_span_whose_states_were_deleted_has_all_that_was_open_in_it():
    calls = [OpenCall("a", Whose.OWN, None, 2, 3), OpenCall("b", Whose.OWN, None, 4, 5)]

    perhaps = [call._replace(kind=Whose.PERHAPS) for call in calls]
    assert calls_by_span(calls, [1, 6])[1] == perhaps
    assert calls_by_span(calls, [1, 2, 4, 6]) == [[], [], perhaps[:1], perhaps[1:]]
    assert calls_by_span(calls, [1, 2, 3, 4, 5, 6]) == [[], [], calls[:1], [], calls[1:], []]


def test_a_session_that_tells_no_call_has_one_from_each_prompt_to_the_end_of_its_turn():
    marks = [
        ToldMark(1, "a", MarkPhase.TURN),
        ToldMark(3, "a", MarkPhase.END),
        ToldMark(4, "a", MarkPhase.TURN),
        ToldMark(5, "b", MarkPhase.TURN),
        ToldMark(5, "b", MarkPhase.PRE, "k"),
        ToldMark(6, "b", MarkPhase.POST, "k"),
    ]

    assert calls_in(marks, 9) == [
        OpenCall("a", Whose.PERHAPS, None, 1, 3),
        OpenCall("b", Whose.OWN, None, 5, 6),
        OpenCall("a", Whose.PERHAPS, None, 4, 9),
    ]


def test_a_session_whose_calls_were_all_gaps_has_told_its_calls():
    marks = [
        ToldMark(1, "a", MarkPhase.TURN),
        ToldMark(2, "a", MarkPhase.GAP, "k"),
        ToldMark(3, "a", MarkPhase.POST, "k"),
        ToldMark(4, "a", MarkPhase.END),
    ]

    assert calls_in(marks, 4) == [OpenCall("a", Whose.PERHAPS, None, 2, 3)]


def test_the_end_of_a_call_that_is_told_again_is_none():
    marks = [
        ToldMark(1, "a", MarkPhase.PRE, "k"),
        ToldMark(2, "a", MarkPhase.POST, "k"),
        ToldMark(3, "a", MarkPhase.POST, "k"),
        ToldMark(4, "a", MarkPhase.PRE, "k"),
        ToldMark(5, "a", MarkPhase.POST, "k"),
        ToldMark(6, "a", MarkPhase.POST, "of another beginning"),
    ]

    assert calls_in(marks, 6) == [
        OpenCall("a", Whose.OWN, None, 1, 2),
        OpenCall("a", Whose.OWN, None, 4, 5),
        OpenCall("a", Whose.PERHAPS, None, 5, 6),
    ]


def test_the_end_of_a_turn_ends_no_call_of_an_agent_that_works_on():
    marks = [
        ToldMark(1, "a", MarkPhase.PRE, "k", agent="sub"),
        ToldMark(2, "a", MarkPhase.PRE, "l"),
        ToldMark(3, "a", MarkPhase.END),
        ToldMark(4, "a", MarkPhase.POST, "k", agent="sub"),
    ]

    assert calls_in(marks, 4) == [
        OpenCall("a", Whose.PERHAPS, None, 2, 3),
        OpenCall("a", Whose.OWN, None, 1, 4),
    ]


def test_no_call_of_an_agent_goes_on_after_all_that_was_in_the_background():
    marks = [
        ToldMark(1, "a", MarkPhase.PRE, "k", agent="sub"),
        ToldMark(2, "a", MarkPhase.TURN),
        ToldMark(3, "a", MarkPhase.SETTLED, "another"),
        ToldMark(4, "a", MarkPhase.END),
        ToldMark(4, "a", MarkPhase.SETTLED),
    ]

    assert calls_in(marks, 9) == [OpenCall("a", Whose.PERHAPS, None, 1, 4)]
