"""The power fails at every point: the next commands find the old state or the new one.

Every operation that writes runs on a real disk, and is recorded. From the recording
every state is made that a power cut may leave: what was synced, and any part of what
was not; see tests/support/power.py and cuts.py. Each is put where the real one was,
with new inodes, and the next commands run on it. What an operation has reported as
done has to be there, whatever was lost.

Then each sync is left out, one at a time, to see that it is missed.

The suite tries a seeded sample; ``tox -e long`` more states for each of its seeds.
``-rA`` shows how many they are.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

import pytest

from cuts import Cut
from power import Recording
from power_cases import (
    ADOPTION_CASES,
    CASES,
    FIRST_CREATE_SYNCS,
    STORE_CASES,
    TREE_CASES,
    Case,
    Wrong,
    after,
    cuts_of,
    names_of_syncs,
    recorded,
)
from sampling import IS_EVERY_SEED, SEED, sized
from treesnap.core.ops.restore import transaction

pytestmark = pytest.mark.sampled(2)

STATES_MAX = 4
"""States of each case that the suite itself tries."""
FULL_STATES_MAX = sys.maxsize if IS_EVERY_SEED else 100
"""States of each case in full size; each seed draws others."""
FRESH_MAX = sized(60, 400)
"""States that are tried in search of one that shows that a sync is missing."""
MORE = sized(5, 20)
SAMPLED = {"create", "restore and work"}
"""Cases of which the suite itself leaves out syncs."""
STORE = b"store"


@pytest.fixture(autouse=True)
def few_files_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets what the command displaces wait, however little it is."""
    monkeypatch.setattr(transaction, "WAITING_FILES_MIN", 1)


def parameters(cases: list[Case], *, slow: bool = False) -> list[object]:
    """Returns cases as parameters."""
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.slow] if slow and case.name not in SAMPLED else [],
        )
        for case in cases
    ]


def try_cuts(scene, case: Case, *, seed: int, states_max: int, more: int = 50) -> dict[str, object]:
    """Tries every state, or a sample with the first and the last; returns numbers about it."""
    recording = recorded(scene, case)
    found = cuts_of(case, recording, seed, more=more, is_each_new=states_max > STATES_MAX)
    chosen = found
    if len(found) > states_max:
        chosen = [found[0], found[-1], *Random(seed).sample(found[1:-1], states_max - 2)]
    outcomes = Counter(after(scene, cut, case) for cut in chosen)
    assert set(outcomes) <= {case.old, case.new}
    assert chosen is not found or set(outcomes) == {case.old, case.new}  # a sample may miss one
    return {
        "seed": seed,
        "syncs": len(recording.syncs),
        "states": len(found),
        "tried": len(chosen),
        **outcomes,
    }


def report(request, numbers: object) -> None:
    """Shows numbers with ``-rA``."""
    request.node.add_report_section("call", "power cuts", str(numbers))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", parameters(CASES))
def test_a_power_cut_leaves_the_old_state_or_the_new_one(scene, case, request):
    report(request, try_cuts(scene, case, seed=0, states_max=STATES_MAX, more=MORE))


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(CASES))
def test_every_power_cut_leaves_the_old_state_or_the_new_one(scene, case, request):
    report(request, try_cuts(scene, case, seed=1 + SEED, states_max=FULL_STATES_MAX, more=MORE))


@pytest.mark.needs("own syncs")
def test_a_first_create_is_killed_at_each_of_its_syncs(scene):
    (case,) = [case for case in STORE_CASES if case.name == "first create"]

    assert len(recorded(scene, case).syncs) == FIRST_CREATE_SYNCS


def key_of(cut: Cut) -> tuple[bool, int]:
    return cut.moment.is_after_return, cut.disk.digest(STORE)


def wrong_without(
    scene, case: Case, whole: Recording, number: int, usual: set[tuple[bool, int]]
) -> Wrong | None:
    """Returns what is wrong with a state that only comes about without the n-th sync."""
    without = cuts_of(case, whole.without_sync(number), 0, more=MORE, first=number)
    fresh = [cut for cut in without if key_of(cut) not in usual]
    Random(1).shuffle(fresh)
    for cut in fresh[:FRESH_MAX]:
        try:
            after(scene, cut, case)
        except Wrong as wrong:
            return wrong
    return None


@pytest.mark.needs("own syncs")
@pytest.mark.parametrize(
    "case", parameters([*STORE_CASES, *TREE_CASES, *ADOPTION_CASES], slow=True)
)
def test_every_sync_is_missed_when_it_is_left_out(scene, case, request):
    whole = recorded(scene, case)
    usual = {key_of(cut) for cut in cuts_of(case, whole, 0, more=MORE)}
    found = {
        name: wrong_without(scene, case, whole, number, usual)
        for number, name in enumerate(names_of_syncs(whole))
        if (name in case.needed if case.needed else name not in case.needless)
    }
    report(request, "\n".join(f"{name}: {str(wrong)[:100]}" for name, wrong in found.items()))

    assert [name for name, wrong in found.items() if wrong is None] == []
    assert case.needless | case.needed <= set(names_of_syncs(whole))
