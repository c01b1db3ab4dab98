"""What work a snapshot belongs to: given, kept, shown, and what is found by it."""

from __future__ import annotations

import pytest

import treesnap
from treesnap import CheckpointType, InvalidArgument
from treesnap.core.model.reserved_tags import rollback_count

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
    assert all(text.count(value) == 1 for value in [*WORDS.values(), "tests_passing=42"])


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


def test_the_latest_of_a_type_is_a_reference(snap, root):
    (root / "a").write_text("safe")
    older = snap("create", "--type", "safe_state").id
    (root / "a").write_text("safe again")
    newer = snap("create", "--type", "safe_state", "--session", "one").id
    (root / "a").write_text("half done")
    risky = snap("create", "--type", "pre_risky_operation").id
    part = snap("create", "a", "--type", "safe_state").id

    def found(ref: str) -> str:
        return snap("show", ref, "--json").json["id"]

    assert found("latest:safe_state") == newer
    assert found("latest:safe_state~1") == older
    assert found("latest:safe_state@one") == newer
    assert found("latest:pre_risky_operation") == risky
    assert found("newest:safe_state") == part
    assert snap("restore", "latest:safe_state").code == 0
    assert (root / "a").read_text() == "safe again"


@pytest.mark.needs("exit codes")
def test_the_latest_of_a_type_may_be_of_a_plan(snap, root):
    (root / "plan.yaml").write_text("name: p\nsteps:\n- {name: one, run: 'touch b'}\n")
    assert snap("plan", "run", "plan.yaml").code == 0

    shown = snap("show", "latest:pre_risky_operation", "--json").json
    assert (shown["type"], shown["source_tool"]) == ("pre_risky_operation", "snap plan")


@pytest.mark.parametrize("ref", ["latest:manual", "latest:nice", "latest:", "latest:safe_state~x"])
def test_the_latest_of_a_type_that_no_snapshot_has_is_not_found(snap, ref):
    snap("create", "--type", "safe_state")

    assert snap("show", ref).code == 5


def test_the_latest_of_a_type_is_no_name(snap, store):
    assert snap("create", "--name", "latest:safe_state").code == 2
    assert not store.exists()


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

    for tags in ({"reason": "\udcff"}, {"counter.\udcff": "1"}):
        with pytest.raises(InvalidArgument):
            handle.create(tags=tags)
    assert not store.exists()


def test_rollbacks_to_a_checkpoint_are_counted_wherever_they_are_made(snap, root, store):
    (root / "file").write_text("safe")
    made = snap("create", "--type", "safe_state").id
    snap("restore", made)
    snap("restore", made, "file")  # one path is no roll-back
    snap("restore", made, "--dry-run")
    snap("restore", made, "--to", "../copy")
    treesnap.open(root, store).restore(made, reason="the tests fail")

    shown = snap("show", made, "--json").json
    assert (shown["rollback_count"], shown["rollback_used"]) == (2, True)
    assert shown["rollback_reason"] == "the tests fail"
    assert "the tests fail" in snap("show", made).out
    snap("restore", made, "--reason", "tried again")
    assert snap("show", made, "--json").json["rollback_reason"] == "tried again"


def test_a_restore_of_another_snapshot_counts_if_it_has_a_reason(root, store):
    handle = treesnap.open(root, store)
    made = handle.create().id
    handle.restore(made)
    assert rollback_count(handle.resolve(made)) == 0

    handle.restore(made, reason="wanted it so")
    assert rollback_count(treesnap.open(root, store).resolve(made)) == 1


@pytest.mark.parametrize("reason", ["\udcff", "x" * 1025])
def test_a_reason_that_cannot_be_noted_is_refused_before_anything_changes(root, store, reason):
    handle = treesnap.open(root, store)
    made = handle.create().id
    (root / "new").write_text("stays")

    with pytest.raises(InvalidArgument, match="reason"):
        handle.restore(made, reason=reason)
    assert (root / "new").read_text() == "stays"


