"""What ``restore`` without a REF and ``undo`` without a restore say."""

import re

import pytest


@pytest.fixture
def history(snap, root):
    """Six snapshots with labels; returns their ids, newest first."""
    ids = []
    for number in range(6):
        (root / "a").write_text(f"{number}\n" * (number + 1))
        ids.append(snap("-q", "create", "-m", f"number {number}").id)
    return ids[::-1]


def test_restore_without_a_ref_lists_the_newest_snapshots(snap, root, history):
    result = snap("restore")

    heading, *table, error, hint = result.err.splitlines()
    assert (result.code, result.out) == (2, "")
    assert heading == f"The newest 5 of 6 snapshots of {root}:"
    assert [re.fullmatch(r"  (\w{12})  \S+ \S+  number \d", line)[1] for line in table] == [
        identity[:12] for identity in history[:5]
    ]
    assert error == "snap: Missing argument 'REF'"
    assert hint == f"hint: 'snap restore latest' restores {history[0][:12]} (number 5)"


def test_restore_without_a_ref_changes_nothing(snap, root, history):
    (root / "a").write_text("edited")

    assert snap("restore", "--dry-run").code == 2
    assert snap("restore", "--force").code == 2

    assert (root / "a").read_text() == "edited"
    assert len(snap("list").out.splitlines()) == 6


def test_safety_snapshots_are_left_out(snap, root, history):
    snap("restore", history[3])

    assert "before restore" not in snap("restore").err


def test_snapshot_of_paths_is_named_by_its_id(snap, root, history):
    (root / "a").write_text("edited")
    partial = snap("-q", "create", "a").id

    assert f"'snap restore {partial[:12]}' restores" in snap("restore").err


def test_advice_repeats_the_root_and_the_store(run_snap, root, store, tmp_path, history):
    result = run_snap("-C", root, "--store", store, "restore", cwd=tmp_path)

    assert f"'snap -C {root} --store {store} restore latest'" in result.err


def test_restore_without_a_ref_and_without_a_snapshot_says_how_to_begin(unsaid_snap):
    result = unsaid_snap("restore")

    assert result.code == 2
    assert "No snapshots of " in result.err
    assert "hint: 'snap create' takes the first snapshot" in result.err


def test_restore_without_a_ref_is_a_usage_error_as_json_too(snap, history):
    result = snap("--json", "restore")

    assert (result.code, result.json["code"], result.err) == (2, "usage", "")
    assert "snap restore latest" in result.json["hint"]


def test_undo_without_a_restore_says_what_changed_since_and_what_goes_back(snap, root, history):
    (root / "a").unlink()
    for name in "bcd":
        (root / name).touch()

    result = snap("undo")

    said, error, hint = result.err.splitlines()
    newest = history[0][:12]
    assert result.code == 5
    assert re.fullmatch(rf"Changed since {newest} \(number 5\), \S+ \S+: a, b, c and 1 more", said)
    assert error == "snap: There is nothing to undo"
    assert hint == f"hint: 'snap restore latest' goes back to {newest}"
    assert snap("undo", "--json").json["code"] == "nothing-to-undo"


def test_undo_without_a_restore_and_without_a_change_says_so(snap, history):
    result = snap("undo")

    assert result.code == 5
    assert f"hint: nothing changed since {history[0][:12]} (number 5)" in result.err


def test_undo_without_a_store_is_what_it_was(unsaid_snap):
    result = unsaid_snap("undo")

    assert result.code == 5
    assert "hint: 'snap restore REF' restores any snapshot of 'snap list'" in result.err


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("restore a", "restore latest a"),
        ("revert a", "revert latest a"),
        ("ls a", "ls latest a"),
        ("du a", "du latest a"),
        ("grep word a", "grep word -- a"),
        ("archive a -o a.tar", "archive -o a.tar latest a"),
    ],
)
def test_path_in_the_place_of_a_ref_is_advice(snap, root, history, words, meant):
    result = snap(*words.split())

    assert result.code == 5
    assert f"hint: did you mean 'snap {meant}'?" in result.err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("archive latest -o nowhere/a.tar", "make the directory first"),
        ("import nosuch.tar", "name an archive, a directory, or '-' "),
        ("adopt ../nosuch", "name the directory of a fork"),
    ],
)
def test_what_is_missing_outside_of_snapshots_has_advice_of_its_own(snap, history, words, advice):
    result = snap(*words.split())

    assert result.code == 5
    assert f"hint: {advice}" in result.err


def test_ref_that_is_neither_has_the_usual_advice(snap, history):
    assert "hint: 'snap list' shows the snapshots" in snap("restore", "nosuch").err


def test_only_paths_were_captured(snap, root):
    """'latest' is of the whole root: what is there instead is said, and how it is named."""
    (root / "data.csv").write_text("1\n")
    snap("create", "data.csv")

    missing = snap("restore")
    diff = snap("diff")

    assert missing.err.splitlines()[-1].endswith("(only data.csv)")
    assert diff.code == 5
    assert diff.err.splitlines()[-1] == (
        "hint: 'snap create' takes one; REF 'newest' names the one of other paths"
    )
