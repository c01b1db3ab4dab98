"""What work a snapshot belongs to: given, kept, shown, and what is found by it."""

from __future__ import annotations

import pytest

import treesnap
from treesnap import CheckpointType, InvalidArgument, Purpose

WORDS = {
    "step_name": "add validation",
    "phase": "implement",
    "type": "safe_state",
    "reason": "before the migration",
    "source_tool": "editor",
}
OPTIONS = [part for key, value in WORDS.items() for part in ("--" + key.replace("_", "-"), value)]


def test_is_kept_and_shown(snap):
    made = snap("create", *OPTIONS, "--counter", "tests_passing=42", "--counter", "debt=-1").id

    shown = snap("show", made, "--json").json
    assert {key: shown[key] for key in WORDS} == WORDS
    assert shown["counters"] == {"tests_passing": 42, "debt": -1}
    assert (shown["rollback_count"], shown["rollback_used"]) == (0, False)
    text = snap("show", made).out
    assert all(value in text for value in [*WORDS.values(), "tests_passing=42"])


def test_finds_snapshots(snap):
    implement = snap("create", "--phase", "implement", "--type", "manual").id
    validate = snap("create", "--phase", "validate", "--type", "safe_state").id
    safe = snap("create", "--phase", "implement", "--type", "safe_state").id

    def found(*words: str) -> list[str]:
        return [item["id"] for item in snap("list", "--json", *words).json["snapshots"]]

    assert found("--phase", "implement") == [safe, implement]
    assert found("--type", "safe_state") == [safe, validate]
    assert found("--type", "safe_state", "--phase", "validate") == [validate]
    assert found("--phase", "none") == []


@pytest.mark.parametrize(
    "words",
    [("--type", "nice"), ("--counter", "a"), ("--counter", "=1"), ("--counter", "a=1.5")],
)
def test_that_makes_no_sense_is_a_usage_error(snap, store, words):
    assert snap("create", *words).code == 2
    assert not store.exists()


def test_a_counter_that_does_not_fit_is_refused(snap, store):
    assert snap("create", "--counter", f"a={1 << 63}").code == 2
    assert not store.exists()


def test_texts_that_are_no_text_are_refused(root, store):
    handle = treesnap.open(root, store)

    for purpose in (Purpose(reason="\udcff"), Purpose(counters={"\udcff": 1})):
        with pytest.raises(InvalidArgument):
            handle.create(purpose=purpose)
    assert not store.exists()


def test_rollbacks_are_counted_on_demand_and_survive(root, store):
    handle = treesnap.open(root, store)
    made = handle.create(purpose=Purpose(type=CheckpointType.SAFE_STATE)).id
    for number in range(2):
        (root / "file").write_text(str(number))
        handle.restore(made, counted=True)
    (root / "file").write_text("not counted")
    handle.restore(made)

    state = treesnap.open(root, store).resolve(made).state
    assert (state.rollback_count, state.rollback_used) == (2, True)