def test_a_restore_of_a_checkpoint_of_a_session_counts(snap):
    made = snap(
        "session", "create", "--session-id", "0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01",
        "--description", "x", "--phase", "plan", "--json",
    ).json  # fmt: skip
    snap("restore", made["checkpoint_id"])

    listed = snap("show", made["checkpoint_id"], "--json").json
    assert (listed["rollback_count"], listed["rollback_reason"]) == (1, "restore")


@pytest.mark.parametrize("kind", [CheckpointType.SAFE_STATE, "safe_state"])
def test_a_keyword_says_the_same_as_an_option(snap, root, store, kind):
    made = treesnap.open(root, store).create(phase="plan", type=kind, tags={"mine": "1"})

    assert made.snapshot.tags == {"phase": "plan", "type": "safe_state", "mine": "1"}
    assert snap("show", "latest:safe_state", "--json").json["id"] == made.id


@pytest.mark.parametrize(
    "words",
    [
        {"type": "nice"},
        {"type": ""},
        {"type": 1},
        {"phase": 1},
        {"phase": "\udcff"},
        {"type": "manual", "tags": {"type": "manual"}},
        {"phase": "plan", "tags": {"phase": "implement"}},
    ],
)
def test_a_keyword_that_makes_no_sense_is_refused(root, store, words):
    with pytest.raises(InvalidArgument, match=r"type|phase|tag"):
        treesnap.open(root, store).create(**words)

    assert not store.exists()


def test_a_tag_says_the_same_as_its_option(snap, root, store):
    made = treesnap.open(root, store).create(tags={"phase": "plan", "counter.debt": "-1"}).id

    (listed,) = snap("list", "--phase", "plan", "--json").json["snapshots"]
    assert (listed["id"], listed["phase"], listed["counters"]) == (made, "plan", {"debt": -1})
    assert listed["tags"] == {"phase": "plan", "counter.debt": "-1"}


@pytest.mark.parametrize("key", ["treesnap.retired", "treesnap.source_tool", "treesnap."])
def test_a_reserved_tag_is_refused_before_anything_is_made(snap, root, store, key):
    with pytest.raises(InvalidArgument, match="reserved"):
        treesnap.open(root, store).create(tags={key: "maker"})

    assert snap("create", "--tag", f"{key}=maker").code == 2
    assert not store.exists()


def test_no_tag_of_a_caller_counts_as_a_fact_that_a_system_notes(snap):
    words = ["rollback_count=7", "retired=yes", "counter.a=many", "files=[", "source_tool=maker"]
    made = snap(
        "create", "--name", "mine", *[part for word in words for part in ("--tag", word)]
    ).id

    shown = snap("show", made, "--json").json
    assert (shown["rollback_count"], shown["rollback_used"], shown["retired"]) == (0, False, False)
    assert (shown["counters"], shown["source_tool"]) == ({}, "maker")


@pytest.mark.parametrize(
    "words",
    [
        ("--tag", "phase=one", "--phase", "two"),
        ("--counter", "debt=1", "--tag", "counter.debt=2"),
    ],
)
def test_what_a_tag_and_an_option_both_set_is_refused(snap, words):
    result = snap("create", *words)

    assert result.code == 2
    assert "--tag and another option both set" in result.err
    assert snap("list").code == 5  # no store was made either


def test_a_tag_stays_in_sight_beside_a_fact_of_its_name(snap, root):
    (root / "a").write_text("one")
    words = ("--session-id", "0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01", "--phase", "plan")
    snap("session", "create", "--description", "x", *words)
    snap("tag", "latest", "phase=mine", "counter.debt=many", "counter.tests=007", "type=mine")

    lines = dict(line.split(":", 1) for line in snap("show", "latest").out.splitlines())

    assert lines["phase"].strip() == "plan"
    tags = lines["tags"].strip().split(", ")
    assert tags[-4:] == ["counter.debt=many", "counter.tests=007", "phase=mine", "type=mine"]
